"""Compiled decoder of the fields of CONNECT, SUBSCRIBE, UNSUBSCRIBE and of acknowledgements.

It decodes packets that ``sessions`` found valid, so that no length is checked again.

Axes: r = rows, e = topic filters of all rows, c = codes of all rows.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid8, Grid32, Int32s, Ints, ReadOnly
from wireyard.formats.mqtt.kernels.sessions import body_at, declared_version
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    VERSION_BITS,
)
from wireyard.memory import copy_bytes, load_u8, load_u16, place_of

TEXTS: Final = (
    "protocol_name", "client_id", "will_topic", "will_payload", "username", "password", "filter",
)  # fmt: skip
"""Columns of text or bytes; the last is a field of topic filters, the others are of rows."""
LISTS: Final = ("return_codes", "filters")
NUMBERS: Final = ("protocol_version", "keep_alive", "will_qos", "return_code")
ROW_BITS: Final = (
    "clean_start", "will_retain", "has_password", "session_present",
    "is connect", "has will", "has will list", "has username", "has a password",
    "has session", "has code", "has codes", "has filters",
)  # fmt: skip
"""Bitmaps: boolean columns, and the validity of others."""
ENTRY_NUMBERS: Final = ("qos", "retain_handling")
ENTRY_BITS: Final = ("no_local", "retain_as_published", "has options", "is new")
_TEXTS: Final = len(TEXTS)
_NAME, _CLIENT, _WILL_TOPIC, _WILL_PAYLOAD, _USER, _PASSWORD, _FILTER = range(len(TEXTS))
_CODES, _FILTERS = range(_TEXTS, _TEXTS + len(LISTS))
(
    _CLEAN, _RETAIN, _WITH_PASSWORD, _PRESENT, _IS_CONNECT, _HAS_WILL, _HAS_WILL_LIST, _HAS_USER,
    _HAS_PASSWORD, _HAS_SESSION, _HAS_CODE, _HAS_CODES, _HAS_FILTERS,
) = range(len(ROW_BITS))  # fmt: skip
_LEVEL, _KEEP_ALIVE, _WILL_QOS, _CODE = range(len(NUMBERS))


@inlined
def set_bit(bits: Grid8, place: int, row: int, value: int) -> None:
    """Set a bit of a row, which is 0, if the value is not 0."""
    if value:
        bits[place, row >> 3] |= 1 << (row & 7)


@inlined
def append_text(data: Bytes, at: int, texts: Bytes, place: int, ends: Ints) -> int:
    """Append the text at `at`, which has a 16-bit length, to a column; return its end."""
    size = load_u16(data, at)
    copy_bytes(texts, place * (texts.shape[0] // _TEXTS) + ends[place], data, at + 2, size)
    ends[place] += size
    return at + 2 + size


@inlined
def after_properties(data: Bytes, at: int, version: int) -> int:
    """Return the position after the properties."""
    return at + 1 + load_u8(data, at) if version == 5 else at


@inlined
def fill_connect(
    data: Bytes,
    at: int,
    version: int,
    row: int,
    numbers: Grid32,
    bits: Grid8,
    texts: Bytes,
    ends: Ints,
) -> None:
    """Fill the fields of a CONNECT."""
    at = append_text(data, at, texts, _NAME, ends)
    flags = load_u8(data, at + 1)
    numbers[_LEVEL, row] = version
    numbers[_KEEP_ALIVE, row] = load_u16(data, at + 2)
    set_bit(bits, _IS_CONNECT, row, 1)
    set_bit(bits, _CLEAN, row, flags & 2)
    set_bit(bits, _WITH_PASSWORD, row, flags & 0x40)
    at = after_properties(data, at + 4, version)
    at = append_text(data, at, texts, _CLIENT, ends)
    if flags & 4:
        set_bit(bits, _HAS_WILL, row, 1)
        set_bit(bits, _HAS_WILL_LIST, row, version == 5)
        set_bit(bits, _RETAIN, row, flags & 0x20)
        numbers[_WILL_QOS, row] = flags >> 3 & 3
        at = after_properties(data, at, version)
        at = append_text(data, at, texts, _WILL_TOPIC, ends)
        at = append_text(data, at, texts, _WILL_PAYLOAD, ends)
    if flags & 0x80:
        set_bit(bits, _HAS_USER, row, 1)
        at = append_text(data, at, texts, _USER, ends)
    if flags & 0x40:
        set_bit(bits, _HAS_PASSWORD, row, 1)
        append_text(data, at, texts, _PASSWORD, ends)


@inlined
def append_filters(
    data: Bytes,
    at: int,
    stop: int,
    version: int,
    with_options: bool,
    texts: Bytes,
    entry_ends: Int32s,
    entry_numbers: Grid32,
    entry_bits: Grid8,
    ends: Ints,
) -> None:
    """Append topic filters and their subscription options."""
    while at < stop:
        entry = ends[_FILTERS]
        at = append_text(data, at, texts, _FILTER, ends)
        ends[_FILTERS] = entry + 1
        entry_ends[entry + 1] = ends[_FILTER]
        if with_options:
            options = load_u8(data, at)
            at += 1
            entry_numbers[0, entry] = options & 3
            entry_numbers[1, entry] = options >> 4
            set_bit(entry_bits, 0, entry, options & 4)
            set_bit(entry_bits, 1, entry, options & 8)
            set_bit(entry_bits, 2, entry, 1)
            set_bit(entry_bits, 3, entry, version == 5)


@inlined
def fill_code(data: Bytes, at: int, stop: int, row: int, numbers: Grid32, bits: Grid8) -> None:
    """Fill a return code or reason code, if the packet has one."""
    if at < stop:
        set_bit(bits, _HAS_CODE, row, 1)
        numbers[_CODE, row] = load_u8(data, at)


@kernel
def fill_fields(
    data: ReadOnly[Bytes],
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    rejected: Bytes,
    numbers: Grid32,
    offsets: Grid32,
    bits: Grid8,
    texts: Bytes,
    codes: Int32s,
    entry_ends: Int32s,
    entry_numbers: Grid32,
    entry_bits: Grid8,
    ends: Ints,
) -> int:
    """Fill the fields of packets that are not rejected; return the number of topic filters.

    Shapes: starts, sizes, contexts, rejected (r); numbers (`NUMBERS`, r); offsets (columns of
    `TEXTS` and `LISTS` that rows have, r + 1); bits (`ROW_BITS`, r / 8); texts (bytes), an equal
    part for each of `TEXTS`; codes (c); entry_ends (e + 1); entry_numbers (`ENTRY_NUMBERS`, e);
    entry_bits (`ENTRY_BITS`, e / 8); ends, the end of each text and list (`TEXTS` and `LISTS`).
    All bits, ends and first offsets are zero at first.
    """
    for number in range(starts.shape[0]):
        row = place_of(number)
        start, stop = starts[row], starts[row] + sizes[row]
        kind = load_u8(data, start) >> 4
        version = contexts[row] & VERSION_BITS
        if rejected[row] == 0 and kind != PUBLISH and stop - start > 2:
            at = body_at(data, start, stop)
            if kind == CONNECT:
                version = declared_version(data, at, stop)
                fill_connect(data, at, version, row, numbers, bits, texts, ends)
            elif kind == CONNACK:
                set_bit(bits, _HAS_SESSION, row, version != 3)
                set_bit(bits, _PRESENT, row, load_u8(data, at))
                fill_code(data, at + 1, stop, row, numbers, bits)
            elif kind == DISCONNECT:
                fill_code(data, at, stop, row, numbers, bits)
            elif PUBACK <= kind <= PUBCOMP:
                fill_code(data, at + 2, stop, row, numbers, bits)
            elif kind in (SUBSCRIBE, UNSUBSCRIBE):
                set_bit(bits, _HAS_FILTERS, row, 1)
                at = after_properties(data, at + 2, version)
                append_filters(
                    data, at, stop, version, kind == SUBSCRIBE, texts, entry_ends, entry_numbers,
                    entry_bits, ends,
                )  # fmt: skip
            elif kind == SUBACK or (kind == UNSUBACK and version == 5):
                set_bit(bits, _HAS_CODES, row, 1)
                for place in range(after_properties(data, at + 2, version), stop):
                    codes[ends[_CODES]] = load_u8(data, place)
                    ends[_CODES] += 1
        for place in range(_FILTER):
            offsets[place, row + 1] = ends[place]
        offsets[_FILTER, row + 1] = ends[_CODES]
        offsets[_FILTER + 1, row + 1] = ends[_FILTERS]
    return int(ends[_FILTERS])
