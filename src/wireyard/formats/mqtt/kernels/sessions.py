"""Kernel checks of CONNECT, CONNACK, SUBSCRIBE, UNSUBSCRIBE, SUBACK, UNSUBACK and reason codes.

A check returns the end of a valid part, or 0 if the part breaks a rule or is too rare to check
here: a Property Length of two bytes, a shared subscription, a will with properties. The scalar
reader decides about packets that fail. Of properties only the length is checked here; the pass over
properties checks the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes
from wireyard.formats.mqtt.kernels.topics import has_forbidden
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    MAX_ENTRIES,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    REASON_CODES,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from wireyard.memory import load_u8, load_u16, load_u32, valid_utf8

LONGEST_HEAD: Final = 21
"""Most bytes of a CONNECT that detection examines: `HEADER_BYTES` of the framing."""
_BRIDGE: Final = 0x80
_MOST_OLD_ID: Final = 23
_OLD, _NEW = 0x4D514973, 0x4D515454
"""The first four bytes of ``MQIsdp``, and ``MQTT``."""
_END_OF_OLD: Final = 0x6470
_SHARED: Final = 0x2473
"""The first two characters of ``$share/``."""
_BARE: Final = 1
"""Result of `check_packet` for a valid packet without Property Length."""


def _code_masks(codes: Iterable[int]) -> tuple[int, int]:
    """Return codes from 0 to 62, and from 128 to 190, as bits."""
    low = sum(1 << code for code in codes if code < _ERRORS)
    return low, sum(1 << code - _ERRORS for code in codes if code >= _ERRORS)


_ERRORS: Final = 128
_CONNACK_CODES: Final = _code_masks(range(6))
_SUBACK_CODES: Final = _code_masks((0, 1, 2, 128))
_REASONS_CONNACK, _REASONS_SUBACK, _REASONS_UNSUBACK, _REASONS_DISCONNECT = (
    _code_masks(REASON_CODES[kind]) for kind in (CONNACK, SUBACK, UNSUBACK, DISCONNECT)
)
_REASONS_PUBLISHED, _REASONS_RELEASED = (
    _code_masks(REASON_CODES[kind]) for kind in (PUBREC, PUBREL)
)


@inlined
def body_at(data: Bytes, start: int, stop: int) -> int:
    """Return the start of a packet's variable header, `start` itself if there is none.

    There is none after a Remaining Length that is longer than needed.
    """
    at = start + 1
    while at < stop and at < start + 4 and load_u8(data, at) >= 0x80:
        at += 1
    if at >= stop or load_u8(data, at) >= 0x80 or (at > start + 1 and load_u8(data, at) == 0):
        return start
    return at + 1


@inlined
def declared_version(data: Bytes, at: int, stop: int) -> int:
    """Return the version of the protocol name and level at `at`, 0 if it is not 3.1 to 5.0."""
    if at + 7 > stop:
        return 0
    size = load_u16(data, at)
    if size == 4 and load_u32(data, at + 2) == _NEW:
        level = load_u8(data, at + 6)
        plain = 4 if level == _BRIDGE | 4 else level
        return plain if plain == 4 or plain == 5 else 0
    if size != 6 or at + 9 > stop:
        return 0
    if load_u32(data, at + 2) != _OLD or load_u16(data, at + 6) != _END_OF_OLD:
        return 0
    level = load_u8(data, at + 8)
    return 3 if level == 3 or level == _BRIDGE | 3 else 0


@inlined
def check_text(data: Bytes, at: int, stop: int) -> int:
    """Return the end of a text of 3.1 to 5.0 with its 16-bit length, 0 if it is not valid."""
    if at + 2 > stop:
        return 0
    end = at + 2 + load_u16(data, at)
    if end > stop:
        return 0
    high = 0
    for place in range(at + 2, end):
        char = load_u8(data, place)
        if char == 0:
            return 0
        high |= char
    if high >= 0x80 and not valid_utf8(data, at + 2, end - at - 2):
        return 0
    return end


@inlined
def check_topic(data: Bytes, at: int, stop: int) -> int:
    """Return the end of a topic name, which is not empty and has no wildcards, 0 if not valid."""
    end = check_text(data, at, stop)
    return end if end > at + 2 and not has_forbidden(data, at + 2, end) else 0


@inlined
def skip_no_properties(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return the position after empty properties, 0 if there are properties."""
    if version != 5:
        return at
    return at + 1 if at < stop and load_u8(data, at) == 0 else 0


@inlined
def skip_properties(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return the position after the properties, 0 if their length is not one byte or too large."""
    if version != 5:
        return at
    if at >= stop or load_u8(data, at) >= 0x80:
        return 0
    at += 1 + load_u8(data, at)
    return at if at <= stop else 0


@inlined
def is_listed(code: int, codes: tuple[int, int]) -> bool:
    """Return whether a code is among those of `_code_masks`."""
    if code < _ERRORS:
        return code < 63 and codes[0] >> code & 1 != 0
    return code < _ERRORS + 63 and codes[1] >> code - _ERRORS & 1 != 0


@inlined
def check_will(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return the end of a will without properties, 0 if it is not valid."""
    at = skip_no_properties(data, at, stop, version)
    if at:
        at = check_topic(data, at, stop)
    if at == 0 or at + 2 > stop:
        return 0
    return at + 2 + load_u16(data, at)


@inlined
def check_connect(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return the start of the properties of a CONNECT, 0 if it is not valid."""
    at += 2 + load_u16(data, at) + 1
    # A bridge sets a bit of the level, which breaks a rule.
    if at + 3 > stop or load_u8(data, at - 1) != version:
        return 0
    flags = load_u8(data, at)
    will = flags & 4
    if flags & 1 or flags & 0x18 == 0x18 or (not will and flags & 0x38):
        return 0
    if version != 5 and flags & 0xC0 == 0x40:
        return 0
    properties_at = at + 3
    begin = at = skip_properties(data, properties_at, stop, version)
    if at:
        at = check_text(data, at, stop)
    id_bytes = at - begin - 2
    if at == 0 or (version == 3 and not 1 <= id_bytes <= _MOST_OLD_ID):
        return 0
    if version == 4 and id_bytes == 0 and not flags & 2:
        return 0
    if will:
        at = check_will(data, at, stop, version)
    if at and flags & 0x80:
        at = check_text(data, at, stop)
    if at and flags & 0x40:
        at = at + 2 + load_u16(data, at) if at + 2 <= stop else 0
    return properties_at if at == stop else 0


@inlined
def is_valid_publish(data: Bytes, start: int, stop: int, version: int) -> bool:
    """Return whether a PUBLISH of 3.1 to 5.0 is valid and has no properties."""
    flags = load_u8(data, start) & 15
    at = body_at(data, start, stop)
    if at == start or version < 3 or flags & 6 == 6 or flags & 14 == 8:
        return False
    at = check_topic(data, at, stop)
    if at and flags & 6:
        at = at + 2 if at + 2 <= stop and load_u16(data, at) else 0
    return at > 0 and skip_no_properties(data, at, stop, version) > 0


@inlined
def check_connack(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return the start of the properties of a CONNACK, 0 if it is not valid."""
    if stop - at < 2:
        return 0
    flags, code = load_u8(data, at), load_u8(data, at + 1)
    if flags > 1 or (flags and (code or version == 3)):
        return 0
    if not is_listed(code, _REASONS_CONNACK if version == 5 else _CONNACK_CODES):
        return 0
    return at + 2 if skip_properties(data, at + 2, stop, version) == stop else 0


@inlined
def check_filter(data: Bytes, at: int, stop: int) -> int:
    """Return the end of a topic filter, 0 if it is not valid or of a shared subscription.

    ``#`` is a level of its own, the last one; ``+`` is a level of its own.
    """
    end = check_text(data, at, stop)
    at += 2
    if end <= at or (end > at + 1 and load_u16(data, at) == _SHARED):
        return 0
    for place in range(at, end):
        char = load_u8(data, place)
        if char == 0x23 or char == 0x2B:
            if place > at and load_u8(data, place - 1) != 0x2F:
                return 0
            if place + 1 < end and (char == 0x23 or load_u8(data, place + 1) != 0x2F):
                return 0
    return end


@inlined
def valid_options(options: int, version: int) -> bool:
    """Return whether the options of a topic filter of SUBSCRIBE are valid."""
    if version != 5:
        return options <= 2
    return options < 0x30 and options & 3 != 3


@inlined
def check_filters(data: Bytes, at: int, stop: int, version: int, with_options: bool) -> int:
    """Return the start of the properties of SUBSCRIBE or UNSUBSCRIBE, 0 if it is not valid."""
    if stop - at < 3 or load_u16(data, at) == 0:
        return 0
    properties_at = at + 2
    at = skip_properties(data, properties_at, stop, version)
    if at == 0 or at == stop:
        return 0
    count = 0
    while at < stop:
        at = check_filter(data, at, stop)
        count += 1
        if at == 0 or count > MAX_ENTRIES:
            return 0
        if with_options:
            if at == stop or not valid_options(load_u8(data, at), version):
                return 0
            at += 1
    return properties_at


@inlined
def check_codes(data: Bytes, at: int, stop: int, version: int, codes: tuple[int, int]) -> int:
    """Return the start of the properties of SUBACK or UNSUBACK, 0 if it is not valid."""
    if stop - at < 2:
        return 0
    properties_at = at + 2
    at = skip_properties(data, properties_at, stop, version)
    if at == 0 or stop - at > MAX_ENTRIES:
        return 0
    for place in range(at, stop):
        if not is_listed(load_u8(data, place), codes):
            return 0
    return properties_at


@inlined
def check_reason(data: Bytes, start: int, at: int, stop: int, codes: tuple[int, int]) -> int:
    """Check a reason code of 5.0 at `at` and properties after it; results as of `check_packet`."""
    if at >= stop or not is_listed(load_u8(data, at), codes):
        return 0
    if at + 1 == stop:
        return _BARE
    return at + 1 - start if skip_properties(data, at + 1, stop, 5) == stop else 0


@inlined
def check_packet(data: Bytes, start: int, stop: int, version: int) -> int:
    """Return the offset of Property Length in a valid packet, `_BARE` if it has none, else 0.

    A packet is valid if it is of one of these types and keeps every rule of `version`, but for the
    rules about single properties. For a CONNECT, `version` is the one that it declares.
    """
    first = load_u8(data, start)
    kind = first >> 4
    at = body_at(data, start, stop)
    flags = 2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0
    if at == start or version < 3 or first & 15 != flags:
        return 0
    properties_at = 0
    if kind == CONNECT:
        if declared_version(data, at, stop) == version:
            properties_at = check_connect(data, at, stop, version)
    elif kind == CONNACK:
        properties_at = check_connack(data, at, stop, version)
    elif kind in (SUBSCRIBE, UNSUBSCRIBE):
        properties_at = check_filters(data, at, stop, version, kind == SUBSCRIBE)
    elif kind == SUBACK:
        codes = _REASONS_SUBACK if version == 5 else _SUBACK_CODES
        properties_at = check_codes(data, at, stop, version, codes)
    elif kind == UNSUBACK:
        if version == 5:
            properties_at = check_codes(data, at, stop, version, _REASONS_UNSUBACK)
        elif stop - at == 2:
            properties_at = stop
    elif version == 5:
        if kind == DISCONNECT:
            return check_reason(data, start, at, stop, _REASONS_DISCONNECT)
        if PUBACK <= kind <= PUBCOMP and at + 2 <= stop:
            codes = _REASONS_PUBLISHED if kind <= PUBREC else _REASONS_RELEASED
            return check_reason(data, start, at + 2, stop, codes)
        return 0
    if properties_at == 0:
        return 0
    return properties_at - start if version == 5 else _BARE


@inlined
def is_valid(data: Bytes, start: int, stop: int, version: int) -> bool:
    """Return whether a packet of one of these types is valid and has no properties.

    For a CONNECT, `version` is the one that it declares.
    """
    length_at = check_packet(data, start, stop, version)
    return length_at == _BARE or (length_at > _BARE and load_u8(data, start + length_at) == 0)
