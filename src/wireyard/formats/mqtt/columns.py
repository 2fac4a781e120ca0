"""Control packets as Arrow columns, and the framing of many small streams in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul
from typing import ClassVar

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, Shape, Source
from wireyard.arrays import Bytes, Ints
from wireyard.formats import columns
from wireyard.formats.columns import FoundFrames, Frames, Scratch, column_sources, whole_frames
from wireyard.formats.mqtt.field_columns import FIELDS, read_fields
from wireyard.formats.mqtt.kernels import blocks, packets, streams
from wireyard.formats.mqtt.kernels.properties import LEAST_PROPERTY_BYTES, TEXT_BYTES_PER_BYTE
from wireyard.formats.mqtt.layout import MAX_PACKET_BYTES, PROPERTIES
from wireyard.layout import Column
from wireyard.memory import SLACK
from wireyard.schema import arrow_type, as_array, repeat_texts

Fields = dict[str, pa.Array]
Decoded = tuple[Arena, int, Bytes, Fields]
"""Arrays of a batch, number of properties, rejected flag of each row, further columns by name."""

_MIN_PACKET_BYTES = 2
_MOST_FRAMES = 1 << 15
_FEW_ROWS = 1 << 12
"""Shorter runs, such as datagrams, are not decoded while scanning, but together with others."""
_SPARE = 1.125
"""Rows allocated per row that is expected from the packet density of the run before."""
_NO_LIMITS = packets.Limits(0, 0, 0, 0)
_NAMES = repeat_texts(
    [PROPERTIES[code].name if code in PROPERTIES else "" for code in range(max(PROPERTIES) + 1)],
    [1] * (max(PROPERTIES) + 1),
)
_NONE: Ints = np.empty(0, np.int64)
_VALID = {
    "dup": "has qos",
    "qos": "has qos",
    "retain": "is publish",
    "packet_id": "has packet id",
    "payload_size": "is publish",
    "topic": "is publish",
    "payload": "is publish",
    "properties": "has properties",
    "version_in_force": "has version",
}
"""Validity bitmap of each column that may be null; columns without one are never null here."""
_TEXTS = {"packet_type_name": "names", "topic": "topics", "payload": "payloads"}


_BITS: dict[str, Source] = {name: ("bits", place) for place, name in enumerate(blocks.BITS)}
_OFFSETS: dict[str, Source] = {name: ("offsets", place) for place, name in enumerate(packets.WANT)}
_SOURCES = column_sources(
    {"i32": blocks.I32_FIELDS, "i64": blocks.I64_FIELDS},
    {
        **{name: [_OFFSETS[group], (group, 0)] for name, group in _TEXTS.items()},
        **{name: [_BITS[name]] for name in ("dup", "retain")},
        "properties": [
            _OFFSETS["properties"],
            *[(f"property {part}", 0) for part in ("name offsets", "names", "offsets", "values")],
        ],
    },
    {name: _BITS[valid] for name, valid in _VALID.items()},
)
"""The buffers of the columns that kernels fill; all other columns are null."""
_SHAPES = {
    "i32": Shape(np.int32, 32, len(blocks.I32_FIELDS)),
    "i64": Shape(np.int64, 64, len(blocks.I64_FIELDS)),
    "offsets": Shape(np.int32, 32, len(packets.WANT), more=4),
    "bits": Shape(np.uint8, 1, len(blocks.BITS)),
    "rejected": Shape(np.uint8, 8),
    "names": Shape(np.uint8, 8 * packets.MAX_NAME_BYTES, more=SLACK),
    "block": Shape(np.int64, 0, more=8 * blocks.BLOCK_SIZE),
    "row bits": Shape(np.uint8, 0, more=blocks.BLOCK_ROWS),
}
scan_frames = whole_frames(packets.scan_frames, _MIN_PACKET_BYTES, _MOST_FRAMES)


def sniff_heads(heads: Bytes, starts: Ints, stops: Ints, contexts: Ints) -> Bytes:
    """Return what each stream has `Shown` by its first bytes; parameters as of the kernel."""
    shown = np.empty(len(starts), np.uint8)
    streams.sniff_heads(heads, starts, stops, MAX_PACKET_BYTES, shown, contexts)
    return shown


def walk_streams(
    data: Bytes,
    bounds: Ints,
    pieces: Ints,
    behind_gap: Bytes,
    firsts: Ints,
    followings: Ints,
    begun: Bytes,
    max_packet_bytes: int,
) -> tuple[FoundFrames, Ints]:
    """Return the packets of streams whose pieces lie one after the other, and their first rows.

    A stream has no rows unless it is certain to consist of whole packets only. For the parameters,
    see the kernel.
    """
    most = int(bounds[-1] - bounds[0]) // _MIN_PACKET_BYTES + 1
    starts, sizes, contexts = (np.empty(most, np.int64) for _ in range(3))
    rows = np.empty(len(bounds), np.int64)
    count = streams.walk_streams(
        data, bounds, pieces, behind_gap, firsts, followings, begun, max_packet_bytes,
        starts, sizes, contexts, rows,
    )  # fmt: skip
    return (starts[:count], sizes[:count], contexts[:count]), rows


def find_contexts(data: Bytes, bounds: Ints, firsts: Ints) -> Ints:
    """Return the contexts of connections without a CONNECT, -1 where that is not sure.

    The parameters are those of the kernel.
    """
    most = int(np.diff(bounds).max(initial=0)) // _MIN_PACKET_BYTES + 1
    starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    contexts = np.empty(len(firsts) - 1, np.int64)
    streams.find_contexts(data, bounds, firsts, MAX_PACKET_BYTES, starts, sizes, contexts)
    return contexts


class ColumnDecoder(columns.ColumnDecoder):
    """Decodes frames into chosen columns, and finds them while it does, if asked to."""

    shapes, sources = _SHAPES, _SOURCES
    wants, checks = packets.WANT, ("topics", "properties")
    passes: ClassVar = {
        **{name: (group,) for name, group in _TEXTS.items()},
        "properties": ("properties",),
        "verdict": checks,
    }

    def __init__(
        self, columns: Sequence[Column], validate: bool, repeated: Mapping[str, str]
    ) -> None:
        super().__init__(columns, validate, repeated)
        self._filled = [group in self._passes for group in packets.WANT]
        self._copies = "payloads" in self._passes
        self._fields = {
            column.name: arrow_type(column.kind) for column in columns if column.name in FIELDS
        }
        self._scanned = _NONE
        """The starts that `scan_frames` returned last."""
        self._decoded: Decoded | None = None
        """The packets at these starts, if `scan_frames` decoded them too."""
        self._density = 0.0
        """Packets per byte of the last `decode`, 0 if its packets were not those scanned before."""

    def scan_frames(
        self,
        data: Bytes,
        start: int,
        stop: int,
        last_start: int,
        max_packet_bytes: int,
        context: int,
    ) -> FoundFrames:
        """Find frames as the function `scan_frames` does, and decode them while they are cached.

        A `decode` of exactly these frames then returns the result; any other `decode` discards it.
        So frames are decoded here only if the last `decode` was of the frames scanned before it.
        That one's packet density also gives the number of rows to allocate; if there are more
        packets, they are found but not decoded.
        """
        density, self._density, self._decoded = self._density, 0.0, None
        if density:
            last_start = min(last_start, start + int(_MOST_FRAMES / density))
        rows = count = int((min(stop, last_start) - start) * density * _SPARE)
        if rows >= _FEW_ROWS:
            starts, sizes = np.empty(rows, np.int64), np.empty(rows, np.int64)
            contexts = np.full(rows + 1, context, np.int64)
            limits = packets.Limits(start, last_start, max_packet_bytes, context)
            count, decoded = self._fill(data, stop, starts, sizes, contexts, stop - start, limits)
        if count < rows:
            frames = starts[:count], sizes[:count], contexts[: count + 1]
            self._decoded = decoded
        else:
            frames = scan_frames(data, start, stop, last_start, max_packet_bytes, context)
        self._scanned = frames[0]
        return frames

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode whole packets; see the base class."""
        as_scanned = starts is self._scanned and len(starts) > 0
        decoded = self._decoded if as_scanned else None
        self._scanned, self._decoded = _NONE, None
        if as_scanned:
            self._density = len(starts) / int(starts[-1] + sizes[-1] - starts[0])
        if decoded is None:
            _, decoded = self._fill(data, stop, starts, sizes, contexts, int(sizes.sum()))
        arena, entries, rejected, fields = decoded
        self._fill_positions(arena, offsets, sizes)
        batch = arena.batch(entries, len(starts))
        if fields:
            filled = [fields.get(name, batch[name]) for name in batch.schema.names]
            batch = pa.RecordBatch.from_arrays(filled, schema=batch.schema)
        return batch, np.flatnonzero(rejected)

    def _fill(
        self,
        data: Bytes,
        stop: int,
        starts: Ints,
        sizes: Ints,
        contexts: Ints,
        taken: int,
        limits: packets.Limits | None = None,
    ) -> tuple[int, Decoded]:
        """Decode packets of `taken` bytes at most; return their number and the decoded packets.

        With `limits`, they are found first, at most as many as the arrays have room for.
        """
        most = len(starts)
        arena = Arena(self._layout, most, taken, taken + SLACK if self._copies else 0)
        scratch = _Scratch.for_bytes(min(taken, most * packets.MAX_SCRATCH_BYTES))
        a = arena.arrays
        a["offsets"][:, 0] = 0
        frames = Frames(stop, starts, sizes, contexts)
        block = packets.Block(a["block"][0], a["row bits"][0])
        filled = packets.Columns(
            a["i32"], a["i64"], a["bits"], a["rejected"][0], a["offsets"], a["names"][0],
            scratch.topics, arena.rest,
        )  # fmt: skip
        properties = packets.Properties(scratch.text, scratch.codes, scratch.offsets)
        rows = packets.fill_rows(
            data, frames, limits is None, limits or _NO_LIMITS, self._wanted, block, filled,
            properties,
        )  # fmt: skip
        ends = a["offsets"][:, rows].tolist()
        _, topics, payloads, entries = map(mul, ends, self._filled)
        if self._copies:
            arena.claim("payloads", payloads)
        arena.put("topics", scratch.topics[:topics])
        if entries:
            _put_properties(arena, scratch, entries)
        rejected = a["rejected"][0, :rows]
        fields: Fields = {}
        checked, checked_bytes = a["block"][0, blocks.CHECKED_AT :][:2].tolist()
        if checked and self._fields:
            fields = read_fields(
                data, starts[:rows], sizes[:rows], contexts[:rows], rejected, checked_bytes,
                self._fields,
            )  # fmt: skip
        return rows, (arena, entries, rejected, fields)


def _put_properties(arena: Arena, scratch: _Scratch, entries: int) -> None:
    """Add the properties of packets of 5.0 to the buffer of a batch."""
    ends = scratch.offsets[: entries + 1]
    _, name_ends, names = _NAMES.take(as_array(scratch.codes[:entries])).buffers()
    arena.put("property name offsets", name_ends)
    arena.put("property names", names)
    arena.put("property offsets", ends)
    arena.put("property values", scratch.text[: ends[-1]])


class _Scratch(Scratch):
    """Topics and properties of packets."""

    def __init__(self, taken: int) -> None:
        super().__init__(taken)
        most = taken // LEAST_PROPERTY_BYTES
        self.topics = np.empty(taken + SLACK, np.uint8)
        self.text = np.empty(TEXT_BYTES_PER_BYTE * taken + SLACK, np.uint8)
        self.codes = np.empty(most, np.int32)
        self.offsets = np.zeros(most + 1, np.int32)
