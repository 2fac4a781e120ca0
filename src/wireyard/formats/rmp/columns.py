"""RMP messages as Arrow columns.

The compiled reader takes the messages of a window in one pass; what it rejects is left to the
scalar reader, so that every rule has one text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena
from wireyard.formats.rmp import kernels
from wireyard.formats.rmp.layout import FOREIGN, LAYERS, PREFIX_BYTES, SEGMENT, TYPING
from wireyard.layout import Column
from wireyard.memory import SLACK
from wireyard.schema import arrow_type

__all__ = ["ColumnDecoder", "scan_frames"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_LEAST_BYTES = PREFIX_BYTES + TYPING.size
"""Of a message, its share of the packet's length counted: what follows another has its own."""
_I32 = {name: place for place, name in enumerate(kernels.I32_FIELDS)}
_BIT = {name: place for place, name in enumerate(kernels.BITS)}
_THERE = {
    "reply_requested": "layer",
    "more_follows": "layer",
    "reply_source": "reply_message_number",
    **{name: "message_number" for name in SEGMENT.names},
}
"""The bitmap of a column that has not its own."""
_NAMES = pa.array(LAYERS.values(), pa.string())


def scan_frames(
    data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, context: int
) -> tuple[Ints, Ints, Ints]:
    """Return starts, sizes and contexts of the messages that follow each other from `start`.

    Ends before a packet that is not all there or breaks a rule, and before a message that begins
    at or after `last_start`. There is one context more, for what follows the last message.
    """
    most = max((min(stop, last_start) - start) // _LEAST_BYTES + 2, 1)
    starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    contexts = np.empty(most + 1, np.int64)
    count = kernels.scan_frames(
        data, start, stop, last_start, max_packet_bytes, context, starts, sizes, contexts
    )
    return starts[:count], sizes[:count], contexts[: count + 1]


class ColumnDecoder:
    """Decode messages into chosen columns.

    Parameters
    ----------
    columns
        The format's own columns that are wanted, in order.
    validate
        Whether packets are checked even where no column needs it; they always are.
    """

    def __init__(self, columns: Sequence[Column], validate: bool) -> None:
        self._columns = tuple(columns)
        self._names = {column.name for column in columns}

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints
    ) -> tuple[list[pa.Array], Ints]:
        """Decode messages.

        Returns
        -------
        arrays, rejected
            A value per message for each column, and which messages the scalar reader has to read:
            their values here mean nothing.
        """
        rows = len(starts)
        source_bytes = kernels.SOURCE_BYTES * rows + SLACK if "reply_source" in self._names else 0
        body_bytes = int(sizes.sum()) if "data" in self._names else 0
        out = _Batch(rows, source_bytes, body_bytes)
        a = out.arrays
        kernels.fill_rows(
            data, starts, sizes, contexts, a["i32"], a["packet_offset"], a["data_size"], a["bits"],
            a["sources"], a["source_offsets"], a["bodies"], a["body_offsets"], a["rejected"],
        )  # fmt: skip
        return [out.column(column) for column in self._columns], np.flatnonzero(a["rejected"])


class _Batch:
    """The output of one call."""

    def __init__(self, rows: int, source_bytes: int, body_bytes: int) -> None:
        self.rows = rows
        self._arena = Arena(
            {
                "i32": ((len(kernels.I32_FIELDS), rows), np.int32),
                "packet_offset": ((rows,), np.int64),
                "data_size": ((rows,), np.int64),
                "bits": ((len(kernels.BITS), (rows + 7) // 8), np.uint8),
                "sources": ((source_bytes,), np.uint8),
                "source_offsets": ((rows + 1,), np.int32),
                "bodies": ((body_bytes,), np.uint8),
                "body_offsets": ((rows + 1,), np.int32),
                "rejected": ((rows,), np.uint8),
            }
        )
        self.arrays = self._arena.arrays
        self.arrays["bits"].fill(0)
        for name in ("source_offsets", "body_offsets"):
            self.arrays[name][0] = 0

    def column(self, column: Column) -> pa.Array:
        """Return a column as an Arrow array."""
        name, kind = column.name, arrow_type(column.kind)
        if name == "layer_name":
            return self._layer_names()
        there = _THERE.get(name, name)
        validity = None
        if there in _BIT and name != "foreign":
            validity = self._arena.buffer("bits", _BIT[there])
        return pa.Array.from_buffers(kind, self.rows, [validity, *self._values(name)])

    def _values(self, name: str) -> list[pa.Buffer]:
        if name in _I32:
            return [self._arena.buffer("i32", _I32[name])]
        if name in _BIT:
            return [self._arena.buffer("bits", _BIT[name])]
        if name == "reply_source":
            return [self._arena.buffer("source_offsets"), self._arena.buffer("sources")]
        if name == "data":
            return [self._arena.buffer("body_offsets"), self._arena.buffer("bodies")]
        return [self._arena.buffer(name)]

    def _layer_names(self) -> pa.Array:
        """Return the names; only what the kernel has read is looked up."""
        typing, layers = self.arrays["i32"][_I32["typing"]], self.arrays["i32"][_I32["layer"]]
        unnamed = (typing >= FOREIGN) | (layers >= len(_NAMES)) | (self.arrays["rejected"] != 0)
        return _NAMES.take(pa.array(np.where(unnamed, 0, layers), mask=unnamed))
