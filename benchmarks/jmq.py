"""JMQ packets to columns, against the shipped Java classes, memcpy and our own scalar decoder.

Every figure is the best of several rounds on one core, baselines measured before and after in the
same run; only the ratios mean something on another machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import wireyard
from benchmarks.java import java_baseline
from peers import openmq
from wireyard.formats.jmq.layout import COLUMNS

ROOT = Path(__file__).resolve().parent.parent
STREAM = ROOT.parent / "shared" / "streams" / "jmq_5000.stream"
TARGET_BYTES = 120_000_000
ROUNDS = 9
TEXTS = ("packet_type_name", "source_ip_text", "flags", "sys_message_id")
HEADER_AND_ITEMS = [c.name for c in COLUMNS if c.name not in (*TEXTS, "properties", "body")]
JAVA_CASES = {
    "same_columns": "Java, the same columns",
    "all_text_ids": "Java, values and text ids",
    "all": "Java, values",
    "header_items": "Java, header and items",
}
"""Ours prints ids, addresses, flags and property values as text; so does the first case."""


def stream() -> tuple[str, bytes]:
    """Return a stream and what it is: the one made by the Java classes, or our recordings."""
    if STREAM.is_file():
        return STREAM.name, STREAM.read_bytes()
    parts = sorted((ROOT / "examples" / "traffic").glob("*.jmq"))
    return "examples/traffic", b"".join(part.read_bytes() for part in parts)


def best_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the shortest of several rounds, after one that warms memory and caches."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def our_rates(data: bytes, packets: int) -> dict[str, float]:
    """Return packets per second of each of our cases; the two-thread case is not pinned."""

    def drain(threads: int, columns: list[str] | None = None) -> Callable[[], object]:
        return lambda: sum(
            batch.num_rows for batch in wireyard.scan(data, "jmq", columns, threads=threads)
        )

    part = data[: len(data) // 40]
    copy = np.empty(len(data), np.uint8)
    whole = np.frombuffer(data, np.uint8)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    seconds = {
        "memcpy of the same bytes": best_seconds(lambda: np.copyto(copy, whole)),
        "scan, all columns": best_seconds(drain(1)),
        "read, all columns": best_seconds(lambda: wireyard.read(data, "jmq", threads=1)),
        "scan, header and items": best_seconds(drain(1, HEADER_AND_ITEMS)),
        "scan, 2 columns": best_seconds(drain(1, ["timestamp", "sequence"])),
    }
    scalar = best_seconds(lambda: list(wireyard.packets(part, "jmq")), 2)
    os.sched_setaffinity(0, cores)
    seconds["scan, all columns, 2 threads"] = best_seconds(drain(2))
    rates = {name: packets / value for name, value in seconds.items()}
    return {**rates, "scalar decoder": packets / 40 / scalar}


def java_rates(part: bytes) -> dict[str, float]:
    """Return packets per second of the shipped classes, none where they cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream"
        path.write_bytes(part)
        try:
            found = java_baseline(path)
        except openmq.Unavailable as why:
            Console(stderr=True).print(f"no Java baseline: {why}")
            return {}
    return {name: found[name]["packets_per_s_best"] for name in JAVA_CASES}


def main() -> None:
    """Measure and print one table."""
    name, part = stream()
    data = part * -(-TARGET_BYTES // len(part))
    packets = wireyard.scan(data, "jmq", ["offset"]).read_all().num_rows
    before = java_rates(part)
    ours = our_rates(data, packets)
    after = java_rates(part)
    java = {case: max(before[case], after[case]) for case in before}
    table = Table(title=f"{name}, {len(data) / 1e6:.0f} MB, {packets} packets")
    bases = ("same columns", "values") if java else ()
    headings = ("case", "M packets/s", "MB/s", *(f"x Java {base}" for base in bases))
    for heading in (*headings, "x memcpy", "x scalar"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, rate in java.items():
        table.add_row(JAVA_CASES[case], *_figures(rate, len(data) / packets))
    for case, rate in ours.items():
        table.add_row(
            case,
            *_figures(rate, len(data) / packets),
            *(f"{rate / java[base]:.2f}" for base in _bases(case) if java),
            f"{rate / ours['memcpy of the same bytes']:.2f}",
            f"{rate / ours['scalar decoder']:.0f}",
        )
    console = Console(width=120)
    console.print(table)
    one, two = ours["scan, all columns"], ours["scan, all columns, 2 threads"]
    console.print(f"two threads are {two / one:.2f} times as fast as one")


def _bases(case: str) -> tuple[str, str]:
    """Return which Java cases a case of ours is held against."""
    return ("header_items", "header_items") if "items" in case else ("same_columns", "all")


def _figures(rate: float, bytes_each: float) -> tuple[str, str]:
    return f"{rate / 1e6:.2f}", f"{rate * bytes_each / 1e6:.0f}"


if __name__ == "__main__":
    main()
