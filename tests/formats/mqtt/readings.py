"""One stream of MQTT read by both paths, and what has to hold between them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tests.readings import assert_contiguous, assert_same, forced
from wireyard.formats import get_format
from wireyard.streams.plan import Condition, make_plan
from wireyard.streams.scan import scan_source

__all__ = ["assert_one_reading", "table_of"]


def table_of(
    data: bytes,
    *,
    compiled: bool,
    format: str = "mqtt",
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    mode: str = "permissive",
    max_packet_bytes: int | None = None,
) -> pa.Table:
    plan = make_plan(get_format(format), columns, where, mode, max_packet_bytes)
    with forced(compiled=compiled):
        batches = scan_source(data, plan)
        return pa.Table.from_batches(batches, plan.schema).combine_chunks()


def assert_one_reading(
    data: bytes, format: str = "mqtt", max_packet_bytes: int | None = None
) -> pa.Table:
    """Assert that the scalar reader and the compiled columns say the same of every byte."""
    scalar = table_of(data, compiled=False, format=format, max_packet_bytes=max_packet_bytes)
    assert_contiguous(scalar, len(data))
    compiled = table_of(data, compiled=True, format=format, max_packet_bytes=max_packet_bytes)
    compiled.validate(full=True)
    assert_same(compiled, scalar)
    return scalar
