"""What connections have of the broker: destinations, producers, consumers and subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from wireyard.broker.jmq.connections import Connection, Consumer, Producer, Refusal, Session, accept
from wireyard.broker.jmq.destinations import (
    Backlog,
    Destination,
    Subscription,
    access_name,
    has_wildcard,
    is_name,
)
from wireyard.broker.jmq.routing import Router
from wireyard.broker.jmq.selector import Selector, SelectorError
from wireyard.endpoints.jmq import Request, codes
from wireyard.layers.jmq.rules import DEAD_MESSAGE_QUEUE, NO_ACKNOWLEDGE, QUEUE, TEMPORARY, TOPIC

_TEMPORARY_BIT, _AUTO_CREATED = 0x10, 0x20
_LAST_SEEN: Final = 3
"""JMQBodyType of a DELETE_CONSUMER whose body is the id of the last message seen."""
_RESERVED: Final = "mq."
_CREATE: Final = 34


class Parts:
    """The requests that make and remove parts; `next_id` returns an id that nothing has."""

    def __init__(self, router: Router, next_id: Callable[[], int]) -> None:
        self.router, self.limits, self._next_id = router, router.limits, next_id

    def _named(self, request: Request) -> tuple[str, bool]:
        """Return the name of the destination of a request, and whether it is a queue."""
        name, kind = request.get("JMQDestination", str), request.get("JMQDestType", int, 0)
        if name is None or not is_name(name, self.limits.max_name):
            raise Refusal(codes.BAD_REQUEST, "names no destination, or one by no name")
        return name, bool(kind & QUEUE) or (not kind & TOPIC and "://queue/" in name)

    def existing(self, request: Request) -> Destination:
        """Return the destination of a request, which has to be there."""
        name, is_queue = self._named(request)
        destination = self.router.destinations.get((is_queue, name))
        if destination is None:
            raise Refusal(
                codes.NOT_FOUND, f"'{name}' is not there", {"JMQCanCreate": True}, is_notable=False
            )
        return destination

    def _destination(self, link: Connection, request: Request) -> Destination:
        """Return the destination of a request; make it if it is not there."""
        name, is_queue = self._named(request)
        found = self.router.destinations.get((is_queue, name))
        if found is not None:
            return found
        is_temporary = bool(request.get("JMQDestType", int, 0) & _TEMPORARY_BIT)
        if name.startswith(_RESERVED) and (name, is_queue) != (DEAD_MESSAGE_QUEUE, True):
            raise Refusal(codes.ERROR, f"names '{name}', which is the broker's own")
        if is_temporary != name.startswith(TEMPORARY):
            raise Refusal(codes.BAD_REQUEST, f"names '{name}', which is of another kind")
        if is_temporary and request.packet_type != _CREATE:
            raise Refusal(codes.NOT_FOUND, f"names '{name}', which is not there", is_notable=False)
        if len(self.router.destinations) >= self.limits.max_destinations:
            count = len(self.router.destinations)
            raise Refusal(codes.FULL, f"there are {count} destinations, no more are made")
        destination = Destination(name, is_queue, link if is_temporary else None)
        self.router.destinations[destination.key] = destination
        if is_temporary:
            link.temporary[destination.key] = destination
        return destination

    def create_destination(self, link: Connection, request: Request) -> None:
        """CREATE_DESTINATION."""
        name, is_queue = self._named(request)
        if is_queue or not has_wildcard(name):
            destination = self._destination(link, request)
            is_queue = destination.is_queue
        kind = (QUEUE if is_queue else TOPIC) | (
            _TEMPORARY_BIT if name.startswith(TEMPORARY) else 0
        )
        properties = {
            "JMQDestType": kind,
            "JMQDestUID": name,
            "JMQValidateXMLSchema": False,
            "JMQReloadXMLSchemaOnFailure": False,
        }
        accept(link, request, properties)

    def verify_destination(self, link: Connection, request: Request) -> None:
        """VERIFY_DESTINATION."""
        selector_of(request)
        destination = self.existing(request)
        kind = QUEUE if destination.is_queue else TOPIC
        is_temporary = destination.owner is not None
        bit = _TEMPORARY_BIT if is_temporary else _AUTO_CREATED
        accept(link, request, {"JMQDestType": kind | bit})

    def destroy_destination(self, link: Connection, request: Request) -> None:
        """DESTROY_DESTINATION: a temporary one of its own."""
        name, is_queue = self._named(request)
        found = self.router.destinations.get((is_queue, name))
        if found is not None and found.owner is not link:
            raise Refusal(
                codes.FORBIDDEN, f"may not destroy '{name}', only temporary ones of its own"
            )
        if found is not None:
            del link.temporary[found.key]
            self.remove(found)
        accept(link, request)

    def remove(self, destination: Destination) -> None:
        """Remove a destination, with its messages and consumers."""
        destination.is_gone = True
        self.router.destinations.pop(destination.key, None)
        backlogs: list[Backlog] = []
        if destination.backlog is not None:
            backlogs.append(destination.backlog)
        else:
            backlogs += [one for one in self.router.subscriptions if one.topic == destination.name]
        for backlog in backlogs:
            for consumer in list(backlog.consumers):
                self.close(consumer)
            for copy in list(backlog.copies.values()):
                self.router.forget(copy)

    def check_room(self, link: Connection, parts: Mapping[int, object], shown: str) -> None:
        """Refuse what is over the limit of a connection."""
        if len(parts) >= self.limits.max_parts:
            raise Refusal(codes.FULL, f"has {len(parts)} {shown}, no more are made")

    def check_access(self, link: Connection, name: str, is_queue: bool, *, writes: bool) -> None:
        """Refuse what the list of access does not allow."""
        access = self.router.settings.access
        if access is None or name.startswith(TEMPORARY):
            return
        may = access.may_write if writes else access.may_read
        if not may(link.user, link.client_id or "", access_name(name, is_queue)):
            doing = "send to" if writes else "receive from"
            raise Refusal(codes.FORBIDDEN, f"may not {doing} '{name}'")

    def add_producer(self, link: Connection, request: Request) -> None:
        """ADD_PRODUCER."""
        self.check_room(link, link.producers, "producers")
        name, is_queue = self._named(request)
        if not is_queue and has_wildcard(name):
            raise Refusal(
                codes.NOT_IMPLEMENTED, f"sends to '{name}': no producer has a wildcard here"
            )
        self.check_access(link, name, is_queue, writes=True)
        producer = Producer(self._next_id(), link, self._destination(link, request))
        link.producers[producer.id] = producer
        credit = self.router.credit(producer.destination)
        if not credit:
            producer.destination.blocked.append(producer)
        properties = {
            "JMQProducerID": producer.id,
            "JMQDestinationID": producer.destination.id,
            "JMQSize": credit,
            "JMQBytes": -1 if credit else 0,
        }
        accept(link, request, properties)

    def delete_producer(self, link: Connection, request: Request) -> None:
        """DELETE_PRODUCER."""
        producer = link.producers.pop(request.get("JMQProducerID", int, 0), None)
        if producer is None:
            raise Refusal(codes.NOT_FOUND, "deletes a producer that it does not have")
        stop_waiting(producer)
        accept(link, request)

    def add_consumer(self, link: Connection, request: Request) -> None:
        """ADD_CONSUMER."""
        self.check_room(link, link.consumers, "consumers")
        session = session_of(link, request)
        name, is_queue = self._named(request)
        self.check_access(link, name, is_queue, writes=False)
        selector = selector_of(request)
        size = max(request.get("JMQSize", int, 0), 0)
        backlog: Backlog
        if is_queue:
            destination = self._destination(link, request)
            _check_owner(link, destination)
            assert destination.backlog is not None
            backlog = destination.backlog
        else:
            if not has_wildcard(name):
                _check_owner(link, self._destination(link, request))
            backlog = self._subscription(link, request, name, selector)
            selector = None
            if backlog.is_shared:
                most = self.limits.shared_prefetch
                size = min(size, most) if size else most
        ack_mode = request.get("JMQAckMode", int, session.ack_mode)
        acknowledges = ack_mode != NO_ACKNOWLEDGE
        consumer = Consumer(self._next_id(), session, backlog, selector, size, acknowledges)
        link.consumers[consumer.id] = consumer
        backlog.consumers.append(consumer)
        accept(link, request, {"JMQConsumerID": consumer.id, "JMQSize": size})
        self.router.feed(consumer)

    def _subscription(
        self, link: Connection, request: Request, topic: str, selector: Selector | None
    ) -> Subscription:
        """Return the subscription of a consumer of a topic; make it if it is not there."""
        durable = request.get("JMQDurableName", str)
        is_shared = request.get("JMQJMSShare", bool, False)
        shared = request.get("JMQSharedSubscriptionName", str) if is_shared else None
        no_local = request.get("JMQNoLocal", bool, False)
        key = None
        if durable is not None:
            if link.client_id is None and not is_shared:
                raise Refusal(
                    codes.NO_CLIENT_ID, "wants a durable subscription without a client id"
                )
            key = (link.client_id, durable, True)
        elif shared is not None:
            key = (link.client_id, shared, False)
        found = None if key is None else self.router.named.get(key)
        if found is not None:
            is_same = (found.topic, found.selector, found.no_local, found.is_shared) == (
                topic, selector, no_local, is_shared,
            )  # fmt: skip
            if found.is_shared != is_shared or (found.consumers and not (is_same and is_shared)):
                raise Refusal(
                    codes.CONFLICT, f"wants the subscription {found.name}, which is in use"
                )
            if is_same:
                return found
            self.router.remove_subscription(found)
        if len(self.router.subscriptions) >= self.limits.max_subscriptions:
            count = len(self.router.subscriptions)
            raise Refusal(codes.FULL, f"there are {count} subscriptions, no more are made")
        made = Subscription(topic, key, is_shared, selector, no_local, link.origin)
        self.router.add_subscription(made)
        return made

    def delete_consumer(self, link: Connection, request: Request) -> None:
        """DELETE_CONSUMER: of a consumer, or of a durable subscription."""
        number = request.get("JMQConsumerID", int)
        if number is None:
            self._unsubscribe(link, request)
            return
        consumer = link.consumers.get(number)
        if consumer is None or consumer.is_closed:
            raise Refusal(codes.NOT_FOUND, "deletes a consumer that it does not have")
        self.close(consumer)
        last = request.body if request.get("JMQBodyType", int) == _LAST_SEEN else b""
        if request.get("JMQLastDeliveredIDInTransaction", bool, False):
            last = b""  # what was seen in a transaction is acknowledged in it
        copies = list(consumer.held.values())
        event = "close_unheld"
        if last in consumer.held:
            event = "close_unseen"
            copies = copies[copies.index(consumer.held[last]) + 1 :]
        unseen = [copy for copy in copies if copy.advance(event)]
        self.router.give_back(unseen + consumer.returned, seen=False)
        consumer.returned = []
        forget_if_empty(link, consumer)
        accept(link, request, {"JMQConsumerID": number})

    def _unsubscribe(self, link: Connection, request: Request) -> None:
        name = request.get("JMQDurableName", str, "")
        found = self.router.named.get((link.client_id, name, True))
        if found is None:
            raise Refusal(codes.NOT_FOUND, f"has no durable subscription '{name}'")
        if found.consumers:
            raise Refusal(codes.CONFLICT, f"unsubscribes '{name}', which is in use")
        self.router.remove_subscription(found)
        accept(link, request)

    def close(self, consumer: Consumer) -> None:
        """Let a consumer get no more messages; end a subscription that only it had."""
        if consumer.is_closed:
            return
        consumer.is_closed = True
        backlog = consumer.backlog
        backlog.leave(consumer)
        if isinstance(backlog, Subscription) and not backlog.is_durable and not backlog.consumers:
            self.router.remove_subscription(backlog)


def session_of(link: Connection, request: Request) -> Session:
    """Return the session that a request names."""
    session = link.sessions.get(request.get("JMQSessionID", int, 0))
    if session is None:
        raise Refusal(codes.NOT_FOUND, "names a session that it does not have")
    return session


def selector_of(request: Request) -> Selector | None:
    """Return the selector of a request."""
    text = request.get("JMQSelector", str)
    if text is None or not text.strip():
        return None
    try:
        return Selector.of(text)
    except SelectorError as error:
        raise Refusal(codes.BAD_REQUEST, f"Unable to parse selector: {error}") from None


def _check_owner(link: Connection, destination: Destination) -> None:
    if destination.owner not in (None, link):
        raise Refusal(
            codes.FORBIDDEN, f"may not receive from {destination.id} of another connection"
        )


def stop_waiting(producer: Producer) -> None:
    """Let a producer wait for room no longer."""
    if producer in producer.destination.blocked:
        producer.destination.blocked.remove(producer)


def forget_if_empty(link: Connection, consumer: Consumer) -> None:
    """Remove a consumer that is closed, once it holds nothing."""
    if consumer.is_closed and not consumer.held:
        link.consumers.pop(consumer.id, None)
