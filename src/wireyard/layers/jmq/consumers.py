"""The consumers of a connection, and the messages that they hold."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from wireyard.layers.jmq.delivery import DELIVERY, SETTLED
from wireyard.layers.jmq.records import Delivery, Output

__all__ = ["MAX_CONSUMERS", "MAX_HELD", "Consumer", "Consumers", "MessageId"]

MessageId = tuple[Any, ...]
"""The four fields of a SysMessageID as the wire has them: timestamp, address, port, sequence."""

MAX_HELD: Final = 1 << 18
"""Messages that may be held at once, by the consumers of all connections: over two hundred times
the thousand that brokers give out before they want to hear from a consumer."""
MAX_CONSUMERS: Final = 1 << 16
"""Consumers of all connections, with browsers and those that are gone but still hold messages."""


@dataclass(slots=True)
class Consumer:
    """A consumer, or a browser; what was not seen is None."""

    session_id: int | None = None
    subscription: str | None = None
    begins: str = "held"
    """State in which its deliveries begin."""
    of_dead: bool = False
    """Whether it consumes from a dead message queue."""
    deleted: bool = False
    held: OrderedDict[MessageId, Delivery] = field(default_factory=OrderedDict)
    """What it holds, in the order in which it came."""


class Consumers:
    """The consumers of one connection by their ids.

    A delivery is in `facts` as soon as its state is final. What an ACKNOWLEDGE that wants a reply
    is about stays held until the reply says whether it counts.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._by_id: OrderedDict[int, Consumer] = OrderedDict()
        self._by_session: dict[int, set[int]] = {}
        self.held = 0
        """How many messages all of them hold."""

    def get(self, consumer_id: int) -> Consumer | None:
        """Return a consumer, None if there is none of that id."""
        return self._by_id.get(consumer_id)

    def add(self, consumer_id: int, consumer: Consumer) -> None:
        """Record that a consumer was added."""
        if consumer_id in self._by_id:
            self._remove(consumer_id)
        if not self._output.admit("MAX_CONSUMERS", MAX_CONSUMERS):
            if not self._by_id:
                return
            self._remove(next(iter(self._by_id)))
            self._output.admit("MAX_CONSUMERS", MAX_CONSUMERS)
        self._by_id[consumer_id] = consumer
        if consumer.session_id is not None:
            self._by_session.setdefault(consumer.session_id, set()).add(consumer_id)

    def deliver(self, consumer_id: int, message: MessageId, delivery: Delivery) -> bool:
        """Add a delivery; return whether the consumer did not hold the message yet."""
        consumer = self._by_id.get(consumer_id)
        if consumer is None or delivery.state in SETTLED:
            self._output.deliveries.append(delivery)
            return True
        again = consumer.held.pop(message, None)
        if again is not None:
            self._close(again)
        if not self._output.admit("MAX_HELD", MAX_HELD):
            if not consumer.held:
                self._output.deliveries.append(delivery)
                return True
            self._let_go(consumer.held.popitem(last=False)[1])
            self._output.admit("MAX_HELD", MAX_HELD)
        consumer.held[message] = delivery
        self.held += 1
        return again is None

    def step(self, consumer_id: int, message: MessageId, event: str) -> Delivery | None:
        """Apply an event to a held message; return it, None if it is not for such a one."""
        consumer = self._by_id.get(consumer_id)
        delivery = consumer.held.get(message) if consumer else None
        if consumer is None or delivery is None:
            return None
        cell = DELIVERY.get((delivery.state, event))
        if cell is None:
            return None
        following = cell.state
        if following not in SETTLED:
            delivery.state = following
            return delivery
        del consumer.held[message]
        delivery.state = following
        self._let_go(delivery)
        if consumer.deleted and not consumer.held:
            self._remove(consumer_id)
        return delivery

    def delete(self, consumer_id: int, last_seen: MessageId | None) -> None:
        """Record that a consumer is gone; the application saw its messages up to `last_seen`.

        Those stay with the session, and can still be acknowledged. Where the last one is not held
        any more, all that is held came after it.
        """
        consumer = self._by_id.get(consumer_id)
        if consumer is None or consumer.deleted:
            return
        unseen = last_seen not in consumer.held
        for message in list(consumer.held):
            if unseen:
                self.step(consumer_id, message, "close_unseen")
            unseen = unseen or message == last_seen
        consumer.deleted = True
        if not consumer.held:
            self._remove(consumer_id)

    def close_session(self, session_id: int) -> None:
        """Record that a session is gone."""
        for consumer_id in sorted(self._by_session.get(session_id, ())):
            self._remove(consumer_id)

    def close(self) -> None:
        """Record that the connection is over."""
        for consumer_id in list(self._by_id):
            self._remove(consumer_id)

    def keep(self) -> None:
        """Record that the capture is over, while the connection is not."""
        for consumer_id, consumer in list(self._by_id.items()):
            while consumer.held:
                self._let_go(consumer.held.popitem(last=False)[1])
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
        delivery.state = DELIVERY[delivery.state, "close"].state
        self._let_go(delivery)

    def _let_go(self, delivery: Delivery) -> None:
        """Give up a delivery as it is."""
        self.held -= 1
        self._output.release("MAX_HELD")
        self._output.deliveries.append(delivery)
