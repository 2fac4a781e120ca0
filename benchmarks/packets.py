"""Benchmark: packets to columns, against the shipped Java classes, memcpy and the scalar decoder.

Every figure is the best of several rounds on one core; baselines are measured before and after in
the same run. Only ratios are meaningful on other machines.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import wireyard
from benchmarks.java import java_baseline
from peers import openmq

ROOT = Path(__file__).resolve().parent.parent
STREAMS = ROOT.parent / "shared" / "streams"
TARGET_BYTES = 120_000_000
ROUNDS = 9
TURNS = 60
"""Rounds of one and of two threads: many, since on a shared machine both cores are seldom free."""
SAME_COLUMNS, VALUES = "same_columns", "all"
"""The Java cases to which reading all columns is compared: with our texts, and without."""


@dataclass(frozen=True)
class Subject:
    """The settings of the benchmark for one format."""

    format: str
    java_cases: Mapping[str, str]
    """Cases of PacketBench.java, with their names in the table."""
    header: Sequence[str]
    """Columns that a Java program has if it reads no property and no body."""
    header_name: str
    """Name of these columns in the table."""
    java_header: str
    """The corresponding Java case."""
    recorded: Callable[[], bytes]
    """Returns a stream to use if there is none from the shipped classes."""

    def stream(self) -> tuple[str, bytes]:
        """Return the name and bytes of a stream: one from the Java classes, or our recordings."""
        path = STREAMS / f"{self.format}_5000.stream"
        if path.is_file():
            return path.name, path.read_bytes()
        return "examples/traffic", self.recorded()


def best_seconds(
    work: Callable[[], object],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the time of the fastest of several rounds, after one that warms memory and caches."""
    work()
    times = []
    for _ in range(rounds):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def best_in_turn(*works: Callable[[], object], rounds: int = TURNS) -> list[float]:
    """Return the times of the fastest rounds; rounds alternate, to see the same load."""
    times = [[best_seconds(work, 1) for work in works] for _ in range(rounds)]
    return [min(taken) for taken in zip(*times, strict=True)]


def our_rates(subject: Subject, part: bytes, repeats: int, packets: int) -> dict[str, float]:
    """Return packets per second of each of our cases; one and two threads alternate."""
    name = subject.format
    data = part * repeats

    def drain(threads: int, columns: Sequence[str] | None = None) -> Callable[[], object]:
        return lambda: sum(
            batch.num_rows for batch in wireyard.scan(data, name, columns, threads=threads)
        )

    copy = np.empty(len(data), np.uint8)
    whole = np.frombuffer(data, np.uint8)
    cores = os.sched_getaffinity(0)
    one, two = best_in_turn(drain(1), drain(2))
    os.sched_setaffinity(0, {max(cores)})
    seconds = {
        "memcpy of the same bytes": best_seconds(lambda: np.copyto(copy, whole)),
        "scan, all columns": one,
        "read, all columns": best_seconds(lambda: wireyard.read(data, name, threads=1)),
        f"scan, {subject.header_name}": best_seconds(drain(1, subject.header)),
        "scan, 2 columns": best_seconds(drain(1, ["timestamp", "sequence"])),
    }
    scalar = best_seconds(lambda: list(wireyard.packets(part, name)), 2)
    os.sched_setaffinity(0, cores)
    seconds["scan, all columns, 2 threads"] = two
    rates = {name: packets / value for name, value in seconds.items()}
    return {**rates, "scalar decoder": packets / repeats / scalar}


def java_rates(subject: Subject, part: bytes) -> dict[str, float]:
    """Return packets per second of the shipped classes; empty if they are not available."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream"
        path.write_bytes(part)
        try:
            baseline = java_baseline(subject.format, path)
        except openmq.Unavailable as why:
            Console(stderr=True).print(f"no Java baseline: {why}")
            return {}
    return {name: baseline[name]["packets_per_s_best"] for name in subject.java_cases}


def measure(subject: Subject) -> None:
    """Measure and print one table."""
    name, part = subject.stream()
    repeats = -(-TARGET_BYTES // len(part))
    size = len(part) * repeats
    packets = repeats * wireyard.scan(part, subject.format, ["offset"]).read_all().num_rows
    before = java_rates(subject, part)
    ours = our_rates(subject, part, repeats, packets)
    after = java_rates(subject, part)
    java = {case: max(before[case], after[case]) for case in before}
    table = Table(title=f"{name}, {size / 1e6:.0f} MB, {packets} packets")
    bases = ("same columns", "values") if java else ()
    headings = ("case", "M packets/s", "MB/s", *(f"x Java {base}" for base in bases))
    for heading in (*headings, "x memcpy", "x scalar"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, rate in java.items():
        table.add_row(subject.java_cases[case], *_figures(rate, size / packets))
    for case, rate in ours.items():
        table.add_row(
            case,
            *_figures(rate, size / packets),
            *(f"{rate / java[base]:.2f}" for base in _bases(subject, case) if java),
            f"{rate / ours['memcpy of the same bytes']:.2f}",
            f"{rate / ours['scalar decoder']:.0f}",
        )
    console = Console(width=120)
    console.print(table)
    one, two = ours["scan, all columns"], ours["scan, all columns, 2 threads"]
    console.print(f"two threads are {two / one:.2f} times as fast as one")


def _bases(subject: Subject, case: str) -> tuple[str, str]:
    """Return the Java cases to which a case of ours is compared."""
    if case.endswith(subject.header_name):
        return (subject.java_header, subject.java_header)
    return (SAME_COLUMNS, VALUES)


def _figures(rate: float, bytes_each: float) -> tuple[str, str]:
    return f"{rate / 1e6:.2f}", f"{rate * bytes_each / 1e6:.0f}"
