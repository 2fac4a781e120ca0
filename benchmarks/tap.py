"""Benchmark: what `wireyard tap` adds to a connection to mosquitto, in turns with a direct one.

Beside them is the least that any process in between costs: two threads that read and write.
``python -m benchmarks.tap`` prints the tables of docs/benchmarks.md. Processor time is that of the
proxy; on a machine with other work it is worth more than rates.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Process
from pathlib import Path
from typing import Final

from wireyard import mqtt
from wireyard.formats.mqtt.writing import encode

LOOPBACK: Final = "127.0.0.1"
TURNS: Final = 5
ROUND_TRIPS: Final = 3000
_CLOCK: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def mosquitto(folder: Path) -> Iterator[int]:
    """Run a broker without limits; yields its port."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} {LOOPBACK}\nallow_anonymous true\n"
        "max_queued_messages 0\nmax_queued_bytes 0\n"
    )
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    with subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL) as process:
        time.sleep(0.5)
        try:
            yield port
        finally:
            process.terminate()


@contextmanager
def tap(port: int, *words: str) -> Iterator[tuple[int, int]]:
    """Run a proxy; yields its port and the number of its process."""
    command = [sys.executable, "-m", "wireyard", "tap", "0", f"{LOOPBACK}:{port}", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield int(line.split()[2].rpartition(":")[2]), process.pid
        finally:
            process.terminate()


@contextmanager
def forwarder(port: int) -> Iterator[tuple[int, int]]:
    """Run the simplest process that passes bytes on; yields its port and number."""
    with socket.create_server((LOOPBACK, 0)) as server:
        process = Process(target=forward, args=(server, port), daemon=True)
        process.start()
        own: int = server.getsockname()[1]
        try:
            yield own, process.pid or 0
        finally:
            process.kill()


def forward(server: socket.socket, port: int) -> None:
    """Pass bytes on, with two threads that wait for each connection."""

    def run(source: socket.socket, sink: socket.socket) -> None:
        room = memoryview(bytearray(256 << 10))
        while count := source.recv_into(room):
            sink.sendall(room[:count])
        sink.shutdown(socket.SHUT_WR)

    while True:
        ends = server.accept()[0], socket.create_connection((LOOPBACK, port))
        for one, other in (ends, ends[::-1]):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=run, args=(one, other)).start()


def connect(port: int, client_id: str) -> socket.socket:
    """Return an accepted connection."""
    client = socket.create_connection((LOOPBACK, port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(encode(mqtt.Connect(client_id=client_id, version_in_force=4)))
    assert client.recv(4) == b"\x20\x02\0\0"
    return client


def latencies(port: int) -> list[float]:
    """Return the times from PUBLISH to PUBACK of one client, one after the other, in us."""
    times = []
    packets = [
        encode(mqtt.Publish(topic="x", payload=bytes(200), qos=1, packet_id=1 + at))
        for at in range(100)
    ]
    with connect(port, f"one-{port}") as client:
        for at in range(ROUND_TRIPS):
            began = time.perf_counter_ns()
            client.sendall(packets[at % 100])
            assert len(client.recv(4)) == 4
            times.append((time.perf_counter_ns() - began) / 1e3)
    return sorted(times)


def rate(port: int, size: int, count: int) -> float:
    """Return the messages a second from one publisher to one subscriber at QoS 0."""
    packet = encode(mqtt.Publish(topic="x", payload=bytes(size)))
    some = packet * max(1, 200_000 // len(packet))
    writes = count * len(packet) // len(some)
    with connect(port, f"sub-{port}") as reader, connect(port, f"pub-{port}") as writer:
        reader.sendall(encode(mqtt.Subscribe(packet_id=1, filters=["x"])))
        assert len(reader.recv(5)) == 5

        def read() -> None:
            left, room = writes * len(some), bytearray(1 << 20)
            while left:
                left -= reader.recv_into(room)

        thread = threading.Thread(target=read)
        thread.start()
        began = time.perf_counter()
        for _ in range(writes):
            writer.sendall(some)
        thread.join()
        return writes * len(some) / len(packet) / (time.perf_counter() - began)


@contextmanager
def sink() -> Iterator[int]:
    """Run a server that reads and forgets; yields its port. mosquitto is slower than the proxy."""
    with socket.create_server((LOOPBACK, 0)) as server:

        def read() -> None:
            room = bytearray(1 << 20)
            with server.accept()[0] as client, suppress(ConnectionResetError):
                while client.recv_into(room):
                    pass

        thread = threading.Thread(target=read)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def _through(gigabytes: int, *record: str) -> None:
    """Print what a proxy takes for one way of many bytes, in messages of 20 kB."""
    some = encode(mqtt.Publish(topic="x", payload=bytes(20_000))) * 10
    with sink() as port, tap(port, *record) as (own, pid):
        with socket.create_connection((LOOPBACK, own)) as writer:
            writer.sendall(encode(mqtt.Connect(client_id="one", version_in_force=4)))
            memory, spent, began = [resident_mb(pid)], processor_s(pid), time.perf_counter()
            for _ in range(gigabytes):
                for _ in range(1_000_000_000 // len(some)):
                    writer.sendall(some)
                memory.append(resident_mb(pid))
        seconds = time.perf_counter() - began
        show(f"{gigabytes} GB to a sink", (f"{gigabytes * 1e3 / seconds:.0f} MB/s",
             f"{gigabytes * 1e3 / (processor_s(pid) - spent):.0f} MB a second of processor time",
             f"{memory[1]:.0f} to {max(memory[1:]):.0f} MB of memory"))  # fmt: skip


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def show(name: str, cells: Iterable[object]) -> None:
    print(f"| {name} | " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    """Print the tables."""
    _through(10)
    with tempfile.TemporaryDirectory() as name, mosquitto(Path(name)) as port:
        record = ("--record", f"{name}/record", "--rotate-mb", "0")
        with tap(port) as plain, tap(port, *record) as recorded, forwarder(port) as least:
            ways = {"direct": (port, 0), "two threads": least, "proxy": plain,
                    "proxy, --record": recorded}  # fmt: skip
            show("processes that wanted a core before", (f"{os.getloadavg()[0]:.1f}",))
            memory = [resident_mb(recorded[1])]
            show("PUBLISH to PUBACK, us", ("median", "99th percentile"))
            found: dict[str, list[list[float]]] = {way: [] for way in ways}
            for _ in range(TURNS):
                for way, (own, _) in ways.items():
                    found[way].append(latencies(own))
            for way, turns in found.items():
                middle = min(statistics.median(turn) for turn in turns)
                tail = min(turn[len(turn) * 99 // 100] for turn in turns)
                show(way, (f"{middle:.0f}", f"{tail:.0f}"))
            for size, count in ((200, 300_000), (20_000, 15_000)):
                show(f"{size} bytes, QoS 0", ("messages/s", "MB/s", "us a message in the proxy"))
                _rates(ways, size, count)
                memory.append(resident_mb(recorded[1]))
            recorded_mb = sum(path.stat().st_size for path in Path(name, "record").iterdir()) / 1e6
            show("memory of the proxy, --record, MB", (f"{one:.0f}" for one in memory))
            show("recorded, MB", (f"{recorded_mb:,.0f}",))
            for most in (1_000, 10_000):
                _idle(plain, most)
            show("processes that wanted a core after", (f"{os.getloadavg()[0]:.1f}",))


def _rates(ways: dict[str, tuple[int, int]], size: int, count: int) -> None:
    measured: dict[str, list[float]] = {way: [] for way in ways}
    spent = dict.fromkeys(ways, 0.0)
    for _ in range(TURNS):
        for way, (own, pid) in ways.items():
            began = processor_s(pid) if pid else 0.0
            measured[way].append(rate(own, size, count))
            spent[way] += (processor_s(pid) if pid else 0.0) - began
    for way, rates in measured.items():
        cost = spent[way] / TURNS / count * 1e6
        best = max(rates)
        show(way, (f"{best:,.0f}", f"{best * size / 1e6:.0f}", f"{cost:.2f}" if cost else "-"))


def _idle(plain: tuple[int, int], most: int) -> None:
    """Print the memory of the proxy with many connections."""
    count = min(most, int(os.sysconf("SC_OPEN_MAX")) // 2 - 100)  # the proxy has two of each
    before = resident_mb(plain[1])
    opened = [connect(plain[0], f"idle-{at}") for at in range(count)]
    after = resident_mb(plain[1])
    show(f"{count:,} idle connections, MB", (f"{before:.0f}", f"{after:.0f}"))
    for each in opened:
        each.close()


if __name__ == "__main__":
    main()
