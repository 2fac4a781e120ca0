"""Columns to the cells of JSON Lines, and cells to lines.

Each kernel writes what stands in the lines for one column, its name before each value, one row
behind the other from `at` on; ``ends[r]`` is where the cell of row r begins. It returns where the
last one ends, behind which `SLACK` bytes have to be free.

Axes: r = rows, c = columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.memory import Bytes, copy_bytes, load_u8, put_i64, store_word

__all__ = ["ESCAPED_BYTES", "join_cells", "put_flags", "put_hex", "put_numbers", "put_texts"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Shorts = np.ndarray[tuple[int], np.dtype[np.int32]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_INTS: Final = array("int64")
_SHORTS: Final = array("int32", readonly=True)
_READ_INTS: Final = array("int64", readonly=True)
ESCAPED_BYTES: Final = 6
"""Of the longest escape, ``\\u0000``."""
_NULL: Final = int.from_bytes(b"null\0\0\0\0", "little")
_TRUE: Final = int.from_bytes(b"true\0\0\0\0", "little")
_FALSE: Final = int.from_bytes(b"false\0\0\0", "little")
_UNICODE: Final = int.from_bytes(b"\\u00\0\0\0\0", "little")
_UNICODE_20: Final = int.from_bytes(b"\\u202\0\0\0", "little")
_SHORT: Final = {0x08: 0x62, 0x09: 0x74, 0x0A: 0x6E, 0x0C: 0x66, 0x0D: 0x72}
_BACKSPACE, _TAB, _NEWLINE, _FORM_FEED, _RETURN = _SHORT.values()


@piece
def digit(value: int) -> int:
    """Return four bits as a digit."""
    return value + (0x30 if value < 10 else 0x57)


@piece
def put_unicode(out: Bytes, at: int, value: int) -> int:
    """Write a character below U+0100 as an escape of six bytes."""
    store_word(out, at, _UNICODE)
    store_word(out, at + 4, digit(value >> 4) | digit(value & 15) << 8)
    return at + 6


@piece
def put_escape(out: Bytes, at: int, char: int) -> int:
    """Write a control character, a quote or a backslash as JSON has it."""
    if char == 0x22 or char == 0x5C:
        short = char
    elif char == 0x0A:
        short = _NEWLINE
    elif char == 0x0D:
        short = _RETURN
    elif char == 0x09:
        short = _TAB
    elif char == 0x08:
        short = _BACKSPACE
    elif char == 0x0C:
        short = _FORM_FEED
    else:
        return put_unicode(out, at, char)
    store_word(out, at, 0x5C | short << 8)
    return at + 2


@piece
def put_text(out: Bytes, at: int, data: Bytes, start: int, stop: int) -> int:
    """Write UTF-8 text inside quotes.

    Control characters beyond ASCII and the separators of lines are escaped too: they end a line for
    some readers.
    """
    store_word(out, at, 0x22)
    at += 1
    place = start
    while place < stop:
        char = load_u8(data, place)
        place += 1
        if char < 0x20 or char == 0x22 or char == 0x5C or char == 0x7F:
            at = put_escape(out, at, char)
        elif char == 0xC2 and load_u8(data, place) < 0xA0:
            at = put_unicode(out, at, load_u8(data, place))
            place += 1
        elif (
            char == 0xE2
            and load_u8(data, place) == 0x80
            and load_u8(data, place + 1) & 0xFE == 0xA8
        ):
            store_word(out, at, _UNICODE_20)
            store_word(out, at + 5, 0x38 + (load_u8(data, place + 1) & 1))
            at += 6
            place += 2
        else:
            store_word(out, at, char)
            at += 1
    store_word(out, at, 0x22)
    return at + 1


@piece
def put_null(out: Bytes, at: int) -> int:
    """Write null."""
    store_word(out, at, _NULL)
    return at + 4


@kernel(I64(_SHORTS, READ, READ, READ, TEXT, I64, _INTS))
def put_texts(
    offsets: Shorts, data: Bytes, valid: Bytes, name: Bytes, out: Bytes, at: int, ends: Ints
) -> int:
    """Write a column of text: of Arrow's offsets and bytes, null where `valid` is 0."""
    for row in range(len(valid)):
        ends[row] = at
        copy_bytes(out, at, name, 0, len(name))
        at += len(name)
        if valid[row]:
            at = put_text(out, at, data, offsets[row], offsets[row + 1])
        else:
            at = put_null(out, at)
    ends[len(valid)] = at
    return at


@kernel(I64(_SHORTS, READ, READ, READ, TEXT, I64, _INTS))
def put_hex(
    offsets: Shorts, data: Bytes, valid: Bytes, name: Bytes, out: Bytes, at: int, ends: Ints
) -> int:
    """Write a column of bytes in hexadecimal."""
    for row in range(len(valid)):
        ends[row] = at
        copy_bytes(out, at, name, 0, len(name))
        at += len(name)
        if valid[row]:
            store_word(out, at, 0x22)
            at += 1
            for place in range(offsets[row], offsets[row + 1]):
                value = load_u8(data, place)
                store_word(out, at, digit(value >> 4) | digit(value & 15) << 8)
                at += 2
            store_word(out, at, 0x22)
            at += 1
        else:
            at = put_null(out, at)
    ends[len(valid)] = at
    return at


@kernel(I64(_READ_INTS, READ, READ, TEXT, I64, _INTS))
def put_numbers(values: Ints, valid: Bytes, name: Bytes, out: Bytes, at: int, ends: Ints) -> int:
    """Write a column of integers."""
    for row in range(len(valid)):
        ends[row] = at
        copy_bytes(out, at, name, 0, len(name))
        at += len(name)
        at = put_i64(out, at, values[row]) if valid[row] else put_null(out, at)
    ends[len(valid)] = at
    return at


@kernel(I64(READ, READ, READ, TEXT, I64, _INTS))
def put_flags(values: Bytes, valid: Bytes, name: Bytes, out: Bytes, at: int, ends: Ints) -> int:
    """Write a column of true and false."""
    for row in range(len(valid)):
        ends[row] = at
        copy_bytes(out, at, name, 0, len(name))
        at += len(name)
        if not valid[row]:
            at = put_null(out, at)
        elif values[row]:
            store_word(out, at, _TRUE)
            at += 4
        else:
            store_word(out, at, _FALSE)
            at += 5
    ends[len(valid)] = at
    return at


@kernel(I64(READ, array("int64", 2), TEXT, _INTS))
def join_cells(cells: Bytes, ends: Grid, out: Bytes, lines: Ints) -> int:
    """Put the cells of each row together to a line, without the brace that begins it.

    Shapes: ends (c, r + 1); lines (r + 1), where in `out` each line begins, and the end.
    """
    at = 0
    for row in range(len(lines) - 1):
        lines[row] = at
        for column in range(ends.shape[0]):
            start = ends[column, row]
            size = ends[column, row + 1] - start
            copy_bytes(out, at, cells, start, size)
            at += size
        store_word(out, at, 0x0A7D)
        at += 2
    lines[len(lines) - 1] = at
    return at
