"""Benchmark: the costs of a lake by its size, for adding captures, opening it, and rotated files.

It prints three tables: for lakes of ever more small captures, the costs of adding one capture, and
of a run without new inputs; for a synthetic lake of two million streams, time and memory of each
way to open it; and for the same packets in ever more files of a rotated capture, time and memory
under ``ulimit -n 1024``. Each case is a process of its own; its time is user and system time.

``python -m benchmarks.lake_sizes [captures|streams|rotated]...``
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.spark_source import FOLDER
from wireyard.captures.stream_table import LEDGER_TABLE, STREAMS
from wireyard.lake.ledgers import LedgerSum
from wireyard.lake.parts import write_table
from wireyard.lake.records import Input
from wireyard.lake.writer import Lake
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import add_missing_tables
from wireyard.pipeline.replacing import Draft

ROOT: Final = FOLDER / "lake_sizes"
PROCESS: Final = ("--engine", "process")
CAPTURES: Final = (10, 160, 3_000, 10_000)
_SETTLED_S: Final = 3
"""A run opens captures again that had only just been written when they were read."""
STREAMS_HELD: Final = 2_000_000
ROTATED: Final = (1, 1_000, 10_000)
ROTATED_PACKETS: Final = 200_000
ADDED: Final = 5
"""Captures that are added one after the other; the table has the median."""
_SECOND_NS: Final = 1_000_000_000
_BEGUN_S: Final = 1_763_000_000


class Cost(NamedTuple):
    """The costs of a process."""

    seconds: float
    """User and system time."""
    wall_s: float
    peak_bytes: int
    """Peak memory."""


def run(*arguments: str, files: int | None = None) -> Cost:
    """Run the command line in a process of its own, with at most `files` open files."""
    limit = f"ulimit -n {files}; " if files else ""
    command = ["sh", "-c", f'{limit}exec "$@"', "sh", sys.executable, "-m", "wireyard", *arguments]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        errors = process.stderr.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments[:4])} ...: {errors[-2000:]}")
    return Cost(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss << 10)


# --- captures -------------------------------------------------------------------------------


def segment(port: int, sequence: int, payload: bytes) -> bytes:
    """Lay out an Ethernet frame with a TCP segment to port 1883."""
    tcp = struct.pack("!HHIIBBHHH", port, 1883, sequence, 0, 0x50, 0x18, 1024, 0, 0) + payload
    size = 20 + len(tcp)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, 6, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    return b"\2" * 6 + b"\4" * 6 + b"\x08\0" + ip + tcp


def record(number: int, frame: bytes) -> bytes:
    """Lay out a record of a pcap file, a millisecond after the one before."""
    seconds, rest = divmod(number, 1000)
    return struct.pack("<IIII", _BEGUN_S + seconds, rest * 1000, len(frame), len(frame)) + frame


PCAP_HEADER: Final = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1)


def mqtt(first: int, last: int, client: str) -> Iterator[bytes]:
    """Yield a CONNECT if `first` is 0, then PUBLISH packets."""
    if first == 0:
        name = client.encode()
        rest = b"\0\x04MQTT\x04\x02\0\x3c" + len(name).to_bytes(2, "big") + name
        yield bytes([0x10, len(rest)]) + rest
    for number in range(first, last):
        rest = b"\0\x09plant/one" + b"value %06d" % number
        yield bytes([0x30, len(rest)]) + rest


def write_captures(folder: Path, count: int) -> None:
    """Write small captures, each of one client."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"capture-{number:06d}.pcap"
        if not path.exists():
            frames = _frames(1024 + number % 60_000, 0, 20, f"client-{number}", 0)
            path.write_bytes(PCAP_HEADER + b"".join(frames))


def write_rotated(folder: Path, count: int) -> None:
    """Write one connection of `ROTATED_PACKETS` packets, in `count` files."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    frames = list(_frames(2000, 0, ROTATED_PACKETS, "client", 0))
    each = -(-len(frames) // count)
    for number in range(count):
        part = frames[number * each : (number + 1) * each]
        (folder / f"rotated-{number:06d}.pcap").write_bytes(PCAP_HEADER + b"".join(part))


def _frames(port: int, first: int, last: int, client: str, sequence: int) -> Iterator[bytes]:
    for number, payload in enumerate(mqtt(first, last, client)):
        yield record(number, segment(port, sequence, payload))
        sequence += len(payload)


def measure_captures() -> None:
    """Print the costs of adding a capture to lakes of ever more captures."""
    table = Table(title=f"A lake of N small captures, median of {ADDED}, user and system")
    for heading in ("N", "added, s", "to N = 10", "wanted", "unchanged, s", "wall, s", "MB"):
        table.add_column(heading, justify="right")
    wanted = {160: "1.3x or less", 10_000: "2x or less"}
    first: float | None = None
    for count in CAPTURES:
        folder, lake = ROOT / f"captures-{count}", ROOT / f"lake-{count}"
        write_captures(folder, count)
        time.sleep(_SETTLED_S)
        if not lake.exists():
            run("run", str(folder), "--lake", str(lake), "-q", *PROCESS)
        costs = []
        for number in range(count, count + ADDED):
            write_captures(folder, number + 1)
            path = folder / f"capture-{number:06d}.pcap"
            costs.append(run("run", str(path), "--lake", str(lake), *PROCESS).seconds)
        added = sorted(costs)[ADDED // 2]
        first = first or added
        unchanged = min(run("run", str(folder), "--lake", str(lake)) for _ in range(3))
        table.add_row(
            f"{count:,}",
            f"{added:.2f}",
            f"{added / first:.2f}x",
            wanted.get(count, ""),
            f"{unchanged.seconds:.2f}",
            f"{unchanged.wall_s:.2f}",
            f"{unchanged.peak_bytes / 1e6:.0f}",
        )
        shutil.rmtree(lake)
        shutil.rmtree(folder)
    Console().print(table)


# --- streams --------------------------------------------------------------------------------


def make_lake(root: Path, streams: int) -> None:
    """Make a synthetic lake whose only input has many streams."""
    paths = [ROOT / "input" / "capture-000000.pcap"]
    write_captures(paths[0].parent, 1)
    (found,) = list_inputs([str(paths[0])]).inputs
    with Lake.open(str(root)) as lake:
        lake.make_staging(["streams", "ledger"])
        number = np.arange(streams)
        ports = (1024 + number % 60_000).astype(np.int32)
        names = pa.array([f"10.0.0.1:{port}>10.0.0.2:1883#{n}" for n, port in enumerate(ports)])
        source = pa.array(np.zeros(streams, np.int32))
        given = {
            "source": pa.DictionaryArray.from_arrays(source, [found.path]).cast(pa.string()),
            "stream": names,
            "format": pa.array(np.zeros(streams, np.int32)).cast(pa.string()),
            "src_port": pa.array(ports),
            "bytes_read": pa.array(np.full(streams, 500)),
            "bytes_ok": pa.array(np.full(streams, 500)),
            "packets_ok": pa.array(np.full(streams, 20)),
            "opened": pa.array(np.full(streams, True)),
        }
        given["format"] = pa.DictionaryArray.from_arrays(source, ["mqtt"]).cast(pa.string())
        files = {
            name: [write_table(lake.staged(name), _made_up(schema, given, streams))]
            for name, schema in (("streams", STREAMS), ("ledger", LEDGER_TABLE))
        }
        bytes_read = 500 * streams
        ledger = LedgerSum(streams, 0, bytes_read, bytes_read, packets_ok=20 * streams)
        each = Input(found.path, None, found.stamp, {"mqtt": ledger})
        draft = Draft(lake)
        draft.put(each, files)
        add_missing_tables(draft)
        lake.commit(draft.change())


def _made_up(schema: pa.Schema, given: dict[str, pa.Array], rows: int) -> pa.Table:
    def column(field: pa.Field) -> pa.Array:
        if field.name in given:
            return given[field.name]
        if field.name.startswith(("bytes_", "packets_")):
            return pa.array(np.zeros(rows, np.int64))
        return pa.nulls(rows, field.type)

    return pa.table([column(field) for field in schema], schema)


def measure_streams() -> None:
    """Print the costs of opening a lake of many streams."""
    lake, folder = ROOT / "lake-streams", ROOT / "input"
    # In a process of its own, as the peak memory of a process counts for its children too.
    subprocess.run([sys.executable, "-m", "benchmarks.lake_sizes", "make", str(lake)], check=True)
    more = ROOT / "more"
    write_captures(more, 3)
    question = "SELECT format, count(*) FROM streams GROUP BY 1"
    cases: dict[str, Iterable[str]] = {
        "run, unchanged": ("run", str(folder), "--lake", str(lake)),
        "lake commits": ("lake", "commits", str(lake)),
        "lake check": ("lake", "check", str(lake)),
        "sql": ("sql", str(lake), question),
        "run, one capture added": (
            "run",
            str(more / "capture-000002.pcap"),
            "--lake",
            str(lake),
            *PROCESS,
        ),
    }
    table = Table(title=f"A lake of {STREAMS_HELD:,} streams; wanted: 2 s, 500 MB")
    for heading in ("case", "s", "wall, s", "MB"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, arguments in cases.items():
        cost = run(*arguments)
        table.add_row(
            case, f"{cost.seconds:.2f}", f"{cost.wall_s:.2f}", f"{cost.peak_bytes / 1e6:.0f}"
        )
    shutil.rmtree(lake)
    Console().print(table)


# --- rotated files --------------------------------------------------------------------------


def measure_rotated() -> None:
    """Print the costs of a capture in ever more files, with 1,024 open files at most."""
    table = Table(title=f"{ROTATED_PACKETS:,} packets in N files, ulimit -n 1024")
    for heading in ("N", "s", "wall, s", "MB", "unchanged, s", "MB"):
        table.add_column(heading, justify="right")
    for count in ROTATED:
        folder, lake = ROOT / f"rotated-{count}", ROOT / f"lake-rotated-{count}"
        write_rotated(folder, count)
        shutil.rmtree(lake, ignore_errors=True)
        arguments = ("run", str(folder), "--rotated", "--lake", str(lake), *PROCESS)
        costs = [run(*arguments, files=1024) for _ in range(2)]
        cells = [f"{count:,}", f"{costs[0].seconds:.2f}", f"{costs[0].wall_s:.2f}"]
        cells += [f"{costs[0].peak_bytes / 1e6:.0f}"]
        table.add_row(*cells, f"{costs[1].seconds:.2f}", f"{costs[1].peak_bytes / 1e6:.0f}")
        shutil.rmtree(lake)
        shutil.rmtree(folder)
    Console().print(table)


CASES: Final[dict[str, Callable[[], None]]] = {
    "captures": measure_captures,
    "streams": measure_streams,
    "rotated": measure_rotated,
}


def main(names: Iterable[str] = CASES) -> None:
    """Measure and print a table for each case."""
    ROOT.mkdir(parents=True, exist_ok=True)
    for name in names:
        CASES[name]()
    shutil.rmtree(ROOT, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make_lake(Path(sys.argv[2]), STREAMS_HELD)
    else:
        main(sys.argv[1:] or CASES)
