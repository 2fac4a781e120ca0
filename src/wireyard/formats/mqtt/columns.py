"""Control packets as Arrow columns.

The compiled reader takes what most streams are made of; what it rejects is left to the scalar
reader, so that every rare rule is written once. Columns that none of its packets has are slices of
nulls that were made before.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import local

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, copied
from wireyard.formats.mqtt import kernels
from wireyard.formats.mqtt.layout import PROPERTIES, VERSION_BITS
from wireyard.formats.mqtt.property_kernels import LEAST_PROPERTY_BYTES, TEXT_BYTES_PER_BYTE
from wireyard.layout import Column
from wireyard.memory import SLACK
from wireyard.schema import Repeated, arrow_type

__all__ = ["ColumnDecoder", "scan_frames"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_MIN_PACKET_BYTES = 2
_MOST_FRAMES = 1 << 16
_SCRATCH_STEP = 8 << 20
_MOST_KEPT = 16 << 20
_I32 = {name: place for place, name in enumerate(kernels.I32_FIELDS)}
_I64 = {name: place for place, name in enumerate(kernels.I64_FIELDS)}
_BIT = {name: place for place, name in enumerate(kernels.BITS)}
_TEXTS = {"packet_type_name": "names", "topic": "topics", "payload": "payloads"}
_NAMES = pa.array(
    [PROPERTIES[code].name if code in PROPERTIES else "" for code in range(max(PROPERTIES) + 1)]
)
_VALID = {
    "dup": "has qos",
    "qos": "has qos",
    "retain": "is publish",
    "packet_id": "has packet id",
    "payload_size": "is publish",
    "topic": "is publish",
    "payload": "is publish",
    "properties": "has properties",
}
"""What says where a column is not null; others that are somewhere are everywhere."""
_SOMEWHERE = {*_I32, *_I64, *_TEXTS, "dup", "retain", "properties", "version_in_force"}
"""The columns that the packets answered here have; all others are null."""
_GROUPS = {**_TEXTS, "properties": "properties"}
_CHECKED = ("topics", "properties")
"""The passes that find broken rules, which the verdict needs."""


def scan_frames(
    data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, context: int
) -> tuple[Ints, Ints, Ints]:
    """Return starts, sizes and contexts of the whole packets that follow each other from `start`.

    Ends before anything else, before what could change the context, and before a packet that
    begins at or after `last_start`. There is one context more, for what follows the last packet.
    """
    most = min(max((min(stop, last_start) - start) // _MIN_PACKET_BYTES + 1, 0), _MOST_FRAMES)
    starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    count = kernels.scan_frames(
        data, start, stop, last_start, max_packet_bytes, context, starts, sizes
    )
    return starts[:count], sizes[:count], np.full(count + 1, context, np.int64)


class ColumnDecoder:
    """Decode frames into chosen columns.

    Parameters
    ----------
    columns
        The format's own columns that are wanted, in order.
    validate
        Whether packets are checked even where no column needs it, because the caller shows or
        acts on the verdict.
    """

    def __init__(self, columns: Sequence[Column], validate: bool) -> None:
        self._columns = tuple((column, column.name not in _SOMEWHERE) for column in columns)
        self._null_kinds = {column.kind for column, nowhere in self._columns if nowhere}
        names = {column.name for column in columns}
        groups = {_GROUPS[name] for name in names & _GROUPS.keys()}
        if validate or "verdict" in names:
            groups.update(_CHECKED)
        self._wanted = sum(kernels.WANT[group] for group in groups)
        self._repeated = Repeated()

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints
    ) -> tuple[list[pa.Array], Ints]:
        """Decode whole packets.

        Returns
        -------
        arrays, rejected
            A value per packet for each column, and which packets the scalar reader has to read:
            their values here mean nothing.
        """
        batch = _Batch(len(starts), int(sizes.sum()), self._wanted)
        a = batch.arena.arrays
        kernels.fill_rows(
            data, stop, starts, sizes, contexts, self._wanted, a["i32"], a["i64"], a["places"],
            a["said"], a["bits"], a["rejected"], a["names"], batch.scratch.topics, a["payloads"],
            batch.scratch.text, batch.scratch.codes, batch.scratch.offsets, a["offsets"],
            *kernels.TABLES,
        )  # fmt: skip
        nulls = {kind: self._repeated.column(kind, None, batch.rows) for kind in self._null_kinds}
        arrays = [
            nulls[column.kind] if nowhere else self._column(column, batch, contexts)
            for column, nowhere in self._columns
        ]
        return arrays, np.flatnonzero(a["rejected"])

    def _column(self, column: Column, batch: _Batch, contexts: Ints) -> pa.Array:
        name, kind = column.name, arrow_type(column.kind)
        if name == "version_in_force":
            return self._versions(contexts)
        if name == "properties":
            return batch.properties(kind)
        buffers = [batch.validity(name), *batch.values(name)]
        return pa.Array.from_buffers(kind, batch.rows, buffers)

    def _versions(self, contexts: Ints) -> pa.Array:
        if len(contexts) and (contexts == contexts[0]).all():
            version = int(contexts[0]) & VERSION_BITS
            return self._repeated.column("int32", version or None, len(contexts))
        versions = contexts & VERSION_BITS
        return pa.array(versions.astype(np.int32), mask=versions == 0)


class _Scratch:
    """Where a thread's kernels put text whose size is not known before; it stays touched."""

    _kept = local()

    def __init__(self, taken: int) -> None:
        self.taken = taken
        most = taken // LEAST_PROPERTY_BYTES
        self.topics = np.empty(taken + SLACK, np.uint8)
        self.text = np.empty(TEXT_BYTES_PER_BYTE * taken + SLACK, np.uint8)
        self.codes = np.empty(most, np.int32)
        self.offsets = np.zeros(most + 1, np.int32)

    @classmethod
    def for_bytes(cls, taken: int) -> _Scratch:
        """Return the thread's scratch for `taken` bytes of packets; one for a huge packet goes."""
        kept: _Scratch | None = getattr(cls._kept, "scratch", None)
        if kept is None or kept.taken < taken:
            kept = cls(taken + -taken % _SCRATCH_STEP)
            if kept.taken <= _MOST_KEPT:
                cls._kept.scratch = kept
        return kept


class _Batch:
    """The output of one call; text is copied out of scratch when its column is made."""

    def __init__(self, rows: int, taken: int, wanted: int) -> None:
        self.rows = rows
        self.arena = Arena(
            {
                "i32": ((len(kernels.I32_FIELDS), rows), np.int32),
                "i64": ((len(kernels.I64_FIELDS), rows), np.int64),
                "places": ((kernels.PLACES, kernels.BLOCK_ROWS), np.int64),
                "said": ((kernels.BLOCK_ROWS,), np.uint8),
                "bits": ((len(kernels.BITS), (rows + 7) // 8), np.uint8),
                "rejected": ((rows,), np.uint8),
                "offsets": ((len(kernels.WANT), rows + 1), np.int32),
                "names": ((kernels.MAX_NAME_BYTES * rows + SLACK,), np.uint8),
                "payloads": (
                    (taken + SLACK if wanted & kernels.WANT["payloads"] else 0,),
                    np.uint8,
                ),
            }
        )
        self.arena.arrays["offsets"][:, 0] = 0
        self.scratch = _Scratch.for_bytes(min(taken, rows * kernels.MAX_SCRATCH_BYTES))

    def validity(self, name: str) -> pa.Buffer | None:
        """Return what says where a column is not null, None if it is nowhere null."""
        return self.arena.buffer("bits", _BIT[_VALID[name]]) if name in _VALID else None

    def values(self, name: str) -> list[pa.Buffer]:
        """Return the buffers of a column."""
        if name in _I32:
            return [self.arena.buffer("i32", _I32[name])]
        if name in _I64:
            return [self.arena.buffer("i64", _I64[name])]
        if name in ("dup", "retain"):
            return [self.arena.buffer("bits", _BIT[name])]
        offsets, used = self._offsets(_TEXTS[name])
        if name == "topic":
            return [offsets, copied(self.scratch.topics[:used])]
        return [offsets, self.arena.buffer(_TEXTS[name]).slice(0, used)]

    def properties(self, kind: pa.DataType) -> pa.Array:
        """Return the properties of every PUBLISH of 5.0; others that have some are rejected."""
        offsets, count = self._offsets("properties")
        buffers = [self.validity("properties"), offsets]
        if count == 0:
            none = pa.nulls(0, kind.value_type)
            return pa.Array.from_buffers(kind, self.rows, buffers, children=[none])
        ends = self.scratch.offsets[: count + 1]
        names = _NAMES.take(pa.array(self.scratch.codes[:count]))
        text = copied(self.scratch.text[: int(ends[-1])])
        values = pa.StringArray.from_buffers(count, copied(ends), text)
        entries = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        return pa.Array.from_buffers(kind, self.rows, buffers, children=[entries])

    def _offsets(self, group: str) -> tuple[pa.Buffer, int]:
        """Return the offsets of a group of columns, and where the last of them ends."""
        place = list(kernels.WANT).index(group)
        last = int(self.arena.arrays["offsets"][place, -1])
        return self.arena.buffer("offsets", place), last
