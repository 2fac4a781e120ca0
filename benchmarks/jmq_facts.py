"""Benchmark: processor time of the columnar engine for JMQ facts, by phase, against bronze.

Bronze is the work of its tasks, in this process: read an input, decode it, write Parquet. The
engine reads the columns that it needs from that Parquet, runs its phases, and its tables are
written. There are two inputs of a GB and 1.6 million packets: a stream of messages, and a capture
with consumers, acknowledgements and transactions (``jmq_load.py``). Only ratios are
meaningful on other machines.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import process_time
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import wireyard
from benchmarks.jmq_load import write_load
from benchmarks.packets import ROOT
from benchmarks.spark_source import STREAM_BYTES, make_stream
from wireyard.lake.parts import PartFile
from wireyard.layers.jmq import columns

__all__ = ["main"]

FOLDER = ROOT / "build" / "jmq_facts"
MESSAGES, FEW = 350_000, 10_000
TEXTS = ("source", "stream", "format", "status", "src_addr", "dst_addr", "packet_type_name",
         "source_ip_text", "destination", "reply_to")  # fmt: skip
MESSAGE_ONLY = ("properties", "body")
ROUNDS = 3

R = TypeVar("R")


class Clock:
    """The shortest processor time of each case over some rounds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, case: str, work: Callable[[], R]) -> R:
        start = process_time()
        result = work()
        taken = process_time() - start
        self.seconds[case] = min(self.seconds.get(case, taken), taken)
        return result


def write_bronze(path: Path, target: Path) -> int:
    """Write the packets of an input as bronze does; return their number."""
    reader = wireyard.scan(str(path), "jmq")
    file = PartFile(str(target), reader.schema)
    rows = 0
    for batch in reader:
        file.write(batch)
        rows += batch.num_rows
    file.close()
    return rows


def read_columns(path: Path) -> pa.Table:
    """Read the columns that the engine needs, without the bodies of row groups of only messages."""
    schema = pq.read_schema(path)
    wanted = [name for name in columns.NEEDED if name in schema.names]
    file = pq.ParquetFile(path, read_dictionary=[name for name in TEXTS if name in wanted])
    parts = []
    for group in range(file.num_row_groups):
        plain = [name for name in wanted if name not in MESSAGE_ONLY]
        part = file.read_row_group(group, plain)
        if _only_messages(part["packet_type"]):
            nothing = (pa.nulls(len(part), schema.field(name).type) for name in MESSAGE_ONLY)
            for name, column in zip(MESSAGE_ONLY, nothing, strict=True):
                part = part.append_column(name, column)
        else:
            rest = file.read_row_group(group, list(MESSAGE_ONLY))
            for name in MESSAGE_ONLY:
                part = part.append_column(name, rest[name])
        parts.append(part)
    return pa.concat_tables(parts)


def _only_messages(types: pa.ChunkedArray) -> bool:
    span = pc.min_max(types)
    return bool(len(types)) and span["min"].as_py() >= 1 and span["max"].as_py() <= 6


def derive(clock: Clock, packets: pa.Table) -> dict[str, pa.Table]:
    """Run and time the phases; return the tables."""
    first = clock("connections", lambda: columns.follow_connections({"jmq": packets}))
    after = clock("transactions", lambda: columns.follow_transactions(
        first.uses, first.sendings, first.deliveries))  # fmt: skip
    records = after.sendings, after.deliveries, first.relays
    joined = clock("messages", lambda: columns.join_messages(*records))
    replies, _ = clock("conversations", lambda: columns.match_replies(joined.messages))
    hops = clock("hops", lambda: columns.order_hops(*records))
    marks = clock("marks of messages", lambda: columns.stand_for_messages(*records))
    return {
        "deliveries": joined.deliveries,
        "transactions": after.facts["transactions"],
        "hops": hops.hops,
        "control": first.facts["conversations"],
        "conversations": replies,
        "sessions": first.facts["sessions"],
        "violations": first.facts["violations"],
        "messages": marks,
    }


def write_tables(tables: dict[str, pa.Table]) -> None:
    """Write tables as the facts stage does."""
    for name, table in tables.items():
        file = PartFile(str(FOLDER / f"{name}.parquet"), table.schema)
        for batch in table.to_batches():
            file.write(batch)
        file.close()


def measure(console: Console, name: str, path: Path) -> None:
    """Measure and print one table."""
    clock, bronze = Clock(), FOLDER / f"{name}.bronze.parquet"
    rows = 0
    for _ in range(ROUNDS):
        rows = clock("bronze", lambda: write_bronze(path, bronze))
        packets = clock("columns from Parquet", lambda: read_columns(bronze))
        clock("tables to Parquet", partial(write_tables, derive(clock, packets)))
    million = rows / 1e6
    seconds = clock.seconds
    phases = [case for case in seconds if case not in ("bronze", "columns from Parquet",
                                                       "tables to Parquet")]  # fmt: skip
    seconds["all phases"] = sum(seconds[case] for case in phases)
    reading = seconds["columns from Parquet"] + seconds["tables to Parquet"]
    seconds["with Parquet"] = seconds["all phases"] + reading
    title = f"{name}, {path.stat().st_size / 1e6:.0f} MB, {rows:,} packets, processor time"
    table = Table(title=title)
    for heading in ("case", "s", "s a million", "x bronze"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, taken in seconds.items():
        figures = f"{taken:.2f}", f"{taken / million:.2f}", f"{taken / seconds['bronze']:.2f}"
        table.add_row(case, *figures)
    console.print(table)


def main() -> None:
    """Measure and print a table for each input."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    console = Console(width=110)
    stream, load, few = (FOLDER / name for name in ("stream.jmq", "load.pcap", "few.pcap"))
    if not stream.is_file() or stream.stat().st_size < STREAM_BYTES:
        make_stream(stream)
    for path, messages in ((load, MESSAGES), (few, FEW)):
        if not path.is_file():
            write_load(path, messages)
    pa.set_cpu_count(1)
    columns.derive_columns({"jmq": wireyard.read(str(few), "jmq")})  # compiles the kernels
    for name, path in (("stream", stream), ("load", load)):
        measure(console, name, path)
    for name in ("stream", "load"):
        with suppress(FileNotFoundError):
            (FOLDER / f"{name}.bronze.parquet").unlink()


if __name__ == "__main__":
    main()
