"""The broker beside mosquitto: processor time of the server for each message, 200 bytes each.

For QoS 1, messages a second too. Each is the best of several turns.

python -m benchmarks.broker
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from wireyard import mqtt
from wireyard.formats.mqtt.writing import encode

_PAYLOAD: Final = b"x" * 200
_WINDOW: Final = 1000
_TURNS: Final = 5
_CONFIGURATION: Final = """
listener {port} 127.0.0.1
allow_anonymous true
max_inflight_messages 1000
max_queued_messages 100000
log_type none
"""


class Server:
    """A broker that runs, and what it has cost."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self._pid = port, pid

    def cpu_us(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return 1e6 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connect(self, client_id: str, topic: str = "", qos: int = 0, keeps: bool = False) -> Socket:
        client = socket.create_connection(("127.0.0.1", self.port), 60)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        login = mqtt.Connect(client_id=client_id, clean_start=not keeps, version_in_force=4)
        client.sendall(encode(login))
        client.recv(4)
        if topic:
            client.sendall(encode(mqtt.Subscribe(packet_id=1, filters=[(topic, qos)])))
            client.recv(5)
        return client


Socket = socket.socket


def fan_out(server: Server, subscribers: int, messages: int, topics: int = 1) -> float:
    """Return the processor time of a message at QoS 0; each is for the next topic."""
    names = [f"bench/{number}" for number in range(topics)]
    packets = [encode(mqtt.Publish(topic=name, payload=_PAYLOAD)) for name in names]
    packet, many = packets[0], b"".join(packets) * (200 // topics)
    readers = [server.connect(f"r{number}", "bench/#") for number in range(subscribers)]
    writer, ready = server.connect("w"), select.epoll()
    got = {reader.fileno(): 0 for reader in readers}
    for reader in readers:
        reader.setblocking(False)
        ready.register(reader.fileno(), select.EPOLLIN)

    def write() -> None:
        for sent in range(0, messages, 200):
            writer.sendall(many)
            while sent - min(got.values()) / len(packet) > 4 * _WINDOW:
                time.sleep(0.0005)

    before, thread = server.cpu_us(), Thread(target=write)
    thread.start()
    while min(got.values()) < messages * len(packet):
        for file, _ in ready.poll():
            got[file] += len(os.read(file, 1 << 18))
    thread.join()
    for client in (*readers, writer):
        client.close()
    return (server.cpu_us() - before) / messages


def at_least_once(server: Server, messages: int, *, keeps: bool) -> tuple[float, float]:
    """Return processor time and messages a second at QoS 1, with a thousand in flight."""
    reader, writer = server.connect("r", "bench", 1, keeps), server.connect("w", keeps=keeps)
    packet = encode(mqtt.Publish(topic="bench", payload=_PAYLOAD, qos=1, packet_id=1))
    at = packet.index(b"bench") + 5
    acknowledged = 0

    def read() -> None:
        got, left = 0, b""
        while got < messages:
            left += reader.recv(1 << 18)
            count = len(left) // len(packet)
            starts = range(at, count * len(packet), len(packet))
            reader.sendall(b"".join(b"\x40\2" + left[start : start + 2] for start in starts))
            left = left[count * len(packet) :]
            got += count

    def count() -> None:
        nonlocal acknowledged
        size = 0
        while size < 4 * messages:
            size += len(writer.recv(1 << 16))
            acknowledged = size // 4

    before, threads = server.cpu_us(), (Thread(target=read), Thread(target=count))
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for sent in range(0, messages, 100):
        while sent + 100 - acknowledged > _WINDOW:
            time.sleep(0.0003)
        numbers = range(sent, min(sent + 100, messages))
        parts = ((n % 60_000 + 1).to_bytes(2, "big") for n in numbers)
        writer.sendall(b"".join(packet[:at] + part + packet[at + 2 :] for part in parts))
    for thread in threads:
        thread.join()
    rate = messages / (time.perf_counter() - began)
    for client in (reader, writer):
        client.close()
    return (server.cpu_us() - before) / messages, rate


def one_each(server: Server, publishers: int, messages: int) -> tuple[float, float]:
    """Return processor time and median time to PUBACK; each publisher has one in flight."""
    packet = encode(mqtt.Publish(topic="t", payload=_PAYLOAD, qos=1, packet_id=1))
    ready = select.epoll()
    writers = [server.connect(f"o{number}") for number in range(publishers)]
    by_file = {one.fileno(): one for one in writers}
    sent: dict[int, float] = {}
    times: list[float] = []
    before = server.cpu_us()
    for file, writer in by_file.items():
        ready.register(file, select.EPOLLIN)
        sent[file] = time.perf_counter()
        writer.sendall(packet)
    while len(times) < messages:
        for file, _ in ready.poll():
            by_file[file].recv(64)
            now = time.perf_counter()
            times.append(now - sent[file])
            sent[file] = now
            by_file[file].sendall(packet)
    cost = (server.cpu_us() - before) / len(times)
    for writer in writers:
        writer.close()
    return cost, 1e6 * median(times)


@contextmanager
def run(words: list[str], port: int) -> Iterator[Server]:
    """Run a broker until the end of the block."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        try:
            yield Server(port, process.pid)
        finally:
            process.terminate()


def main() -> None:
    """Print the processor time of a message, of each broker in turn."""
    mosquitto = shutil.which("mosquitto", path="/usr/sbin:/usr/bin") or "mosquitto"
    own = [sys.executable, "-m", "wireyard", "broker", "-p"]
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "mosquitto.conf"
        settings.write_text(_CONFIGURATION.format(port=18911))
        store = str(Path(folder) / "broker.db")
        with (
            run([mosquitto, "-c", str(settings)], 18911) as theirs,
            run([*own, "18912"], 18912) as memory,
            run([*own, "18913", "--store", store], 18913) as durable,
        ):
            print("us of processor time a message      mosquitto   wireyard    --store")
            servers = (theirs, memory, durable)
            for count, messages, topics in (
                (1, 60_000, 1), (1, 60_000, 10), (15, 15_000, 1), (100, 3000, 1),
            ):  # fmt: skip
                found = [fan_out(server, count, messages, topics) for server in servers]
                _print(f"QoS 0, {topics} topics, to {count} subscribers", found)
            for name, keeps in (("clean sessions", False), ("sessions that are kept", True)):
                turns = [
                    [at_least_once(server, 20_000, keeps=keeps) for server in servers]
                    for _ in range(_TURNS)
                ]
                _print(f"QoS 1, {name}", [min(one)[0] for one in zip(*turns, strict=True)])
                rates = [max(rate for _, rate in one) for one in zip(*turns, strict=True)]
                _print("  messages a second", rates)
            each = [[one_each(server, 100, 20_000) for server in servers] for _ in range(_TURNS)]
            _print(
                "QoS 1, 100 with one in flight", [min(one)[0] for one in zip(*each, strict=True)]
            )
            alone = [one_each(server, 1, 3000) for server in servers]
            _print("QoS 1, us from PUBLISH to PUBACK", [latency for _, latency in alone])


def _print(name: str, found: list[float]) -> None:
    print(f"{name:35}", *(f"{one:10.2f}" for one in found), flush=True)


if __name__ == "__main__":
    main()
