"""The consumers of a connection, and the messages that they hold."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from tests.reference.jmq_chain.records import Output
from wireyard.layers.jmq import rules
from wireyard.layers.jmq.records import Delivery
from wireyard.layers.jmq.states import ACKNOWLEDGING, DELIVERY, SETTLED

__all__ = ["Consumer", "Consumers", "MessageId"]

MessageId = tuple[Any, ...]
"""The fields of a SysMessageID in their order on the wire: timestamp, address, port, sequence."""


@dataclass(slots=True)
class Consumer:
    """A consumer or a browser; fields that were not captured are None."""

    session_id: int | None = None
    subscription: str | None = None
    initial_state: str = "held"
    """The initial state of its deliveries."""
    from_dead_queue: bool = False
    """Whether it consumes from a dead message queue."""
    deleted: bool = False
    held: OrderedDict[MessageId, Delivery] = field(default_factory=OrderedDict)
    """The messages that it holds, in the order of delivery."""


class Consumers:
    """The consumers of one connection by their ids.

    A delivery is passed to the output as soon as its state is final. A message in an ACKNOWLEDGE
    that wants a reply stays held until the reply.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._by_id: OrderedDict[int, Consumer] = OrderedDict()
        self._by_session: dict[int, set[int]] = {}
        self.held = 0
        """The number of messages that all of them hold."""
        self.gaps = 0
        """The number of times at which packets were missing; it stands for those times, so that
        none of them takes longer if many messages are held."""

    def get(self, consumer_id: int) -> Consumer | None:
        """Return a consumer, None if there is none with this id."""
        return self._by_id.get(consumer_id)

    def add(self, consumer_id: int, consumer: Consumer) -> None:
        """Add a consumer; one with the same id is removed first."""
        if consumer_id in self._by_id:
            self._remove(consumer_id)
        if not self._output.admit("MAX_CONSUMERS", rules.MAX_CONSUMERS):
            if not self._by_id:
                return
            self._remove(next(iter(self._by_id)))
            self._output.admit("MAX_CONSUMERS", rules.MAX_CONSUMERS)
        self._by_id[consumer_id] = consumer
        if consumer.session_id is not None:
            self._by_session.setdefault(consumer.session_id, set()).add(consumer_id)

    def deliver(self, consumer_id: int, message: MessageId, delivery: Delivery) -> bool:
        """Add a delivery; return whether the consumer did not hold the message yet."""
        consumer = self._by_id.get(consumer_id)
        if consumer is None or delivery.state in SETTLED:
            self._output.deliveries.append(delivery)
            return True
        delivery.gaps = self.gaps
        again = consumer.held.pop(message, None)
        if again is not None:
            self._close(again)
        if not self._output.admit("MAX_HELD", rules.MAX_HELD):
            if not consumer.held:
                self._output.deliveries.append(delivery)
                return True
            self._pass_on(consumer.held.popitem(last=False)[1])
            self._output.admit("MAX_HELD", rules.MAX_HELD)
        consumer.held[message] = delivery
        self.held += 1
        return again is None

    def apply(self, consumer_id: int, message: MessageId, event: str) -> Delivery | None:
        """Apply an event to a held message; return its delivery, or None if it does not apply."""
        consumer = self._by_id.get(consumer_id)
        delivery = consumer.held.get(message) if consumer else None
        if consumer is None or delivery is None:
            return None
        self._miss(delivery)
        cell = DELIVERY.get((delivery.state, event))
        if cell is None:
            return None
        following = cell.state
        if consumer.initial_state == "undecided" and event in ACKNOWLEDGING:
            consumer.initial_state = "held"
        if following not in SETTLED:
            delivery.state = following
            return delivery
        del consumer.held[message]
        delivery.state = following
        self._pass_on(delivery)
        if consumer.deleted and not consumer.held:
            self._remove(consumer_id)
        return delivery

    def miss(self) -> None:
        """Observe that packets are missing, which may have been about any held message."""
        self.gaps += 1

    def _miss(self, delivery: Delivery) -> None:
        """Apply that packets have been missing since a delivery."""
        if delivery.gaps < self.gaps:
            delivery.state = DELIVERY.lookup(delivery.state, "miss").state

    def delete(self, consumer_id: int, last_seen: MessageId | None) -> None:
        """Delete a consumer whose application saw its messages up to `last_seen`.

        These stay with the session and can still be acknowledged. If the last one is no longer
        held, all messages that are held came after it.
        """
        consumer = self._by_id.get(consumer_id)
        if consumer is None or consumer.deleted:
            return
        is_held = last_seen in consumer.held
        unseen, event = not is_held, "close_unseen" if is_held else "close_unheld"
        for message in list(consumer.held):
            if unseen:
                self.apply(consumer_id, message, event)
            unseen = unseen or message == last_seen
        consumer.deleted = True
        if not consumer.held:
            self._remove(consumer_id)

    def close_session(self, session_id: int) -> None:
        """Remove the consumers of a session that was closed."""
        for consumer_id in sorted(self._by_session.get(session_id, ())):
            self._remove(consumer_id)

    def close(self) -> None:
        """Remove all consumers of a connection that has ended."""
        for consumer_id in list(self._by_id):
            self._remove(consumer_id)

    def keep(self) -> None:
        """Pass on all deliveries at the end of the capture, with the connection still open."""
        for consumer_id, consumer in list(self._by_id.items()):
            while consumer.held:
                delivery = consumer.held.popitem(last=False)[1]
                self._end(delivery)
                self._pass_on(delivery)
            self._remove(consumer_id)

    def _remove(self, consumer_id: int) -> None:
        consumer = self._by_id.pop(consumer_id)
        self._output.release("MAX_CONSUMERS")
        if consumer.session_id is not None:
            of_session = self._by_session[consumer.session_id]
            of_session.remove(consumer_id)
            if not of_session:
                del self._by_session[consumer.session_id]
        for delivery in consumer.held.values():
            self._close(delivery)

    def _close(self, delivery: Delivery) -> None:
        self._end(delivery)
        delivery.state = DELIVERY.lookup(delivery.state, "close").state
        self._pass_on(delivery)

    def _end(self, delivery: Delivery) -> None:
        """Apply that no further packet about a delivery was captured."""
        self._miss(delivery)
        if delivery.gaps_acknowledged < self.gaps:
            delivery.state = DELIVERY.lookup(delivery.state, "reply_lost").state

    def _pass_on(self, delivery: Delivery) -> None:
        """Pass on a delivery with its present state."""
        self.held -= 1
        self._output.release("MAX_HELD")
        self._output.deliveries.append(delivery)
