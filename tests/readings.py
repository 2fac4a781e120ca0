"""One stream read every way there is, and what has to hold between the readings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow as pa

from wireyard.formats import get_format
from wireyard.formats.base import Format
from wireyard.schema import pick_columns, rows_to_batch
from wireyard.streams import scan
from wireyard.streams.decoder import Decoded, Decoder
from wireyard.streams.plan import Condition, make_plan
from wireyard.streams.source import Source

JMQ = get_format("jmq")
NEVER = 1 << 62


@contextmanager
def forced(*, compiled: bool) -> Iterator[None]:
    """Have every scan inside answered by the compiled columns, or none."""
    kept = scan._COLD_BYTES, scan._WARM_BYTES
    scan._COLD_BYTES = scan._WARM_BYTES = 0 if compiled else NEVER
    try:
        yield
    finally:
        scan._COLD_BYTES, scan._WARM_BYTES = kept


def table_of(
    source: Source,
    *,
    compiled: bool,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    mode: str = "permissive",
    max_packet_bytes: int | None = None,
    start: int = 0,
    limit: int | None = None,
    threads: int = 1,
) -> pa.Table:
    """Read a source by one of the two paths into one table."""
    plan = make_plan(JMQ, columns, where, mode, max_packet_bytes)
    with forced(compiled=compiled):
        framer = plan.framer(start)
        batches = scan.scan_source(source, plan, framer=framer, limit=limit, threads=threads)
        return pa.Table.from_batches(batches, plan.schema).combine_chunks()


def events_of(
    data: bytes,
    pieces: Iterable[bytes],
    max_packet_bytes: int | None = None,
    format: Format = JMQ,
) -> list[Decoded]:
    """Feed the pieces to a decoder, take every event as soon as it is there."""
    decoder = Decoder(format, max_packet_bytes)
    events: list[Decoded] = []
    for piece in pieces:
        decoder.receive_data(piece)
        events += decoder.events()
    decoder.receive_end()
    events += decoder.events()
    return events


def cut(data: bytes, rng: Random, most: int) -> Iterator[bytes]:
    """Yield `data` in pieces of random sizes from none to `most` bytes."""
    at = 0
    while at < len(data):
        size = rng.randint(0, most)
        yield data[at : at + size]
        at += size


def assert_contiguous(table: pa.Table, size: int) -> None:
    """Assert that the rows of one stream cover it: no byte twice, none left out."""
    at = 0
    for offset, length in zip(
        table["offset"].to_pylist(), table["length"].to_pylist(), strict=True
    ):
        assert offset == at, f"a row begins at {offset}, the one before ended at {at}"
        assert length > 0, f"the row at {offset} has no bytes"
        at += length
    assert at == size, f"the last row ends at {at} of {size}"


def assert_same(one: pa.Table, other: pa.Table) -> None:
    """Assert that two tables have the same schema and the same value everywhere."""
    if one.equals(other):
        return
    assert one.schema == other.schema
    assert one["offset"].to_pylist() == other["offset"].to_pylist()
    for name in one.schema.names:
        pairs = zip(one[name].to_pylist(), other[name].to_pylist(), strict=True)
        for row, (left, right) in enumerate(pairs):
            offset = one["offset"][row].as_py()
            assert left == right, f"column {name}, row {row} at {offset}: {left!r} != {right!r}"
    raise AssertionError("the tables differ, yet no value does")


_DERIVED = ("size", "property_size", "body_size", "source_ip_text", "unknown_items")
"""The columns that a packet has not, or in another form: sizes follow from its bytes."""
_OF_PACKETS = tuple(column.name for column in JMQ.columns if column.name not in _DERIVED)


def packets_to_table(packets: Sequence[Any]) -> pa.Table:
    """Return packets as the columns they have, made from their attributes one by one."""
    columns = pick_columns(JMQ, [*_OF_PACKETS, "unknown_items"])
    rows = [
        {
            **{name: getattr(packet, name) for name in _OF_PACKETS},
            "unknown_items": [
                {"type": code, "value": value} for code, value in packet.unknown_items
            ]
            or None,
        }
        for packet in packets
    ]
    return pa.Table.from_batches([rows_to_batch(columns, rows)])


def assert_events(events: Sequence[Decoded], table: pa.Table) -> None:
    """Assert that a decoder's events say what the rows of a table say."""
    said = [
        (event.offset, event.length, event.status, event.error.row() if event.error else None)
        for event in events
    ]
    names = ("offset", "length", "status", "error")
    rows = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    for one, other in zip(said, rows, strict=False):
        assert one == other, f"event {one} is row {other}"
    assert len(said) == len(rows)
    packets = [event.packet for event in events if event.status == "ok"]
    well = table.filter(pa.compute.equal(table["status"], "ok"))
    made = packets_to_table(packets)
    assert made.equals(well.select(made.schema.names).combine_chunks()), _first(made, well)


def _first(made: pa.Table, well: pa.Table) -> str:
    for name in made.schema.names:
        pairs = zip(made[name].to_pylist(), well[name].to_pylist(), strict=True)
        for row, (left, right) in enumerate(pairs):
            if left != right:
                return f"column {name} of packet {row}: event {left!r}, row {right!r}"
    return "the schemas differ"


def assert_one_reading(data: bytes, rng: Random, max_packet_bytes: int | None = None) -> pa.Table:
    """Assert that scalar, compiled and incremental reading agree, and that no byte is lost."""
    scalar = table_of(data, compiled=False, max_packet_bytes=max_packet_bytes)
    assert_contiguous(scalar, len(data))
    assert_same(table_of(data, compiled=True, max_packet_bytes=max_packet_bytes), scalar)
    most = rng.choice((7, 100, 5_000, 1 << 20))
    assert_events(events_of(data, cut(data, rng, most), max_packet_bytes), scalar)
    return scalar
