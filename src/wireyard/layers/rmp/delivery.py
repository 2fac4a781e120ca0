"""The receiving side of a process: packets of its rings to events, in the order of messages.

Registrations of destination layers and clients take effect when a message is delivered, not when it
arrives: bounds must not depend on them, because bounds are the same at all members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from wireyard.errors import DecodeError, UsageError
from wireyard.formats.rmp.layout import FOREIGN, LAYER_MASK
from wireyard.layers.rmp.events import (
    Aborted,
    Delivered,
    Event,
    Foreign,
    MalformedPacket,
    MessageId,
    Piece,
    UnknownLayer,
    ViewChanged,
)
from wireyard.layers.rmp.limits import Drop, Drops
from wireyard.layers.rmp.parsing import Fields, parse_packet
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.reassembly import Part, Reassembly, Whole
from wireyard.layers.rmp.requests import Requests
from wireyard.layers.rmp.ring import Ring
from wireyard.layers.rmp.states import ABORT_REASONS, Arrival

MESSAGING = 0
"""The layer of messages for no other layer; it is registered from the start."""
_TYPING_WORDS = range(FOREIGN, 0x10000)

Handler = Callable[[Delivered | Piece | Foreign], None]
"""A callback for the messages of a destination layer, or of another protocol's typing word."""

_NO_ROOM = ABORT_REASONS[Arrival.OVERFLOW]
_delivered = partial(tuple.__new__, Delivered)
"""A faster constructor of `Delivered` from a tuple: it takes a third less time."""


class Delivery:
    """The packets that arrive on all rings of one process, and the receivers of their messages.

    Parameters
    ----------
    report_every_s
        Shortest time between two reports of the same unregistered layer.
    events
        The queue of events.
    requests
        The requests that wait for replies.
    consume_replies
        Whether a reply that a request waits for is not delivered as a message as well.
    """

    def __init__(
        self,
        report_every_s: float,
        drops: Drops,
        events: deque[Event],
        requests: Requests,
        consume_replies: bool,
    ) -> None:
        self._report_every_s = report_every_s
        self._drops = drops
        self._events = events
        self._requests = requests
        self._consume_replies = consume_replies
        self._layers = {MESSAGING}
        self._handlers: dict[int, Handler] = {}
        """By destination layer, and by typing word of other protocols, which is always larger."""
        self._in_pieces: set[int] = set()
        self._unknown: dict[tuple[str, int], tuple[float, int]] = {}

    # --- registration -----------------------------------------------------------------------

    def register_layer(self, layer: int, handler: Handler | None, in_pieces: bool) -> None:
        """Register a destination layer; see `MessagingLayer`."""
        if not 0 <= layer <= LAYER_MASK:
            raise UsageError(f"layer {layer} is not from 0 to {LAYER_MASK}")
        if handler is not None:
            self._set_handler(layer, f"layer {layer}", handler)
        self._layers.add(layer)
        if in_pieces:
            self._in_pieces.add(layer)
        else:
            self._in_pieces.discard(layer)

    def unregister_layer(self, layer: int) -> None:
        """Unregister a destination layer: its messages are dropped, and its handler is removed."""
        self._layers.discard(layer)
        self._in_pieces.discard(layer)
        self._handlers.pop(layer, None)

    def register_foreign(self, typing: int, handler: Handler) -> None:
        """Register a handler of another protocol's messages; see `MessagingLayer`."""
        if typing not in _TYPING_WORDS:
            limits = f"{_TYPING_WORDS[0]} to {_TYPING_WORDS[-1]}"
            raise UsageError(f"typing word {typing} is not from {limits}")
        self._set_handler(typing, f"typing word {typing}", handler)

    def unregister_foreign(self, typing: int) -> None:
        """Remove a handler of another protocol's messages, which are events again."""
        self._handlers.pop(typing, None)

    def _set_handler(self, key: int, name: str, handler: Handler) -> None:
        if key in self._handlers:
            raise UsageError(f"{name} has a handler already")
        self._handlers[key] = handler

    def check_layer(self, layer: int) -> None:
        """Raise `UsageError` if a layer is not registered; see `MessagingLayer`."""
        if layer not in self._layers:
            raise UsageError(f"layer {layer} is not registered, so replies would be dropped")

    def wants_pieces(self, fields: Fields) -> bool:
        """Return whether a message is delivered in pieces as it arrives; a reply never is (R31)."""
        return fields.layer in self._in_pieces and fields.reply_source is None

    def next_event(self) -> Event | None:
        """Call the handlers of events up to the next one without a handler; return that or None.

        A reply is for the application that waits for it, and has no handler (errata R32).
        """
        events = self._events
        while events:
            event = events.popleft()
            if not self._handlers or not isinstance(event, (Delivered, Piece, Foreign)):
                return event
            if isinstance(event, Delivered) and event.reply_to is not None:
                return event
            key = event.typing if isinstance(event, Foreign) else event.layer
            if key not in self._handlers:
                return event
            self._handlers[key](event)
        return None

    # --- arrivals ---------------------------------------------------------------------------

    def receive(self, at: Ring, source: str, packet: bytes, qos: QoS, now: float) -> None:
        """Add a packet of a ring, and deliver the messages that are complete with it."""
        try:
            runs = parse_packet(packet)
        except DecodeError as error:
            self._drops.malformed(source)
            self._events.append(MalformedPacket(at.name, source, error))
            return
        reassembly = at.reassembly(qos.order, source)
        own = qos.reliable and source == at.process_id
        for fields, run in runs:
            number = fields.message_number
            if number is None and reassembly.idle:
                self._deliver(at, source, qos, fields, run, now)
                continue
            if own and number is not None and fields.packet_number is not None:
                at.outgoing.packet_back(number, fields.packet_number)
            for data in run:
                reassembly.receive(source, qos, fields, data, now)
            self._collect(at, reassembly, now)

    def view(self, at: Ring, members: tuple[str, ...], now: float) -> None:
        """Abort unfinished messages, deliver complete ones, and then the view."""
        before, at.members = at.members or (), members
        at.outgoing.flush()
        for reassembly in at.reassemblies:
            reassembly.view()
            self._collect(at, reassembly, now)
        joined = tuple(member for member in members if member not in before)
        left = tuple(member for member in before if member not in members)
        self._events.append(ViewChanged(at.name, members, joined, left))
        self._requests.view(at.name, members, now)
        at.outgoing.view()

    def handle_timer(self, at: Ring, now: float) -> None:
        """Flush packed messages, and abort or report messages that take too long."""
        if at.outgoing.flush_at is not None and at.outgoing.flush_at <= now:
            at.outgoing.flush()
        for reassembly in at.reassemblies:
            reassembly.handle_timer(now)
            self._collect(at, reassembly, now)

    def _collect(self, at: Ring, reassembly: Reassembly, now: float) -> None:
        """Deliver the output of a reassembly."""
        while reassembly.output:
            match reassembly.output.popleft():
                case Whole(source, qos, fields, data):
                    self._deliver(at, source, qos, fields, (data,), now)
                case Part() as part:
                    self._deliver_part(at, reassembly.order, part, now)
                case Aborted() as event:
                    self._events.append(event)
                    at.first_pieces.pop((reassembly.order, event.source, event.number), None)
                    ordered = reassembly.order is not Order.NONE
                    if ordered and event.reason == _NO_ROOM and event.source == at.process_id:
                        at.outgoing.no_room(event.number)
                case event:
                    self._events.append(event)

    # --- delivering -------------------------------------------------------------------------

    def _deliver(
        self, at: Ring, source: str, qos: QoS, fields: Fields, run: Sequence[bytes], now: float
    ) -> None:
        """Deliver whole messages that have the same fields, if they are for this process."""
        layer, number, _, _, domain, client, reply_number, reply_source, requested = fields
        if layer is None:
            self._events += (Foreign(at.name, source, data) for data in run)
            return
        if layer not in self._layers:
            self._count_unknown(at.name, source, layer, len(run), now)
            return
        destinations = at.destinations(source, domain, client)
        reply_to = None
        if reply_number is not None and reply_source is not None:
            reply_to = MessageId(reply_source, reply_number)
        common = at.name, source, qos, layer, client, domain, number, reply_to, requested
        messages = [_delivered((*common, data, destinations or ())) for data in run]
        if reply_to is not None and reply_to.source == at.process_id:
            (reply,) = messages
            is_awaited = self._requests.reply(reply_to.number, reply, now)
            if is_awaited and self._consume_replies:
                return
        if destinations == ():
            self._drops.counts[Drop.NO_DESTINATION] += len(run)
            return
        self._events += messages

    def _deliver_part(self, at: Ring, order: Order, part: Part, now: float) -> None:
        """Deliver data of a message that is still arriving, if its first piece was delivered."""
        assert part.fields.message_number is not None
        key = order, part.source, part.fields.message_number
        if not part.offset:
            at.first_pieces[key] = self._first_piece(at, part, now)
        first = at.first_pieces.pop(key) if part.last else at.first_pieces[key]
        if first is not None:
            self._events.append(first._replace(offset=part.offset, data=part.data, last=part.last))

    def _first_piece(self, at: Ring, part: Part, now: float) -> Piece | None:
        source, fields = part.source, part.fields
        assert fields.layer is not None and fields.message_number is not None
        if fields.layer not in self._layers:
            self._count_unknown(at.name, source, fields.layer, 1, now)
            return None
        destinations = at.destinations(source, fields.domain, fields.client)
        if destinations == ():
            self._drops.counts[Drop.NO_DESTINATION] += 1
            return None
        return Piece(
            at.name, source, part.qos, fields.layer, fields.client, fields.domain,
            fields.message_number, fields.reply_requested, 0, b"", False, destinations or (),
        )  # fmt: skip

    def _count_unknown(self, ring: str, source: str, layer: int, messages: int, now: float) -> None:
        self._drops.counts[Drop.UNKNOWN_LAYER] += messages
        reported_at, count = self._unknown.get((ring, layer), (None, 0))
        count += messages
        if reported_at is not None and now < reported_at + self._report_every_s:
            self._unknown[ring, layer] = reported_at, count
            return
        self._unknown[ring, layer] = now, 0
        self._events.append(UnknownLayer(ring, source, layer, count))
