"""Benchmark: captures to streams and columns, on one core and on all, against tshark and cypcap.

The captures are synthetic: MQTT 5.0 between clients and one broker, a CONNECT and then PUBLISH
packets of all QoS. Connections are interleaved; some segments are sent twice, some out of order. In
the first capture each message is a segment, as from a client that sends one at a time. In the
second messages are sent as fast as TCP accepts them, in segments of up to 1,448 bytes whose bounds
are unrelated to packets. The third is like the second, with many short connections.

Cases use one core unless their name mentions more. tshark prints the same fields of every control
packet that are read here; the table shows which share of the packets it shows. cypcap, libpcap for
Python, returns time and bytes of every packet, as the walk does in columns. Programs that are not
installed are left out. Every figure is the best of several rounds of one run.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.table import Table

import wireyard
from benchmarks.jmq import best_seconds
from benchmarks.mqtt import stream
from wireyard.captures.connections.merge_kernels import copy_runs
from wireyard.captures.files.file import CaptureFile
from wireyard.captures.read import read_capture

CONNECTIONS = 100
MESSAGES = 400_000
SHORT_CONNECTIONS = 10_000
SHORT_MESSAGES = 200_000
TSHARK_SHARE = 4
"""Factor by which tshark's capture has fewer messages; its time is proportional to packets."""
SEGMENT_BYTES = 1448
FIELDS = ("frame.number", "frame.time_epoch", "ip.src", "tcp.srcport", "ip.dst", "tcp.dstport",
          "mqtt.msgtype", "mqtt.qos", "mqtt.topic", "mqtt.msgid", "mqtt.msg")  # fmt: skip
COLUMNS = ["frame", "captured_ns", "src_addr", "src_port", "dst_addr", "dst_port",
           "packet_type", "qos", "topic", "packet_id", "payload"]  # fmt: skip
SEGMENT = ["frame", "captured_ns", "payload"]
_CONNECT = bytes.fromhex("100f 00044d515454 05 02 0000 00 0002")
_BROKER_PORT = 1883


def segments(messages: int, connections: int, whole: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yield connection, position and bytes of segments in the order of capture."""
    # All connections have the same messages, because a stream takes a while to generate.
    data = stream(messages // connections)
    rng = Random(7)
    streams = [_CONNECT + b"%02d" % (number % 100) + data for number in range(connections)]
    size = len(streams[0])
    bounds = [*range(0, size, SEGMENT_BYTES), size]
    if whole:
        bounds = [*wireyard.read(streams[0], "mqtt", ["offset"])["offset"].to_pylist(), size]
    following = list(pairwise(bounds))
    sent = [0] * connections
    alive = list(range(connections))
    held: list[tuple[int, int, bytes]] = []
    while alive:
        number = alive[rng.randrange(len(alive))]
        if sent[number] == len(following):
            alive.remove(number)
            continue
        at, stop = following[sent[number]]
        piece = streams[number][at:stop]
        sent[number] += 1
        chance = rng.random()
        if chance < 0.02:
            held.append((number, at, piece))
            continue
        yield number, at, piece
        if chance > 0.98:
            yield number, at, piece
        if held and chance < 0.1:
            yield held.pop()
    yield from held


def write_capture(path: Path, messages: int, connections: int, whole: bool) -> int:
    """Write a capture; return its number of segments.

    Parameters
    ----------
    whole
        Whether each message is a segment of its own.
    """
    count = 0
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for count, (number, at, piece) in enumerate(segments(messages, connections, whole), 1):
            ip = struct.pack(
                ">BBHHHBBH4s4s", 0x45, 0, 40 + len(piece), 0, 0, 64, 6, 0,
                bytes([10, 1, number >> 8, number & 255]), bytes([10, 0, 0, 1]),
            )  # fmt: skip
            ports = 20000 + number, _BROKER_PORT
            header = struct.pack(">HHIIBBHHH", *ports, 1000 + at, 1, 5 << 4, 16, 0, 0, 0)
            frame = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0" + ip + header + piece
            seconds, micros = divmod(1_700_000_000_000_000 + count * 10, 1_000_000)
            file.write(struct.pack("<IIII", seconds, micros, len(frame), len(frame)) + frame)
    return count


def scan(path: Path, columns: list[str] | None, threads: int | None = 1) -> int:
    """Read columns of a capture; return its number of rows."""
    return sum(batch.num_rows for batch in wireyard.scan(path, "mqtt", columns, threads=threads))


def walk(path: Path) -> int:
    """Read time and bytes of each packet of a capture; return the number of packets."""
    file, count = CaptureFile.open(path), 0
    for records in file.records():
        payload = np.empty(int(records.captured.sum()), np.uint8)
        copy_runs(file.data, 0, records.starts, records.captured, 0, payload)
        count += len(records)
    return count


def cypcap_seconds(path: Path) -> float | None:
    """Return the seconds that cypcap takes for time and bytes; None if it is not installed."""
    if find_spec("cypcap") is None:
        return None
    cypcap = import_module("cypcap")

    def read() -> int:
        with cypcap.open_offline(str(path)) as packets:
            return sum(1 for header, data in packets if header.ts and data)

    return best_seconds(read)


def with_tshark(path: Path) -> tuple[float, int] | None:
    """Return the seconds that tshark takes for the fields, and the number of packets it shows."""
    program = shutil.which("tshark")
    if program is None:
        return None
    words = [program, "-r", str(path), "-Y", "mqtt", "-T", "fields"]
    words += [word for field in FIELDS for word in ("-e", field)]
    start = perf_counter()
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    taken = perf_counter() - start
    kinds = (line.split(b"\t")[FIELDS.index("mqtt.msgtype")] for line in done.stdout.splitlines())
    return taken, sum(kind.count(b",") + 1 for kind in kinds)


def measure(messages: int, connections: int, *, whole: bool = False) -> None:
    """Measure a capture and print one table."""
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        path, part = Path(folder) / "all.pcap", Path(folder) / "part.pcap"
        count = write_capture(path, messages, connections, whole)
        few = write_capture(part, messages // TSHARK_SHARE, connections // TSHARK_SHARE, whole)
        size = path.stat().st_size
        tshark = with_tshark(part)
        data = path.read_bytes()
        copy = np.empty(len(data), np.uint8)
        threaded = best_seconds(lambda: scan(path, COLUMNS, None))
        os.sched_setaffinity(0, {max(cores)})
        seconds = {
            "memcpy of the file": best_seconds(
                lambda: np.copyto(copy, np.frombuffer(data, np.uint8))
            ),
            "walk, time and bytes": best_seconds(lambda: walk(path)),
            "segments, time and payload": best_seconds(
                lambda: sum(batch.num_rows for batch in wireyard.segments(path, SEGMENT))
            ),
            "read and put together": best_seconds(lambda: read_capture(path)),
            "to MQTT columns, the fields": best_seconds(lambda: scan(path, COLUMNS)),
            f"the same on {len(cores)} cores": threaded,
            "to MQTT columns, all": best_seconds(lambda: scan(path, None)),
        }
        libpcap = cypcap_seconds(path)
        os.sched_setaffinity(0, cores)
        rows, part_rows = (
            wireyard.read(each, "mqtt", ["status"]).num_rows for each in (path, part)
        )
    title = f"{count:,} segments, {connections:,} connections, {size / 1e6:.0f} MB, {rows:,} rows"
    table = Table(title=title)
    for heading in ("case", "M segments/s", "MB/s", "x tshark -T fields", "x cypcap"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    rate = None
    if tshark is not None:
        taken, shown = tshark
        rate = few / taken
        table.add_row(
            f"tshark -T fields, {shown / part_rows:.0%} of rows",
            f"{rate / 1e6:.3f}",
            f"{size * rate / count / 1e6:.1f}",
            "1",
        )
    if libpcap is not None:
        seconds = {"cypcap, time and bytes": libpcap, **seconds}
    for case, taken in seconds.items():
        ratio = "" if rate is None else f"{count / taken / rate:.0f}"
        walked = "" if libpcap is None else f"{libpcap / taken:.2f}"
        table.add_row(
            case, f"{count / taken / 1e6:.2f}", f"{size / taken / 1e6:.0f}", ratio, walked
        )
    Console(width=120).print(table)


def main() -> None:
    """Measure one message per segment, messages at TCP's full speed, and short connections."""
    measure(MESSAGES, CONNECTIONS, whole=True)
    measure(MESSAGES, CONNECTIONS)
    measure(SHORT_MESSAGES, SHORT_CONNECTIONS)


if __name__ == "__main__":
    main()
