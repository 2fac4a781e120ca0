"""Benchmark: MQTT PUBLISH to columns, against other parsers and memcpy, on one core.

All read the same stream: MQTT 5.0, the only version that the Rust crate reads, with QoS 0, 1 and 2
mixed, payloads of 200 bytes and 1,000 topics. Every figure is the best of several rounds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import wireyard
from benchmarks.jmq import best_seconds
from peers import mqtt

MESSAGES = 500_000
PAYLOAD_BYTES = 200
TOPICS = 1_000
FEW_COLUMNS = ["packet_type", "qos", "topic", "packet_id", "payload_size", "payload"]


def stream(messages: int = MESSAGES) -> bytes:
    """Return a stream of PUBLISH packets."""
    rng = Random(2026)
    topics = [f"plant/{n % 10}/line/{n % 40}/sensor/{n}".encode() for n in range(TOPICS)]
    payloads = [rng.randbytes(PAYLOAD_BYTES) for _ in range(997)]
    parts = []
    for number in range(messages):
        topic, payload, qos = topics[rng.randrange(TOPICS)], payloads[number % 997], number % 3
        packet_id = (number % 65_535 + 1).to_bytes(2, "big") if qos else b""
        body = b"".join((len(topic).to_bytes(2, "big"), topic, packet_id, b"\0", payload))
        length = bytes([len(body) & 0x7F | 0x80, len(body) >> 7])
        parts.append(bytes([0x30 | qos << 1]) + length + body)
    return b"".join(parts)


def with_mqtt5(data: bytes) -> Callable[[], object]:
    """Return the reading of a stream by the Rust crate."""
    read = mqtt.parser("mqtt5").read

    def work() -> int:
        view, at, count = memoryview(data), 0, 0
        while at < len(data):
            _, size = read(view[at:])
            at += size
            count += 1
        return count

    return work


def with_zmqtt(data: bytes) -> Callable[[], object]:
    """Return the reading of a stream by the parser written in Python."""
    buffer: Any = mqtt.parser("zmqtt._internal.packets.reader").PacketBuffer

    def work() -> int:
        packets = buffer(version="5.0")
        packets.feed(data)
        return sum(1 for _ in packets)

    return work


def peers(data: bytes) -> dict[str, float]:
    """Return messages per second of the other parsers, none where they cannot be had."""
    part = stream(20_000)
    try:
        return {
            "mqtt5 0.8.0, Rust": MESSAGES / best_seconds(with_mqtt5(data), 3),
            "zmqtt 0.2.5, Python": 20_000 / best_seconds(with_zmqtt(part), 3),
        }
    except mqtt.Unavailable as why:
        Console(stderr=True).print(f"no other parsers: {why}")
        return {}


def main() -> None:
    """Measure and print one table."""
    data = stream()
    whole, copy = np.frombuffer(data, np.uint8), np.empty(len(data), np.uint8)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    def scan(columns: list[str] | None = None) -> Callable[[], object]:
        def work() -> None:
            batches = wireyard.scan(data, "mqtt/5.0", columns, threads=1)
            assert sum(batch.num_rows for batch in batches) == MESSAGES

        return work

    others = peers(data)
    seconds = {
        "memcpy of the same bytes": best_seconds(lambda: np.copyto(copy, whole)),
        "scan, all columns": best_seconds(scan()),
        "scan, 6 columns": best_seconds(scan(FEW_COLUMNS)),
        "read, all columns": best_seconds(lambda: wireyard.read(data, "mqtt/5.0", threads=1)),
    }
    rates = {**others, **{case: MESSAGES / taken for case, taken in seconds.items()}}
    table = Table(title=f"{MESSAGES:,} PUBLISH packets, {len(data) / 1e6:.0f} MB")
    for heading in (
        "case",
        "M messages/s",
        *(f"x {name.split()[0]}" for name in others),
        "x memcpy",
    ):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, rate in rates.items():
        ratios = [rate / other for other in (*others.values(), rates["memcpy of the same bytes"])]
        table.add_row(case, f"{rate / 1e6:.2f}", *(f"{ratio:.3g}" for ratio in ratios))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
