"""What holds between the readings of any stream of any format, besides that they are the same."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.mutations import Subject
from tests.readings import assert_same, check_cover, forced, frames_of, table_of
from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.base import Format, Row
from wireyard.layout import Column
from wireyard.schema import COMMON
from wireyard.streams.framer import GARBAGE, OK, Frame
from wireyard.streams.plan import Condition
from wireyard.streams.split import Segment, walk_pieces
from wireyard.streams.write import encode_batches

__all__ = ["CHECKS", "check_bytes"]

Check = Callable[[bytes, pa.Table, Random, int | None, Subject], None]

_FILTERED = ("bool", "int32", "int64", "string")
_SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CUT_BYTES = (1, 2, 4, 12)


# --- columns, filters, modes ----------------------------------------------------------------


def check_columns(
    data: bytes, table: pa.Table, rng: Random, limit: int | None, subject: Subject
) -> None:
    """Any columns, rows and modes are those of the whole."""
    format = subject.format

    def found(**asked: Any) -> pa.Table:
        compiled = rng.random() < 0.7
        return table_of(data, compiled=compiled, format=format, max_packet_bytes=limit, **asked)

    names = rng.sample(table.schema.names, rng.randint(1, 8))
    assert found(columns=names).equals(table.select(names)), names
    well = pc.equal(table["status"], OK)
    assert_same(found(mode="dropmalformed"), table.filter(well).combine_chunks())
    where = [_condition(table, rng, format) for _ in range(rng.choice((1, 1, 2)))]
    wanted = table
    for name, sign, value in where:
        wanted = wanted.filter(_SIGNS[sign](pc.field(name), value))
    assert_same(found(where=where), wanted.combine_chunks())
    wanted = wanted.filter(pc.field("status") == OK)
    some = found(where=where, mode="dropmalformed", columns=names)
    assert some.equals(wanted.select(names).combine_chunks()), (where, names)
    _check_failfast(found, table)


def _condition(table: pa.Table, rng: Random, format: Format) -> Condition:
    """Return a condition about a value that is there, or about a type that may be."""
    columns: Sequence[Column] = (*COMMON, *format.columns)
    column = rng.choice([column for column in columns if column.kind in _FILTERED])
    values = table[column.name].drop_null()
    if not len(values):
        return "offset", ">=", rng.randrange(1 << 14)
    signs = ("==", "!=") if column.kind == "bool" else tuple(_SIGNS)
    return column.name, rng.choice(signs), values[rng.randrange(len(values))].as_py()


def _check_failfast(found: Callable[..., pa.Table], table: pa.Table) -> None:
    """The first bad row is raised; without one there is no difference."""
    errors = table["error"].drop_null()
    if not len(errors):
        assert_same(found(mode="failfast"), table)
        return
    with pytest.raises(DecodeError) as caught:
        found(mode="failfast")
    assert caught.value.row() == errors[0].as_py()


# --- splits ---------------------------------------------------------------------------------


def check_splits(
    data: bytes, table: pa.Table, rng: Random, limit: int | None, subject: Subject
) -> None:
    """Every segment begins at a row, in its context, and has its rows, at any split size."""
    format = subject.format
    contexts = {frame.start: frame.context for frame in frames_of(data, format, limit)}
    assert list(contexts) == table["offset"].to_pylist()
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        for least in (len(data) // 200, len(data) // 200, len(data) // 10):
            split_bytes = rng.randint(max(1, least), max(1, len(data)))
            with forced(compiled=rng.random() < 0.7):
                segments = walk_pieces(
                    file.name,
                    len(data),
                    format,
                    limit or format.framing.max_packet_bytes,
                    split_bytes,
                )
            _check_segments(segments, contexts, len(data), format)
        names = [name for name in table.schema.names if name not in ("source", "stream")]
        compiled = rng.random() < 0.7
        tables = [
            table_of(
                file.name, compiled=compiled, format=format, columns=names, max_packet_bytes=limit,
                start=segment.start, context=segment.context, limit=segment.stop,
            )
            for segment in segments
        ]  # fmt: skip
        assert_same(pa.concat_tables(tables).combine_chunks(), table.select(names))


def _check_segments(
    segments: Sequence[Segment], contexts: dict[int, int], size: int, format: Format
) -> None:
    """Assert that segments follow each other and begin where frames do.

    A frame that was found, not reached, has the context of a stream's first: it needs no other.
    That the stream ends with a frame is seen when it is read.
    """
    assert (segments[0].start, segments[-1].stop) == (0, size)
    assert sum(segment.rows or 0 for segment in segments) == len(contexts)
    for one, other in pairwise(segments):
        assert one.stop == other.start
    for segment in segments:
        assert segment.rows is not None
        known = (segment.context, format.contexts.last(segment.context))
        assert contexts[segment.start] in known or segment.context == format.context


# --- packets --------------------------------------------------------------------------------


def check_packets(
    data: bytes, table: pa.Table, rng: Random, limit: int | None, subject: Subject
) -> None:
    """Every packet comes back from its value, its row and its columns; all bytes are explained."""
    frames = frames_of(data, subject.format, limit)
    written: list[tuple[int, bytes]] = []
    well: list[bytes] = []
    for number, frame in enumerate(frames):
        view = data[frame.start : frame.stop]
        if frame.status == GARBAGE:
            continue
        row, packet = check_bytes(view, frame.context, subject)
        if packet is not None and frame.status == OK:
            assert subject.format.encode(packet) == view, (view.hex(), frame.context)
            well.append(view)
            if _is_kept(packet, row, subject):
                written.append((number, view))
        _check_lies(view, frame, rng.choice(frames), rng, subject)
    if subject.format.label in subject.joined and well:
        [batch] = table.filter(pc.field("status") == OK).combine_chunks().to_batches()
        assert b"".join(encode_batches([batch], subject.format)) == b"".join(well)
        return
    for number, again in written:
        [batch] = table.slice(number, 1).to_batches()
        assert b"".join(encode_batches([batch], subject.format)) == again, batch.to_pylist()


def check_bytes(view: bytes, context: int, subject: Subject) -> tuple[Row, Any]:
    """Read any bytes as one packet in every way; return the row, and the packet if it is one."""
    format = subject.format
    row, error = format.read_row(view, context)
    packet = None
    try:
        packet = format.decode(view, context)
    except DecodeError as raised:
        assert error is not None and raised.row() == error.row(), (view.hex(), context)
    else:
        assert error is None, (view.hex(), context)
    check_cover(view, context, format)
    shown = format.secrets.redact(row)
    again = format.secrets.redact(
        shown
    )  # without its password, a malformed CONNECT has less to show
    assert format.secrets.redact(again) == again
    assert all(again[name] in (None, value) for name, value in shown.items())
    stop = 0
    for inner in format.inner.nested(view, context):
        assert stop <= inner.start < inner.stop <= len(view), (view.hex(), inner)
        stop = inner.stop
    if error is None:
        for show in format.body.views.values():
            with suppress(DecodeError):
                show(row)
    return row, packet


def _check_lies(view: bytes, frame: Frame, other: Frame, rng: Random, subject: Subject) -> None:
    """Bytes that are no frame, and contexts that are another's, are read or refused as well."""
    contexts = (frame.context, other.context, subject.format.context)
    cut = rng.choice((*_CUT_BYTES, rng.randrange(len(view) + 1)))
    check_bytes(rng.choice((view[:-cut], view + view[:cut])), rng.choice(contexts), subject)


def _is_kept(packet: Any, row: Row, subject: Subject) -> bool:
    """Assert that a row has its packet, if rows of the format have one each; say whether."""
    format, kept = subject.format, subject.kept(packet)
    if kept is None:
        with pytest.raises(EncodeError):
            format.packet_of(row, format.context)
        return False
    assert format.packet_of(row, format.context) == kept, row
    return True


CHECKS: tuple[Check, ...] = (check_columns, check_splits, check_packets)
"""What a case may ask; each asks one."""
