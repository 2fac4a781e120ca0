"""The rows of a stream as Python values, exactly as the scalar reader returns them.

Compiled columns find the rows, evaluate conditions and validate packets; the values come from the
scalar reader. They are used for tables for people, and for JSON Lines of few packets, of nested
packets and of decoded payloads; all other lines come from columns (`lines`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wireyard.cli.decoding.faults import UNOPENED, Faults
from wireyard.cli.decoding.reading import OpenInput, read_blocks
from wireyard.cli.decoding.selection import PARENT, Selection
from wireyard.errors import DecodeError
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.schema import CAPTURED, as_numbers
from wireyard.streams.blocks import Block, DirectedStream
from wireyard.streams.framer import MALFORMED, OK

__all__ = ["read_rows"]

_PLACE = ("source", "stream", *(column.name for column in CAPTURED))


def read_rows(reading: OpenInput, opened: DirectedStream) -> Iterator[Row]:
    """Yield the selected rows of one stream in order, with every column.

    Raises
    ------
    DecodeError
        In mode ``failfast``: the first bad row.
    """
    selection, faults = reading.selection, reading.faults[opened.stream]
    plan = selection.row_plan
    common = {"source": opened.name, "stream": opened.stream}
    for block, batch in read_blocks(reading, opened, plan):
        rows = np.searchsorted(block.offsets, as_numbers(batch["offset"])).tolist()
        for number, place in zip(rows, batch.to_pylist(), strict=True):
            row = {**common, **place, **_packet_of_row(block, number, place, selection)}
            if selection.opener is not None:
                row |= selection.opener.open(row)
            yield _open_body(row, selection, faults)
            if selection.request.nested and place["status"] == OK:
                context = int(block.contexts[number])
                yield from _nested(row, block.view(number), context, selection)


def _packet_of_row(block: Block, number: int, place: Row, selection: Selection) -> Row:
    """Return the columns of a row's packet; only `format` if it is no packet."""
    format = selection.format
    if place["status"] not in (OK, MALFORMED):
        return {"format": format.label}
    packet, _ = format.read_row(block.view(number), int(block.contexts[number]))
    for name in selection.relative:
        if packet.get(name) is not None:
            packet[name] += place["offset"]
    shown = packet if selection.request.secrets else format.redact(packet)
    return {"format": format.label, **shown}


def _nested(parent: Row, view: memoryview, context: int, selection: Selection) -> Iterator[Row]:
    """Yield the rows of the packets inside a packet, with its offset in `parent_offset`."""
    for label, start, stop in selection.format.nested(view, context):
        format = get_format(label)
        packet, error = format.read_row(view[start:stop], format.context)
        yield {
            **{name: parent[name] for name in _PLACE if name in parent},
            "offset": parent["offset"] + start,
            "length": stop - start,
            "format": format.label,
            "status": MALFORMED if error else OK,
            "error": error.row() if error else None,
            PARENT.name: parent["offset"],
            **(packet if selection.request.secrets else format.redact(packet)),
        }


def _open_body(row: Row, selection: Selection, faults: Faults) -> Row:
    """Return the row with its body in the requested view; null if it cannot be decoded."""
    shown = selection.shown_body
    if shown is None or row.get(shown[0]) is None:
        return row
    name, view = shown
    try:
        return {**row, name: view(row)}
    except DecodeError as error:
        faults.add(UNOPENED, row["offset"], row["length"], error.row())
        return {**row, name: None}
