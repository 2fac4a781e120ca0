"""The outgoing packets of one process on one ring, in the order in which it sent the messages.

Rules of this file (errata R28, R29):

1. Messages leave in the order in which they were sent. Small ones share a packet, which is flushed
   before a larger message or another quality of service.
2. On a ring that delivers packets to their sender too, a message of several packets stays first in
   the queue until all of them have come back, and no later packet is sent before. If a view split
   the message, a later packet would be ordered before it, and a member that joins later could not
   know.
3. A split message is sent again from its first packet, under the same number, once none of its
   packets is on the way. So no member has packets of both attempts under the number.

A message is split if some of its packets were ordered before a view and some were not. Its
receivers then drop it, as they do if they have no room left. All members, the sender too, see the
same packets in the same order, so all agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.packets import Draft, Head, Packing
from wireyard.layers.rmp.qos import QoS
from wireyard.layers.rmp.states import OWN, Effect, Own, OwnEvent


@dataclass(slots=True, eq=False)
class OwnMessage:
    """A message with a number, on its way through the ring and back."""

    number: int
    draft: Draft
    qos: QoS
    count: int
    """The number of its packets."""
    packets: Iterator[bytes] = field(default_factory=lambda: iter(()))
    """The packets that were not passed to the ring yet."""
    sent: int = 0
    """The number of packets that were passed to the ring."""
    back: set[int] = field(default_factory=set)
    """The numbers of the packets that have come back."""
    state: Own = Own.SENT

    @property
    def waits(self) -> bool:
        """Whether it waits for its packets to come back, so that later messages wait for it."""
        return self.state is Own.TAIL or self.sent == self.count


class Outgoing:
    """The messages and packets that wait to be sent to a ring, or to come back from it.

    `max_packet_bytes` is the longest packet of the ring; `numbers` are the message numbers of the
    process.
    """

    def __init__(self, max_packet_bytes: int, numbers: Numbers) -> None:
        self.flush_at: float | None = None
        """The latest time at which the packet being filled is sent."""
        self.waiting_bytes = 0
        """Bytes that wait to be sent, or that may have to be sent again."""
        self._max_packet_bytes = max_packet_bytes
        self._numbers = numbers
        self._packing = Packing(max_packet_bytes)
        self._packing_qos = QoS.TOTALLY_ORDERED
        self._queue: deque[tuple[QoS, bytes] | OwnMessage] = deque()
        self._own: dict[int, OwnMessage] = {}

    # --- sending ----------------------------------------------------------------------------

    def pack(
        self, qos: QoS, head: Head, messages: Sequence[bytes], at: int, flush_at: float
    ) -> int:
        """Pack messages from index `at` on into one packet; return the index of the first left out.

        At least one is packed, because a full packet is flushed before.
        """
        if self._packing_qos is not qos:
            self.flush()
            self._packing_qos = qos
        stop = self._packing.add_all(head, messages, at)
        if stop == at:
            self.flush()
            stop = self._packing.add_all(head, messages, at)
        if self.flush_at is None:
            self.flush_at = flush_at
        if stop < len(messages):  # the packet is full
            self.flush()
        return stop

    def flush(self) -> None:
        """Put the packet being filled into the queue."""
        if self._packing:
            packet = self._packing.finish()
            self._queue.append((self._packing_qos, packet))
            self.waiting_bytes += len(packet)
        self.flush_at = None

    def send(self, message: OwnMessage) -> None:
        """Put a message with a number into the queue, after all packed messages."""
        self.flush()
        self._begin(message)
        self._queue.append(message)
        self.waiting_bytes += len(message.draft.data)
        if message.qos.reliable:
            self._own[message.number] = message

    def next_packet(self) -> tuple[QoS, bytes] | None:
        """Return the next packet for the ring, None if there is none or it has to wait."""
        if not self._queue:
            return None
        first = self._queue[0]
        if not isinstance(first, OwnMessage):
            self._queue.popleft()
            self.waiting_bytes -= len(first[1])
            return first
        if first.waits:
            return None
        first.sent += 1
        packet = next(first.packets)
        if first.sent == first.count and not (first.qos.reliable and first.count > 1):
            self._queue.popleft()
            if not first.qos.reliable:
                self.waiting_bytes -= len(first.draft.data)
        return first.qos, packet

    # --- packets that came back, and views --------------------------------------------------

    def packet_back(self, number: int, packet_number: int) -> None:
        """Count a packet that has come back from the ring."""
        message = self._own.get(number)
        if message is None or packet_number > message.sent:
            return  # from an earlier process with this id
        message.back.add(packet_number)
        last = message.state is not Own.TAIL and len(message.back) == message.count
        self._apply(message, OwnEvent.LAST if last else OwnEvent.PACKET)

    def view(self) -> None:
        """Send messages again that a new view splits."""
        for message in list(self._own.values()):
            self._apply(message, OwnEvent.VIEW)

    def no_room(self, number: int) -> None:
        """Send a message again that its receivers dropped for lack of room."""
        message = self._own.get(number)
        if message is not None and message.state is Own.PARTLY:
            self._apply(message, OwnEvent.NO_ROOM)

    def close(self, until: float) -> None:
        """Release the numbers of all messages, which are not reused before `until`."""
        for number in self._own:
            self._numbers.rest(number, Hold.ON_THE_WAY, until)

    def _begin(self, message: OwnMessage) -> None:
        """Prepare all packets of a message for sending."""
        message.packets = message.draft.packets(
            message.number, message.count, self._max_packet_bytes
        )
        message.sent = 0
        message.back.clear()

    def _apply(self, message: OwnMessage, event: OwnEvent) -> None:
        message.state, effect, _ = OWN[message.state, event]
        match effect:
            case Effect.FREE:
                del self._own[message.number]
                self.waiting_bytes -= len(message.draft.data)
                self._numbers.release(message.number, Hold.ON_THE_WAY)
                if self._queue and self._queue[0] is message:
                    self._queue.popleft()
            case Effect.RESEND:
                self._begin(message)
        if message.state is Own.TAIL and len(message.back) == message.sent:
            self._apply(message, OwnEvent.DRAINED)
