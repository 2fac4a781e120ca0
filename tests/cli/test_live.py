"""Pipes and growing files: rows while they are written, and an end that loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

import pyarrow.parquet as pq
import pytest

import wireyard
from tests.captures.make import (
    ACK,
    BEGAN_NS,
    SYN,
    Packet,
    both_ways,
    ethernet,
    ipv4,
    one_way,
    packets,
    pcap,
    tcp,
)
from tests.captures.test_live import connect, publish
from tests.cli.results import notes_of
from tests.make import packet
from wireyard.captures.live.following import follow

WIREYARD = [sys.executable, "-m", "wireyard"]
PATIENCE_S = 60
"""Time limit for a machine that loads everything for the first time; it is no measurement."""
HEAD = pcap([])


class Reader:
    """A command that reads while it is written to, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._lines: Queue[bytes] = Queue()
        assert process.stdout is not None
        Thread(target=self._collect, args=(process.stdout,), daemon=True).start()

    def _collect(self, file: IO[bytes]) -> None:
        for line in file:
            self._lines.put(line)

    def line(self) -> str:
        return self._lines.get(timeout=PATIENCE_S).decode()

    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line())
        return found

    def has_no_line(self) -> bool:
        try:
            self._lines.get(timeout=0.3)
        except Empty:
            return True
        return False

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C, and return the exit status and the notes."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> tuple[int, str]:
        status = self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        return status, notes_of(self.process.stderr.read().decode())


@contextmanager
def reading(*words: object) -> Iterator[Reader]:
    pipe = subprocess.PIPE
    command = [*WIREYARD, "decode", *map(str, words)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield Reader(process)
        finally:
            process.kill()


def records(*segments: bytes, at_ns: int = 0) -> bytes:
    frames = [Packet(ethernet(ipv4(one)), BEGAN_NS + at_ns) for one in segments]
    return pcap(frames)[len(HEAD) :]


BEGIN = records(tcp(40000, 1883, 999, flags=SYN), tcp(40000, 1883, 1000, connect(1)))
AFTER = 1000 + len(connect(1))


def sent(number: int) -> bytes:
    """Return the record of a packet after the first."""
    return records(tcp(40000, 1883, AFTER + 27 * number, publish(20), ACK), at_ns=number + 1)


def test_rows_of_a_capture_in_a_pipe_come_before_it_ends() -> None:
    with reading("-", "--columns", "offset,packet_type_name,frame") as reader:
        reader.write(HEAD)
        reader.write(BEGIN)
        assert reader.row() == {"offset": 0, "packet_type_name": "CONNECT", "frame": 2}
        for number in range(3):
            reader.write(sent(number))
            assert reader.row()["frame"] == 3 + number
        reader.write(sent(3)[:30])  # not whole
        assert reader.has_no_line()
        status, notes = reader.interrupt()
        assert status == 1 and "'record' needs 31 bytes, 30 left" in notes


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_interrupt_writes_what_was_read(suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"rows.{suffix}"
    with reading("-", "-w", target, "--columns", "offset") as reader:
        reader.write(HEAD + BEGIN + sent(0) + sent(1))
        while not list(tmp_path.glob(f".{target.name}.*.part")):
            time.sleep(0.01)
        time.sleep(0.5)
        assert reader.interrupt() == (0, "wireyard: 3 rows of 76 B read, until Ctrl-C\n")
    if suffix == "parquet":
        assert pq.read_table(target).num_rows == 3
    else:
        assert target.read_text().count("\n") == 3


def test_the_end_of_a_pipe_ends_it(tmp_path: Path) -> None:
    data = pcap(packets(both_ways(b"hello", b"world", (40000, 1999))))
    with reading("-") as reader:
        reader.write(data)
        assert reader.process.stdin is not None
        reader.process.stdin.close()
        status, notes = reader.end()
    path = tmp_path / "a.pcap"
    path.write_bytes(data)
    words = [*WIREYARD, "decode", str(path)]
    whole = subprocess.run(words, capture_output=True, text=True, check=False)
    assert status == whole.returncode == 1
    assert notes.splitlines()[-1] == whole.stderr.replace(str(path), "-").splitlines()[-1]


def test_a_table_is_printed_as_rows_come() -> None:
    with reading("-", "--out", "table") as reader:
        reader.write(HEAD + BEGIN)
        assert reader.line() == "10.0.0.1:40000>10.0.0.2:1883\n"
        assert reader.line().split()[:3] == ["captured_ns", "frame", "length"]
        assert reader.line().split()[2:4] == [str(len(connect(1))), "CONNECT"]
        reader.write(sent(0))
        assert "PUBLISH" in reader.line() + reader.line()
        assert reader.interrupt() == (0, "wireyard: 2 rows of 49 B read, until Ctrl-C\n")


@pytest.mark.parametrize("named", [["--format", "jmq"], []])
def test_a_bare_stream_in_a_pipe(named: list[str]) -> None:
    with reading("-", *named, "--columns", "offset,status") as reader:
        for number in range(3):
            reader.write(packet())
            assert reader.row() == {"offset": number * len(packet()), "status": "ok"}
        reader.write(packet()[:50])
        status, notes = reader.interrupt()
        assert status == 1 and "cut short inside a packet, 50 bytes of it" in notes
        assert reader.row()["status"] == "tail"


def test_a_pipe_that_begins_like_no_format() -> None:
    with reading("-") as reader:
        reader.write(b"hello, world" * 10)
        assert reader.process.stdin is not None
        reader.process.stdin.close()
        status, notes = reader.end()
    assert status == 1 and notes.startswith("wireyard: -: begins like no format (68 65 6c")


def test_rows_of_other_formats_go_to_a_file_of_their_own(tmp_path: Path) -> None:
    frames = [*both_ways(packet(), b"", (40001, 1998)), *both_ways(connect(1), b"", (40000, 1883))]
    with reading("-", "-w", tmp_path / "rows.parquet") as reader:
        reader.write(pcap(packets(frames)))
        assert reader.process.stdin is not None
        reader.process.stdin.close()
        status, notes = reader.end()
    assert status == 0 and notes == ""
    for name in ("jmq", "mqtt"):
        assert pq.read_table(tmp_path / f"rows.{name}.parquet").num_rows == 1


def test_rows_of_other_formats_are_told_not_lost(tmp_path: Path) -> None:
    frames = [*both_ways(packet(), b"", (40001, 1998)), *both_ways(connect(1), b"", (40000, 1883))]
    with reading("-", "--out", "csv", "--columns", "offset") as reader:
        reader.write(pcap(packets(frames)))
        assert reader.process.stdin is not None
        reader.process.stdin.close()
        status, notes = reader.end()
    assert status == 1 and "1 stream of" in notes and "left out of the table of" in notes
    assert reader.line() == '"offset"\n' and reader.line() == "0\n"


# --- files that grow ------------------------------------------------------------------------


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def rotate_by_name(path: Path) -> Path:
    path.rename(path.with_suffix(".old"))
    return path


def rotate_in_place(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def rotate_by_number(path: Path) -> Path:
    return path.with_name("traffic.pcap1")


@pytest.mark.parametrize("rotate", [rotate_by_name, rotate_in_place, rotate_by_number])
def test_a_capture_that_grows_and_rotates(rotate: Callable[[Path], Path], tmp_path: Path) -> None:
    path = tmp_path / "traffic.pcap"
    path.write_bytes(HEAD + BEGIN)
    source = tmp_path / "traffic.pcap*" if rotate is rotate_by_number else path
    with reading("--follow", source, "--columns", "frame,offset") as reader:
        assert reader.row() == {"frame": 2, "offset": 0}
        append(path, sent(0))
        assert reader.row()["frame"] == 3
        append(path, sent(1)[:20])
        assert reader.has_no_line()
        append(path, sent(1)[20:])
        assert reader.row()["frame"] == 4
        path = rotate(path)
        time.sleep(0.3)
        append(path, HEAD + sent(2))
        assert reader.row() == {"frame": 5, "offset": len(connect(1)) + 54}
        append(path, sent(3))
        assert reader.row()["frame"] == 6
        assert reader.interrupt() == (0, "wireyard: 5 rows of 130 B read, until Ctrl-C\n")


def test_a_bare_stream_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "stream.jmq"
    path.write_bytes(packet() + packet()[:10])
    with reading("--follow", path, "--columns", "offset,status") as reader:
        assert reader.row()["offset"] == 0
        append(path, packet()[10:])
        assert reader.row()["offset"] == len(packet())
        assert reader.interrupt() == (0, "wireyard: 2 rows of 154 B read, until Ctrl-C\n")


@pytest.mark.parametrize("words", [["a", "b"], ["-"]])
def test_one_file_is_followed(words: list[str]) -> None:
    with reading("--follow", *words) as reader:
        status, notes = reader.end()
    assert status == 2 and "--follow takes one FILE" in notes


def test_a_file_that_is_not_there() -> None:
    with reading("--follow", "/nowhere/at/all") as reader:
        assert reader.end() == (3, "wireyard: /nowhere/at/all: there is no such file\n")


# --- from Python ----------------------------------------------------------------------------


def test_batches_of_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "traffic.pcap"
    path.write_bytes(HEAD + BEGIN)
    batches = wireyard.follow(path, columns=["packet_type_name"])
    assert next(batches).to_pylist() == [{"packet_type_name": "CONNECT"}]
    append(path, sent(0))
    assert next(batches).to_pylist() == [{"packet_type_name": "PUBLISH"}]
    batches.close()  # type: ignore[attr-defined]


def test_batches_of_a_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    data = one_way([(0, connect(1) + publish(20))])
    writer = Thread(target=path.write_bytes, args=(data,))
    writer.start()
    rows = [row for batch in wireyard.follow(path) for row in batch.to_pylist()]
    writer.join()
    assert [row["packet_type_name"] for row in rows] == ["CONNECT", "PUBLISH"]


def test_a_compressed_file_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(b"\x1f\x8b\x08" + bytes(100))
    with pytest.raises(wireyard.UsageError, match="is compressed"):
        next(follow(path).turns())
