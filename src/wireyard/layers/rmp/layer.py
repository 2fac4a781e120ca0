"""The messaging layer of one process: messages to packets, and packets to events.

No sockets, clocks, threads or randomness. Whoever runs it gives it packets and views as the ring
delivers them, sends what `next_packet` returns, and calls `handle_timer` when `get_timer` is due;
`now` is any clock in seconds that does not go back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from wireyard.errors import DecodeError, EncodeError, UsageError
from wireyard.layers.rmp.clients import Clients
from wireyard.layers.rmp.counters import Drop, Drops
from wireyard.layers.rmp.delivery import MESSAGING, Delivery
from wireyard.layers.rmp.errors import NotWritable, NumbersExhausted
from wireyard.layers.rmp.events import (
    Aborted,
    Event,
    MalformedPacket,
    MessageId,
    ViewChanged,
)
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.own import OwnMessage
from wireyard.layers.rmp.packing import Head, head_of
from wireyard.layers.rmp.parsing import parse_packet
from wireyard.layers.rmp.qos import QoS
from wireyard.layers.rmp.reassembly import Reassembly
from wireyard.layers.rmp.requests import Request, Requests, Want
from wireyard.layers.rmp.ring import Ring
from wireyard.layers.rmp.segments import Draft

__all__ = ["MessagingLayer"]

_LAYERS = range(64)


class MessagingLayer:
    """Messages of one process on any number of rings.

    Parameters
    ----------
    process_id
        This process as the rings know it, ``address:port``: what replies name.
    first_number
        First message number; random where the process may be started again.
    limits
        Bounds and delays, the same at all members.
    consume_replies
        Whether a reply that a request waits for is told as such only, and not delivered as well.
    """

    def __init__(
        self,
        process_id: str,
        *,
        first_number: int,
        limits: Limits | None = None,
        consume_replies: bool = False,
    ) -> None:
        self.process_id = process_id
        self._limits = limits or Limits()
        self._drops = Drops(self._limits.max_counted_sources)
        self._numbers = Numbers(first_number)
        self._events: deque[Event] = deque()
        self._requests = Requests(
            self._numbers, self._drops, self._limits.max_replies, self._events
        )
        self._rings: dict[str, Ring] = {}
        self._delivery = Delivery(
            process_id,
            self._limits.report_every_s,
            self._drops,
            self._events,
            self._requests,
            consume_replies,
        )

    # --- rings, layers, clients -------------------------------------------------------------

    def add_ring(self, ring: str, max_packet_bytes: int) -> None:
        """Take part in a ring.

        Raises
        ------
        UsageError
            It is known already, or its packets are too short to be any use.
        """
        if ring in self._rings:
            raise UsageError(f"ring {ring} is known already")
        self._rings[ring] = Ring(ring, max_packet_bytes, self._limits, self._numbers, self._drops)

    def register_layer(self, layer: int) -> None:
        """Have messages for a destination layer delivered.

        Raises
        ------
        UsageError
            No typing word has room for it.
        """
        if layer not in _LAYERS:
            raise UsageError(f"layer {layer} is not from {_LAYERS[0]} to {_LAYERS[-1]}")
        self._delivery.layers.add(layer)

    def unregister_layer(self, layer: int) -> None:
        """Have messages for a destination layer dropped from now on."""
        self._delivery.layers.discard(layer)

    def clients(self, ring: str) -> Clients:
        """Return the clients of this process in a ring, to register more or other domains."""
        return self._ring(ring).clients

    def members(self, ring: str) -> tuple[str, ...] | None:
        """Return who is in a ring, None if no view has told."""
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
        to = self._ring(ring)
        if type(data) is not bytes:
            raise EncodeError("data", data, "data is bytes")
        if to.waiting_bytes + len(data) > self._limits.max_outgoing_bytes:
            raise self._no_room(to)
        if reply_to is None:
            head = head_of(layer, domain or None, client or None)
        else:
            draft = Draft(data, layer, domain or None, client or None, reply_to)
            head, urgent = Head(draft.head(), b""), True
        if len(head.last) + len(data) <= to.max_packet_bytes:
            to.pack(qos, head, data, now + self._limits.max_delay_s)
            if urgent or not self._limits.max_delay_s:
                to.flush()
            return
        draft = Draft(data, layer, domain or None, client or None, reply_to)
        self._send_numbered(to, draft, qos, now)

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
            As of `send`, but for want of room. Those before it are sent.
        """
        to = self._ring(ring)
        head = head_of(layer, domain or None, client or None)
        small = to.max_packet_bytes - len(head.last) if self._limits.max_delay_s else -1
        flush_at = now + self._limits.max_delay_s
        sent = 0
        while sent < len(messages):
            data = messages[sent]
            if to.waiting_bytes + len(data) > self._limits.max_outgoing_bytes:
                break
            if len(data) <= small and type(data) is bytes:
                sent = to.pack_all(qos, head, messages, sent, flush_at)
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
            Says of a reply's data whether it is the last one.

        Raises
        ------
        SendRefused, EncodeError
            As of `send`.
        UsageError
            All members are wanted where nobody knows them, or less than one reply.
        """
        to = self._ring(ring)
        if type(data) is not bytes:
            raise EncodeError("data", data, "data is bytes")
        if want is Want.ALL and to.members is None:
            raise UsageError(f"ring {ring} does not tell its members, so 'all' has no number")
        if isinstance(want, int) and want < 1:
            raise UsageError(f"{want} replies are wanted, 1 is the least")
        if to.waiting_bytes + len(data) > self._limits.max_outgoing_bytes:
            raise self._no_room(to)
        draft = Draft(data, layer, domain or None, client or None, reply_requested=True)
        request = Request(
            ring, want, timeout_s, now, stall_s, sentinel, [], self._who_may_answer(to, draft)
        )
        id_ = self._requests.new_id()
        request.numbers.append(self._send_numbered(to, draft, qos, now, id_))
        self._requests.add(id_, request, now)
        return id_

    def cancel(self, request: int, now: float) -> None:
        """End a request; one that is done stays as it is."""
        self._requests.cancel(request, now)

    def flush(self, ring: str | None = None) -> None:
        """Have all that was sent before returned by `next_packet`, of one ring or of all."""
        for to in self._rings.values() if ring is None else (self._ring(ring),):
            to.flush()

    def waiting_bytes(self, ring: str) -> int:
        """Return how many bytes a ring has not taken, or not given back and may want again."""
        return self._ring(ring).waiting_bytes

    def next_packet(self, ring: str) -> tuple[QoS, bytes] | None:
        """Return the next packet to hand to a ring, None if there is none."""
        return self._ring(ring).take()

    def _send_numbered(
        self, to: Ring, draft: Draft, qos: QoS, now: float, request: int | None = None
    ) -> int:
        """Send a message that has to have a number; return it."""
        count = draft.packet_count(to.max_packet_bytes, self._limits.max_message_bytes)
        hold = Hold.ON_THE_WAY if request is None else Hold.ON_THE_WAY | Hold.PENDING
        number = self._numbers.take(hold, now)
        if qos.reliable:
            to.own.add(number, OwnMessage(draft, qos, count, request=request))
        else:
            # Nobody tells which packets arrive; after this time no receiver keeps any.
            until = now + 2 * self._limits.reassembly_timeout_s
            self._numbers.rest(number, Hold.ON_THE_WAY, until)
        to.flush()
        for packet in draft.packets(number, count, to.max_packet_bytes):
            to.put(qos, packet)
        return number

    # --- receiving --------------------------------------------------------------------------

    def receive(self, ring: str, source: str, packet: bytes, *, qos: QoS, now: float) -> None:
        """Take a packet as the ring delivers it, those of this process too."""
        at = self._ring(ring)
        try:
            runs = parse_packet(packet)
        except DecodeError as error:
            self._drops.malformed(source)
            self._events.append(MalformedPacket(ring, source, error))
            return
        reassembly = at.reassemblies[qos.order]
        own = qos.reliable and source == self.process_id
        for fields, run in runs:
            number = fields.message_number
            if number is None and reassembly.idle:
                self._delivery.deliver(at, source, qos, fields, run, now)
                continue
            if own and number is not None and fields.packet_number is not None:
                at.own.packet_back(number, fields.packet_number)
            for data in run:
                reassembly.receive(source, qos, fields, data, now)
            self._collect(at, reassembly, now)

    def view(self, ring: str, members: Iterable[str], *, now: float) -> None:
        """Take a new view: who is in the ring from this place in the order of packets on."""
        at = self._ring(ring)
        before, at.members = at.members or (), tuple(members)
        at.flush()
        for reassembly in at.reassemblies.values():
            reassembly.view()
            self._collect(at, reassembly, now)
        joined = tuple(member for member in at.members if member not in before)
        left = tuple(member for member in before if member not in at.members)
        self._events.append(ViewChanged(ring, at.members, joined, left))
        self._requests.view(ring, at.members, now)
        for number, message in at.own.view():
            self._send_again(at, number, message, now)

    # --- time and events --------------------------------------------------------------------

    def get_timer(self) -> float | None:
        """Return when `handle_timer` is due, None if nothing waits for time to pass."""
        times = [self._requests.get_timer()]
        for ring in self._rings.values():
            times.append(ring.flush_at)
            times += (reassembly.get_timer() for reassembly in ring.reassemblies.values())
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Do what is due: flush what was packed, end requests, abort or report what takes long."""
        for ring in self._rings.values():
            if ring.flush_at is not None and ring.flush_at <= now:
                ring.flush()
            for reassembly in ring.reassemblies.values():
                reassembly.handle_timer(now)
                self._collect(ring, reassembly, now)
        self._requests.handle_timer(now)

    def next_event(self) -> Event | None:
        """Return what happened next, None if that is all."""
        return self._events.popleft() if self._events else None

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

    def _no_room(self, to: Ring) -> NotWritable:
        limit = self._limits.max_outgoing_bytes
        return NotWritable(
            f"{to.waiting_bytes} bytes wait for ring {to.name}, {limit} are the most"
        )

    def _who_may_answer(self, to: Ring, draft: Draft) -> frozenset[str] | None:
        """Return the members that a request may be answered by, None if nobody tells them.

        This process is one of them if another of its clients gets the request.
        """
        if to.members is None:
            return None
        here = to.clients.destinations(draft.domain, None) or ()
        others = set(to.members) - {self.process_id}
        return frozenset(others | {self.process_id} if set(here) - {draft.client} else others)

    def _send_again(self, to: Ring, number: int, message: OwnMessage, now: float) -> None:
        """Send a message whole that a view cut, which had `number` before."""
        assert message.draft is not None
        waited_for = message.request if message.request in self._requests else None
        try:
            again = self._send_numbered(to, message.draft, message.qos, now, waited_for)
        except NumbersExhausted:
            self._events.append(Aborted(to.name, self.process_id, number, "no_number", 0))
            return
        if waited_for is not None:
            self._requests.sent_again(waited_for, again)

    def _collect(self, at: Ring, reassembly: Reassembly, now: float) -> None:
        """Deliver what has become ready."""
        self._events.extend(reassembly.events)
        reassembly.events.clear()
        while reassembly.ready:
            source, qos, fields, data, _ = reassembly.ready.popleft()
            self._delivery.deliver(at, source, qos, fields, (data,), now)
