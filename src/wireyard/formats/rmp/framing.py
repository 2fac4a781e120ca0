"""Framing of RMP messages in a stream.

Packets have no mark on the wire: a stream is one packet, or has a length before each packet
(dialect ``framed``). A packet is checked as a whole before its first message is accepted (errata
R19), so all of its bytes are needed for that; later messages need their headers only. There is
nothing to resynchronize at, and nothing to identify such a stream by.
"""

from __future__ import annotations

from wireyard.errors import DecodeError, LimitExceeded, Truncated
from wireyard.formats.base import View
from wireyard.formats.rmp.context import MessageContext
from wireyard.formats.rmp.layout import MAX_PACKET_BYTES, PREFIX_BYTES, SPEC
from wireyard.formats.rmp.reading import framed_bytes, read_message, read_messages


def frame_size(
    view: View,
    start: int,
    stop: int,
    max_packet_bytes: int,
    context: int = 0,
    at_end: bool = False,
) -> int | None:
    """Return the size of the message at `start`, or of its whole packet if that breaks a rule.

    None means that more bytes are needed. `LimitExceeded` is raised if the packet is over
    `max_packet_bytes`, or over the limit of all transports.
    """
    state = MessageContext.of(context)
    if state.ordinal:
        return _later_size(view, start, stop, state, at_end)
    size = stop - start
    if state.framed:
        if size < PREFIX_BYTES:
            return None
        size = framed_bytes(view, start)
    limit = min(max_packet_bytes, MAX_PACKET_BYTES)
    if size > limit:
        raise LimitExceeded("rmp", "packet", 0, f"has {size} bytes, over {limit}", SPEC)
    if size > stop - start or not (state.framed or at_end):
        return None
    with memoryview(view)[start : start + size] as packet:
        return _first_size(packet, state)


def _first_size(packet: memoryview, state: MessageContext) -> int:
    """Return the size of a packet's first message, or of the packet if that breaks a rule."""
    at = PREFIX_BYTES if state.framed else 0
    first = 0
    try:
        for stop in read_messages(packet, at, len(packet), state.list_order, {}):
            first = first or stop
    except DecodeError:
        return len(packet)
    return first


def _later_size(
    view: View, start: int, stop: int, state: MessageContext, at_end: bool
) -> int | None:
    """Return the size of a later message in a packet that is checked already."""
    if state.framed:
        stop = min(stop, start + state.left)
    values: dict[str, object] = {}
    try:
        message_stop = read_message(view, start, stop, state.list_order, values)
    except Truncated:
        if at_end:
            raise
        return None
    if values.get("more_follows"):
        return message_stop - start
    if state.framed:
        return state.left
    return stop - start if at_end else None


def next_context(view: View, context: int) -> int:
    """Return the context of the bytes after the frame `view`."""
    state = MessageContext.of(context)
    after = state._replace(ordinal=state.ordinal + 1, before=state.before + len(view), at_end=False)
    if not state.framed:
        return after.context
    left = (state.left or framed_bytes(view, 0)) - len(view)
    if left <= 0:
        return MessageContext(state.list_order, state.framed).context
    return after._replace(left=left).context


def last_context(context: int) -> int:
    """Return the context of a frame at the end of its stream, where no message can follow.

    Without it, a first message whose flag announces another one would be well-formed.
    """
    state = MessageContext.of(context)
    return context if state.framed else state._replace(at_end=True).context


def find_header(_view: View, _start: int, stop: int, _max_packet_bytes: int) -> tuple[int, bool]:
    """Return `stop`: packets of this layer cannot be identified by their bytes."""
    return stop, True
