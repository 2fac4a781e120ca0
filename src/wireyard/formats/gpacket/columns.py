"""GPackets as Arrow columns.

The compiled reader takes the packets of a window in one pass; what it rejects is left to the
scalar reader, so that every rare rule is written once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena
from wireyard.formats.gpacket import kernels
from wireyard.formats.gpacket.layout import HEADER_BYTES, SHIPPED
from wireyard.formats.property_columns import Scratch, Texts
from wireyard.formats.property_kernels import PROPERTY_TEXTS
from wireyard.layout import Column
from wireyard.schema import Repeated, arrow_type

__all__ = ["ColumnDecoder", "scan_frames"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_ROW_TEXTS = len(kernels.TEXTS) - len(PROPERTY_TEXTS)
_I32 = {name: place for place, name in enumerate(kernels.I32_FIELDS)}
_I64 = {name: place for place, name in enumerate(kernels.I64_FIELDS)}
_TEXT = {name: place for place, name in enumerate(kernels.TEXTS)}
_BIT = {name: place for place, name in enumerate(kernels.BITS)}
_GROUPS = {
    "packet_type_name": "names",
    "flags": "names",
    "properties": "properties",
    "payload": "payloads",
}


def scan_frames(
    data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, _context: int
) -> tuple[Ints, Ints, Ints]:
    """Return starts, sizes and contexts of the whole packets that follow each other from `start`.

    Ends before anything else, and before a packet that begins at or after `last_start`. There is
    one context more, for what follows the last packet.
    """
    most = max((min(stop, last_start) - start) // HEADER_BYTES + 1, 0)
    starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    count = kernels.scan_frames(data, start, stop, last_start, max_packet_bytes, starts, sizes)
    return starts[:count], sizes[:count], np.zeros(count + 1, np.int64)


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
        self._columns = tuple(columns)
        groups = {_GROUPS[column.name] for column in columns if column.name in _GROUPS}
        groups |= {"properties"} if validate else set()
        self._wanted = sum(kernels.WANT[group] for group in groups)
        self._payloads = "payloads" in groups
        self._repeated = Repeated()

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, _contexts: Ints
    ) -> tuple[list[pa.Array], Ints]:
        """Decode whole packets.

        Returns
        -------
        arrays, rejected
            A value per packet for each column, and which packets the scalar reader has to read:
            their values here mean nothing.
        """
        scratch = Scratch.for_bytes(int(sizes.sum()), len(kernels.TEXTS))
        payload_bytes = kernels.count_payload_bytes(data, starts, sizes) if self._payloads else 0
        out = _Batch(len(starts), payload_bytes, scratch, self._repeated)
        a = out.arrays
        kernels.fill_rows(
            data, stop, starts, sizes, self._wanted, a["i32"], a["i64"], scratch.text,
            scratch.capacity, a["used"], a["text_offsets"], scratch.entry_offsets,
            a["map_offsets"], a["payloads"], a["payload_offsets"], a["bits"], a["rejected"],
            scratch.hashes, *kernels.TABLES,
        )  # fmt: skip
        out.gather()
        return [out.column(column) for column in self._columns], np.flatnonzero(a["rejected"])


class _Batch:
    """The output of one call; text is copied out of scratch when its column is made."""

    def __init__(self, rows: int, payload_bytes: int, scratch: Scratch, repeated: Repeated) -> None:
        self.rows = rows
        self._repeated = repeated
        self._scratch = scratch
        self._arena = Arena(
            {
                "i32": ((len(kernels.I32_FIELDS), rows), np.int32),
                "i64": ((len(kernels.I64_FIELDS), rows), np.int64),
                "text_offsets": ((_ROW_TEXTS, rows + 1), np.int32),
                "map_offsets": ((rows + 1,), np.int32),
                "payloads": ((payload_bytes,), np.uint8),
                "payload_offsets": ((rows + 1,), np.int32),
                "bits": ((len(kernels.BITS), (rows + 7) // 8), np.uint8),
                "rejected": ((rows,), np.uint8),
                "used": ((kernels.COUNTS,), np.int64),
            }
        )
        self.arrays = self._arena.arrays
        for name in ("bits", "rejected", "used"):
            self.arrays[name].fill(0)
        for name in ("text_offsets", "map_offsets", "payload_offsets"):
            self.arrays[name][..., 0] = 0

    def gather(self) -> None:
        """Copy all text out of scratch."""
        self._texts = Texts(self._scratch, self.arrays["used"][: len(kernels.TEXTS)])

    def column(self, column: Column) -> pa.Array:
        """Return a column as an Arrow array."""
        name, kind = column.name, arrow_type(column.kind)
        match name:
            case "properties":
                return self._properties(kind)
            case "header_order":
                return self._repeated.column(column.kind, SHIPPED, self.rows)
            case "destination_id":
                return self._repeated.column(column.kind, None, self.rows)
        return pa.Array.from_buffers(kind, self.rows, [self._validity(name), *self._values(name)])

    def _validity(self, name: str) -> pa.Buffer | None:
        return self._arena.buffer("bits", _BIT[name]) if name in _BIT else None

    def _values(self, name: str) -> list[pa.Buffer]:
        if name in _I64:
            return [self._arena.buffer("i64", _I64[name])]
        if name in _I32:
            return [self._arena.buffer("i32", _I32[name])]
        if name == "payload":
            return [self._arena.buffer("payload_offsets"), self._arena.buffer("payloads")]
        return [self._arena.buffer("text_offsets", _TEXT[name]), self._texts.buffer(_TEXT[name])]

    def _properties(self, kind: pa.MapType) -> pa.Array:
        return self._texts.properties(
            kind,
            _ROW_TEXTS,
            self._arena.buffer("bits", _BIT["properties"]),
            self._arena.buffer("map_offsets"),
            self.rows,
            int(self.arrays["map_offsets"][-1]),
        )
