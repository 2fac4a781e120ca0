"""Batches in one buffer: the arrays that kernels fill, and an Arrow message that describes them.

New memory costs ten times as much as memory that is in use already. Arrow's pool keeps the pages of
large freed blocks, so a batch allocates one block from it and divides that.

Making the Arrow arrays of forty columns one by one takes as long as decoding a thousand packets,
with the interpreter lock held. So the buffer is a message of Arrow's IPC format, which one call
reads without copying.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from tempfile import TemporaryFile, gettempdir
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.accelerate import brief_kernel, inlined
from wireyard.arrays import Bytes, Grid, Ints
from wireyard.errors import SourceError

Source = tuple[str, int] | None
"""The name of an array and a row of it; None for the validity of a column without nulls."""

_ALIGNMENT: Final = 64  # of Arrow's buffers
_ROWS, _ENTRIES, _NONE, _UNKNOWN = range(4)
"""Lengths and null counts of nodes: rows, entries of lists, none; unknown, for Arrow to count."""
_FIRST_SHARE: Final = 2.0
"""First estimate of claimed bytes per byte of input; pages that are not used cost nothing."""
_LARGE_BYTES: Final = 16 << 20
_PART_ROWS: Final = 1 << 16
_SPARE: Final = 8
"""Estimates are larger than the last need by 1 / `_SPARE` of it."""

# --- the message ----------------------------------------------------------------------------

# Message.fbs of Arrow as a flatbuffer with every field at a fixed offset. A table begins with the
# distance to its vtable before it, which has two sizes and the offset of each field in the table.
_HEAD: Final = struct.Struct("<IiI 6H iIqhBx 5H2x iIqII")
_BODY_BYTES_AT, _ROWS_AT = 32, 64
_GAP: Final = struct.Struct("<4xI")
"""The bytes between nodes and buffers."""
_PAIR_BYTES: Final = 16
"""Size of a node (length and null count), and of a buffer (offset and size)."""
_NUMBER: Final = struct.Struct("<q")
_VERSION_5, _RECORD_BATCH = 4, 3


def _head(nodes: int, buffers: int) -> Bytes:
    """Return the head of a message of one record batch, with all numbers zero."""
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
    """Append the nodes and buffers of a type and of its children."""
    length, nulls = counted
    nodes.append((length, nulls if validity else _NONE))
    buffers.append(validity)
    buffers += islice(given, kind.num_buffers - 1)
    if not pa.types.is_struct(kind):
        length, validity = _NONE if nulls == _ROWS else _ENTRIES, None
    for place in range(kind.num_fields):
        _lay_out(kind.field(place).type, given, validity, (length, nulls), nodes, buffers)


@brief_kernel
def place_arrays(shapes: Grid, rows: int, extents: Grid) -> int:
    """Compute the start of each array and the size of a row of it; return the end of all."""
    stop = 0
    for number in range(shapes.shape[0]):
        size = (shapes[number, 1] * rows + 7 >> 3) + shapes[number, 2]
        size += -size & (_ALIGNMENT - 1)
        extents[number, 0] = stop
        extents[number, 1] = size
        stop += shapes[number, 0] * size
    return stop


@brief_kernel
def fill_pairs(
    sources: Grid,
    counted: Grid,
    rows: int,
    entries: int,
    extents: Grid,
    nodes: Grid,
    buffers: Grid,
) -> int:
    """Fill the nodes and buffers of a head; return the number of buffers."""
    for number in range(nodes.shape[0]):
        for side in range(2):
            kind = counted[number, side]
            count = rows if kind == _ROWS else entries if kind == _ENTRIES else 0
            nodes[number, side] = -1 if kind == _UNKNOWN else count
    for number in range(buffers.shape[0]):
        if sources[number, 0] >= 0:
            start, size = extents[sources[number, 0], 0], extents[sources[number, 0], 1]
            buffers[number, 0] = start + sources[number, 1] * size
            buffers[number, 1] = size
    return buffers.shape[0]


@inlined
def claim_bytes(extents: Grid, number: int, size: int, at: int) -> int:
    """Assign `size` bytes from `at` on to an array of the batch; return the next aligned position.

    A negative number is an array that no column needs, which gets none.
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
    """Return an array of undefined contents, in a temporary file if it is large.

    The file has no name; the system may write its pages out and read them again. A connection is
    reassembled and tracked as a whole, so its arrays have no limit of their size. A SourceError is
    raised if the folder of temporary files has no space for the array.
    """
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    size_bytes = size * np.dtype(kind).itemsize
    if size_bytes < large_bytes:
        return pooled(shape, kind)
    try:
        with TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                # Else a write to a page without disk space would end the process by a signal.
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            return np.asarray(np.memmap(file, kind, "w+", shape=shape))
    except OSError as error:
        raise SourceError(
            f"{gettempdir()}: no room for {size_bytes:,} bytes of columns ({error.strerror});"
            " TMPDIR names another folder"
        ) from None


def with_room(
    array: npt.NDArray[Any],
    filled: int,
    most: int,
    allocate: Callable[..., npt.NDArray[Any]] = np.empty,
) -> npt.NDArray[Any]:
    """Return an array with room for `most` rows: this one, or a copy of its first `filled` rows.

    A copy has room for twice as many. Rows that are not filled are undefined.
    """
    if most <= len(array):
        return array
    larger = allocate((2 * most, *array.shape[1:]), array.dtype)
    larger[:filled] = array[:filled]
    return larger


def parts(count: int, rows: int = _PART_ROWS) -> Iterable[slice]:
    """Return slices that divide very large arrays, so that temporary arrays stay small."""
    return (slice(at, min(at + rows, count)) for at in range(0, count, rows))


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an array: `fields` rows, each of `bits` per row of the batch and `more` bytes.

    Each of its rows is padded to the alignment of Arrow's buffers.
    """

    kind: npt.DTypeLike
    bits: int
    fields: int = 1
    more: int = 0


_ZEROS: Final = "zeros"
"""The array behind validity, offsets and values of columns without any value."""
_ZEROS_SHAPE: Final = Shape(np.int64, 64, more=8)
_NOTHING_REPEATED: Final[Mapping[str, str]] = {}


class BatchLayout:
    """The layout of batches with the same columns.

    `shapes` are those of the arrays that kernels fill. `sources` has the buffers of each column in
    Arrow's order, its validity first; child types have no validity. Arrays that are not in `shapes`
    are claimed later, and columns that are not in `sources` are null in every row. `repeated` has
    the text of columns with the same text in every row.
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
            all_null = column.name not in sources
            given = repeat((_ZEROS, 0)) if all_null else iter(sources[column.name])
            counted = _ROWS, _ROWS if all_null else _UNKNOWN
            _lay_out(column.type, given, next(given), counted, nodes, buffers)
        named = dict.fromkeys(source[0] for source in buffers if source)
        if _ZEROS in named:
            shapes = {**shapes, _ZEROS: _ZEROS_SHAPE}
        self.fixed_arrays = [
            (name, shape.fields, np.dtype(shape.kind)) for name, shape in shapes.items()
        ]
        """Name, rows and dtype of the arrays of a known size."""
        self.numbers = {name: number for number, name in enumerate({**shapes, **named})}
        self.claimed_share = _FIRST_SHARE if len(self.numbers) > len(shapes) else 0.0
        """Estimate of claimed bytes per byte of input, from the last batch."""
        self._shapes = _pairs([(shape.fields, shape.bits, shape.more) for shape in shapes.values()])
        self._sources = _pairs(
            [(self.numbers[source[0]], source[1]) if source else (-1, 0) for source in buffers]
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

    def place(self, rows: int) -> tuple[Grid, int]:
        """Return the extents of the arrays of a batch, and the bytes that they take together."""
        extents: Grid = np.zeros((len(self.numbers), 2), np.int64)
        return extents, place_arrays(self._shapes, rows, extents)

    def fill_head(self, extents: Grid, body_bytes: int, rows: int, entries: int) -> Bytes:
        """Return the head with the numbers of a batch, an array that the next call overwrites."""
        fill_pairs(self._sources, self._counted, rows, entries, extents, self._nodes, self._buffers)
        _NUMBER.pack_into(self.head.data, _ROWS_AT, rows)
        _NUMBER.pack_into(self.head.data, _BODY_BYTES_AT, body_bytes)
        return self.head

    def fill_repeated(self, arrays: Mapping[str, npt.NDArray[Any]], rows: int) -> None:
        """Fill the columns with the same text in every row."""
        for text in self._repeated:
            text.fill(arrays, rows)


class _Repeated:
    """The arrays of a column with the same text in every row."""

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
        """Fill the arrays of a batch with copies of the prepared ones."""
        if len(self._ends) <= rows:
            self._write(2 * rows)
        size = len(self._raw) * rows
        arrays[self._ends_name][0, : rows + 1] = self._ends[: rows + 1]
        arrays[self._text_name][0, :size] = self._text[:size]


def _pairs(numbers: Sequence[tuple[int, ...]]) -> Grid:
    return np.array(numbers, np.int64).reshape(len(numbers), -1)


class Arena:
    """The arrays of one batch, in one Arrow buffer.

    `taken` is the number of bytes of the input that the rows are decoded from, and `room` the least
    number of free bytes after the arrays.
    """

    def __init__(self, layout: BatchLayout, rows: int, taken: int, room: int = 0) -> None:
        self._layout = layout
        self._rows = rows
        self._taken = taken
        self.extents, self.used = layout.place(rows)
        """Start in `body` and size of each array; the end of the part of `body` in use."""
        self._fixed = self.used
        self._allocate(self.used + max(room, int(taken * layout.claimed_share)))
        if _ZEROS in self.arrays:
            self.arrays[_ZEROS].fill(0)
        layout.fill_repeated(self.arrays, rows)

    @property
    def rest(self) -> Bytes:
        """The free bytes after the arrays and the claimed parts."""
        return self.body[self.used :]

    def has(self, name: str) -> bool:
        """Return whether a column needs the array."""
        return name in self._layout.numbers

    def claim(self, name: str, size: int) -> int:
        """Assign the next `size` bytes of `rest` to an array; return their start in `body`.

        If they do not fit, the buffer is copied to a larger one, and `arrays` are made anew.
        """
        start, stop = self.used, self.used + size
        self._grow_to(stop)
        self.extents[self._layout.numbers[name]] = start, size
        self.used = stop + -stop % _ALIGNMENT
        return start

    def claimed(self, stop: int) -> bool:
        """Record that a kernel claimed bytes up to `stop` in `body`; return whether they fitted.

        If not, the buffer grows, and the contents of the claimed arrays have to be written again.
        """
        fitted = stop <= len(self.body)
        self._grow_to(stop)
        self.used = stop
        return fitted

    def _grow_to(self, stop: int) -> None:
        if stop > len(self.body):
            written = self.body
            self._allocate(stop + stop // _SPARE)
            self.body[: len(written)] = written

    def put(self, name: str, data: Any) -> None:
        """Copy an array or a buffer to `rest` as the array `name`, if a column needs it."""
        if self.has(name):
            copied = np.frombuffer(data, np.uint8)
            start = self.claim(name, len(copied))
            self.body[start : start + len(copied)] = copied

    def batch(self, entries: int = 0, rows: int | None = None) -> pa.RecordBatch:
        """Return the batch, which refers to the buffer.

        `entries` is the length of the lists of one column, of all rows together; `rows` is the
        number of rows if there are fewer than allocated.
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
            for (name, fields, kind), (start, size) in zip(
                self._layout.fixed_arrays, places, strict=False
            )
        }
        """Arrays of two axes by name; their contents are undefined."""
