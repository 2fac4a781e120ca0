"""Kernels that write JSON Lines: columns to cells, and cells to lines.

Each kernel writes the values of one column as JSON, row after row from `at` on; ``ends[r]`` is the
start of the cell of row r. It returns the end of the last cell, after which `SLACK` bytes have to
be free.

Axes: r = rows, e = entries of the lists of all rows, c = columns.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid, Int32s, Ints, ReadOnly
from wireyard.decimals import put_repr
from wireyard.memory import copy_bytes, copy_text, load_u8, put_i64, store_word

ESCAPED_BYTES: Final = 6
"""Bytes of the longest escape, ``\\u0000``."""
BRACKET, BRACE = 0x5B, 0x7B
"""First characters of lists and maps; the code of the last character is larger by two."""
TEXT_VALUE, BARE, PAIR, DOUBLE = range(4)
"""JSON forms of a value that is text in the column: a string, the text itself, an array of strings
that is JSON already, or a double."""
_NULL: Final = int.from_bytes(b"null\0\0\0\0", "little")
_TRUE: Final = int.from_bytes(b"true\0\0\0\0", "little")
_FALSE: Final = int.from_bytes(b"false\0\0\0", "little")
_NAN: Final = int.from_bytes(b'NaN"', "little")
_INFINITY: Final = int.from_bytes(b"Infinity", "little")
_INFINITE: Final = 0x7FF << 52
_FRACTION: Final = (1 << 52) - 1
_UNICODE: Final = int.from_bytes(b"\\u00\0\0\0\0", "little")
_UNICODE_20: Final = int.from_bytes(b"\\u20\0\0\0\0", "little")
_UNICODE_061C: Final = int.from_bytes(b"\\u061c\0\0", "little")
_SHORT: Final = {0x08: 0x62, 0x09: 0x74, 0x0A: 0x6E, 0x0C: 0x66, 0x0D: 0x72}
_BACKSPACE, _TAB, _NEWLINE, _FORM_FEED, _RETURN = _SHORT.values()


@inlined
def digit(value: int) -> int:
    """Return the hexadecimal digit of four bits."""
    return value + (0x30 if value < 10 else 0x57)


@inlined
def put_unicode(out: Bytes, at: int, value: int) -> int:
    """Write a character below U+0100 as an escape of six bytes."""
    store_word(out, at, _UNICODE)
    store_word(out, at + 4, digit(value >> 4) | digit(value & 15) << 8)
    return at + 6


@inlined
def put_escape(out: Bytes, at: int, char: int) -> int:
    """Write the JSON escape of a control character, a quote or a backslash."""
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


@inlined
def put_unsafe(out: Bytes, at: int, data: Bytes, place: int) -> int:
    """Escape a character that would end a line for some readers, or change how others look.

    These are DEL, control characters beyond ASCII, line separators, and the characters that set the
    direction of text; each escape has six bytes. Return the number of UTF-8 bytes of the character,
    0 if it is none of these.
    """
    char = load_u8(data, place)
    if char == 0x7F:
        put_unicode(out, at, char)
        return 1
    if char == 0xC2 and load_u8(data, place + 1) < 0xA0:
        put_unicode(out, at, load_u8(data, place + 1))
        return 2
    if char == 0xD8 and load_u8(data, place + 1) == 0x9C:
        store_word(out, at, _UNICODE_061C)
        return 2
    if char == 0xE2 and load_u8(data, place + 1) & 0xFE == 0x80:
        low = (load_u8(data, place + 1) & 1) << 6 | load_u8(data, place + 2) & 0x3F
        if 0x28 <= low <= 0x2E or 0x66 <= low <= 0x69 or low == 0x0E or low == 0x0F:
            store_word(out, at, _UNICODE_20)
            store_word(out, at + 4, digit(low >> 4) | digit(low & 15) << 8)
            return 3
    return 0


@inlined
def put_text(out: Bytes, at: int, data: Bytes, start: int, stop: int) -> int:
    """Write UTF-8 text inside quotes."""
    store_word(out, at, 0x22)
    at += 1
    place = start
    while place < stop:
        char = load_u8(data, place)
        unsafe = put_unsafe(out, at, data, place) if char >= 0x7F else 0
        if unsafe:
            at += ESCAPED_BYTES
            place += unsafe
            continue
        if char < 0x20 or char == 0x22 or char == 0x5C:
            at = put_escape(out, at, char)
        else:
            store_word(out, at, char)
            at += 1
        place += 1
    store_word(out, at, 0x22)
    return at + 1


@inlined
def put_pair(out: Bytes, at: int, data: Bytes, start: int, stop: int) -> int:
    """Write a JSON array of strings without spaces between them."""
    quoted = escaped = False
    place = start
    while place < stop:
        char = load_u8(data, place)
        unsafe = put_unsafe(out, at, data, place) if char >= 0x7F else 0
        if unsafe:
            at += ESCAPED_BYTES
            place += unsafe
            continue
        if char == 0x22 and not escaped:
            quoted = not quoted
        escaped = char == 0x5C and not escaped
        store_word(out, at, char)
        at += quoted or char != 0x20
        place += 1
    return at


@inlined
def put_null(out: Bytes, at: int) -> int:
    """Write null."""
    store_word(out, at, _NULL)
    return at + 4


@kernel
def put_texts(
    offsets: ReadOnly[Int32s],
    data: ReadOnly[Bytes],
    valid: ReadOnly[Bytes],
    out: Bytes,
    at: int,
    ends: Ints,
) -> int:
    """Write a column of text, given as Arrow's offsets and bytes; null where `valid` is 0."""
    for row in range(len(valid)):
        ends[row] = at
        if valid[row]:
            at = put_text(out, at, data, offsets[row], offsets[row + 1])
        else:
            at = put_null(out, at)
    ends[len(valid)] = at
    return at


@kernel
def put_hex(
    offsets: ReadOnly[Int32s],
    data: ReadOnly[Bytes],
    valid: ReadOnly[Bytes],
    out: Bytes,
    at: int,
    ends: Ints,
) -> int:
    """Write a column of bytes in hexadecimal."""
    for row in range(len(valid)):
        ends[row] = at
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


@kernel
def put_numbers(
    values: ReadOnly[Ints], valid: ReadOnly[Bytes], out: Bytes, at: int, ends: Ints
) -> int:
    """Write a column of integers."""
    for row in range(len(valid)):
        ends[row] = at
        at = put_i64(out, at, values[row]) if valid[row] else put_null(out, at)
    ends[len(valid)] = at
    return at


@kernel
def put_flags(
    values: ReadOnly[Bytes], valid: ReadOnly[Bytes], out: Bytes, at: int, ends: Ints
) -> int:
    """Write a column of booleans."""
    for row in range(len(valid)):
        ends[row] = at
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


@inlined
def put_double(out: Bytes, at: int, bits: int) -> int:
    """Write a double; NaN and infinities as strings."""
    if bits & _INFINITE != _INFINITE:
        return put_repr(out, at, bits)
    store_word(out, at, 0x22)
    at += 1
    if bits & _FRACTION:
        store_word(out, at, _NAN)
        return at + 4
    store_word(out, at, 0x2D)
    at += bits < 0
    store_word(out, at, _INFINITY)
    store_word(out, at + 8, 0x22)
    return at + 9


@kernel
def put_typed(
    offsets: ReadOnly[Int32s],
    data: ReadOnly[Bytes],
    valid: ReadOnly[Bytes],
    shapes: ReadOnly[Bytes],
    doubles: ReadOnly[Ints],
    out: Bytes,
    at: int,
    ends: Ints,
) -> int:
    """Write values that columns have as text, each in its form in `shapes`: `TEXT_VALUE` and so on.

    Shapes: doubles (r), the bits of the values of form `DOUBLE`; empty if there are none.
    """
    for row in range(len(valid)):
        ends[row] = at
        start, stop = offsets[row], offsets[row + 1]
        if not valid[row]:
            at = put_null(out, at)
        elif shapes[row] == TEXT_VALUE:
            at = put_text(out, at, data, start, stop)
        elif shapes[row] == BARE:
            copy_bytes(out, at, data, start, stop - start)
            at += stop - start
        elif shapes[row] == DOUBLE:
            at = put_double(out, at, doubles[row])
        else:
            at = put_pair(out, at, data, start, stop)
    ends[len(valid)] = at
    return at


@kernel
def put_lists(
    opening: int,
    offsets: ReadOnly[Int32s],
    valid: ReadOnly[Bytes],
    entries: ReadOnly[Bytes],
    bounds: ReadOnly[Ints],
    out: Bytes,
    at: int,
    ends: Ints,
) -> int:
    """Write a column of lists or maps; `opening` is their first character.

    Shapes: offsets (r + 1), the start of each list's entries in `bounds`; bounds (e + 1), the start
    of each entry's cell in `entries`.
    """
    for row in range(len(valid)):
        ends[row] = at
        if valid[row]:
            store_word(out, at, opening)
            at += 1
            first, last = offsets[row], offsets[row + 1]
            for entry in range(first, last):
                size = bounds[entry + 1] - bounds[entry]
                copy_bytes(out, at, entries, bounds[entry], size)
                store_word(out, at + size, 0x2C)
                at += size + 1
            at -= last > first
            store_word(out, at, opening + 2)
            at += 1
        else:
            at = put_null(out, at)
    ends[len(valid)] = at
    return at


@kernel
def join_cells(
    cells: ReadOnly[Bytes],
    ends: Grid,
    between: ReadOnly[Bytes],
    bounds: ReadOnly[Ints],
    out: Bytes,
    lines: Ints,
) -> int:
    """Join the cells of each row, with the texts of `between` before, between and after them.

    Shapes: ends (c, r + 1); bounds (c + 2), the start of each text in `between`; lines (r + 1), the
    start of each row in `out`, and the end.
    """
    columns = ends.shape[0]
    at = 0
    for row in range(len(lines) - 1):
        lines[row] = at
        for column in range(columns):
            size = bounds[column + 1] - bounds[column]
            copy_text(out, at, between, bounds[column], size, len(between))
            at += size
            start = ends[column, row]
            size = ends[column, row + 1] - start
            copy_text(out, at, cells, start, size, len(cells))
            at += size
        size = bounds[columns + 1] - bounds[columns]
        copy_text(out, at, between, bounds[columns], size, len(between))
        at += size
    lines[len(lines) - 1] = at
    return at
