"""The commands as a whole: their help, what they load, completion, documents."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from tests.captures.make import both_ways, packets, pcap
from tests.cli.results import Run, one_line
from wireyard.cli import COMMANDS, main
from wireyard.formats import get_format, labels, names
from wireyard.formats.rows import pick_columns

HEAVY = ("pyspark", "numba")
POOL = "ARROW_DEFAULT_MEMORY_POOL"


def loaded_by(*lines: Sequence[str]) -> set[str]:
    """Return which modules a process has loaded that runs command lines one after the other."""
    code = (
        "import json, sys\n"
        "from wireyard.cli import main\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    try: main(line)\n"
        "    except SystemExit as end: assert not end.code, (line, end.code)\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_loads_next_to_nothing() -> None:
    loaded = loaded_by(["--help"])
    assert not loaded.intersection({*HEAVY, "pyarrow", "numpy", "rich"})
    assert not {module for module in loaded if module.startswith("wireyard.cli.")} - {
        "wireyard.cli.exits"
    }


def test_help_of_a_command_loads_no_engine() -> None:
    """One after the other in one process: the first that loads one is named."""
    code = (
        "import sys\n"
        "from wireyard.cli import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    try: main([name, '--help'])\n"
        "    except SystemExit as end: assert not end.code, (name, end.code)\n"
        "    print(name, *{*sys.argv[1:]} & {*sys.modules}, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.split("\n") == [*COMMANDS, ""]


def test_a_small_stream_is_decoded_without_a_compiler(stream: Path) -> None:
    lines = [
        ("decode", str(stream), "--out", out, "-w", str(stream.with_suffix(f".{out}")))
        for out in ("jsonl", "table", "arrow", "parquet")
    ]
    assert not loaded_by(*lines).intersection(HEAVY)


@pytest.mark.parametrize("connections", [1, 100])
def test_a_capture_of_mqtt_loads_no_other_room(connections: int, tmp_path: Path) -> None:
    """Loading modules that no byte of it needs would take longer than reading the capture."""
    client = bytes.fromhex("100d00044d51545404020000000161") + bytes.fromhex("3003000161")
    server = bytes.fromhex("20020000")
    frames = [
        frame
        for number in range(connections)
        for frame in both_ways(client, server, (40000 + number, 1883))
    ]
    capture = tmp_path / "mqtt.pcap"
    capture.write_bytes(pcap(packets(frames)))
    line = ("decode", str(capture), "--columns", "frame,topic", "--format", "mqtt")
    files = [tmp_path / f"rows.{out}" for out in ("jsonl", "parquet")]
    loaded = loaded_by(
        *((*line, "--out", file.suffix.removeprefix("."), "-w", str(file)) for file in files)
    )
    captures = (
        "carriers.tls",
        "carriers.tls_handshake",
        "carriers.websocket",
        "live.capture",
        "live.following",
        "stores",
    )
    assert "pandas" not in loaded
    assert not loaded.intersection({f"wireyard.captures.{name}" for name in captures})
    if connections == 1:  # columns of several streams are gathered by it
        assert "pyarrow.compute" not in loaded
    else:  # whose first bytes are compared with no other format
        assert not {f"wireyard.formats.{name}" for name in ("jmq", "gpacket", "rmp")} & loaded
    assert all(file.stat().st_size for file in files)


def test_arrow_and_numpy_share_the_memory_of_a_command(stream: Path) -> None:
    code = (
        "import sys\n"
        "from wireyard.cli import main\n"
        "try: main(['decode', sys.argv[1], '--out', 'jsonl'])\n"
        "except SystemExit as end: assert not end.code\n"
        "import pyarrow\n"
        "print(pyarrow.default_memory_pool().backend_name, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, str(stream)]
    environ = {name: value for name, value in os.environ.items() if name != POOL}
    for asked, taken in ({}, "system"), ({POOL: "mimalloc"}, "mimalloc"):
        done = subprocess.run(
            command, env=environ | asked, capture_output=True, text=True, check=True
        )
        assert done.stderr.split() == [taken]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches(name: str, run: Run) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.help is not None
    assert command.help.splitlines()[0] == COMMANDS[name]
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert all(option.help for option in options)
    assert f"wireyard {name}" in run(name, "--help").stdout.partition("Examples:")[2]


def test_no_arguments_give_the_help(run: Run) -> None:
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == run("--help").stdout


@pytest.mark.parametrize("words", [["help"], ["help", "decode"]])
def test_help_is_a_command_too(words: list[str], run: Run) -> None:
    assert run(*words).stdout == run(*words[1:], "--help").stdout


def test_version(run: Run) -> None:
    assert re.fullmatch(r"wireyard \d+\.\d+\.\d+\n", run("--version").stdout)


# --- formats --------------------------------------------------------------------------------


def test_formats_are_listed(run: Run) -> None:
    lines = run("formats").stdout.splitlines()
    assert tuple(line.split()[0] for line in lines) == labels()


@pytest.mark.parametrize("name", names())
def test_columns_of_a_format_are_those_of_decode(name: str, run: Run, tmp_path: Path) -> None:
    lines = run("formats", name).stdout.splitlines()
    assert lines[-1] == "Conditions take columns of the kinds bool, int32, int64, string."
    columns = [line.split()[0] for line in lines[:-2] if not line.startswith(" ")]
    assert columns == [one.name for one in pick_columns(get_format(name), None, captured=True)]
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(pcap([]))
    result = run("decode", empty, "--format", name, "--columns", ",".join(columns))
    assert (result.exit_code, one_line(result)) == (0, f"{empty}: holds no stream of {name}")
    assert columns[:3] == ["source", "stream", "offset"]


# --- completion -----------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_back(shell: str, run: Run) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_WIREYARD_COMPLETE={shell}_complete" in result.stdout


def completions(*words: str) -> list[str]:
    """Return what the tab key offers for the last word."""
    found = ShellComplete(main, {}, "wireyard", "_WIREYARD_COMPLETE")
    return [item.value for item in found.get_completions(list(words[:-1]), words[-1])]


def test_commands_options_and_formats_are_completed() -> None:
    assert completions("de") == ["decode"]
    assert completions("decode", "--o") == ["--out"]
    assert completions("decode", "--out", "pa") == ["parquet"]
    assert completions("decode", "--format", "j") == ["jmq", "jmq/short-object", "jmq/timestamps"]
    assert completions("formats", "j") == ["jmq", "jmq/short-object", "jmq/timestamps"]


def test_bash_completes_without_loading_an_engine() -> None:
    words = {"COMP_WORDS": "wireyard in", "COMP_CWORD": "1", "_WIREYARD_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "wireyard"],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["plain,inspect"]
    assert not re.search(r"\| +(pyarrow|numba|pyspark|rich)$", done.stderr, re.MULTILINE)


def test_columns_fields_and_verdicts_are_completed() -> None:
    assert completions("decode", "--columns", "topic,packet_type_") == ["topic,packet_type_name"]
    assert "qos > 0 AND topic" in completions("decode", "--where", "qos > 0 AND top")
    assert completions("decode", "-e", "mqtt.top") == ["mqtt.topic"]
    assert completions("trace", "--verdict", "expir") == ["expired", "expiring"]
