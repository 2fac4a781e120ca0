"""What each request of a client does.

A handler does what is asked, and answers by `_accept` where the client waits; it raises `Refusal`
for what it does not do. Messages that follow from a request are sent behind its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

from wireyard.broker.jmq.answers import Refusal, accept
from wireyard.broker.jmq.connections import Connection, Consumer, Producer, Session
from wireyard.broker.jmq.destinations import (
    Backlog,
    Copy,
    Destination,
    Subscription,
    has_wildcard,
)
from wireyard.broker.jmq.names import access_name, is_name
from wireyard.broker.jmq.routing import Router
from wireyard.broker.jmq.selector import Selector, SelectorError
from wireyard.broker.jmq.transactions import Transactions
from wireyard.endpoints.jmq import Message, Request
from wireyard.endpoints.jmq.codes import (
    BAD_REQUEST,
    CONFLICT,
    ERROR,
    FORBIDDEN,
    FULL,
    GONE,
    NO_CLIENT_ID,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    NOT_MODIFIED,
)
from wireyard.endpoints.jmq.packets import blocks_of, keys_of
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq_names import PACKET_TYPES
from wireyard.layers.jmq.rules import (
    DEAD,
    DEAD_MESSAGE_QUEUE,
    EXPIRED,
    NO_ACKNOWLEDGE,
    OK,
    TEMPORARY,
    UNDELIVERABLE,
)

__all__ = ["Requests"]

_FLAG_A, _FLAG_C, _FLAG_F = FLAGS["A"], FLAGS["C"], FLAGS["F"]
_QUEUE, _TOPIC, _TEMPORARY_BIT, _AUTO_CREATED = 1, 2, 0x10, 0x20
_LAST_SEEN: Final = 3
"""JMQBodyType of a DELETE_CONSUMER whose body is the id of the last message seen."""
_RESERVED: Final = "mq."
_MAX_UIDS: Final = 1000


class Requests:
    """The requests of all connections.

    Parameters
    ----------
    router
        Where messages go.
    """

    def __init__(self, router: Router) -> None:
        self.router, self.limits = router, router.limits
        # Ids of an earlier run are not used again: prepared transactions may be known by them.
        self._ids = count(int(time.time() * 1000) << 12)
        self.transactions = Transactions(router, self.next_id)
        self._client_ids: dict[str, int] = {}
        """How many connections have a client id."""
        self._handlers: dict[int, Callable[[Connection, Request], None]] = {
            14: self._add_consumer,
            16: self._delete_consumer,
            18: self._add_producer,
            20: self._start,
            22: self._stop,
            24: self._acknowledge,
            26: self._browse,
            32: self._redeliver,
            34: self._create_destination,
            36: self._destroy_destination,
            40: self._verify_destination,
            42: self._deliver,
            44: self.transactions.start,
            46: self.transactions.commit,
            48: self.transactions.roll_back,
            50: self._set_client_id,
            52: self._resume_flow,
            56: self.transactions.prepare,
            58: self.transactions.end,
            60: self.transactions.recover,
            62: self._generate_ids,
            64: lambda link, request: None,  # FLOW_PAUSED only informs
            66: self._delete_producer,
            68: self._create_session,
            70: self._destroy_session,
            76: accept,  # GET_LICENSE
        }

    def next_id(self) -> int:
        """Return an id that nothing has."""
        return next(self._ids)

    def answer(self, link: Connection, request: Request) -> None:
        """Do what a request asks for; refuse what is not implemented, if the client waits."""
        handler = self._handlers.get(request.packet_type)
        try:
            if handler is None:
                name = PACKET_TYPES.get(request.packet_type, f"type {request.packet_type}")
                raise Refusal(NOT_IMPLEMENTED, f"{name} is not implemented")
            handler(link, request)
        except Refusal as refusal:
            if refusal.is_notable:
                self.router.say(f"{link.shown}: {refusal.text} [{refusal.status}]")
            if request.wants_reply:
                link.endpoint.reply(
                    request.packet_type, request.id, refusal.status, refusal.text,
                    refusal.properties,
                )  # fmt: skip

    # --- messages -------------------------------------------------------------------------

    def send(self, link: Connection, message: Message) -> None:
        """Pass a message of a producer on, or keep it for its transaction."""
        producer = link.producers.get(message.items.get("producer_id", 0))
        try:
            status = self._send(link, message, producer)
        except Refusal as refusal:
            status = refusal.status
            self.router.say(f"{link.shown}: {refusal.text} [{status}]")
        if message.flags & _FLAG_A:
            link.endpoint.reply(message.packet_type, message.id, status)
        if message.flags & _FLAG_C and producer is not None:
            self.router.resume(producer)
        if message.flags & _FLAG_F:
            link.endpoint.resume({"JMQSize": self.limits.connection_credit, "JMQBytes": -1})

    def _send(self, link: Connection, message: Message, producer: Producer | None) -> int:
        if producer is not None:
            destination = producer.destination
        else:
            name = message.destination or ""
            found = self.router.destinations.get((message.is_queue, name))
            if found is None:
                raise Refusal(ERROR, f"sends to '{name}', which there is not")
            self._check_access(link, name, message.is_queue, writes=True)
            destination = found
        if destination.is_gone:
            raise Refusal(ERROR, f"sends to {destination.id}, which there is no longer")
        message.origin = link.origin
        backlog = destination.backlog
        if backlog is not None and message.key in backlog.copies:
            return NOT_MODIFIED
        number = message.items.get("transaction_id")
        if number:
            return self.transactions.send(number, message, destination)
        return self.router.publish(message, destination)

    def _acknowledge(self, link: Connection, request: Request) -> None:
        blocks = blocks_of(request.body)
        if blocks is None:
            raise Refusal(BAD_REQUEST, "acknowledges by a body that is no list of messages")
        transaction = None
        if request.transaction_id:
            transaction = self.transactions.to_acknowledge(request.transaction_id)
        event = _acknowledge_event(request, transaction is not None)
        status, unknown = OK, 0
        for consumer_id, key in blocks:
            consumer = link.consumers.get(consumer_id)
            copy = None if consumer is None else consumer.held.get(key)
            if consumer is None:
                status = NOT_FOUND
            elif copy is None or not copy.advance(event):
                status = CONFLICT if transaction is None else GONE
            else:
                copy.advance("confirmed")
                self._settle(link, copy, consumer, request, transaction)
                continue
            unknown += 1
        if unknown:
            if transaction is not None:
                transaction.has_failed = True
            raise Refusal(status, f"acknowledges {unknown} messages that it does not hold")
        accept(link, request)

    def _settle(
        self,
        link: Connection,
        copy: Copy,
        consumer: Consumer,
        request: Request,
        transaction: Any,
    ) -> None:
        """Do what follows from an acknowledgement, by the state that it led to."""
        if copy.state == "in_transaction":
            copy.transaction = transaction
            transaction.acknowledged[copy] = None
        elif copy.state == "acknowledged":
            self.router.forget(copy)
        elif copy.state == "returned_seen":
            to = None if consumer.is_closed else consumer
            self.router.give_back([copy], seen=True, to=to)
        else:
            reason = "EXPIRED" if copy.state == "expired" else "UNDELIVERABLE"
            self.router.bury(copy, reason, request.get("JMQComment", str))
        _forget_if_empty(link, consumer)

    def _redeliver(self, link: Connection, request: Request) -> None:
        seen = request.get("JMQSetRedelivered", bool, False)
        by_consumer: dict[Consumer, list[Copy]] = {}
        for consumer_id, key in blocks_of(request.body) or ():
            consumer = link.consumers.get(consumer_id)
            copy = None if consumer is None else consumer.held.get(key)
            if consumer is not None and copy is not None:
                self.transactions.withdraw(copy)
                by_consumer.setdefault(consumer, []).append(copy)
        for consumer, copies in by_consumer.items():
            to = None if consumer.is_closed else consumer
            self.router.give_back(copies, seen=seen, to=to)
            _forget_if_empty(link, consumer)

    def _browse(self, link: Connection, request: Request) -> None:
        destination = self._existing(request)
        if destination.backlog is None:
            raise Refusal(BAD_REQUEST, f"browses {destination.id}, which is no queue")
        self._check_access(link, destination.name, True, writes=False)
        selector = _selector_of(request)
        keys = [
            copy.message.key
            for copy in destination.backlog.sorted()
            if selector is None or selector.matches(copy.message.values())
        ]
        browser = self.next_id()
        if keys:
            self._check_room(link, link.browsers, "browsers")
            link.browsers[browser] = destination
        accept(link, request, {"JMQConsumerID": browser}, b"".join(keys))

    def _deliver(self, link: Connection, request: Request) -> None:
        destination = link.browsers.get(request.get("JMQConsumerID", int, 0))
        backlog = None if destination is None else destination.backlog
        keys = keys_of(request.body)
        if backlog is None or keys is None:
            raise Refusal(NOT_FOUND, "wants messages that no browser found")
        found = [backlog.copies[key].message for key in keys if key in backlog.copies]
        if not found:
            raise Refusal(NOT_FOUND, "no message is there any longer", is_notable=False)
        accept(link, request)
        most = self.router.settings.max_unsent_bytes
        shown, size = 0, 0
        for message in found:
            size += message.size
            shown += 1
            if size > most:
                break
        if shown < len(found):
            text = f"a browser gets {shown} of {len(found)} messages, over {most} bytes at once"
            self.router.say(f"{link.shown}: {text}")
        for place, message in enumerate(found[:shown], 1):
            link.endpoint.show(message, request.properties["JMQConsumerID"], place == shown)

    def _resume_flow(self, link: Connection, request: Request) -> None:
        number = request.get("JMQConsumerID", int)
        if number is None:
            link.flow.resume(request.get("JMQRBufferSize", int, link.buffer_size))
            self.router.feed_all(link)
            return
        consumer = link.consumers.get(number)
        if consumer is not None:
            consumer.flow.resume(request.get("JMQSize", int, 0))
            self.router.feed(consumer)

    # --- sessions -------------------------------------------------------------------------

    def _set_client_id(self, link: Connection, request: Request) -> None:
        wanted = request.get("JMQClientID", str)
        if wanted is not None and not (
            wanted.isprintable() and len(wanted) <= self.limits.max_name
        ):
            raise Refusal(BAD_REQUEST, "wants a client id that is no name")
        is_shared = request.get("JMQShare", bool, False)
        if wanted != link.client_id and wanted in self._client_ids and not is_shared:
            raise Refusal(CONFLICT, f"wants the client id {wanted}, which is in use")
        self._free_client_id(link)
        if wanted is not None:
            self._client_ids[wanted] = self._client_ids.get(wanted, 0) + 1
        link.client_id = wanted
        accept(link, request)

    def _free_client_id(self, link: Connection) -> None:
        if link.client_id is not None:
            self._client_ids[link.client_id] -= 1
            if not self._client_ids[link.client_id]:
                del self._client_ids[link.client_id]

    def _create_session(self, link: Connection, request: Request) -> None:
        ack_mode = request.get("JMQAckMode", int)
        if not Session.is_mode(ack_mode):
            raise Refusal(BAD_REQUEST, f"wants the acknowledge mode {ack_mode}, which there is not")
        self._check_room(link, link.sessions, "sessions")
        number = self.next_id()
        link.sessions[number] = Session(number, link, ack_mode)
        accept(link, request, {"JMQSessionID": number})

    def _destroy_session(self, link: Connection, request: Request) -> None:
        session = self._session_of(link, request)
        del link.sessions[session.id]
        self._end_session(link, session)
        accept(link, request)

    def _session_of(self, link: Connection, request: Request) -> Session:
        session = link.sessions.get(request.get("JMQSessionID", int, 0))
        if session is None:
            raise Refusal(NOT_FOUND, "names a session that it does not have")
        return session

    def _start(self, link: Connection, request: Request) -> None:
        if "JMQSessionID" in request.properties:
            self._session_of(link, request).is_stopped = False
        else:
            link.is_started = True
        accept(link, request)
        self.router.feed_all(link)

    def _stop(self, link: Connection, request: Request) -> None:
        if "JMQSessionID" in request.properties:
            self._session_of(link, request).is_stopped = True
        else:
            link.is_started = False
        accept(link, request)

    def _end_session(self, link: Connection, session: Session | None) -> None:
        """End a session, or all of a connection: what it holds is delivered again."""
        consumers = list(link.consumers_of(session))
        # All are closed first, or one would get what another one gives back.
        for consumer in consumers:
            self._close(consumer)
            consumer.session.is_over = True
        held: list[Copy] = []
        for consumer in consumers:
            held += [copy for copy in consumer.held.values() if copy.transaction is None]
            self.router.give_back(consumer.returned, seen=False)
            consumer.returned = []
            link.consumers.pop(consumer.id, None)
        self.router.give_back(held, seen=True)

    def leave(self, link: Connection) -> None:
        """Take note that a connection has ended."""
        for consumer in link.consumers_of(None):
            self._close(consumer)
        self.transactions.leave(link)
        self._end_session(link, None)
        for producer in link.producers.values():
            _stop_waiting(producer)
        for destination in link.temporary.values():
            self._remove(destination)
        self._free_client_id(link)
        link.sessions.clear()
        link.producers.clear()
        link.temporary.clear()

    # --- destinations ---------------------------------------------------------------------

    def _named(self, request: Request) -> tuple[str, bool]:
        """Return the name of the destination of a request, and whether it is a queue."""
        name, kind = request.get("JMQDestination", str), request.get("JMQDestType", int, 0)
        if name is None or not is_name(name, self.limits.max_name):
            raise Refusal(BAD_REQUEST, "names no destination, or one by no name")
        return name, bool(kind & _QUEUE) or (not kind & _TOPIC and "://queue/" in name)

    def _existing(self, request: Request) -> Destination:
        name, is_queue = self._named(request)
        destination = self.router.destinations.get((is_queue, name))
        if destination is None:
            raise Refusal(
                NOT_FOUND, f"'{name}' is not there", {"JMQCanCreate": True}, is_notable=False
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
            raise Refusal(ERROR, f"names '{name}', which is the broker's own")
        if is_temporary != name.startswith(TEMPORARY):
            raise Refusal(BAD_REQUEST, f"names '{name}', which is of another kind")
        if is_temporary and request.packet_type != 34:
            raise Refusal(NOT_FOUND, f"names '{name}', which is not there", is_notable=False)
        if len(self.router.destinations) >= self.limits.max_destinations:
            count = len(self.router.destinations)
            raise Refusal(FULL, f"there are {count} destinations, no more are made")
        destination = Destination(name, is_queue, link if is_temporary else None)
        self.router.destinations[destination.key] = destination
        if is_temporary:
            link.temporary[destination.key] = destination
        return destination

    def _create_destination(self, link: Connection, request: Request) -> None:
        name, is_queue = self._named(request)
        if is_queue or not has_wildcard(name):
            destination = self._destination(link, request)
            is_queue = destination.is_queue
        kind = (_QUEUE if is_queue else _TOPIC) | (
            _TEMPORARY_BIT if name.startswith(TEMPORARY) else 0
        )
        properties = {
            "JMQDestType": kind,
            "JMQDestUID": name,
            "JMQValidateXMLSchema": False,
            "JMQReloadXMLSchemaOnFailure": False,
        }
        accept(link, request, properties)

    def _verify_destination(self, link: Connection, request: Request) -> None:
        _selector_of(request)
        destination = self._existing(request)
        kind = _QUEUE if destination.is_queue else _TOPIC
        is_temporary = destination.owner is not None
        bit = _TEMPORARY_BIT if is_temporary else _AUTO_CREATED
        accept(link, request, {"JMQDestType": kind | bit})

    def _destroy_destination(self, link: Connection, request: Request) -> None:
        name, is_queue = self._named(request)
        found = self.router.destinations.get((is_queue, name))
        if found is not None and found.owner is not link:
            raise Refusal(FORBIDDEN, f"may not destroy '{name}', only temporary ones of its own")
        if found is not None:
            del link.temporary[found.key]
            self._remove(found)
        accept(link, request)

    def _remove(self, destination: Destination) -> None:
        destination.is_gone = True
        self.router.destinations.pop(destination.key, None)
        backlogs: list[Backlog] = []
        if destination.backlog is not None:
            backlogs.append(destination.backlog)
        else:
            backlogs += [one for one in self.router.subscriptions if one.topic == destination.name]
        for backlog in backlogs:
            for consumer in list(backlog.consumers):
                self._close(consumer)
            for copy in list(backlog.copies.values()):
                self.router.forget(copy)

    # --- producers and consumers ----------------------------------------------------------

    def _check_room(self, link: Connection, parts: Mapping[int, object], shown: str) -> None:
        if len(parts) >= self.limits.max_parts:
            raise Refusal(FULL, f"has {len(parts)} {shown}, no more are made")

    def _check_access(self, link: Connection, name: str, is_queue: bool, *, writes: bool) -> None:
        access = self.router.settings.access
        if access is None or name.startswith(TEMPORARY):
            return
        may = access.may_write if writes else access.may_read
        if not may(link.user, link.client_id or "", access_name(name, is_queue)):
            doing = "send to" if writes else "receive from"
            raise Refusal(FORBIDDEN, f"may not {doing} '{name}'")

    def _add_producer(self, link: Connection, request: Request) -> None:
        self._check_room(link, link.producers, "producers")
        name, is_queue = self._named(request)
        if not is_queue and has_wildcard(name):
            raise Refusal(NOT_IMPLEMENTED, f"sends to '{name}': no producer has a wildcard here")
        self._check_access(link, name, is_queue, writes=True)
        producer = Producer(self.next_id(), link, self._destination(link, request))
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

    def _delete_producer(self, link: Connection, request: Request) -> None:
        producer = link.producers.pop(request.get("JMQProducerID", int, 0), None)
        if producer is None:
            raise Refusal(NOT_FOUND, "deletes a producer that it does not have")
        _stop_waiting(producer)
        accept(link, request)

    def _add_consumer(self, link: Connection, request: Request) -> None:
        self._check_room(link, link.consumers, "consumers")
        session = self._session_of(link, request)
        name, is_queue = self._named(request)
        self._check_access(link, name, is_queue, writes=False)
        selector = _selector_of(request)
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
        consumer = Consumer(self.next_id(), session, backlog, selector, size, acknowledges)
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
                raise Refusal(NO_CLIENT_ID, "wants a durable subscription without a client id")
            key = (link.client_id, durable, True)
        elif shared is not None:
            key = (link.client_id, shared, False)
        found = None if key is None else self.router.named.get(key)
        if found is not None:
            is_same = (found.topic, found.selector, found.no_local, found.is_shared) == (
                topic, selector, no_local, is_shared,
            )  # fmt: skip
            if found.consumers and not (is_same and is_shared):
                raise Refusal(CONFLICT, f"wants the subscription {found.name}, which is in use")
            if is_same:
                return found
            self.router.remove_subscription(found)
        if len(self.router.subscriptions) >= self.limits.max_subscriptions:
            count = len(self.router.subscriptions)
            raise Refusal(FULL, f"there are {count} subscriptions, no more are made")
        made = Subscription(topic, key, is_shared, selector, no_local, link.origin)
        self.router.add_subscription(made)
        return made

    def _delete_consumer(self, link: Connection, request: Request) -> None:
        number = request.get("JMQConsumerID", int)
        if number is None:
            self._unsubscribe(link, request)
            return
        consumer = link.consumers.get(number)
        if consumer is None or consumer.is_closed:
            raise Refusal(NOT_FOUND, "deletes a consumer that it does not have")
        self._close(consumer)
        last = request.body if request.get("JMQBodyType", int) == _LAST_SEEN else b""
        copies = list(consumer.held.values())
        event = "close_unheld"
        if last in consumer.held:
            event = "close_unseen"
            copies = copies[copies.index(consumer.held[last]) + 1 :]
        unseen = [copy for copy in copies if copy.advance(event)]
        self.router.give_back(unseen + consumer.returned, seen=False)
        consumer.returned = []
        _forget_if_empty(link, consumer)
        accept(link, request, {"JMQConsumerID": number})

    def _unsubscribe(self, link: Connection, request: Request) -> None:
        name = request.get("JMQDurableName", str, "")
        found = self.router.named.get((link.client_id, name, True))
        if found is None:
            raise Refusal(NOT_FOUND, f"has no durable subscription '{name}'")
        if found.consumers:
            raise Refusal(CONFLICT, f"unsubscribes '{name}', which is in use")
        self.router.remove_subscription(found)
        accept(link, request)

    def _close(self, consumer: Consumer) -> None:
        """Let a consumer get no more messages; end a subscription that only it had."""
        if consumer.is_closed:
            return
        consumer.is_closed = True
        backlog = consumer.backlog
        backlog.leave(consumer)
        if isinstance(backlog, Subscription) and not backlog.is_durable and not backlog.consumers:
            self.router.remove_subscription(backlog)

    def _generate_ids(self, link: Connection, request: Request) -> None:
        quantity = min(max(request.get("JMQQuantity", int, 1), 1), _MAX_UIDS)
        body = b"".join(self.next_id().to_bytes(8, "big") for _ in range(quantity))
        accept(link, request, {"JMQQuantity": quantity}, body)


def _acknowledge_event(request: Request, is_transacted: bool) -> str:
    kind = request.get("JMQAckType", int)
    if kind is None:
        return "acknowledge_in_transaction" if is_transacted else "acknowledge"
    if kind == UNDELIVERABLE:
        return "decline"
    if kind == DEAD:
        return "expire" if request.get("JMQDeadReason", int) == EXPIRED else "bury"
    raise Refusal(BAD_REQUEST, f"acknowledges by the type {kind}, which there is not")


def _selector_of(request: Request) -> Selector | None:
    text = request.get("JMQSelector", str)
    if text is None or not text.strip():
        return None
    try:
        return Selector.of(text)
    except SelectorError as error:
        raise Refusal(BAD_REQUEST, f"Unable to parse selector: {error}") from None


def _check_owner(link: Connection, destination: Destination) -> None:
    if destination.owner not in (None, link):
        raise Refusal(FORBIDDEN, f"may not receive from {destination.id} of another connection")


def _stop_waiting(producer: Producer) -> None:
    if producer in producer.destination.blocked:
        producer.destination.blocked.remove(producer)


def _forget_if_empty(link: Connection, consumer: Consumer) -> None:
    if consumer.is_closed and not consumer.held:
        link.consumers.pop(consumer.id, None)
