"""One RMP stream read every way there is."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from tests.readings import assert_contiguous, assert_same, cut, events_of, forced
from wireyard.formats import get_format
from wireyard.formats.base import Format
from wireyard.streams import scan
from wireyard.streams.plan import make_plan

DIALECTS = ("rmp", "rmp/list-order", "rmp/framed", "rmp/framed-list-order")
FORMATS = {label: get_format(label) for label in DIALECTS}
OF_MESSAGES = (
    "typing", "layer_name", "foreign", "message_number", "packet_number", "packet_count", "domain",
    "client", "reply_message_number", "reply_source", "data_size", "data",
)  # fmt: skip
"""Columns that a message has under the same name, and without null for what is foreign."""


def table_of(data: bytes, format: Format, *, compiled: bool) -> pa.Table:
    """Read a stream by one of the two paths into one table."""
    plan = make_plan(format)
    with forced(compiled=compiled):
        batches = scan.scan_source(data, plan)
        return pa.Table.from_batches(batches, plan.schema).combine_chunks()


def assert_one_reading(data: bytes, format: Format, rng: Random) -> pa.Table:
    """Assert that scalar, compiled and incremental reading agree, and that no byte is lost."""
    table = table_of(data, format, compiled=False)
    assert_contiguous(table, len(data))
    assert_same(table_of(data, format, compiled=True), table)
    events = events_of(data, cut(data, rng, rng.choice((1, 7, 100, 5000))), format=format)
    rows = table.to_pylist()
    assert len(events) == len(rows)
    for event, row in zip(events, rows, strict=True):
        assert (event.offset, event.length) == (row["offset"], row["length"])
        assert event.status == row["status"]
        assert (event.error and event.error.row()) == row["error"]
        if event.packet is not None:
            assert {n: getattr(event.packet, n) for n in OF_MESSAGES} == {
                name: row[name] for name in OF_MESSAGES
            }
    return table
