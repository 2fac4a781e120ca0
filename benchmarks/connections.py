"""Benchmark: captures of many connections to columns, Parquet and JSON Lines, against tshark.

Packets are compared with tshark -T fields; the list of conversations with tshark -z conv,tcp, which
only counts frames and bytes.

There are three synthetic captures: 10,000 connections of about 20 control packets with SYN and FIN;
100,000 connections of five packets; and 150 MB of sensors: 100 clients that stay connected and
publish small values, with TCP acknowledgements in between, as in the MQTTset collection.

tshark prints frame, time, source, topic and type of every control packet; the same five columns are
read here. Times are processor time of all cores, which other processes disturb less than elapsed
time. The time of a command includes its start, which is also measured alone, with a capture without
packets. Commands find the bytecode of all modules, as in an installation. Only the case of two
threads uses more than one core; it compares elapsed times.
"""

from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

import wireyard

FIELDS = ("frame.number", "frame.time_epoch", "ip.src", "mqtt.topic", "mqtt.msgtype")
COLUMNS = ["frame", "captured_ns", "src_addr", "topic", "packet_type"]
ROUNDS = 3
OPEN = 300
"""Connections that are open at the same time."""
SENSORS = 100
SENSOR_BYTES = 150_000_000
_BROKER = bytes([10, 0, 0, 1])
_FIN, _SYN, _PUSH, _ACK = 1, 2, 8, 16
_CONNACK, _PINGREQ, _PINGRESP, _DISCONNECT = map(
    bytes.fromhex, ("20020000", "c000", "d000", "e000")
)


class Connection:
    """A connection between a client and the broker, which makes its frames."""

    def __init__(self, number: int) -> None:
        client = bytes([10, 1 + (number >> 16), number >> 8 & 255, number & 255])
        self._ends = [(client, 20_000 + number % 40_000), (_BROKER, 1883)]
        self._next = [1_000 + number, 9_000 + number]

    def frame(self, sender: int, payload: bytes, flags: int = _PUSH | _ACK) -> bytes:
        """Return a frame of a sender: 0 is the client, 1 the broker."""
        (src, src_port), (dst, dst_port) = self._ends[sender], self._ends[1 - sender]
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 0, 0x4000, 64, 6, 0, src, dst)
        numbers = self._next[sender], self._next[1 - sender]
        tcp = struct.pack(">HHIIBBHHH", src_port, dst_port, *numbers, 5 << 4, flags, 65535, 0, 0)
        self._next[sender] += len(payload) + (flags & (_SYN | _FIN) != 0)
        return b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0" + ip + tcp + payload


def packet(first: int, *parts: bytes) -> bytes:
    """Return a control packet with a length of one byte: fewer than 128 bytes."""
    body = b"".join(parts)
    return bytes([first, len(body)]) + body


def text(value: str) -> bytes:
    """Return text with its length before it."""
    return len(value).to_bytes(2, "big") + value.encode()


def talk(number: int, messages: int, *, whole: bool) -> Iterator[bytes]:
    """Yield the frames of a connection: CONNECT, messages of QoS 1, DISCONNECT.

    Parameters
    ----------
    whole
        Whether it has SYN and FIN.
    """
    connection = Connection(number)
    if whole:
        yield from (
            connection.frame(0, b"", _SYN),
            connection.frame(1, b"", _SYN | _ACK),
            connection.frame(0, b"", _ACK),
        )
    head = text("MQTT") + bytes([4, 2, 0, 60])
    yield connection.frame(0, packet(0x10, head, text(f"client-{number:07}")))
    yield connection.frame(1, _CONNACK)
    for message in range(1, messages + 1):
        topic, identifier = f"plant/{number % 97}/line/{message % 7}", message.to_bytes(2, "big")
        value = f'{{"value":{number % 50}.{message},"unit":"C"}}'.encode()
        yield connection.frame(0, packet(0x32, text(topic), identifier, value))
        yield connection.frame(1, packet(0x40, identifier))
    yield connection.frame(0, _DISCONNECT)
    if whole:
        yield from (connection.frame(0, b"", _FIN | _ACK), connection.frame(1, b"", _FIN | _ACK))


def mixed(connections: int, messages: int, *, whole: bool) -> Iterator[bytes]:
    """Yield the interleaved frames of connections, `OPEN` of them at a time."""
    rng, numbers = Random(5), iter(range(connections))
    alive = [talk(number, messages, whole=whole) for number in islice(numbers, OPEN)]
    while alive:
        at = rng.randrange(len(alive))
        frame = next(alive[at], None)
        if frame is not None:
            yield frame
        elif (number := next(numbers, None)) is not None:
            alive[at] = talk(number, messages, whole=whole)
        else:
            alive[at] = alive[-1]
            alive.pop()


def sensors() -> Iterator[bytes]:
    """Yield frames of sensors endlessly: PUBLISH of QoS 0 or 1, and its acknowledgements."""
    rng, all_of_them = Random(3), [Connection(number) for number in range(SENSORS)]
    names = ("Temperature", "Light intensity", "Humidity", "Motion sensor", "CO-Gas", "Smoke")
    for number, one in enumerate(all_of_them):
        yield from (
            one.frame(0, b"", _SYN),
            one.frame(1, b"", _SYN | _ACK),
            one.frame(0, b"", _ACK),
        )
        head = text("MQTT") + bytes([4, 2, 0, 60])
        yield one.frame(0, packet(0x10, head, text(f"sensor{number}")))
        yield one.frame(1, _CONNACK)
        yield one.frame(0, b"", _ACK)
    for message in count(1):
        number = rng.randrange(SENSORS)
        one, qos = all_of_them[number], number % 2
        identifier = (message % 65_535 + 1).to_bytes(2, "big") * qos
        value = f"{rng.random():.6f}".encode()
        topic = text(names[number % len(names)])
        yield one.frame(0, packet(0x30 | qos << 1, topic, identifier, value))
        yield one.frame(1, packet(0x40, identifier) if qos else b"", _ACK | _PUSH * qos)
        if qos:
            yield one.frame(0, b"", _ACK)
        if rng.random() < 0.01:
            yield one.frame(0, _PINGREQ)
            yield one.frame(1, _PINGRESP)


def write_capture(path: Path, frames: Iterator[bytes], most_bytes: int | None = None) -> int:
    """Write frames at intervals of 10 us, up to a file size; return their number."""
    size = written = 0
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            seconds, micros = divmod(1_700_000_000_000_000 + written * 10, 1_000_000)
            file.write(struct.pack("<IIII", seconds, micros, len(frame), len(frame)) + frame)
            written, size = written + 1, size + 16 + len(frame)
            if most_bytes is not None and size >= most_bytes:
                break
    return written


def best(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the least time of several rounds by a clock."""
    taken = []
    for _ in range(ROUNDS):
        start = clock()
        run()
        taken.append(clock() - start)
    return min(taken)


def children_time() -> float:
    """Return the processor time of all child processes that have ended, in s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(words: list[str]) -> Callable[[], object]:
    """Return a function that runs a command and discards its output."""
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run(
        words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )


def scan(path: Path, threads: int, columns: list[str] | None = COLUMNS) -> int:
    """Read columns of a capture, all if None; return its number of rows."""
    return sum(batch.num_rows for batch in wireyard.scan(path, "mqtt", columns, threads=threads))


def measure(title: str, frames: Iterator[bytes], most_bytes: int | None = None) -> None:
    """Measure a capture and print one table."""
    with tempfile.TemporaryDirectory() as folder:
        path, empty = Path(folder) / "capture.pcap", Path(folder) / "empty.pcap"
        written = write_capture(path, frames, most_bytes)
        write_capture(empty, iter(()))
        size, rows = path.stat().st_size, scan(path, 1)

        def decode(read: Path, kind: str) -> float:
            words = [sys.executable, "-m", "wireyard", "decode", str(read), "--format", "mqtt"]
            words += ["--columns", ",".join(COLUMNS), "-w", f"{folder}/x.{kind}"]
            return best(command(words), children_time)

        seconds = {
            "to columns": best(lambda: scan(path, 1), process_time),
            "to all columns": best(lambda: scan(path, 1, None), process_time),
            "decode -w x.parquet, start and all": decode(path, "parquet"),
            "decode -w x.jsonl, start and all": decode(path, "jsonl"),
            "decode -w x.parquet, start alone": decode(empty, "parquet"),
        }
        words = [sys.executable, "-m", "wireyard", "flows", str(path)]
        listed = best(command(words), children_time)
        alone, both = (best(partial(scan, path, threads), perf_counter) for threads in (1, 2))
        baseline = conversations = None
        if (program := shutil.which("tshark")) is not None:
            words = [program, "-r", str(path), "-Y", "mqtt", "-T", "fields"]
            words += [word for name in FIELDS for word in ("-e", name)]
            baseline = best(command(words), children_time)
            words = [program, "-r", str(path), "-q", "-z", "conv,tcp"]
            conversations = best(command(words), children_time)
    table = Table(title=f"{title}: {written:,} frames, {size / 1e6:.0f} MB, {rows:,} rows")
    for heading in ("case", "processor s", "MB/s", "x tshark -T fields"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    if baseline is not None:
        seconds = {"tshark -T fields": baseline, **seconds}
    for case, taken in seconds.items():
        if case.endswith("alone"):
            table.add_row(case, f"{taken:.3f}", "", "")
            continue
        ratio = "" if baseline is None else f"{baseline / taken:.1f}"
        table.add_row(case, f"{taken:.3f}", f"{size / taken / 1e6:.0f}", ratio)
    console = Console(width=120)
    console.print(table)
    ratio = "" if conversations is None else f", {conversations / listed:.1f} x tshark -z conv,tcp"
    console.print(f"flows, start and all: {listed:.3f} processor s{ratio}")
    cores = len(os.sched_getaffinity(0))
    console.print(f"to columns with two threads, {cores} cores: {alone / both:.2f} times one\n")


def main() -> None:
    """Measure connections of 20 messages, connections of five packets, and sensors."""
    measure("10,000 connections of 20 packets", mixed(10_000, 9, whole=True))
    measure("100,000 connections of 5 packets", mixed(100_000, 1, whole=False))
    measure(f"{SENSORS} sensors", sensors(), SENSOR_BYTES)


if __name__ == "__main__":
    main()
