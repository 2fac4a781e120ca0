"""One stream of GPackets read every way there is, and what has to hold between the readings."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pyarrow as pa

from tests.readings import assert_contiguous, assert_same, cut, events_of, forced
from wireyard.formats import get_format
from wireyard.schema import pick_columns, rows_to_batch
from wireyard.streams.decoder import Decoded
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_source

GPACKET = get_format("gpacket")
OF_BOTH = ("version", "packet_type", "packet_type_name", "bit_flags", "payload")


def table_of(
    data: bytes,
    *,
    compiled: bool,
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    max_packet_bytes: int | None = None,
) -> pa.Table:
    """Read a stream by one of the two paths into one table."""
    plan = make_plan(GPACKET, columns, (), mode, max_packet_bytes)
    with forced(compiled=compiled):
        return pa.Table.from_batches(scan_source(data, plan), plan.schema).combine_chunks()


def assert_events(events: Sequence[Decoded], table: pa.Table) -> None:
    """Assert that a decoder's events say what the rows of a table say."""
    names = ("offset", "length", "status", "error")
    rows = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    said = [
        (event.offset, event.length, event.status, event.error.row() if event.error else None)
        for event in events
    ]
    assert said == rows
    packets = [event.packet for event in events if event.status == "ok"]
    columns = pick_columns(GPACKET, OF_BOTH)
    made = rows_to_batch(columns, [{n: getattr(p, n) for n in OF_BOTH} for p in packets])
    well = table.filter(pa.compute.equal(table["status"], "ok")).select(OF_BOTH)
    assert pa.Table.from_batches([made]).equals(well.combine_chunks())


def assert_one_reading(data: bytes, rng: Random, max_packet_bytes: int | None = None) -> pa.Table:
    """Assert that scalar, compiled and incremental reading agree, and that no byte is lost."""
    scalar = table_of(data, compiled=False, max_packet_bytes=max_packet_bytes)
    assert_contiguous(scalar, len(data))
    assert_same(table_of(data, compiled=True, max_packet_bytes=max_packet_bytes), scalar)
    pieces = cut(data, rng, rng.choice((7, 100, 5_000, 1 << 20)))
    assert_events(events_of(data, pieces, max_packet_bytes, GPACKET), scalar)
    return scalar
