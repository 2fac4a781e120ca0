"""Whether packets that open, accept and subscribe surely keep every rule: pieces of kernels.

The compiled columns have no fields of CONNECT, CONNACK, SUBSCRIBE, UNSUBSCRIBE and what answers
those. Where only columns of all packets are wanted, it is enough to know that such a packet is
well-formed. What is rare, such as properties of 5.0, is not sure; the scalar reader decides.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import piece
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
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
    "keeps_rules",
    "opened_version",
    "shown_version",
    "sound_publish",
]

LONGEST_HEAD: Final = 21
"""Of a CONNECT, what shows that a stream begins with one: `HEADER_BYTES` of its framing."""
_LEAST_CONNECT: Final = 1 + 1 + 6 + 4 + 2
_BRIDGE: Final = 0x80
_MOST_OLD_ID: Final = 23
_OLD, _NEW = 0x4D514973, 0x4D515454
"""The first four bytes of ``MQIsdp``, and ``MQTT``."""
_END_OF_OLD: Final = 0x6470
_CONNACK_CODES: Final = 6


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
def sound_will(data: Bytes, at: int, stop: int, version: int) -> int:
    """Return where a will ends, 0 if that is not sure to be one."""
    at = no_properties(data, at, stop, version)
    if at:
        at = sound_name(data, at, stop)
    if at == 0 or at + 2 > stop:
        return 0
    return at + 2 + load_u16(data, at)


@piece
def opened_version(data: Bytes, start: int, stop: int) -> int:
    """Return the version of a CONNECT that surely keeps every rule, 0 if it is not sure."""
    at = body_at(data, start, stop)
    if at == start or stop - start < _LEAST_CONNECT or load_u8(data, start) != CONNECT << 4:
        return 0
    version = shown_version(data, at, stop)
    at += 2 + load_u16(data, at) + 1
    # A bridge sets a bit of the level, which breaks a rule.
    if version == 0 or at + 3 > stop or load_u8(data, at - 1) != version:
        return 0
    flags = load_u8(data, at)
    will = flags & 4
    if flags & 1 or flags & 0x18 == 0x18 or (not will and flags & 0x38):
        return 0
    if flags & 0xC0 == 0x40:
        return 0
    at = no_properties(data, at + 3, stop, version)
    if at == 0:
        return 0
    begin, at = at, sound_text(data, at, stop)
    id_bytes = at - begin - 2
    if at == 0 or id_bytes == 0 or (version == 3 and id_bytes > _MOST_OLD_ID):
        return 0
    if will:
        at = sound_will(data, at, stop, version)
    if at and flags & 0x80:
        at = sound_text(data, at, stop)
    if at and flags & 0x40:
        at = at + 2 + load_u16(data, at) if at + 2 <= stop else 0
    return version if at == stop else 0


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
def sound_connack(data: Bytes, at: int, stop: int, version: int) -> bool:
    """Return whether the fields of a CONNACK surely keep every rule."""
    if stop - at < 2:
        return False
    flags, code = load_u8(data, at), load_u8(data, at + 1)
    if flags > 1 or (flags and (code or version == 3)) or code >= _CONNACK_CODES:
        return False
    if version == 5 and code:
        return False
    return no_properties(data, at + 2, stop, version) == stop


@piece
def sound_filter(data: Bytes, at: int, stop: int) -> int:
    """Return where a topic filter ends, 0 if it is not sure to be one.

    A ``#`` is the last level alone, a ``+`` a level; shared subscriptions of 5.0 are not sure.
    """
    end = sound_text(data, at, stop)
    at += 2
    if end <= at or load_u8(data, at) == 0x24:  # $
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
def sound_filters(data: Bytes, at: int, stop: int, version: int, with_qos: bool) -> bool:
    """Return whether the fields of a SUBSCRIBE or UNSUBSCRIBE surely keep every rule."""
    if stop - at < 3 or load_u16(data, at) == 0:
        return False
    at = no_properties(data, at + 2, stop, version)
    if at == 0 or at == stop:
        return False
    while at < stop:
        at = sound_filter(data, at, stop)
        if at == 0:
            return False
        if with_qos:
            if at == stop or load_u8(data, at) > 2:
                return False
            at += 1
    return True


@piece
def sound_codes(data: Bytes, at: int, stop: int, version: int, kind: int) -> bool:
    """Return whether the fields of a SUBACK or UNSUBACK surely keep every rule."""
    if stop - at < 2:
        return False
    at = no_properties(data, at + 2, stop, version)
    if at == 0 or (kind == UNSUBACK and version != 5):
        return at == stop
    for place in range(at, stop):
        code = load_u8(data, place)
        if code > (2 if kind == SUBACK else 0):
            return False
    return True


@piece
def keeps_rules(data: Bytes, start: int, stop: int, version: int) -> bool:
    """Return whether a packet of one of these types surely keeps every rule of a version.

    Of a CONNECT, `version` is the one that it declares.
    """
    first = load_u8(data, start)
    kind = first >> 4
    at = body_at(data, start, stop)
    if at == start or version < 3:
        return False
    if kind == CONNECT:
        return opened_version(data, start, stop) == version
    subscribes = kind in (SUBSCRIBE, UNSUBSCRIBE)
    if first & 15 != (2 if subscribes else 0):
        return False
    if kind == CONNACK:
        return sound_connack(data, at, stop, version)
    if subscribes:
        return sound_filters(data, at, stop, version, kind == SUBSCRIBE)
    return kind in (SUBACK, UNSUBACK) and sound_codes(data, at, stop, version, kind)
