"""Where RMP messages begin and end in a stream.

Nothing on the wire marks a packet: a stream is one packet, or says in front of each how long it is
(dialect ``framed``). A packet is checked whole before its first message counts (errata R19), so
nothing is said about it before all of it is there; later messages need their heads only. There is
nothing to resynchronise at, and nothing to know such a stream by.
"""

from __future__ import annotations

from wireyard.errors import DecodeError, LimitExceeded, Truncated
from wireyard.formats.base import View
from wireyard.formats.rmp.layout import MAX_PACKET_BYTES, PREFIX_BYTES, SPEC
from wireyard.formats.rmp.place import Place
from wireyard.formats.rmp.reading import framed_bytes, read_message, read_messages

__all__ = ["begins", "find_header", "frame_size", "last_context", "next_context"]


def frame_size(
    view: View,
    start: int,
    stop: int,
    max_packet_bytes: int,
    context: int = 0,
    at_end: bool = False,
) -> int | None:
    """Return the size of the message at `start`, or of its whole packet if that breaks a rule.

    None means more bytes are needed to say.

    Raises
    ------
    LimitExceeded
        The packet is over `max_packet_bytes`, or over what any transport takes.
    """
    place = Place.of(context)
    if place.place:
        return _later_size(view, start, stop, place, at_end)
    size = stop - start
    if place.framed:
        if size < PREFIX_BYTES:
            return None
        size = framed_bytes(view, start)
    limit = min(max_packet_bytes, MAX_PACKET_BYTES)
    if size > limit:
        raise LimitExceeded("rmp", "packet", 0, f"has {size} bytes, over {limit}", SPEC)
    if size > stop - start or not (place.framed or at_end):
        return None
    with memoryview(view)[start : start + size] as packet:
        return _first_size(packet, place)


def _first_size(packet: memoryview, place: Place) -> int:
    """Return the size of a packet's first message, of the packet if it breaks a rule."""
    at = PREFIX_BYTES if place.framed else 0
    first = 0
    try:
        for stop in read_messages(packet, at, len(packet), place.list_order, {}):
            first = first or stop
    except DecodeError:
        return len(packet)
    return first


def _later_size(view: View, start: int, stop: int, place: Place, at_end: bool) -> int | None:
    """Return the size of a message in a packet that was checked at its first."""
    if place.framed:
        stop = min(stop, start + place.left)
    values: dict[str, object] = {}
    try:
        message_stop = read_message(view, start, stop, place.list_order, values)
    except Truncated:
        if at_end:
            raise
        return None
    if values.get("more_follows"):
        return message_stop - start
    if place.framed:
        return place.left
    return stop - start if at_end else None


def next_context(view: View, context: int) -> int:
    """Return the context of what follows the frame `view`."""
    place = Place.of(context)
    after = place._replace(place=place.place + 1, before=place.before + len(view), ends=False)
    if not place.framed:
        return after.context
    left = (place.left or framed_bytes(view, 0)) - len(view)
    if left <= 0:
        return Place(place.list_order, place.framed).context
    return after._replace(left=left).context


def last_context(context: int) -> int:
    """Return the context of a frame that its stream ends with: there nothing can follow.

    Alone the bytes of a first message that says another follows are well-formed.
    """
    place = Place.of(context)
    return context if place.framed else place._replace(ends=True).context


def find_header(_view: View, _start: int, stop: int, _max_packet_bytes: int) -> tuple[int, bool]:
    """Return `stop`: no bytes of this layer differ from others for certain."""
    return stop, True


def begins(_head: View) -> bool:
    """Return False: the caller has to say that a stream is RMP."""
    return False
