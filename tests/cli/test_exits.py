"""Ends of commands: an exit status and one line, whatever the user or the machine does."""

from __future__ import annotations

import errno
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import wireyard
from tests.cli.results import Run, notes_of, one_line
from tests.make import packet
from wireyard.cli import exits

WIREYARD = [sys.executable, "-m", "wireyard"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is full")


def call(*arguments: object, **named: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own."""
    words = [*WIREYARD, *map(str, arguments)]
    return subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False, **named)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Return a stream that no pipe's buffer takes whole."""
    path = tmp_path / "big.jmq"
    path.write_bytes(packet(body=bytes(1000)) * 1000)
    return path


NAME_IT = (
    "--format NAME, in Python format=NAME, says what it is: jmq, gpacket, mqtt, rmp or a dialect"
    " such as mqtt/5.0"
)

# --- what cannot be read --------------------------------------------------------------------


def test_an_empty_file_says_what_is_needed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    result = run("decode", path)
    wanted = f"{path}: is empty; {NAME_IT}"
    assert (result.exit_code, result.stdout, one_line(result)) == (3, "", wanted)
    result = run("decode", path, "--format", "jmq")
    assert (result.exit_code, result.output) == (0, "")
    result = run("inspect", path, "--format", "jmq")
    assert (result.exit_code, one_line(result)) == (3, f"{path}: is empty")


def test_a_file_of_no_format_shows_how_it_begins(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><html></html>")
    result = run("decode", path)
    assert result.exit_code == 1
    shown = "(3c 21 64 6f)"
    assert one_line(result) == f"{path}: begins like no format {shown}; {NAME_IT}"


def test_a_version_nobody_knows_is_a_row(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "next.jmq"
    path.write_bytes(packet(version=302))
    result = run("decode", path)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "unsupported_version"
    assert "is 302, not one of 103, 200, 301" in one_line(result)


def test_a_size_that_lies_loses_no_byte(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "lies.jmq"
    path.write_bytes(packet(size=71) + packet(size=2**30) + packet() + packet(size=10_000))
    result = run("decode", path, "--format", "jmq", "--columns", "offset,length,status")
    assert [tuple(json.loads(line).values()) for line in result.stdout.splitlines()] == [
        (0, 144, "garbage"),
        (144, 72, "ok"),
        (216, 72, "tail"),
    ]
    assert "'size' is 71" in one_line(result) and "needs 10000 bytes" in one_line(result)


@pytest.mark.parametrize("command", ["decode", "inspect", "encode", "check-splits"])
def test_missing_paths_and_folders(command: str, run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    result = run(command, missing, "--format", "jmq")
    assert (result.exit_code, one_line(result)) == (3, f"{missing}: there is no such file")
    result = run(command, tmp_path, "--format", "jmq")
    read = "is a folder, and no file store of Open MQ; 'wireyard run' reads all in a folder"
    wanted = "is a directory, not a file" if command == "encode" else read
    assert (result.exit_code, one_line(result)) == (3, f"{tmp_path}: {wanted}")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nowhere", "nowhere: there is no such file"),
        ("/", "/: is a directory, not a file"),
        ("/dev/zero", "/dev/zero: has more than 268,435,455 bytes, the most of a packet"),
    ],
)
def test_a_payload_that_cannot_be_read(name: str, line: str, run: Run) -> None:
    result = run("pub", "-t", "a", "-f", name)
    assert (result.exit_code, one_line(result)) == (exits.CANNOT_READ, line)


def test_an_unreadable_file(run: Run, stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *args: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # root may read anything
    result = run("decode", stream)
    wanted = f"{stream}: may not be read (permission denied)"
    assert (result.exit_code, one_line(result)) == (3, wanted)


def test_a_path_cannot_move_the_cursor(run: Run, tmp_path: Path) -> None:
    result = run("decode", tmp_path / "a\x1b[2Jb\nc")
    assert "\x1b" not in result.stderr
    assert one_line(result).endswith("a\\x1b[2Jb c: there is no such file")


@pytest.mark.parametrize("out", ["table", "jsonl", "arrow", "parquet"])
def test_a_name_that_is_no_text(out: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"gr\xfcn.jmq")
    path.write_bytes(packet() + packet()[:-1])
    result = run("decode", path, path, "--out", out, "-w", tmp_path / "out")
    assert result.exit_code == 1
    assert all("gr\\udcfcn.jmq: cut short" in line for line in notes_of(result.stderr).splitlines())
    assert b"gr\\udcfcn" in (tmp_path / "out").read_bytes()


@pytest.mark.parametrize(
    "words",
    [["why", "{}"], ["sql", "{}", "SELECT 1 FROM streams"], ["run", "{}", "--lake", "{}.lake"]],
)
def test_tables_of_a_file_whose_name_is_no_text(words: list[str], run: Run, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"gr\xfcn.jmq")
    path.write_bytes(packet())
    result = run(*(word.format(path) for word in words))
    wanted = f"{tmp_path}/gr\\udcfcn.jmq: a file name that is not UTF-8; rename the file"
    assert (result.exit_code, one_line(result)) == (3, wanted)


def test_a_lake_whose_name_is_no_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jmq").write_bytes(packet())
    result = run("run", tmp_path / "a.jmq", "--lake", tmp_path / os.fsdecode(b"gr\xfcn"))
    wanted = f"{tmp_path}/gr\\udcfcn: a file name that is not UTF-8; rename the file"
    assert (result.exit_code, one_line(result)) == (3, wanted)


@pytest.mark.parametrize(
    "words",
    [
        ["sql", "{stream}", "SELECT '\udcff'"],
        ["trace", "{stream}", "\udcff"],
        ["decode", "{stream}", "--where", "destination == '\udcff'"],
    ],
)
def test_words_that_are_no_text(words: list[str], run: Run, stream: Path) -> None:
    result = run(*(word.replace("{stream}", str(stream)) for word in words))
    assert (result.exit_code, result.stdout) == (exits.USAGE, "")
    assert one_line(result).endswith("is not UTF-8")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "there is not enough memory for this, or too low a limit for it"),
        (
            RuntimeError("can't start new thread"),
            "there is not enough memory for this, or too low a limit for it",
        ),
        (OSError("libsomething.so: cannot map"), "libsomething.so: cannot map"),
    ],
)
def test_no_memory_is_no_full_disk(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits.report_error(error) == exits.CANNOT_READ
    assert capsys.readouterr().err == f"wireyard: {line}\n"


# --- what was typed wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["decode"], "decode: name a FILE, - for standard input, or -i INTERFACE"),
        (["decode", "-", "-"], "decode: standard input can be read once only"),
        (["decode", "{}", "--nope"], "decode: No such option"),
        (["decode", "{}", "--limit", "x"], "decode: Invalid value for '-c' / '--limit'"),
        (["decode", "{}", "--format", "nope"], "unknown format 'nope'; there are: jmq"),
        (["decode", "{}", "--columns", "nope"], "jmq has no column 'nope'; it has source,"),
        (["decode", "{}", "--columns", "body,body"], "a column was asked for twice"),
        (["decode", "{}", "--mode", "nope"], "unknown mode 'nope'; there are: permissive,"),
        (
            ["decode", "{}", "--where", "size"],
            "condition 'size', character 1: COLUMN",
        ),
        (
            ["decode", "{}", "--where", "size == big"],
            "condition 'size == big', character 1: size",
        ),
        (["decode", "{}", "--where", "size =="], "condition 'size ==', character 8: a value is"),
        (["decode", "{}", "--since", "noon"], "--since noon: is no time, such as 2026-11-21T20:"),
        (["decode", "{}", "-t", "a/#/b"], "-t a/#/b: # stands for all further levels"),
        (["decode", "{}", "--where", "body == x"], "condition 'body == x', character 1: 'body'"),
        (["inspect"], "inspect: Missing argument 'FILE'"),
        (["trace", "{}"], "trace: name an INPUT or a LAKE, and then a MESSAGE, TOPIC or CLIENT"),
        (["shadow", "{}"], "shadow: name two recordings, A and B"),
        (["decode", "{}", "--where", "size = 1"], "condition 'size = 1', character 6: = is no"),
        (
            ["decode", "{}", "-o", "tls.keylog_file:keys"],
            "--keylog keys: there is no such key log",
        ),
        (["nope"], "No such command 'nope'; there are decode, inspect,"),
        (["decod", "{}"], "No such command 'decod'; there is 'decode'"),
        (["help", "decod"], "No such command 'decod'; there is 'decode'"),
        (["completion", "tcsh"], "completion: Invalid value"),
        (["formats", "nope"], "unknown format 'nope'; there are: jmq"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], line: str, run: Run, stream: Path) -> None:
    result = run(*(word.format(stream) for word in words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert one_line(result).startswith(line)


def test_bytes_do_not_go_to_a_terminal(stream: Path) -> None:
    for words in (["decode", stream, "--out", "parquet"], ["encode"]):
        status, shown, said = on_terminal(*words)
        assert (status, shown) == (2, "")
        assert said == "wireyard: these bytes are not for a terminal; name a file with -w FILE\n"


# --- what cannot be written -----------------------------------------------------------------


@needs_full
@pytest.mark.parametrize("out", ["table", "jsonl", "arrow", "parquet"])
def test_a_full_disk(out: str, stream: Path) -> None:
    done = call("decode", stream, "--out", out, "-w", FULL)
    assert (done.returncode, done.stderr) == (
        4,
        f"wireyard: {FULL}: cannot be written (No space left on device)\n",
    )
    assert FULL.is_char_device()  # no file took its place
    with FULL.open("wb") as full:
        done = call("decode", stream, "--out", out, stdout=full)
    assert (done.returncode, done.stderr) == (
        4,
        "wireyard: standard output: cannot be written (No space left on device)\n",
    )


@needs_full
@pytest.mark.parametrize("words", [["--help"], ["formats"], ["inspect", "{}"], ["encode", "{}"]])
def test_a_full_disk_of_any_command(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(packet() if "inspect" in words else b'{"format":"jmq","packet_type":54}')
    with FULL.open("wb") as full:
        done = call(*(word.format(path) for word in words), stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)


@pytest.mark.parametrize("out", ["table", "jsonl", "arrow", "parquet"])
def test_a_file_appears_whole_or_not_at_all(out: str, big: Path, tmp_path: Path) -> None:
    target = tmp_path / "folder" / "out"
    target.parent.mkdir()
    target.write_text("what was there before")
    done = call(
        *("decode", big, "--out", out, "-w", target),
        # Python would leave the first bytes of compiled modules, and fail to read them later.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert (done.returncode, done.stderr) == (
        4,
        f"wireyard: {target}: cannot be written (File too large)\n",
    )
    assert [path.name for path in target.parent.iterdir()] == ["out"]
    assert target.read_text() == "what was there before"


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "Is a directory"), ("no/such/folder", "No such file or directory")],
)
def test_targets_that_are_no_files(name: str, why: str, run: Run, stream: Path) -> None:
    target = stream.parent / name
    result = run("decode", stream, "-w", target)
    assert (result.exit_code, one_line(result)) == (4, f"{target}: cannot be written ({why})")


def test_a_source_that_fails_is_no_failed_target(run: Run, stream: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    result = run("decode", stream, tmp_path / "missing", "-w", target)
    assert (result.exit_code, target.exists()) == (3, False)
    assert one_line(result).endswith("missing: there is no such file")


# --- pipes, signals, terminals --------------------------------------------------------------


@pytest.mark.parametrize("out", ["table", "jsonl", "arrow", "parquet"])
def test_a_closed_pipe_is_quiet(out: str, big: Path) -> None:
    words = [*WIREYARD, "decode", str(big), "--out", out]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(4 if out == "parquet" else 100)
        process.stdout.close()
        assert (process.wait(), notes_of(process.stderr.read().decode())) == (0, "")


def test_rows_come_out_of_a_pipe_as_from_a_file(big: Path) -> None:
    words = ("--columns", "offset,body_size", "--out", "jsonl")
    with big.open("rb") as file:
        piped = call("decode", "-", *words, stdin=file, stdout=subprocess.PIPE)
    assert piped.stdout == call("decode", big, *words, stdout=subprocess.PIPE).stdout
    assert piped.stdout.count("\n") == 1000


@pytest.mark.parametrize(
    ("closed", "status", "line"),
    [
        ("<&-", exits.CANNOT_READ, "wireyard: -: Bad file descriptor\n"),
        (
            ">&-",
            exits.CANNOT_WRITE,
            "wireyard: standard output: cannot be written (Bad file descriptor)\n",
        ),
        ("2>&-", exits.DONE, ""),
        ("<&- >&- 2>&-", exits.CANNOT_READ, ""),
    ],
)
def test_closed_standard_streams(closed: str, status: int, line: str, stream: Path) -> None:
    """No file that is opened later gets their numbers, and what they are for fails or is lost."""
    command = f'{sys.executable} -m wireyard decode - < "{stream}" {closed}'
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (status, line)


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("pub -t a -f - <&-", exits.CANNOT_READ, "-: Bad file descriptor"),
        ("pub -p {} -t a -l <&-", exits.CANNOT_READ, "-: Bad file descriptor"),
        (
            "sub -p {} -t a -C 1 >&-",
            exits.CANNOT_WRITE,
            "standard output: cannot be written (Bad file descriptor)",
        ),
        ("sub -p {} -t a -C 1 <&-", exits.DONE, ""),
        ("sub -p {} -t a -C 1 2>&-", exits.DONE, ""),
    ],
)
def test_closed_standard_streams_of_clients(words: str, status: int, line: str) -> None:
    with wireyard.broker() as broker:
        publish = ["-p", broker.port, "-t", "a", "-m", "x", "-r"]
        assert call("pub", *publish).returncode == exits.DONE
        command = f"{sys.executable} -m wireyard {words.format(broker.port)}"
        found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (status, f"wireyard: {line}\n" if line else "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_fifo_that_nobody_writes_to_can_be_left(number: int, tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    words = [*WIREYARD, "decode", str(path), "--format", "jmq", "--out", "jsonl"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        while str(path) not in str([*map(os.path.realpath, _files_of(process.pid))]):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    waits = f"wireyard: {path}: is a pipe, so this waits for the program at its other end\n"
    assert (process.returncode, said) == (exits.DONE, waits)


@pytest.mark.parametrize(
    "words",
    [
        ["decode", "{}", "--keylog", "fifo", "--out", "jsonl"],
        ["why", "fifo"],
        ["encode", "fifo"],
        ["pub", "-t", "a", "-f", "fifo"],
        ["broker", "--port", "0", "--users", "fifo"],
        ["decode", "{}", "-w", "fifo", "--out", "jsonl"],
    ],
)
def test_a_fifo_without_its_other_end_is_named(
    words: list[str], stream: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    command = [*WIREYARD, *(word.format(stream) for word in words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == "wireyard: fifo: is a pipe, so this waits for the program at its other end\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert process.stderr.read() == "wireyard: ended by SIGTERM\n"


@pytest.mark.parametrize(
    "words",
    [
        ["decode", "{}"],
        ["why", "{}"],
        ["sql", "{}", "SELECT 1"],
        ["replay", "{}", "--to", "localhost"],
        ["shadow", "{}", "{}"],
        ["conform", "localhost"],
        ["report", "{}", "-o", "page.html"],
        ["encode", "{}"],
        ["doctor"],
    ],
)
@pytest.mark.parametrize("most", [200_000_000, 600_000_000])
def test_too_little_memory_is_one_line(words: list[str], most: int, stream: Path) -> None:
    """Libraries end the process where memory is refused to them: with a signal, or a traceback."""
    done = call(
        *(word.format(stream) for word in words),
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )
    line = "wireyard: there is not enough memory for this, or too low a limit for it\n"
    assert (done.returncode, done.stderr) == (exits.CANNOT_READ, line)


def test_errors_that_follow_from_refused_memory(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libarrow.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ):
        assert exits.report_error(error) == exits.CANNOT_READ
        assert "not enough memory" in capsys.readouterr().err


def _files_of(number: int) -> list[Path]:
    return [*Path(f"/proc/{number}/fd").iterdir()]


# Where Ctrl-C comes while Python runs a string, as it does to make a dataclass, it ends itself by
# the signal after all was tidied up; shells say 130 to that too.
ENDS = {
    signal.SIGINT: ({130, -signal.SIGINT}, ""),
    signal.SIGTERM: ({143}, "wireyard: ended by SIGTERM"),
}


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize(
    ("words", "begun"),
    [
        (["decode", *["{}"] * 1000, "--format", "jmq", "-w", "out.jsonl"], ".out.jsonl.*.part"),
        (["run", "{}", "--lake", "lake", "--engine", "process"], "lake/_wireyard/data/*/*/*"),
    ],
)
def test_a_signal_leaves_nothing_behind(
    words: list[str], begun: str, number: signal.Signals, tmp_path: Path, big: Path
) -> None:
    command = [*WIREYARD, *(word.format(big) for word in words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        while not list(tmp_path.glob(begun)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    statuses, line = ENDS[number]
    assert process.returncode in statuses
    assert notes_of(said).strip() == line
    assert not [*tmp_path.glob(begun), *tmp_path.glob("*out.jsonl*")]


def test_an_interrupt_that_python_wraps(capsys: pytest.CaptureFixture[str]) -> None:
    """Python 3.11 does so while it makes a class: an interrupted import had a traceback."""
    with pytest.raises(RuntimeError) as raised:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("Error calling __set_name__") from interrupt
    assert exits.report_error(raised.value) == 130
    assert capsys.readouterr() == ("", "")


def on_terminal(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Run a command line with standard output on a terminal; return status, output, notes."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    words = [*WIREYARD, *map(str, arguments)]
    with subprocess.Popen(words, stdout=theirs, stderr=subprocess.PIPE, env=env) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other side is closed
                break
        os.close(ours)
        assert process.stderr is not None
        said = process.stderr.read().decode()
    return process.returncode, shown.decode().replace("\r\n", "\n"), said


def test_a_terminal_gets_a_list_or_a_table_in_colour(stream: Path, run: Run) -> None:
    status, shown, said = on_terminal("decode", stream)
    assert (status, said) == (0, "")
    assert shown.splitlines()[0].split()[1:] == ["offset", "packet", "topic", "payload\x1b[0m"]
    assert "\x1b[36m" in shown
    status, shown, said = on_terminal("decode", stream, "--columns", "packet_type_name,size")
    assert "packet_type_name" in shown.splitlines()[0]
    status, shown, said = on_terminal("decode", stream, NO_COLOR="1")
    assert "\x1b[" not in shown
    assert len(shown.splitlines()) == len(wireyard.read(str(stream))) + 1
    status, shown, said = on_terminal("inspect", stream)
    assert "\x1b[" in shown and "packet_type" in shown


def test_progress_is_shown_where_a_person_looks(big: Path, tmp_path: Path) -> None:
    """Standard error on a terminal, results elsewhere."""
    ours, theirs = pty.openpty()
    code = (
        "import sys, wireyard.cli.progress as progress\n"
        "progress._EVERY_S = progress._PATIENCE_S = 0\n"
        "from wireyard.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    words = [sys.executable, "-c", code, "decode", str(big), "-w", str(tmp_path / "out")]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(words, stderr=theirs, stdout=subprocess.DEVNULL, env=env) as process:
        os.close(theirs)
        shown = ""
        while "MB" not in shown and process.poll() is None:
            shown += os.read(ours, 1 << 16).decode()
        assert process.wait() == 0
        os.close(ours)
    assert "reading /" in shown and "big.jmq: 1.1 MB of 1.1 MB, " in shown
