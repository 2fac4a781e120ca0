"""How late rows are while many captures grow, each with MQTT messages at QoS 0.

The captures are written by this process, and `wireyard run --follow` reads them in another. A third
process reads the new files of each commit. A message is late by the time from when its bytes were
written to when its rows are in `messages` and in `deliveries`.

    python -m benchmarks.following CAPTURES MESSAGES_PER_SECOND SECONDS [OPTION_OF_RUN ...]
    python -m benchmarks.following CAPTURES MESSAGES_PER_SECOND SECONDS cluster

The second form is on a cluster of two workers, of which an executor is killed every 20 s. At the
end the tables are compared with those of one run.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

import wireyard
from tests.spark.cluster import CONF, kill_one, pids, standalone
from tests.spark.lakes import assert_as_one_run
from wireyard import mqtt
from wireyard.errors import WireError
from wireyard.lake import read_lake

CLIENTS: Final = 4
"""Publishers of a capture, each with a subscriber."""
_TICK_S: Final = 0.25
_KILL_S: Final = 20.0
_CLUSTER: Final = "cluster"
_HEAD: Final = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 16, 101)
_RECORD: Final = struct.Struct("<IIII")
_IP: Final = struct.Struct(">BBHHHBBHII")
_TCP: Final = struct.Struct(">HHIIBBHHH")
_SYN, _PSH, _ACK = 0x02, 0x08, 0x10
_BEGAN_NS: Final = 1_790_000_000 * 10**9
_TABLES: Final = {"messages": "captured_ns", "deliveries": "delivered_ns"}
"""The tables, and the column with the time of a message, which is delivered at once."""


class _Capture:
    """The bytes of a capture, in raw IP."""

    def __init__(self) -> None:
        self.data = bytearray(_HEAD)
        self.now_us = 0
        self._next: dict[tuple[int, bool], int] = {}

    def open(self, port: int) -> None:
        """Add the handshake of a client's connection."""
        self._segment(port, b"", _SYN, 0, from_client=True)
        self._segment(port, b"", _SYN | _ACK, 0, from_client=False)

    def add(self, port: int, payload: bytes, *, from_client: bool = True) -> None:
        """Add a segment of a client's connection."""
        number = self._next.get((port, from_client), 1)
        self._next[port, from_client] = number + len(payload)
        self._segment(port, payload, _PSH | _ACK, number, from_client=from_client)

    def _segment(
        self, port: int, payload: bytes, flags: int, number: int, *, from_client: bool
    ) -> None:
        client, broker = (0x0A000002, port), (0x0A000001, 1883)
        (src, src_port), (dst, dst_port) = (client, broker) if from_client else (broker, client)
        acknowledged = self._next.get((port, not from_client), 1) if flags & _ACK else 0
        size = _IP.size + _TCP.size + len(payload)
        self.data += _RECORD.pack(*divmod(_BEGAN_NS // 1000 + self.now_us, 10**6), size, size)
        self.data += _IP.pack(0x45, 0, size, 0, 0, 64, 6, 0, src, dst)
        tcp = src_port, dst_port, number, acknowledged, 0x50, flags, 1 << 15, 0, 0
        self.data += _TCP.pack(*tcp) + payload


def _parts(rate: int, seconds: int) -> list[bytes]:
    """Return the bytes of a capture by tick; the connections are in the first."""
    capture, parts = _Capture(), list[bytes]()
    for port in range(50_000, 50_000 + 2 * CLIENTS):
        capture.open(port)
        capture.add(port, wireyard.encode(mqtt.Connect(client_id=f"client-{port}")))
        capture.add(port, wireyard.encode(mqtt.ConnAck()), from_client=False)
    for each in range(CLIENTS):
        port = 50_000 + CLIENTS + each
        capture.add(port, wireyard.encode(mqtt.Subscribe(packet_id=1, filters=[f"plant/{each}"])))
        capture.add(
            port, wireyard.encode(mqtt.SubAck(packet_id=1, return_codes=[0])), from_client=False
        )
    for number in range(rate * seconds):
        each = number % CLIENTS
        data = wireyard.encode(mqtt.Publish(topic=f"plant/{each}", payload=b"%012d" % number))
        capture.now_us = 1 + number * 10**6 // rate
        capture.add(50_000 + each, data)
        capture.add(50_000 + CLIENTS + each, data, from_client=False)
        if (number + 1) % int(rate * _TICK_S) == 0:
            parts.append(bytes(capture.data))
            capture.data.clear()
    return parts


def _look(lake: str, rate: int, seconds: int, captures: int, ended: Event, results: Any) -> None:
    """Put when the rows of each message came, by table: seconds of the monotonic clock."""
    came = {table: np.full((captures, rate * seconds), np.inf) for table in _TABLES}
    seen, commits = set[str](), 0
    while not ended.is_set():
        time.sleep(0.1)
        try:
            held = read_lake(lake, check=False)
            if held.commits == commits:
                continue
            commits = held.commits
            for table, column in _TABLES.items():
                for path in set(held.paths(table)) - seen if table in held.files else ():
                    rows = pq.read_table(path, columns=["source", column])
                    rows = rows.filter(rows[column].is_valid())
                    names = rows["source"].to_pylist()
                    inputs = np.array([int(Path(name).stem) for name in names], int)
                    after_us = (rows[column].to_numpy() - _BEGAN_NS) // 1000
                    numbers = (after_us - 1) * rate // 10**6
                    place = inputs, np.round(numbers).astype(int)
                    came[table][place] = np.minimum(came[table][place], time.monotonic())
                    seen.add(path)
        except (OSError, WireError, KeyError):
            continue  # replaced in the meantime
    results.put(came)


@contextmanager
def _killed(folder: Path) -> Iterator[tuple[list[str], list[float]]]:
    """Start a cluster of two workers; kill one of its executors every `_KILL_S` seconds.

    Yield the options of a run on it, and the times of the kills.
    """
    kills, ended = list[float](), threading.Event()

    def kill() -> None:
        while not ended.wait(_KILL_S):
            if kill_one(pids(folder, "CoarseGrainedExecutorBackend"), len(kills)):
                kills.append(time.monotonic())

    with standalone(folder) as url:
        conf = {**CONF, "spark.executor.memory": "512m"}
        options = [word for one in conf.items() for word in ("--conf", "=".join(one))]
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield ["--master", url, *options], kills
        finally:
            ended.set()
            thread.join()


def main() -> None:
    """Print the percentiles of how late rows were."""
    captures, rate, seconds = map(int, sys.argv[1:4])
    parts = _parts(rate, seconds)
    given = sys.argv[4:]
    with TemporaryDirectory() as name, ExitStack() as held:
        folder, lake, kills = Path(name) / "in", Path(name) / "lake", list[float]()
        if is_cluster := given == [_CLUSTER]:
            given, kills = held.enter_context(_killed(Path(name) / "cluster"))
        folder.mkdir()
        came, written = _follow(folder, lake, given, parts, (captures, rate, seconds))
        _report(came, np.repeat(written, int(rate * _TICK_S)))
        if is_cluster:
            print(f"{len(kills)} executors were killed")
            assert_as_one_run(folder, lake)
            print("the tables are those of one run")


def _follow(
    folder: Path, lake: Path, given: list[str], parts: list[bytes], size: tuple[int, int, int]
) -> tuple[dict[str, Any], list[float]]:
    """Write the captures while a run follows them; return when rows came, and were written."""
    captures, rate, seconds = size
    forks = get_context("spawn")
    ended, results = forks.Event(), forks.Queue()
    files = [(folder / f"{number}.pcap").open("wb") for number in range(captures)]
    command = ["-m", "wireyard", "run", str(folder), "--follow", "--lake", str(lake)]
    process = subprocess.Popen([sys.executable, *command, *given])
    looking = forks.Process(target=_look, args=(str(lake), rate, seconds, captures, ended, results))
    looking.start()
    time.sleep(5)
    began_s, written = time.monotonic(), list[float]()
    for number, part in enumerate(parts):
        time.sleep(max(began_s + number * _TICK_S - time.monotonic(), 0))
        for file in files:
            file.write(part)
            file.flush()
        written.append(time.monotonic())
    time.sleep(30)
    ended.set()
    came = results.get()
    looking.join()
    process.send_signal(signal.SIGINT)
    process.wait()
    return came, written


def _report(came: dict[str, Any], written: Any) -> None:
    """Print how late the rows of the second half were."""
    for table, times in came.items():
        late = (times - written)[:, len(written) // 2 :]
        found = [f"{np.percentile(late, each, method='higher'):.1f}" for each in (50, 95, 100)]
        print(f"{table}: half, 95 % and all of {late.size:,} rows late by: {' '.join(found)} s")


if __name__ == "__main__":
    main()
