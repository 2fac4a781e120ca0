"""One batch in one buffer: the arrays that kernels fill, and the message that says where they are.

Memory that was never touched costs ten times what warm memory does. Arrow's pool keeps the pages
of large blocks that were given back, so a batch asks it once and cuts what it got.

To make the Arrow arrays of forty columns one by one takes as long as to decode a thousand packets,
and no other thread runs meanwhile. So the buffer is a message of Arrow's IPC format, and reading
it is one call that copies nothing.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from tempfile import TemporaryFile, gettempdir
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.accelerate import I64, array, kernel, piece
from wireyard.errors import SourceError

__all__ = ["Arena", "BatchLayout", "Shape", "Source", "claim_bytes", "parts", "pooled", "room"]

Bytes = npt.NDArray[np.uint8]
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Pairs = np.ndarray[tuple[int, int], np.dtype[np.int64]]

Source = tuple[str, int] | None
"""The name of an array and a row of it; None where nothing is null."""

_ALIGNMENT: Final = 64  # what Arrow asks of buffers
_ROWS, _ENTRIES, _NONE, _UNKNOWN = range(4)
"""What is counted: rows, what their lists hold, nothing; nulls are left to Arrow to count."""
_FIRST_SHARE: Final = 2.0
"""What is foreseen for each byte before there was a batch; what is not used is not touched."""
_LARGE_BYTES: Final = 16 << 20
_PART_ROWS: Final = 1 << 16
_SPARE: Final = 8
"""What is foreseen is larger by this part than what was needed."""

# --- the message ----------------------------------------------------------------------------

# Message.fbs of Arrow as a flatbuffer with every field at a fixed place. A table begins with how
# far before it its vtable is: two sizes, and where in the table each field is.
_HEAD: Final = struct.Struct("<IiI 6H iIqhBx 5H2x iIqII")
_BODY_BYTES_AT, _ROWS_AT = 32, 64
_GAP: Final = struct.Struct("<4xI")
"""What is between nodes and buffers."""
_PAIR_BYTES: Final = 16
"""A node is a length and how many are null, a buffer is a place and a size."""
_NUMBER: Final = struct.Struct("<q")
_VERSION_5, _RECORD_BATCH = 4, 3


def _head(nodes: int, buffers: int) -> Bytes:
    """Return the head of a message of one record batch, all of whose numbers are zero."""
    gap_at = _HEAD.size + _PAIR_BYTES * nodes
    size = gap_at + _GAP.size + _PAIR_BYTES * buffers
    head = np.zeros(size + -size % _ALIGNMENT, np.uint8)
    _HEAD.pack_into(
        head.data, 0, 0xFFFFFFFF, len(head) - 8, 16,
        12, 20, 16, 18, 4, 8, 12, 28, 0, _VERSION_5, _RECORD_BATCH,
        10, 20, 8, 4, 16, 12, 16, 0, 12 + _PAIR_BYTES * nodes, nodes,
    )  # fmt: skip
    _GAP.pack_into(head.data, gap_at, buffers)
    return head


def _lay_out(
    kind: pa.DataType,
    given: Iterator[Source],
    validity: Source,
    counted: tuple[int, int],
    nodes: list[tuple[int, int]],
    buffers: list[Source],
) -> None:
    """Append the nodes and buffers of a type and of those inside it."""
    length, nulls = counted
    nodes.append((length, nulls if validity else _NONE))
    buffers.append(validity)
    buffers += islice(given, kind.num_buffers - 1)
    if not pa.types.is_struct(kind):
        length, validity = _NONE if nulls == _ROWS else _ENTRIES, None
    for place in range(kind.num_fields):
        _lay_out(kind.field(place).type, given, validity, (length, nulls), nodes, buffers)


_PAIRS: Final = array("int64", 2)


@kernel(I64(_PAIRS, I64, _PAIRS), brief=True)
def place_arrays(shapes: Pairs, rows: int, extents: Pairs) -> int:
    """Fill in where each array begins and how long a row of it is; return where all of them end."""
    stop = 0
    for number in range(shapes.shape[0]):
        size = (shapes[number, 1] * rows + 7 >> 3) + shapes[number, 2]
        size += -size & (_ALIGNMENT - 1)
        extents[number, 0] = stop
        extents[number, 1] = size
        stop += shapes[number, 0] * size
    return stop


@kernel(I64(_PAIRS, _PAIRS, I64, I64, _PAIRS, _PAIRS, _PAIRS), brief=True)
def fill_pairs(
    sources: Pairs,
    counted: Pairs,
    rows: int,
    entries: int,
    extents: Pairs,
    nodes: Pairs,
    buffers: Pairs,
) -> int:
    """Fill in the nodes and buffers of a head; return how many buffers there are."""
    for number in range(nodes.shape[0]):
        for side in range(2):
            what = counted[number, side]
            count = rows if what == _ROWS else entries if what == _ENTRIES else 0
            nodes[number, side] = -1 if what == _UNKNOWN else count
    for number in range(buffers.shape[0]):
        if sources[number, 0] >= 0:
            start, size = extents[sources[number, 0], 0], extents[sources[number, 0], 1]
            buffers[number, 0] = start + sources[number, 1] * size
            buffers[number, 1] = size
    return buffers.shape[0]


@piece
def claim_bytes(extents: Pairs, number: int, size: int, at: int) -> int:
    """Give an array of the batch the bytes from `at` on; return where what follows may begin.

    An array without a number is none, and gets nothing.
    """
    if number < 0:
        return at
    extents[number, 0] = at
    extents[number, 1] = size
    at += size
    return at + (-at & (_ALIGNMENT - 1))


# --- the memory -----------------------------------------------------------------------------


def pooled(shape: int | tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array of undefined contents in the memory of Arrow's pool."""
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    data = pa.allocate_buffer(size * np.dtype(kind).itemsize)
    return np.frombuffer(data, kind).reshape(shape)


def room(
    shape: int | tuple[int, ...], kind: npt.DTypeLike = np.int64, large_bytes: int = _LARGE_BYTES
) -> npt.NDArray[Any]:
    """Return an array of undefined contents, of which a process may need very large ones.

    A large one lies in a file that has no name, which the system may write out and read again as it
    does with the pages of any file: a connection is put together and tracked as a whole, however
    many packets it has.

    Raises
    ------
    SourceError
        The folder of temporary files has no room for it.
    """
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    size_bytes = size * np.dtype(kind).itemsize
    if size_bytes < large_bytes:
        return pooled(shape, kind)
    try:
        with TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                # Else a process ends without a word when it touches a page that has no room.
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            return np.asarray(np.memmap(file, kind, "w+", shape=shape))
    except OSError as error:
        raise SourceError(
            f"{gettempdir()}: no room for {size_bytes:,} bytes of columns ({error.strerror});"
            " TMPDIR names another folder"
        ) from None


def parts(count: int) -> Iterable[slice]:
    """Return the parts of very large arrays, so that what is made on the way is small."""
    return (slice(at, min(at + _PART_ROWS, count)) for at in range(0, count, _PART_ROWS))


@dataclass(frozen=True, slots=True)
class Shape:
    """How large an array is: `fields` rows of `bits` for each row of the batch, and `more` bytes.

    Each row begins where Arrow wants a buffer to begin, so it is somewhat longer.
    """

    kind: npt.DTypeLike
    bits: int
    fields: int = 1
    more: int = 0


_ZEROS: Final = "zeros"
"""Validity, offsets and values of every column that is null everywhere."""
_ZEROS_SHAPE: Final = Shape(np.int64, 64, more=8)
_NOTHING_REPEATED: Final[Mapping[str, str]] = {}


class BatchLayout:
    """How batches of the same columns are laid out.

    Parameters
    ----------
    schema
        The columns.
    shapes
        The arrays that kernels fill.
    sources
        The buffers of each column in Arrow's order, its validity first; types inside a type have
        none. What is not in `shapes` is claimed later. A column that is not here is null
        everywhere.
    repeated
        The text of each column that has the same in every row.
    """

    def __init__(
        self,
        schema: pa.Schema,
        shapes: Mapping[str, Shape],
        sources: Mapping[str, Sequence[Source]],
        repeated: Mapping[str, str] = _NOTHING_REPEATED,
    ) -> None:
        self.schema = schema
        self._repeated = [
            _Repeated(name, text) for name, text in repeated.items() if name in schema.names
        ]
        for text in self._repeated:
            shapes, sources = {**shapes, **text.shapes}, {**sources, **text.sources}
        nodes: list[tuple[int, int]] = []
        buffers: list[Source] = []
        for column in schema:
            nowhere = column.name not in sources
            given = repeat((_ZEROS, 0)) if nowhere else iter(sources[column.name])
            counted = _ROWS, _ROWS if nowhere else _UNKNOWN
            _lay_out(column.type, given, next(given), counted, nodes, buffers)
        named = dict.fromkeys(source[0] for source in buffers if source)
        if _ZEROS in named:
            shapes = {**shapes, _ZEROS: _ZEROS_SHAPE}
        self.cuts = [(name, one.fields, np.dtype(one.kind)) for name, one in shapes.items()]
        self.numbers = {name: number for number, name in enumerate({**shapes, **named})}
        self.claimed_share = _FIRST_SHARE if len(self.numbers) > len(shapes) else 0.0
        """What the last batch claimed for each byte it was read from, and a bit more."""
        self._shapes = _pairs([(one.fields, one.bits, one.more) for one in shapes.values()])
        self._sources = _pairs(
            [(self.numbers[one[0]], one[1]) if one else (-1, 0) for one in buffers]
        )
        self._counted = _pairs(nodes)
        self.head = _head(len(nodes), len(buffers))
        gap_at = _HEAD.size + _PAIR_BYTES * len(nodes)
        start = gap_at + _GAP.size
        stop = start + _PAIR_BYTES * len(buffers)
        self._nodes = self.head[_HEAD.size : gap_at].view(np.int64).reshape(-1, 2)
        self._buffers = self.head[start:stop].view(np.int64).reshape(-1, 2)

    def numbers_of(self, names: Sequence[str]) -> Ints:
        """Return the numbers of arrays for `claim_bytes`, -1 for one that no column needs."""
        return np.array([self.numbers.get(name, -1) for name in names], np.int64)

    def place(self, rows: int) -> tuple[Pairs, int]:
        """Return where the arrays of a batch are, and how many bytes they take."""
        extents: Pairs = np.zeros((len(self.numbers), 2), np.int64)
        return extents, place_arrays(self._shapes, rows, extents)

    def fill_head(self, extents: Pairs, body_bytes: int, rows: int, entries: int) -> Bytes:
        """Return the head with the numbers of a batch; it is the same one every time."""
        fill_pairs(self._sources, self._counted, rows, entries, extents, self._nodes, self._buffers)
        _NUMBER.pack_into(self.head.data, _ROWS_AT, rows)
        _NUMBER.pack_into(self.head.data, _BODY_BYTES_AT, body_bytes)
        return self.head

    def fill_repeated(self, arrays: Mapping[str, npt.NDArray[Any]], rows: int) -> None:
        """Fill in the texts that are the same in every row."""
        for text in self._repeated:
            text.fill(arrays, rows)


class _Repeated:
    """The arrays of a column that has the same text in every row."""

    def __init__(self, name: str, text: str) -> None:
        self._raw = text.encode()
        self._ends_name, self._text_name = f"{name} offsets", f"{name} text"
        self.shapes = {
            self._ends_name: Shape(np.int32, 32, more=4),
            self._text_name: Shape(np.uint8, 8 * len(self._raw)),
        }
        self.sources: dict[str, list[Source]] = {
            name: [None, (self._ends_name, 0), (self._text_name, 0)]
        }
        self._write(0)

    def _write(self, rows: int) -> None:
        size = len(self._raw)
        self._text: Bytes = np.frombuffer(self._raw * rows, np.uint8)
        self._ends = np.arange(rows + 1, dtype=np.int32) * np.int32(size)

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]], rows: int) -> None:
        """Fill the arrays of a batch with what was written once."""
        if len(self._ends) <= rows:
            self._write(2 * rows)
        size = len(self._raw) * rows
        arrays[self._ends_name][0, : rows + 1] = self._ends[: rows + 1]
        arrays[self._text_name][0, :size] = self._text[:size]


def _pairs(numbers: Sequence[tuple[int, ...]]) -> Pairs:
    return np.array(numbers, np.int64).reshape(len(numbers), -1)


class Arena:
    """The arrays of one batch, cut from one Arrow buffer.

    Parameters
    ----------
    layout
        How batches are laid out.
    rows
        How many this one has.
    taken
        How many bytes they are read from.
    room
        Bytes there have to be behind the arrays.
    """

    def __init__(self, layout: BatchLayout, rows: int, taken: int, room: int = 0) -> None:
        self._layout = layout
        self._rows = rows
        self._taken = taken
        self.extents, self.used = layout.place(rows)
        """Where each array begins in `body` and its size; how much of it is given to arrays."""
        self._fixed = self.used
        self._allocate(self.used + max(room, int(taken * layout.claimed_share)))
        if _ZEROS in self.arrays:
            self.arrays[_ZEROS].fill(0)
        layout.fill_repeated(self.arrays, rows)

    @property
    def rest(self) -> Bytes:
        """What is free behind the arrays and what was claimed."""
        return self.body[self.used :]

    def has(self, name: str) -> bool:
        """Return whether a column needs the array."""
        return name in self._layout.numbers

    def claim(self, name: str, size: int) -> int:
        """Give the next `size` bytes of `rest` a name; return where in `body` they begin.

        If there are not as many, all that is used moves to a larger buffer, and so do `arrays`.
        """
        start, stop = self.used, self.used + size
        self._reach(stop)
        self.extents[self._layout.numbers[name]] = start, size
        self.used = stop + -stop % _ALIGNMENT
        return start

    def claimed(self, stop: int) -> bool:
        """Take note of what a kernel claimed, up to `stop` in `body`; return if there was room.

        If not, there is now; what the arrays are to hold that lie behind the old end is lost.
        """
        room = stop <= len(self.body)
        self._reach(stop)
        self.used = stop
        return room

    def _reach(self, stop: int) -> None:
        if stop > len(self.body):
            written = self.body
            self._allocate(stop + stop // _SPARE)
            self.body[: len(written)] = written

    def put(self, name: str, data: Any) -> None:
        """Copy an array or a buffer to `rest`, and give it a name; nothing if no column has it."""
        if self.has(name):
            copied = np.frombuffer(data, np.uint8)
            start = self.claim(name, len(copied))
            self.body[start : start + len(copied)] = copied

    def batch(self, entries: int = 0, rows: int | None = None) -> pa.RecordBatch:
        """Return the batch, which keeps the buffer.

        `entries` are in the lists of one column; `rows` says if there are fewer than foreseen.
        """
        layout, rows = self._layout, self._rows if rows is None else rows
        claimed = self.used - self._fixed
        layout.claimed_share = (claimed + claimed // _SPARE) / max(self._taken, 1)
        head = layout.fill_head(self.extents, len(self.body), rows, entries)
        self._message[: len(head)] = head
        return pa.ipc.read_record_batch(self._buffer, layout.schema)

    def _allocate(self, body_bytes: int) -> None:
        head_bytes = len(self._layout.head)
        self._buffer = pa.allocate_buffer(head_bytes + body_bytes + -body_bytes % _ALIGNMENT)
        self._message = np.frombuffer(self._buffer, np.uint8)
        self.body = self._message[head_bytes:]
        places = self.extents.tolist()
        self.arrays: dict[str, npt.NDArray[Any]] = {
            name: np.ndarray((fields, size // kind.itemsize), kind, self.body, start)
            for (name, fields, kind), (start, size) in zip(self._layout.cuts, places, strict=False)
        }
        """Name to array, of two axes; their contents are undefined."""
