"""One stream read every way there is, and what has to hold between the readings.

A format is named by its label, such as ``mqtt/5.0``, or given itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats import get_format
from wireyard.formats.base import Annotation, Format, Row
from wireyard.formats.jmq.trailer import Stamp, stamp_rows
from wireyard.formats.rows import rows_to_batch
from wireyard.layout import Column
from wireyard.streams import scan
from wireyard.streams.decoder import Decoded, Decoder
from wireyard.streams.framer import Frame, Framer
from wireyard.streams.plan import Condition, Plan, make_plan
from wireyard.streams.source import Source

JMQ = get_format("jmq")
NEVER = 1 << 62
_PIECE_BYTES = (7, 100, 5_000, 1 << 20)
_MOST_PIECES = 50_000


def format_of(format: Format | str) -> Format:
    """Return the format of a label; a format is its own."""
    return get_format(format) if isinstance(format, str) else format


@contextmanager
def forced(*, compiled: bool) -> Iterator[None]:
    """Have every scan inside answered by the compiled columns, or none."""
    kept = scan._COLD_BYTES, scan._WARM_BYTES
    scan._COLD_BYTES = scan._WARM_BYTES = 0 if compiled else NEVER
    try:
        yield
    finally:
        scan._COLD_BYTES, scan._WARM_BYTES = kept


def scan_source(
    source: Source,
    plan: Plan,
    *,
    framer: Framer | None = None,
    limit: int | None = None,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a source from the position of `framer` on, before the offset `limit`."""
    framer = framer or plan.framer()
    opened = scan.open_windows(source, framer.position)
    yield from scan.scan_stream(opened, plan, framer, limit, threads)


def table_of(
    source: Source,
    *,
    compiled: bool,
    format: Format | str = JMQ,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    mode: str = "permissive",
    max_packet_bytes: int | None = None,
    start: int = 0,
    context: int | None = None,
    limit: int | None = None,
    threads: int = 1,
) -> pa.Table:
    """Read a source by one of the two paths into one table."""
    plan = make_plan(format_of(format), columns, where, mode, max_packet_bytes)
    with forced(compiled=compiled):
        framer = plan.framer(start, context)
        batches = scan_source(source, plan, framer=framer, limit=limit, threads=threads)
        return pa.Table.from_batches(batches, plan.schema).combine_chunks()


def events_of(
    data: bytes,
    pieces: Iterable[bytes],
    max_packet_bytes: int | None = None,
    format: Format | str = JMQ,
) -> list[Decoded]:
    """Feed the pieces to a decoder, take every event as soon as it is there."""
    decoder = Decoder(format_of(format), max_packet_bytes)
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


def frames_of(
    data: bytes, format: Format | str, max_packet_bytes: int | None = None
) -> list[Frame]:
    """Return the frames of a whole stream, each with its context."""
    framer = Framer(format_of(format), max_packet_bytes)
    frames: list[Frame] = []
    with memoryview(data) as view:
        while (frame := framer.next_frame(view[framer.position :], True)) is not None:
            frames.append(frame)
    return frames


# --- packets as rows ------------------------------------------------------------------------


def packets_to_table(
    packets: Sequence[Any], rows: Sequence[Row], format: Format | str = JMQ
) -> pa.Table:
    """Return packets as the columns they have, made from their attributes one by one.

    Columns that no packet has as an attribute are left out: sizes, which follow from its bytes. So
    is what the class of a packet does not have: there its row counts.
    """
    classes = {type(packet) for packet in packets}
    columns = [
        column
        for column in format_of(format).columns
        if any(hasattr(one, column.name) for one in classes)
    ]
    made = [_row_of(packet, row, columns) for packet, row in zip(packets, rows, strict=True)]
    return pa.Table.from_batches([rows_to_batch(columns, made)])


def _row_of(packet: Any, known: Row, columns: Iterable[Column]) -> Row:
    row = {}
    for column in columns:
        if not hasattr(packet, column.name):
            row[column.name] = known[column.name]
            continue
        value = getattr(packet, column.name)
        if known[column.name] is None and value in (False, ()):
            value = None  # The version of the packet does not have it.
        row[column.name] = _IN_ROWS.get(column.kind, _same)(value, packet)
    if row.get("foreign"):
        # What an RMP message of another protocol says means nothing but its data.
        row |= dict.fromkeys(("layer", "reply_requested", "more_follows"))
    return row


def _same(value: Any, _packet: Any) -> Any:
    return value


def _items(value: Any, _packet: Any) -> list[Row] | None:
    return [{"type": code, "value": data} for code, data in value or ()] or None


def _named(value: Any, _packet: Any) -> list[Row] | None:
    if value is None:
        return None
    if value and isinstance(value[0], Stamp):
        return stamp_rows(value)
    return [
        {"name": name, "value": list(one) if isinstance(one, tuple) else one} for name, one in value
    ]


def _filters(value: Any, packet: Any) -> list[Row] | None:
    """Return topic filters with what their options byte says: in MQTT 5.0 more than the QoS."""
    if value is None:
        return None
    rows = []
    for text, options in value:
        row = dict.fromkeys(
            ("qos", "no_local", "retain_as_published", "retain_handling", "ignored_bits")
        )
        if options is not None:
            row["qos"] = options % 4
        if options is not None and packet.version_in_force != 5:
            row["ignored_bits"] = options // 4 * 4 or None
        elif options is not None:
            row["no_local"] = options // 4 % 2 == 1
            row["retain_as_published"] = options // 8 % 2 == 1
            row["retain_handling"] = options // 16 % 4
        rows.append({"filter": text, **row})
    return rows


_IN_ROWS: Mapping[str, Callable[[Any, Any], Any]] = {
    "items": _items,
    "name_values": _named,
    "filters": _filters,
}
"""By the kind of a column: what packets have in another form than rows."""


def assert_events(events: Sequence[Decoded], table: pa.Table, format: Format | str = JMQ) -> None:
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
    well = table.filter(pc.equal(table["status"], "ok"))
    made = packets_to_table(packets, well.to_pylist(), format)
    assert made.equals(well.select(made.schema.names).combine_chunks()), _first(made, well)


def _first(made: pa.Table, well: pa.Table) -> str:
    for name in made.schema.names:
        pairs = zip(made[name].to_pylist(), well[name].to_pylist(), strict=True)
        for row, (left, right) in enumerate(pairs):
            if left != right:
                return f"column {name} of packet {row}: event {left!r}, row {right!r}"
    return "the schemas differ"


def check_cover(data: bytes, context: int = 0, format: Format | str = JMQ) -> list[Annotation]:
    """Annotate a packet, and assert that the annotations touch, cover all and say something."""
    marks = format_of(format).annotate(data, context)
    at = 0
    for mark in marks:
        assert mark.start == at, mark
        assert mark.start < mark.stop or mark.field == "not readable", mark
        assert mark.field and mark.value and mark.spec, mark
        at = mark.stop
    assert at == len(data)
    return marks


def assert_one_reading(
    data: bytes, rng: Random, max_packet_bytes: int | None = None, format: Format | str = JMQ
) -> pa.Table:
    """Assert that scalar, compiled and incremental reading agree, and that no byte is lost."""
    scalar = table_of(data, compiled=False, max_packet_bytes=max_packet_bytes, format=format)
    assert_contiguous(scalar, len(data))
    compiled = table_of(data, compiled=True, max_packet_bytes=max_packet_bytes, format=format)
    compiled.validate(full=True)
    assert_same(compiled, scalar)
    most = rng.choice([most for most in _PIECE_BYTES if len(data) // most < _MOST_PIECES])
    pieces = cut(data, rng, most)
    assert_events(events_of(data, pieces, max_packet_bytes, format), scalar, format)
    return scalar
