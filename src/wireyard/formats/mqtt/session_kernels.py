"""Whether packets with fields of their own surely keep every rule: pieces of kernels.

These are CONNECT, CONNACK, SUBSCRIBE, UNSUBSCRIBE, their answers, and packets with a reason code of
5.0. Of their properties only the length is looked at here; the pass over properties judges the
rest. Packets with a Property Length of two bytes, a shared subscription or a will with properties
are rare and never sure; the scalar reader decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wireyard.accelerate import piece
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    DISCONNECT,
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
from wireyard.formats.mqtt.topic_kernels import has_forbidden
from wireyard.memory import Bytes, load_u8, load_u16, valid_utf8

__all__ = [
    "LONGEST_HEAD",
    "body_at",
    "judge_packet",
    "keeps_rules",
    "shown_version",
    "sound_publish",
]

LONGEST_HEAD: Final = 21
"""Of a CONNECT, what shows that a stream begins with one: `HEADER_BYTES` of its framing."""
_BRIDGE: Final = 0x80
_MOST_OLD_ID: Final = 23
_OLD, _NEW = 0x4D514973, 0x4D515454
"""The first four bytes of ``MQIsdp``, and ``MQTT``."""
_END_OF_OLD: Final = 0x6470
_SHARED: Final = 0x2473
"""The first two characters of ``$share/``."""
_BARE: Final = 1
"""A packet that surely keeps every rule and has no Property Length; others have it further on."""


def _masks(codes: Iterable[int]) -> tuple[int, int]:
    """Return codes from 0 to 62, and from 128 to 190, as bits."""
    low = sum(1 << code for code in codes if code < _ERRORS)
    return low, sum(1 << code - _ERRORS for code in codes if code >= _ERRORS)


_ERRORS: Final = 128
_CONNACK_CODES: Final = _masks(range(6))
_SUBACK_CODES: Final = _masks((0, 1, 2, 128))
_REASONS_CONNACK, _REASONS_SUBACK, _REASONS_UNSUBACK, _REASONS_DISCONNECT = (
    _masks(REASON_CODES[kind]) for kind in (CONNACK, SUBACK, UNSUBACK, DISCONNECT)
)
_REASONS_PUBLISHED, _REASONS_RELEASED = (_masks(REASON_CODES[kind]) for kind in (PUBREC, PUBREL))


@piece
def load_four(data: Bytes, at: int) -> int:
    """Read an integer of 32 bits."""
    return load_u16(data, at) << 16 | load_u16(data, at + 2)


@piece
def body_at(data: Bytes, start: int, stop: int) -> int:
    """Return where the variable header of a packet begins, `start` if that is not there.

    A Remaining Length of more bytes than it takes begins none.
    """
    at = start + 1
    while at < stop and at < start + 4 and load_u8(data, at) >= 0x80:
        at += 1
    if at >= stop or load_u8(data, at) >= 0x80 or (at > start + 1 and load_u8(data, at) == 0):
        return start
    return at + 1


@piece
def shown_version(data: Bytes, at: int, stop: int) -> int:
    """Return the version that protocol name and level at `at` declare, 0 if not 3.1 to 5.0."""
    if at + 7 > stop:
        return 0
    size = load_u16(data, at)
    if size == 4 and load_four(data, at + 2) == _NEW:
        level = load_u8(data, at + 6)
        plain = 4 if level == _BRIDGE | 4 else level
        return plain if plain == 4 or plain == 5 else 0
    if size != 6 or at + 9 > stop:
        return 0
    if load_four(data, at + 2) != _OLD or load_u16(data, at + 6) != _END_OF_OLD:
        return 0
    level = load_u8(data, at + 8)
    return 3 if level == 3 or level == _BRIDGE | 3 else 0


@piece
def sound_text(data: Bytes, at: int, stop: int) -> int:
    """Return where text behind its length ends, 0 if that is not sure to be text of 3.1 to 5.0."""
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


@piece
def sound_name(data: Bytes, at: int, stop: int) -> int:
    """Return where a topic without wildcards ends that has a character, 0 if it is none."""
    end = sound_text(data, at, stop)
    return end if end > at + 2 and not has_forbidden(data, at + 2, end) else 0


@piece
def no_properties(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return what follows the properties if there are none, 0 if there are some."""
    if version != 5:
        return at
    return at + 1 if at < stop and load_u8(data, at) == 0 else 0


@piece
def after_properties(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return what follows the properties, 0 if Property Length is not one byte, or is too large."""
    if version != 5:
        return at
    if at >= stop or load_u8(data, at) >= 0x80:
        return 0
    at += 1 + load_u8(data, at)
    return at if at <= stop else 0


@piece
def listed(code: int, codes: tuple[int, int]) -> bool:
    """Return whether a code is one of `_masks`."""
    if code < _ERRORS:
        return code < 63 and codes[0] >> code & 1 != 0
    return code < _ERRORS + 63 and codes[1] >> code - _ERRORS & 1 != 0


@piece
def sound_will(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return where a will ends, 0 if that is not sure to be one."""
    at = no_properties(data, at, stop, version)
    if at:
        at = sound_name(data, at, stop)
    if at == 0 or at + 2 > stop:
        return 0
    return at + 2 + load_u16(data, at)


@piece
def sound_connect(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return where the properties of a CONNECT begin, 0 if it is not sure to keep every rule."""
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
    begin = at = after_properties(data, properties_at, stop, version)
    if at:
        at = sound_text(data, at, stop)
    id_bytes = at - begin - 2
    if at == 0 or (version == 3 and not 1 <= id_bytes <= _MOST_OLD_ID):
        return 0
    if version == 4 and id_bytes == 0 and not flags & 2:
        return 0
    if will:
        at = sound_will(data, at, stop, version)
    if at and flags & 0x80:
        at = sound_text(data, at, stop)
    if at and flags & 0x40:
        at = at + 2 + load_u16(data, at) if at + 2 <= stop else 0
    return properties_at if at == stop else 0


@piece
def sound_publish(data: Bytes, start: int, stop: int, version: int) -> bool:
    """Return whether a PUBLISH from 3.1 on surely keeps every rule; with properties it is not."""
    flags = load_u8(data, start) & 15
    at = body_at(data, start, stop)
    if at == start or version < 3 or flags & 6 == 6 or flags & 14 == 8:
        return False
    at = sound_name(data, at, stop)
    if at and flags & 6:
        at = at + 2 if at + 2 <= stop and load_u16(data, at) else 0
    return at > 0 and no_properties(data, at, stop, version) > 0


@piece
def sound_connack(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return where the properties of a CONNACK begin, 0 if it is not sure to keep every rule."""
    if stop - at < 2:
        return 0
    flags, code = load_u8(data, at), load_u8(data, at + 1)
    if flags > 1 or (flags and (code or version == 3)):
        return 0
    if not listed(code, _REASONS_CONNACK if version == 5 else _CONNACK_CODES):
        return 0
    return at + 2 if after_properties(data, at + 2, stop, version) == stop else 0


@piece
def sound_filter(data: Bytes, at: int, stop: int) -> int:
    """Return where a topic filter ends, 0 if it is not sure to be one.

    A ``#`` is the last level alone, a ``+`` a level; shared subscriptions of 5.0 are not sure.
    """
    end = sound_text(data, at, stop)
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


@piece
def sound_options(options: int, version: int) -> bool:
    """Return whether the byte behind a topic filter of SUBSCRIBE keeps every rule."""
    if version != 5:
        return options <= 2
    return options < 0x30 and options & 3 != 3


@piece
def sound_filters(data: Bytes, at: int, stop: int, version: int, with_options: bool) -> int:
    """Return where the properties of SUBSCRIBE or UNSUBSCRIBE begin, 0 if it may break a rule."""
    if stop - at < 3 or load_u16(data, at) == 0:
        return 0
    properties_at = at + 2
    at = after_properties(data, properties_at, stop, version)
    if at == 0 or at == stop:
        return 0
    while at < stop:
        at = sound_filter(data, at, stop)
        if at == 0:
            return 0
        if with_options:
            if at == stop or not sound_options(load_u8(data, at), version):
                return 0
            at += 1
    return properties_at


@piece
def sound_codes(data: Bytes, at: int, stop: int, version: int, codes: tuple[int, int]) -> int:
    """Return where the properties of SUBACK or UNSUBACK begin, 0 if it may break a rule."""
    if stop - at < 2:
        return 0
    properties_at = at + 2
    at = after_properties(data, properties_at, stop, version)
    if at == 0:
        return 0
    for place in range(at, stop):
        if not listed(load_u8(data, place), codes):
            return 0
    return properties_at


@piece
def sound_reason(data: Bytes, start: int, at: int, stop: int, codes: tuple[int, int]) -> int:
    """Judge a reason code of 5.0 at `at`, and what follows, as `judge_packet` does."""
    if at >= stop or not listed(load_u8(data, at), codes):
        return 0
    if at + 1 == stop:
        return _BARE
    return at + 1 - start if after_properties(data, at + 1, stop, 5) == stop else 0


@piece
def judge_packet(data: Bytes, start: int, stop: int, version: int) -> int:
    """Return where in a packet Property Length is, `_BARE` if it has none, 0 if it is not sure.

    A packet is sure if it is of one of these types and keeps every rule of `version`, but for those
    about each of its properties. Of a CONNECT, `version` is the one that it declares.
    """
    first = load_u8(data, start)
    kind = first >> 4
    at = body_at(data, start, stop)
    flags = 2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0
    if at == start or version < 3 or first & 15 != flags:
        return 0
    found = 0
    if kind == CONNECT:
        if shown_version(data, at, stop) == version:
            found = sound_connect(data, at, stop, version)
    elif kind == CONNACK:
        found = sound_connack(data, at, stop, version)
    elif kind in (SUBSCRIBE, UNSUBSCRIBE):
        found = sound_filters(data, at, stop, version, kind == SUBSCRIBE)
    elif kind == SUBACK:
        codes = _REASONS_SUBACK if version == 5 else _SUBACK_CODES
        found = sound_codes(data, at, stop, version, codes)
    elif kind == UNSUBACK:
        if version == 5:
            found = sound_codes(data, at, stop, version, _REASONS_UNSUBACK)
        elif stop - at == 2:
            found = stop
    elif version == 5:
        if kind == DISCONNECT:
            return sound_reason(data, start, at, stop, _REASONS_DISCONNECT)
        if PUBACK <= kind <= PUBCOMP and at + 2 <= stop:
            codes = _REASONS_PUBLISHED if kind <= PUBREC else _REASONS_RELEASED
            return sound_reason(data, start, at + 2, stop, codes)
        return 0
    if found == 0:
        return 0
    return found - start if version == 5 else _BARE


@piece
def keeps_rules(data: Bytes, start: int, stop: int, version: int) -> bool:
    """Return whether a packet of one of these types surely keeps every rule of a version.

    Of a CONNECT, `version` is the one that it declares.
    """
    found = judge_packet(data, start, stop, version)
    return found == _BARE or (found > _BARE and load_u8(data, start + found) == 0)
