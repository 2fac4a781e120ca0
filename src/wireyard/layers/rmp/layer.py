"""The messaging layer of one process: messages to packets, and packets to events.

No sockets, clocks, threads or randomness. Its caller passes it packets and views as the rings
deliver them, sends what `next_packet` returns, and calls `handle_timer` when `get_timer` is due;
`now` is any clock in seconds that does not go back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from wireyard.errors import EncodeError, UsageError
from wireyard.formats.rmp.packet import Message, encode
from wireyard.layers.rmp.clients import Clients
from wireyard.layers.rmp.counters import Drop, Drops
from wireyard.layers.rmp.delivery import MESSAGING, Delivery, Handler
from wireyard.layers.rmp.errors import MessageTooBig, NotWritable
from wireyard.layers.rmp.events import Event, MessageId
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.outgoing import OwnMessage
from wireyard.layers.rmp.packing import Head, head_of
from wireyard.layers.rmp.qos import QoS
from wireyard.layers.rmp.requests import Request, Requests, Want
from wireyard.layers.rmp.ring import Ring
from wireyard.layers.rmp.segments import Draft

__all__ = ["MessagingLayer"]


class MessagingLayer:
    """Messages of one process on any number of rings, with one counter of message numbers.

    Parameters
    ----------
    process_id
        This process as its rings know it, ``address:port``: the source that replies name.
    first_number
        First message number; random where the process may be started again.
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
            The name of this process on that ring, where it has another one there.

        Raises
        ------
        UsageError
            It is known already, its packets are too short, or this process has no name there.
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
        """Leave a ring: its requests end, and what waits for it is dropped."""
        left = self._ring(ring)
        self._requests.close(ring, now)
        left.outgoing.close(now + 2 * self._limits.reassembly_timeout_s)
        del self._rings[ring]

    def register_layer(
        self, layer: int, handler: Handler | None = None, *, in_pieces: bool = False
    ) -> None:
        """Have messages for a destination layer delivered, on all rings.

        Parameters
        ----------
        handler
            Is called with each message of the layer, at its place among the events: `next_event`
            passes it on instead of returning it. Without one, messages are events.
        in_pieces
            Whether a message that is still arriving when its turn comes is delivered as it arrives,
            as `Piece` events, rather than atomically. Replies are always whole.

        Raises
        ------
        UsageError
            No typing word has room for it, or it has a handler.
        """
        self._delivery.register_layer(layer, handler, in_pieces)

    def unregister_layer(self, layer: int) -> None:
        """Have messages for a destination layer dropped from now on; its handler is removed."""
        self._delivery.unregister_layer(layer)

    def register_foreign(self, typing: int, handler: Handler) -> None:
        """Have a handler called with each `Foreign` message that begins with a typing word.

        Raises
        ------
        UsageError
            The word is of this protocol, from 0 to 4095, or has a handler.
        """
        self._delivery.register_foreign(typing, handler)

    def unregister_foreign(self, typing: int) -> None:
        """Have messages that begin with a typing word be events again."""
        self._delivery.unregister_foreign(typing)

    def process_id(self, ring: str) -> str:
        """Return the name of this process on a ring, as replies give it."""
        return self._ring(ring).process_id

    def clients(self, ring: str) -> Clients:
        """Return the clients of this process in a ring, to register more or other domains."""
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
            Whether to send it at once, with whatever waits before it.

        Raises
        ------
        SendRefused
            It is too big, or there is no room for it or no number. Nothing of it is sent.
        EncodeError
            A value that has no form on the wire.
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
            Its typing word, 4096 or above, and all that follows.

        Raises
        ------
        SendRefused
            There is no room for it, or it does not fit one packet: no field of this layer can be
            put in front of its parts (errata R33).
        EncodeError
            It begins with no typing word of another protocol.
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

        As `send` one after the other, at half the cost where they are small.

        Raises
        ------
        SendRefused, EncodeError
            As of `send`, except for want of room. Those before it are sent.
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
        """Send a message that asks for replies, at once; return the id of the request.

        Parameters
        ----------
        want
            How many replies: a number, all members that it can reach now, or a stream.
        timeout_s
            How long to wait for all of them.
        stall_s
            How long to wait for another one after each.
        sentinel
            Returns of a reply's data whether it is the last one.

        Raises
        ------
        SendRefused, EncodeError
            As of `send`.
        UsageError
            All members are wanted where they are not known, or less than one reply.
        """
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
        """Put all that was packed into the queues of the rings, or of one ring."""
        for to in self._rings.values() if ring is None else (self._ring(ring),):
            to.outgoing.flush()

    def waiting_bytes(self, ring: str) -> int:
        """Return the bytes that a ring has not accepted, or not brought back and may need again."""
        return self._ring(ring).outgoing.waiting_bytes

    def next_packet(self, ring: str) -> tuple[QoS, bytes] | None:
        """Return the next packet for a ring, None if there is none.

        None too behind a message of several packets that are not all back (errata R28): ask again
        after `receive`.
        """
        return self._ring(ring).outgoing.next_packet()

    # --- receiving --------------------------------------------------------------------------

    def receive(self, ring: str, source: str, packet: bytes, *, qos: QoS, now: float) -> None:
        """Add a packet as the ring delivers it, those of this process too."""
        self._delivery.receive(self._ring(ring), source, packet, qos, now)

    def view(self, ring: str, members: Iterable[str], *, now: float) -> None:
        """Add a view: the members of a ring from this place in the order of packets on."""
        self._delivery.view(self._ring(ring), tuple(members), now)

    # --- time and events --------------------------------------------------------------------

    def get_timer(self) -> float | None:
        """Return when `handle_timer` is due, None if nothing waits for time to pass."""
        times = [self._requests.get_timer()]
        for ring in self._rings.values():
            times.append(ring.outgoing.flush_at)
            times += (reassembly.get_timer() for reassembly in ring.reassemblies)
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Do what is due: flush what was packed, end requests, abort or report what takes long."""
        for ring in self._rings.values():
            self._delivery.handle_timer(ring, now)
        self._requests.handle_timer(now)

    def next_event(self) -> Event | None:
        """Return the next event, None if there is none; messages of handlers go to these."""
        return self._delivery.next_event()

    @property
    def dropped(self) -> Counter[Drop]:
        """How much was dropped so far, by reason."""
        return self._drops.counts

    @property
    def malformed_of(self) -> Counter[str | None]:
        """Malformed packets by source; None has those of sources over the bound."""
        return self._drops.malformed_of

    # --- inside -----------------------------------------------------------------------------

    def _ring(self, name: str) -> Ring:
        try:
            return self._rings[name]
        except KeyError:
            raise UsageError(f"ring {name} is not known") from None

    def _room_for(self, ring: str, data: bytes) -> Ring:
        """Return the ring if it has room for a message."""
        to = self._ring(ring)
        if type(data) is not bytes:
            raise EncodeError("data", data, "data is bytes")
        waiting, limit = to.outgoing.waiting_bytes, self._limits.max_outgoing_bytes
        if waiting + len(data) > limit:
            raise NotWritable(f"{waiting} bytes wait for ring {ring}, {limit} are the most")
        return to

    def _pack(self, to: Ring, qos: QoS, head: Head, data: bytes, now: float, urgent: bool) -> None:
        """Send a message that fits one packet, with others or at once."""
        to.outgoing.pack(qos, head, (data,), 0, now + self._limits.max_delay_s)
        if urgent or not self._limits.max_delay_s:
            to.outgoing.flush()

    def _send_numbered(self, to: Ring, draft: Draft, qos: QoS, now: float, hold: int) -> int:
        """Send a message that has to have a number; return it."""
        count = draft.packet_count(to.max_packet_bytes, self._limits)
        if count > 1 and qos is QoS.UNORDERED:
            qos = QoS.SOURCE_ORDERED  # or a packet that overtakes the first is lost (errata R28)
        number = self._numbers.allocate(hold, now)
        to.outgoing.send(OwnMessage(number, draft, qos, count))
        if not qos.reliable:
            # Its packets do not come back; after this time no receiver keeps any.
            until = now + 2 * self._limits.reassembly_timeout_s
            self._numbers.rest(number, Hold.ON_THE_WAY, until)
        return number
