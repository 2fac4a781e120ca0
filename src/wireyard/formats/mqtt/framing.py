"""Framing of control packets in a stream, and the context that a packet leaves to those after it.

While the framing is intact, a packet ends where its Remaining Length says, whatever its type: types
and flags that break rules do not lose the framing. Only a Remaining Length of five bytes begins no
packet. After lost bytes any byte could begin a packet, so only a CONNECT is accepted there, if all
of its header agrees: it is also the only packet that does not depend on earlier ones. In captures,
packets may also be confirmed at the start of TCP segments (``resync``).
"""

from __future__ import annotations

import re
from typing import Final

from wireyard.errors import DecodeError, LimitExceeded, Malformed
from wireyard.formats.base import View
from wireyard.formats.mqtt.cursor import Cursor, read_integer
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    MAX_PACKET_BYTES,
    PROTOCOLS,
    VERSION_BITS,
)
from wireyard.formats.mqtt.reading import READERS, declared_version
from wireyard.formats.mqtt.rules import RULES

_FIRST_BYTE: Final = CONNECT << 4
_NAMES: Final = tuple(
    len(name).to_bytes(2, "big") + name.encode() for name in dict.fromkeys(PROTOCOLS.values())
)
_BEGINNING: Final = re.compile(
    b"\x10[\x80-\xff]{0,3}[\x00-\x7f](?:%b)" % b"|".join(map(re.escape, _NAMES)), re.DOTALL
)
_NAME_STOP: Final = 1 + 4 + 2 + 6
"""Latest end of the protocol name."""
HEADER_BYTES: Final = _NAME_STOP + 1 + 1 + 2 + 4
"""Bytes of a CONNECT that `find_header` examines: to level, flags, Keep Alive, and a length."""

_LENGTH: Final = RULES["remaining_length"]
_LEVEL_TO_KEEP_ALIVE: Final = 4
_SHORTEST_CONNACK: Final = 4
_NO, _CUT_OFF, _YES = range(3)


def frame_size(
    view: View,
    start: int,
    stop: int,
    max_packet_bytes: int,
    context: int = 0,
    _at_end: bool = False,
) -> int | None:
    """Return the size of the packet at `start`, None if more bytes are needed.

    `Malformed` is raised if Remaining Length does not end within four bytes, `LimitExceeded` if the
    size is over `max_packet_bytes`.
    """
    length, at = read_integer(view, start + 1, stop)
    if at <= start + 1:
        return None
    version = context & VERSION_BITS
    if at > stop:
        problem = "does not end within four bytes"
        where, code = _LENGTH.spec(version), _LENGTH.verdict(version)
        raise Malformed("mqtt", "Remaining Length", 1, problem, where, code)
    size = at - start + length
    if size > max_packet_bytes:
        problem, where = f"makes {size} bytes, over {max_packet_bytes}", _LENGTH.spec(version)
        raise LimitExceeded("mqtt", "Remaining Length", 1, problem, where)
    return size


def next_context(view: View, context: int) -> int:
    """Return the context of a packet itself and of those after it.

    CONNECT declares its version. Without one, a CONNACK with properties behind its return code is
    of 5.0; the earlier versions have the same CONNACK.
    """
    kind = view[0] >> 4 if len(view) else 0
    if kind == CONNECT:
        version = _declared(view)
        return context if version is None else context & ~VERSION_BITS | version
    if kind == CONNACK and not context & VERSION_BITS and read_integer(view, 1, len(view))[0] > 2:
        return context | 5
    return context


def _declared(view: View) -> int | None:
    _, at = read_integer(view, 1, min(len(view), 5))
    for name in _NAMES:
        if bytes(view[at : at + len(name)]) == name and at + len(name) < len(view):
            return declared_version(name[2:].decode(), view[at + len(name)])
    return None


def find_header(view: View, start: int, stop: int, max_packet_bytes: int) -> tuple[int, bool]:
    """Return the first position at or after `start` of a CONNECT with a consistent header.

    The position is `stop` if there is none. The second result is whether it is certain: if not, a
    header may begin there, but `stop` cuts it off.
    """
    at = start
    while match := _BEGINNING.search(view, at, stop):
        at = match.start()
        agrees = _agrees(bytes(view[at : min(at + HEADER_BYTES, stop)]), max_packet_bytes)
        if agrees != _NO:
            return at, agrees == _YES
        at += 1
    for last in range(max(at, stop - _NAME_STOP + 1), stop):
        if view[last] == _FIRST_BYTE and _agrees(bytes(view[last:stop]), max_packet_bytes) != _NO:
            return last, False
    return stop, True


def _agrees(head: bytes, max_packet_bytes: int) -> int:
    """Return whether `head` begins a CONNECT of a known version whose lengths and flags agree."""
    length, at = read_integer(head, 1, len(head))
    if at == 1:
        return _CUT_OFF
    stop = at + length
    names = [name for name in _NAMES if name.startswith(head[at : at + len(name)])]
    if at > len(head) or stop > max_packet_bytes or not names:
        return _NO
    name = min(names, key=len)
    at += len(name)
    if at + _LEVEL_TO_KEEP_ALIVE > len(head):
        return _CUT_OFF if at + _LEVEL_TO_KEEP_ALIVE <= stop else _NO
    version = declared_version(name[2:].decode(), head[at])
    if version is None or not _flags_agree(head[at + 1], version):
        return _NO
    return _rest_agrees(head, at + _LEVEL_TO_KEEP_ALIVE, stop, version)


def _rest_agrees(head: bytes, at: int, stop: int, version: int) -> int:
    """Check that the client identifier, or in 5.0 the properties before it, end within `stop`."""
    if version == 5:
        size, after = read_integer(head, at, len(head))
        if after == at:
            return _CUT_OFF if at < stop else _NO
        return _YES if after <= len(head) and after + size + 2 <= stop else _NO
    if at + 2 > len(head):
        return _CUT_OFF if at + 2 <= stop else _NO
    return _YES if at + 2 + int.from_bytes(head[at : at + 2], "big") <= stop else _NO


def _flags_agree(flags: int, version: int) -> bool:
    """Return whether every broker accepts these Connect Flags."""
    will, qos, retain = flags & 4, flags >> 3 & 3, flags & 0x20
    login = version == 5 or flags & 0xC0 != 0x40
    return not flags & 1 and qos < 3 and bool(login) and bool(will or not (qos or retain))


def begins(head: View) -> bool:
    """Return whether a stream that begins with `head` is MQTT: begins with CONNECT or CONNACK."""
    if len(head) < _SHORTEST_CONNACK:
        return False
    if head[0] == CONNACK << 4:
        return _is_connack(head)
    return opens(head)


def opens(head: View) -> bool:
    """Return whether a stream that begins with `head` is from a client: begins with CONNECT."""
    stop = min(len(head), HEADER_BYTES)
    return stop > 0 and find_header(head, 0, stop, MAX_PACKET_BYTES) == (0, True)


def _is_connack(head: View) -> bool:
    """Return whether `head` begins with a whole, valid CONNACK."""
    length, at = read_integer(head, 1, len(head))
    if at + length > len(head):
        return False
    cursor = Cursor(head[: at + length], 4 if length == 2 else 5)
    cursor.at = at
    try:
        READERS[CONNACK](cursor, {})
    except DecodeError:
        return False
    cursor.end()
    return not cursor.faults
