"""The messaging layer of one process: messages to packets, and packets to events.

It uses no sockets, clocks, threads or randomness. Its caller passes it packets and views as the
rings deliver them, sends the packets that `next_packet` returns, and calls `handle_timer` when
`get_timer` is due; `now` is any clock in seconds that never goes back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from wireyard.errors import EncodeError, UsageError
from wireyard.formats.rmp.packet import Message, encode
from wireyard.layers.rmp.clients import Clients
from wireyard.layers.rmp.delivery import MESSAGING, Delivery, Handler
from wireyard.layers.rmp.events import Event, MessageId
from wireyard.layers.rmp.limits import Drop, Drops, Limits, MessageTooBig, NotWritable
from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.outgoing import OwnMessage
from wireyard.layers.rmp.packets import Draft, Head, head_of
from wireyard.layers.rmp.qos import QoS
from wireyard.layers.rmp.requests import Request, Requests, Want
from wireyard.layers.rmp.ring import Ring


class MessagingLayer:
    """Messages of one process on any number of rings, with one counter of message numbers.

    Parameters
    ----------
    process_id
        The id of this process on its rings, ``address:port``: the source that replies name.
    first_number
        First message number; random if the process may be restarted.
    limits
        Bounds and delays, the same at all members.
    consume_replies
        Whether a reply that a request waits for is a `Replied` only, and not delivered as well.
    """

    def __init__(
        self,
        process_id: str | None = None,
        *,
        first_number: int,
        limits: Limits | None = None,
        consume_replies: bool = False,
    ) -> None:
        self._process_id = process_id
        self._limits = limits or Limits()
        self._drops = Drops(self._limits.max_counted_sources)
        self._numbers = Numbers(first_number)
        events: deque[Event] = deque()
        self._requests = Requests(self._numbers, self._drops, self._limits.max_replies, events)
        self._rings: dict[str, Ring] = {}
        self._delivery = Delivery(
            self._limits.report_every_s, self._drops, events, self._requests, consume_replies
        )

    # --- rings, layers, clients -------------------------------------------------------------

    def add_ring(self, ring: str, max_packet_bytes: int, process_id: str | None = None) -> None:
        """Join a ring.

        Parameters
        ----------
        process_id
            The id of this process on that ring, if it has another one there.

        Raises
        ------
        UsageError
            The ring is known already, its packets are too short, or this process has no id there.
        """
        if ring in self._rings:
            raise UsageError(f"ring {ring} is known already")
        process_id = process_id or self._process_id
        if process_id is None:
            raise UsageError(f"ring {ring} has no name for this process")
        self._rings[ring] = Ring(
            ring, process_id, max_packet_bytes, self._limits, self._numbers, self._drops,
            self._delivery.wants_pieces,
        )  # fmt: skip

    def remove_ring(self, ring: str, *, now: float) -> None:
        """Leave a ring: its requests end, and packets that wait for it are dropped."""
        left = self._ring(ring)
        self._requests.close(ring, now)
        left.outgoing.close(now + 2 * self._limits.reassembly_timeout_s)
        del self._rings[ring]

    def register_layer(
        self, layer: int, handler: Handler | None = None, *, in_pieces: bool = False
    ) -> None:
        """Register a destination layer on all rings, so that its messages are delivered.

        Parameters
        ----------
        handler
            A callback for the messages of the layer. `next_event` calls it in the order of events
            instead of returning the message. Without a handler, messages are events.
        in_pieces
            Whether a message that is still arriving when its turn comes is delivered as it arrives,
            as `Piece` events, rather than atomically. Replies are always whole.

        Raises
        ------
        UsageError
            The layer is out of range, or has a handler already.
        """
        self._delivery.register_layer(layer, handler, in_pieces)

    def unregister_layer(self, layer: int) -> None:
        """Unregister a destination layer: its messages are dropped, and its handler is removed."""
        self._delivery.unregister_layer(layer)

    def check_layer(self, layer: int) -> None:
        """Raise `UsageError` if a layer is not registered: replies on it would be dropped."""
        self._delivery.check_layer(layer)

    def register_foreign(self, typing: int, handler: Handler) -> None:
        """Register a handler of the `Foreign` messages that begin with a typing word.

        Raises
        ------
        UsageError
            The word belongs to this protocol, from 0 to 4095, or has a handler already.
        """
        self._delivery.register_foreign(typing, handler)

    def unregister_foreign(self, typing: int) -> None:
        """Remove the handler of a typing word, whose messages are events again."""
        self._delivery.unregister_foreign(typing)

    def process_id(self, ring: str) -> str:
        """Return the id of this process on a ring, by which replies name it."""
        return self._ring(ring).process_id

    def clients(self, ring: str) -> Clients:
        """Return the clients of this process on a ring, to register clients and change domains."""
        return self._ring(ring).clients

    def members(self, ring: str) -> tuple[str, ...] | None:
        """Return the members of a ring, None before its first view."""
        return self._ring(ring).members

    # --- sending ----------------------------------------------------------------------------

    def send(
        self,
        ring: str,
        data: bytes,
        *,
        now: float,
        qos: QoS = QoS.TOTALLY_ORDERED,
        layer: int = MESSAGING,
        client: int | None = None,
        domain: int | None = None,
        reply_to: MessageId | None = None,
        urgent: bool = False,
    ) -> None:
        """Send a message, whole or not at all.

        Parameters
        ----------
        client
            The client that sends it; None or 0 is the process itself.
        domain
            Its domain; None or 0 is every client of the ring.
        reply_to
            The message it replies to. A reply ends its packet, so it is sent at once.
        urgent
            Whether to send it at once, together with the messages that wait before it.

        Raises
        ------
        SendRefused
            It is too big, or there is no room or no number for it. No part of it is sent.
        EncodeError
            A value cannot be written.
        """
        to = self._room_for(ring, data)
        if reply_to is None:
            head = head_of(layer, domain or None, client or None)
        else:
            draft = Draft(data, layer, domain or None, client or None, reply_to)
            head, urgent = Head(draft.head(), b""), True
        if len(head.last) + len(data) <= to.max_packet_bytes:
            self._pack(to, qos, head, data, now, urgent)
            return
        draft = Draft(data, layer, domain or None, client or None, reply_to)
        self._send_numbered(to, draft, qos, now, Hold.ON_THE_WAY)

    def send_foreign(
        self, ring: str, data: bytes, *, now: float, qos: QoS = QoS.TOTALLY_ORDERED
    ) -> None:
        """Send a message of another protocol; it ends its packet, so it is sent at once.

        Parameters
        ----------
        data
            Its typing word, 4096 or above, and the rest of the message.

        Raises
        ------
        SendRefused
            There is no room for it, or it does not fit one packet: this layer cannot put segment
            fields in front of its parts (errata R33).
        EncodeError
            It does not begin with a typing word of another protocol.
        """
        to = self._room_for(ring, data)
        encode(Message(foreign=True, data=data))
        if len(data) > to.max_packet_bytes:
            raise MessageTooBig(
                f"a message of another protocol has {len(data)} bytes,"
                f" {to.max_packet_bytes} are the most"
            )
        self._pack(to, qos, Head(b"", b""), data, now, urgent=True)

    def send_all(
        self,
        ring: str,
        messages: Sequence[bytes],
        *,
        now: float,
        qos: QoS = QoS.TOTALLY_ORDERED,
        layer: int = MESSAGING,
        client: int | None = None,
        domain: int | None = None,
    ) -> int:
        """Send messages while there is room; return how many were sent.

        This is `send` for one message after the other, at half the cost if they are small.

        Raises
        ------
        SendRefused, EncodeError
            As in `send`, except for lack of room. The messages before are sent.
        """
        to = self._ring(ring)
        head = head_of(layer, domain or None, client or None)
        small = to.max_packet_bytes - len(head.last) if self._limits.max_delay_s else -1
        flush_at = now + self._limits.max_delay_s
        sent = 0
        while sent < len(messages):
            data = messages[sent]
            if to.outgoing.waiting_bytes + len(data) > self._limits.max_outgoing_bytes:
                break
            if len(data) <= small and type(data) is bytes:
                sent = to.outgoing.pack(qos, head, messages, sent, flush_at)
            else:
                self.send(ring, data, now=now, qos=qos, layer=layer, client=client, domain=domain)
                sent += 1
        return sent

    def request(
        self,
        ring: str,
        data: bytes,
        *,
        now: float,
        want: int | Want,
        timeout_s: float,
        stall_s: float | None = None,
        sentinel: Callable[[bytes], bool] | None = None,
        qos: QoS = QoS.TOTALLY_ORDERED,
        layer: int = MESSAGING,
        client: int | None = None,
        domain: int | None = None,
    ) -> int:
        """Send a message that requests replies, at once; return the id of the request.

        Parameters
        ----------
        want
            The replies that are wanted: a number, one of each member reached now, or a stream.
        timeout_s
            Time to wait for all replies.
        stall_s
            Time to wait for another reply after each.
        sentinel
            A function of a reply's data that returns whether it is the last one.

        Raises
        ------
        SendRefused, EncodeError
            As in `send`.
        UsageError
            All members are wanted but not known, less than one reply is wanted, or the layer is not
            registered.
        """
        self.check_layer(layer)
        to = self._room_for(ring, data)
        if want is Want.ALL and to.members is None:
            raise UsageError(f"the members of ring {ring} are not known, so 'all' has no number")
        if isinstance(want, int) and want < 1:
            raise UsageError(f"{want} replies are wanted, 1 is the least")
        draft = Draft(data, layer, domain or None, client or None, reply_requested=True)
        number = self._send_numbered(to, draft, qos, now, Hold.ON_THE_WAY | Hold.PENDING)
        members = to.members_reached(draft.domain, draft.client)
        request = Request(ring, want, timeout_s, now, stall_s, sentinel, number, members)
        return self._requests.add(request, now)

    def cancel(self, request: int, now: float) -> None:
        """End a request; one that is done stays as it is."""
        self._requests.cancel(request, now)

    def flush(self, ring: str | None = None) -> None:
        """Put packed messages into the queues of all rings, or of one ring."""
        for to in self._rings.values() if ring is None else (self._ring(ring),):
            to.outgoing.flush()

    def waiting_bytes(self, ring: str) -> int:
        """Return the bytes that wait to be sent to a ring, or that may have to be sent again."""
        return self._ring(ring).outgoing.waiting_bytes

    def next_packet(self, ring: str) -> tuple[QoS, bytes] | None:
        """Return the next packet for a ring, None if there is none.

        It is also None while a message of several packets has not come back completely (errata
        R28): try again after `receive`.
        """
        return self._ring(ring).outgoing.next_packet()

    # --- receiving --------------------------------------------------------------------------

    def receive(self, ring: str, source: str, packet: bytes, *, qos: QoS, now: float) -> None:
        """Add a packet that the ring delivers, which may be one of this process."""
        self._delivery.receive(self._ring(ring), source, packet, qos, now)

    def view(self, ring: str, members: Iterable[str], *, now: float) -> None:
        """Add a view: the members of a ring from this point in the order of packets on."""
        self._delivery.view(self._ring(ring), tuple(members), now)

    # --- time and events --------------------------------------------------------------------

    def get_timer(self) -> float | None:
        """Return the time at which `handle_timer` is due, None if nothing has a deadline."""
        times = [self._requests.get_timer()]
        for ring in self._rings.values():
            times.append(ring.outgoing.flush_at)
            times += (reassembly.get_timer() for reassembly in ring.reassemblies)
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Do what is due: flush packed messages, end requests, abort or report late messages."""
        for ring in self._rings.values():
            self._delivery.handle_timer(ring, now)
        self._requests.handle_timer(now)

    def next_event(self) -> Event | None:
        """Return the next event or None; messages with a handler are passed to it instead."""
        return self._delivery.next_event()

    @property
    def dropped(self) -> Counter[Drop]:
        """Counts of dropped packets and messages so far, by reason."""
        return self._drops.counts

    @property
    def malformed_of(self) -> Counter[str | None]:
        """Malformed packets by source; None for the sources over the bound together."""
        return self._drops.malformed_of

    # --- inside -----------------------------------------------------------------------------

    def _ring(self, name: str) -> Ring:
        try:
            return self._rings[name]
        except KeyError:
            raise UsageError(f"ring {name} is not known") from None

    def _room_for(self, ring: str, data: bytes) -> Ring:
        """Return the ring if it has room for a message, else raise `NotWritable`."""
        to = self._ring(ring)
        if type(data) is not bytes:
            raise EncodeError("data", data, "data is bytes")
        waiting, limit = to.outgoing.waiting_bytes, self._limits.max_outgoing_bytes
        if waiting + len(data) > limit:
            raise NotWritable(f"{waiting} bytes wait for ring {ring}, {limit} are the most")
        return to

    def _pack(self, to: Ring, qos: QoS, head: Head, data: bytes, now: float, urgent: bool) -> None:
        """Send a message that fits one packet, packed with others or at once."""
        to.outgoing.pack(qos, head, (data,), 0, now + self._limits.max_delay_s)
        if urgent or not self._limits.max_delay_s:
            to.outgoing.flush()

    def _send_numbered(self, to: Ring, draft: Draft, qos: QoS, now: float, hold: int) -> int:
        """Send a message that needs a number; return the number."""
        count = draft.packet_count(to.max_packet_bytes, self._limits)
        if count > 1 and qos is QoS.UNORDERED:
            # Else a packet that overtakes the first one would be lost (errata R28).
            qos = QoS.SOURCE_ORDERED
        number = self._numbers.allocate(hold, now)
        to.outgoing.send(OwnMessage(number, draft, qos, count))
        if not qos.reliable:
            # Its packets do not come back; after this time no receiver holds any of them.
            until = now + 2 * self._limits.reassembly_timeout_s
            self._numbers.rest(number, Hold.ON_THE_WAY, until)
        return number
