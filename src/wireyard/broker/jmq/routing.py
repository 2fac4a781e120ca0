"""From messages to consumers: destinations, subscriptions, dead messages, delayed ones.

Rules of this file:

1. Properties and body of a message are looked at only where a selector asks for them, or to say on
   the dead message queue why it is dead.
2. A copy ends in one place, `_forget`, and so does what is counted for it.
3. Each limit that is reached is said in one line; nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from wireyard.broker.jmq.connections import Connection, Consumer
from wireyard.broker.jmq.destinations import (
    Backlog,
    Copy,
    Destination,
    Subscription,
    has_wildcard,
    matches,
)
from wireyard.broker.jmq.persistence import Persistence
from wireyard.broker.settings import Settings
from wireyard.endpoints.jmq import Message, codes
from wireyard.endpoints.jmq.packets import read_packet
from wireyard.errors import WireError
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.packet import decode, encode
from wireyard.formats.properties import Property
from wireyard.layers.jmq.rules import DEAD_MESSAGE_QUEUE, DEAD_REASON, OK

_FLAG_P, _FLAG_R, _FLAG_F, _FLAG_C = (FLAGS[letter] for letter in "PRFC")
_PRESERVE: Final = "JMS_SUN_PRESERVE_UNDELIVERED"
_MOST_TOPICS: Final = 10_000
"""Topics whose subscriptions are remembered."""


class Router:
    """The destinations and messages of a broker.

    `say` is called with one line for each notable cause. `at` calls a function at a time, or
    earlier. `kept` is where its state outlives the process, if it does. Connections in `dirty` have
    something to send. The caller sets `now`, the time in seconds since 1970. `also` is called with
    each message to a topic, when it is routed, and the name of the topic.
    """

    def __init__(
        self,
        settings: Settings,
        say: Callable[[str], None],
        at: Callable[[float, Callable[[], None]], None],
        kept: Persistence | None = None,
    ) -> None:
        self.settings, self.limits, self.say, self.kept = settings, settings.jmq, say, kept
        self.dirty: set[Connection] = set()
        self.now = 0.0
        self.also: Callable[[Message, str], None] = lambda message, name: None
        self.dead = Destination(DEAD_MESSAGE_QUEUE, True)
        self.destinations: dict[tuple[bool, str], Destination] = {self.dead.key: self.dead}
        self.subscriptions: list[Subscription] = []
        self.named: dict[tuple[str | None, str, bool], Subscription] = {}
        """Durable and shared subscriptions, by client id, name, and whether they are durable."""
        self._at = at
        self._found: dict[str, list[Subscription]] = {}
        self._order = 0
        self._kept_bytes = 0
        self._said: set[object] = set()

    @property
    def now_ms(self) -> int:
        """The time in ms since 1970."""
        return int(self.now * 1000)

    def home(self, is_queue: bool, name: str) -> Destination:
        """Return a destination; make it if it is not there."""
        found = self.destinations.get((is_queue, name))
        if found is None:
            found = self.destinations[is_queue, name] = Destination(name, is_queue)
        return found

    # --- subscriptions --------------------------------------------------------------------

    def add_subscription(self, subscription: Subscription) -> None:
        """Add a subscription."""
        self.subscriptions.append(subscription)
        if subscription.key is not None:
            self.named[subscription.key] = subscription
            if self.kept is not None and subscription.is_durable and subscription.number is None:
                self.kept.put_subscription(subscription)
        self._found.clear()

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove a subscription, with its messages."""
        self.subscriptions.remove(subscription)
        if subscription.key is not None:
            del self.named[subscription.key]
        self._found.clear()
        subscription.is_gone = True
        if self.kept is not None:
            self.kept.remove_subscription(subscription)
        for copy in list(subscription.waiting()):
            self.forget(copy)

    def subscriptions_of(self, topic: str) -> list[Subscription]:
        """Return the subscriptions that get the messages of a topic."""
        found = self._found.get(topic)
        if found is None:
            if len(self._found) >= _MOST_TOPICS:
                self._found.clear()
            found = self._found[topic] = [
                one
                for one in self.subscriptions
                if one.topic == topic or (has_wildcard(one.topic) and matches(one.topic, topic))
            ]
        return found

    # --- messages in ----------------------------------------------------------------------

    def keep(self, message: Message) -> bool:
        """Account for a message; return False, and say so, if there is no room for it."""
        if self._kept_bytes + message.size > self.settings.max_all_kept_bytes:
            self._say_once(
                "all", f"{self._kept_bytes} bytes of messages are kept, more are refused"
            )
            return False
        self._kept_bytes += message.size
        return True

    def release(self, message: Message) -> None:
        """Take note that a message is not kept any more."""
        self._kept_bytes -= message.size
        if message.number and self.kept is not None:
            self.kept.remove_message(message)

    def restore(self, message: Message, destination: Destination) -> None:
        """Account for a message that the store has."""
        message.home = destination
        message.is_dead = destination is self.dead
        self._order = message.order
        self._kept_bytes += message.size

    def store(self, message: Message, destination: Destination, **why: Any) -> None:
        """Write a message that outlives the process, if it does."""
        if self.kept is not None and message.flags & _FLAG_P and destination.owner is None:
            self.kept.put_message(message, destination, **why)

    def _say_once(self, what: object, text: str) -> None:
        """Say that a limit is reached, once until there is room again."""
        if what not in self._said:
            self._said.add(what)
            self.say(text)

    def publish(self, message: Message, destination: Destination, name: str | None = None) -> int:
        """Pass a message on; return the status for its producer.

        `name` is that of the topic, if messages of several are counted in one destination.
        """
        if not self.has_room(destination, message):
            return codes.FULL
        if not self.keep(message):
            return codes.FULL
        self.publish_kept(message, destination, name)
        return OK

    def publish_kept(
        self, message: Message, destination: Destination, name: str | None = None
    ) -> None:
        """Pass a message on that is accounted for, when its time has come."""
        if message.delivery_time and message.delivery_time > self.now_ms:
            self.store(message, destination, is_delayed=True)
            self.delay(message, destination)
        else:
            self.route(message, destination, name)

    def delay(self, message: Message, destination: Destination) -> None:
        """Route a message when its time has come."""
        destination.kept += 1
        self._at(message.delivery_time / 1000, lambda: self._await(message, destination))

    def _await(self, message: Message, destination: Destination) -> None:
        if self.now_ms < message.delivery_time:
            due = message.delivery_time / 1000
            self._at(due, lambda: self._await(message, destination))
            return
        destination.kept -= 1
        if self.destinations.get(destination.key) is destination:
            self.route(message, destination)
        else:
            self.release(message)

    def has_room(self, destination: Destination, message: Message | None = None) -> bool:
        """Return whether a destination takes one more message; say it if not."""
        if destination.kept < self.limits.max_kept:
            return True
        if message is not None:
            text = f"{destination.id}: {destination.kept} messages are kept, more are refused"
            self._say_once(destination, text)
        return False

    def route(self, message: Message, destination: Destination, name: str | None = None) -> None:
        """Give a message that is kept to its queue, or to the subscriptions of its topic."""
        self._order += 1
        message.order = self._order
        destination.kept += 1
        message.home = destination
        if destination.backlog is not None:
            message.copies = 1
            self.store(message, destination)
            self._add(message, destination.backlog)
            return
        name = name or destination.name
        # A client that had no reply before its connection was lost sends a message again.
        backlogs = [
            one
            for one in self.subscriptions_of(name)
            if message.key not in one.copies and one.selects(message)
        ]
        if any(one.is_durable for one in backlogs):
            self.store(message, destination, name=name)
        # One for this method, so that a consumer without acknowledgements does not end it.
        message.copies = 1 + len(backlogs)
        for backlog in backlogs:
            self._add(message, backlog)
        self.also(message, name)
        self._let_go(message)

    def _add(self, message: Message, backlog: Backlog) -> None:
        copy = backlog.copies[message.key] = Copy(message, backlog)
        if message.number and self.kept is not None:
            self.kept.put_copy(copy, 0)
        if message.expiration and self.is_expired(message):
            self.bury(copy, "EXPIRED")
            return
        consumer = backlog.offer(copy)
        if consumer is not None:
            self._hand(consumer, copy)

    # --- deliveries -----------------------------------------------------------------------

    def feed(self, consumer: Consumer) -> None:
        """Give a consumer what waits, as far as it takes it."""
        if not consumer.is_ready:
            return
        while consumer.returned and consumer.is_ready:
            self._hand(consumer, consumer.returned.pop(0))
        if consumer.is_ready:
            for copy in consumer.backlog.take_for(consumer):
                self._hand(consumer, copy)

    def feed_all(self, connection: Connection) -> None:
        """Give the consumers of a connection what waits."""
        for consumer in list(connection.consumers.values()):
            self.feed(consumer)

    def is_expired(self, message: Message) -> bool:
        """Return whether the time of a message is over; a dead one has no end."""
        return 0 < message.expiration <= self.now_ms and not message.is_dead

    def _hand(self, consumer: Consumer, copy: Copy) -> None:
        message = copy.message
        if message.expiration and self.is_expired(message):
            self.bury(copy, "EXPIRED")
            return
        connection = consumer.connection
        flags = _FLAG_R if copy.count else 0
        if consumer.flow.send():
            flags |= _FLAG_C
        if connection.flow.send():
            flags |= _FLAG_F
        copy.begin(consumer)
        endpoint = connection.endpoint
        endpoint.deliver(message, consumer.id, flags, copy.count + 1)
        if endpoint.unsent_bytes > self.settings.max_unsent_bytes:
            connection.is_slow = True
        self.dirty.add(connection)
        if message.number and self.kept is not None:
            self.kept.put_copy(copy, copy.count + 1)
            connection.waits_for = self.kept.store.group
        if consumer.acknowledges:
            consumer.held[message.key] = copy
        else:
            self._forget(copy)

    def give_back(self, copies: Iterable[Copy], *, seen: bool, to: Consumer | None = None) -> None:
        """End deliveries without an acknowledgement; the copies are delivered again.

        `seen` is whether the application may have seen them. The consumer `to` gets them again,
        before all others; if it is None, any does.
        """
        returned = sorted(copies, key=lambda copy: copy.rank)
        for copy in returned:
            if copy.consumer is not None:
                copy.consumer.held.pop(copy.message.key, None)
            copy.give_back(seen)
            if not seen and copy.message.number and self.kept is not None:
                self.kept.put_copy(copy, copy.count)
            if to is not None:
                copy.consumer = to
            elif copy.backlog.is_gone:
                self._forget(copy)
        returned = [copy for copy in returned if to is not None or not copy.backlog.is_gone]
        if to is not None:
            to.returned = sorted(to.returned + returned, key=lambda copy: copy.rank)
            self.feed(to)
            return
        backlogs = {copy.backlog: None for copy in returned}
        for backlog in backlogs:
            backlog.put_back(copy for copy in returned if copy.backlog is backlog)
        for backlog in backlogs:
            for consumer in list(backlog.consumers):
                self.feed(consumer)

    # --- the end of copies ----------------------------------------------------------------

    def forget(self, copy: Copy) -> None:
        """End a copy, wherever it is."""
        consumer = copy.consumer
        if consumer is None:
            copy.backlog.drop(copy)
        elif consumer.held.pop(copy.message.key, None) is None and copy in consumer.returned:
            consumer.returned.remove(copy)
        self._forget(copy)

    def _forget(self, copy: Copy) -> None:
        copy.backlog.copies.pop(copy.message.key, None)
        if copy.message.number and self.kept is not None:
            self.kept.remove_copy(copy)
        self._let_go(copy.message)

    def _let_go(self, message: Message) -> None:
        message.copies -= 1
        if message.copies:
            return
        self.release(message)
        destination = message.home
        destination.kept -= 1
        if destination in self._said and destination.kept < self.limits.max_kept // 2:
            self._said.discard(destination)
        if destination.blocked and destination.kept < self.limits.max_kept * 3 // 4:
            blocked, destination.blocked = destination.blocked, []
            for producer in blocked:
                self.resume(producer)

    def resume(self, producer: Any) -> None:
        """Let a producer send more messages, now or when there is room."""
        credit = self.credit(producer.destination)
        if not credit:
            producer.destination.blocked.append(producer)
            return
        producer.connection.endpoint.resume(
            {
                "JMQProducerID": producer.id,
                "JMQSize": credit,
                "JMQBytes": -1,
                "JMQMaxMsgBytes": self.settings.endpoint.max_packet_bytes,
                "JMQDestinationID": producer.destination.id,
            }
        )
        self.dirty.add(producer.connection)

    def credit(self, destination: Destination) -> int:
        """Return the number of messages that a producer may send."""
        return max(0, min(self.limits.producer_credit, self.limits.max_kept - destination.kept))

    # --- dead messages --------------------------------------------------------------------

    def bury(self, copy: Copy, reason: str, comment: str | None = None) -> None:
        """End a copy that cannot be delivered; a message goes to the dead message queue once."""
        message, count = copy.message, copy.count
        self.forget(copy)
        if copy.backlog is self.dead.backlog or message.is_dead:
            return
        message.is_dead = True
        try:
            packet = decode(message.packet)
            properties: Mapping[str, Property] = packet.properties or {}
            wanted = properties.get(_PRESERVE)
            if wanted is not None and wanted.value is False:
                return
            packet = replace(
                packet,
                properties={
                    **properties,
                    DEAD_REASON: reason,
                    "JMS_SUN_DMQ_UNDELIVERED_TIMESTAMP": Property("long", self.now_ms),
                    "JMS_SUN_DMQ_UNDELIVERED_COMMENT": comment or f"in {message.home.id}",
                    "JMS_SUN_DMQ_DELIVERY_COUNT": count,
                    "JMS_SUN_DMQ_BODY_TRUNCATED": False,
                },
                raw_header=None,
            )
            dead = read_packet(encode(packet), {})
        except WireError as error:
            self.say(f"{message.home.id}: a dead message is dropped, {error}")
            return
        assert isinstance(dead, Message)
        self._add_dead(dead)

    def _add_dead(self, dead: Message) -> None:
        backlog = self.dead.backlog
        assert backlog is not None
        oldest = next(backlog.waiting(), None)
        if len(backlog.copies) >= self.limits.max_dead and oldest is not None:
            count = len(backlog.copies)
            self._say_once(self.dead.key, f"{count} dead messages are kept, the oldest are dropped")
            self.forget(oldest)
        if dead.key not in backlog.copies and self.keep(dead):
            dead.is_dead = True
            self.route(dead, self.dead)
