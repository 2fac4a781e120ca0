"""The rows of a stream as plain values, exactly as the scalar reader has them.

The compiled columns find the rows, decide conditions and judge packets; the values come from the
scalar reader. Columns would be twice as fast to turn into text, but they hold text that every
engine takes: lone surrogates and the type of a float do not survive that.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from wireyard.cli.faults import UNOPENED, Faults
from wireyard.cli.reading import OpenInput, read_blocks
from wireyard.cli.selection import Selection
from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.streams.blocks import Block
from wireyard.streams.framer import MALFORMED, OK

__all__ = ["read_rows"]


def read_rows(reading: OpenInput) -> Iterator[Row]:
    """Yield the selected rows of a stream in order, with every column.

    Raises
    ------
    DecodeError
        In mode ``failfast``: the first bad row.
    """
    name, selection = reading.opened.name, reading.selection
    format, secrets = selection.format, selection.request.secrets
    common = {"source": name, "stream": name, "format": format.name}
    for block, batch in read_blocks(reading, selection.row_plan()):
        for place, packet in _packets(block, batch, selection):
            shown = packet if secrets else format.redact(packet)
            yield _open_body({**common, **place, **shown}, selection, reading.faults)


def _packets(
    block: Block, batch: pa.RecordBatch, selection: Selection
) -> Iterator[tuple[Row, Row]]:
    """Yield for each row its place and verdict, and what the packet says."""
    view = block.data.data
    for place in batch.to_pylist():
        packet: Row = {}
        if place["status"] in (OK, MALFORMED):
            start = place["offset"] - block.base
            packet, _ = selection.format.read_row(view[start : start + place["length"]])
        yield place, packet


def _open_body(row: Row, selection: Selection, faults: Faults) -> Row:
    """Return the row with its body shown as asked; a body that cannot be opened is null."""
    shown = selection.shown_body
    if shown is None or row.get(shown[0]) is None:
        return row
    name, view = shown
    try:
        return {**row, name: view(row)}
    except DecodeError as error:
        faults.add(UNOPENED, row["offset"], row["length"], error.row())
        return {**row, name: None}
