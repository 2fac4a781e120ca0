"""Requests and messages of clients: each is done by a handler, and answered.

A handler does what is asked, and answers by `accept` where the client waits; it raises `Refusal`
for what it does not do. Messages that follow from a request are sent behind its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Final

from wireyard.broker.jmq.connections import (
    Connection,
    Consumer,
    Producer,
    Refusal,
    Session,
    accept,
)
from wireyard.broker.jmq.destinations import Copy
from wireyard.broker.jmq.parts import Parts, forget_if_empty, selector_of, session_of, stop_waiting
from wireyard.broker.jmq.routing import Router
from wireyard.broker.jmq.transactions import Transaction, Transactions
from wireyard.endpoints.jmq import Message, Request, codes
from wireyard.endpoints.jmq.packets import blocks_of, keys_of
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq_names import PACKET_TYPES
from wireyard.layers.jmq.rules import DEAD, EXPIRED, OK, UNDELIVERABLE

_FLAG_A, _FLAG_C, _FLAG_F = FLAGS["A"], FLAGS["C"], FLAGS["F"]
_MAX_UIDS: Final = 1000


class Requests:
    """The requests of all connections; those about sessions are done here."""

    def __init__(self, router: Router) -> None:
        self.router, self.limits = router, router.limits
        # Ids of an earlier run are not used again: a transaction may be known by its own.
        self._ids = count(int(time.time() * 1000) << 12)
        self.transactions = Transactions(router, self.next_id)
        self._parts = parts = Parts(router, self.next_id)
        self.messages = messages = Messages(parts, self.transactions, self.next_id)
        self._client_ids: dict[str, int] = {}
        """How many connections have a client id."""
        self._handlers: dict[str, Callable[[Connection, Request], None]] = {
            "ADD_CONSUMER": parts.add_consumer,
            "DELETE_CONSUMER": parts.delete_consumer,
            "ADD_PRODUCER": parts.add_producer,
            "START": self._start,
            "STOP": self._stop,
            "ACKNOWLEDGE": messages.acknowledge,
            "BROWSE": messages.browse,
            "REDELIVER": messages.redeliver,
            "CREATE_DESTINATION": parts.create_destination,
            "DESTROY_DESTINATION": parts.destroy_destination,
            "VERIFY_DESTINATION": parts.verify_destination,
            "DELIVER": messages.deliver,
            "START_TRANSACTION": self.transactions.start,
            "COMMIT_TRANSACTION": self.transactions.commit,
            "ROLLBACK_TRANSACTION": self.transactions.roll_back,
            "SET_CLIENTID": self._set_client_id,
            "RESUME_FLOW": messages.resume_flow,
            "PREPARE_TRANSACTION": self.transactions.prepare,
            "END_TRANSACTION": self.transactions.end,
            "RECOVER_TRANSACTION": self.transactions.recover,
            "GENERATE_UID": self._generate_ids,
            "FLOW_PAUSED": lambda link, request: None,  # FLOW_PAUSED only informs
            "DELETE_PRODUCER": parts.delete_producer,
            "CREATE_SESSION": self._create_session,
            "DESTROY_SESSION": self._destroy_session,
            "GET_LICENSE": accept,
        }

    def next_id(self) -> int:
        """Return an id that nothing has."""
        return next(self._ids)

    def answer(self, link: Connection, request: Request) -> None:
        """Do what a request asks for; refuse what is not implemented, if the client waits."""
        name = PACKET_TYPES.get(request.packet_type, f"type {request.packet_type}")
        handler = self._handlers.get(name)
        try:
            if handler is None:
                raise Refusal(codes.NOT_IMPLEMENTED, f"{name} is not implemented")
            handler(link, request)
        except Refusal as refusal:
            if refusal.is_notable:
                self.router.say(f"{link.shown}: {refusal.text} [{refusal.status}]")
            if request.wants_reply:
                link.endpoint.reply(
                    request.packet_type, request.id, refusal.status, refusal.text,
                    refusal.properties,
                )  # fmt: skip

    def _set_client_id(self, link: Connection, request: Request) -> None:
        wanted = request.get("JMQClientID", str)
        if wanted is not None and not (
            wanted.isprintable() and len(wanted) <= self.limits.max_name
        ):
            raise Refusal(codes.BAD_REQUEST, "wants a client id that is no name")
        is_shared = request.get("JMQShare", bool, False)
        if wanted != link.client_id and wanted in self._client_ids and not is_shared:
            raise Refusal(codes.CONFLICT, f"wants the client id {wanted}, which is in use")
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
            raise Refusal(
                codes.BAD_REQUEST, f"wants the acknowledge mode {ack_mode}, which there is not"
            )
        self._parts.check_room(link, link.sessions, "sessions")
        number = self.next_id()
        link.sessions[number] = Session(number, link, ack_mode)
        accept(link, request, {"JMQSessionID": number})

    def _destroy_session(self, link: Connection, request: Request) -> None:
        session = session_of(link, request)
        del link.sessions[session.id]
        self._end_session(link, session)
        accept(link, request)

    def _start(self, link: Connection, request: Request) -> None:
        if "JMQSessionID" in request.properties:
            session_of(link, request).is_stopped = False
        else:
            link.is_started = True
        accept(link, request)
        self.router.feed_all(link)

    def _stop(self, link: Connection, request: Request) -> None:
        if "JMQSessionID" in request.properties:
            session_of(link, request).is_stopped = True
        else:
            link.is_started = False
        accept(link, request)

    def _end_session(self, link: Connection, session: Session | None) -> None:
        """End a session, or all of a connection: what it holds is delivered again."""
        consumers = list(link.consumers_of(session))
        # All are closed first, or one would get what another one gives back.
        for consumer in consumers:
            self._parts.close(consumer)
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
            self._parts.close(consumer)
        self.transactions.leave(link)
        self._end_session(link, None)
        for producer in link.producers.values():
            stop_waiting(producer)
        for destination in link.temporary.values():
            self._parts.remove(destination)
        self._free_client_id(link)
        link.sessions.clear()
        link.producers.clear()
        link.temporary.clear()

    def _generate_ids(self, link: Connection, request: Request) -> None:
        quantity = min(max(request.get("JMQQuantity", int, 1), 1), _MAX_UIDS)
        body = b"".join(self.next_id().to_bytes(8, "big") for _ in range(quantity))
        accept(link, request, {"JMQQuantity": quantity}, body)


class Messages:
    """The messages of producers, and the requests about deliveries."""

    def __init__(
        self, parts: Parts, transactions: Transactions, next_id: Callable[[], int]
    ) -> None:
        self._parts, self._transactions, self._next_id = parts, transactions, next_id
        self.router, self.limits = parts.router, parts.limits

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
                raise Refusal(codes.ERROR, f"sends to '{name}', which there is not")
            self._parts.check_access(link, name, message.is_queue, writes=True)
            destination = found
        if destination.is_gone:
            raise Refusal(codes.ERROR, f"sends to {destination.id}, which there is no longer")
        message.origin = link.origin
        backlog = destination.backlog
        if backlog is not None and message.key in backlog.copies:
            return codes.NOT_MODIFIED
        number = message.items.get("transaction_id")
        if number:
            return self._transactions.send(number, message, destination)
        return self.router.publish(message, destination)

    def acknowledge(self, link: Connection, request: Request) -> None:
        """ACKNOWLEDGE: end deliveries, now or with a transaction."""
        blocks = blocks_of(request.body)
        if blocks is None:
            raise Refusal(codes.BAD_REQUEST, "acknowledges by a body that is no list of messages")
        transaction = None
        if request.transaction_id:
            transaction = self._transactions.to_acknowledge(request.transaction_id)
        event = _acknowledge_event(request, transaction is not None)
        status, unknown = OK, 0
        for consumer_id, key in blocks:
            consumer = link.consumers.get(consumer_id)
            copy = None if consumer is None else consumer.held.get(key)
            if consumer is None:
                status = codes.NOT_FOUND
            elif copy is None or not copy.advance(event):
                status = codes.CONFLICT if transaction is None else codes.GONE
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
        transaction: Transaction | None,
    ) -> None:
        """Do what follows from an acknowledgement, by the state that it led to."""
        if transaction is not None and copy.state == "in_transaction":
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
        forget_if_empty(link, consumer)

    def redeliver(self, link: Connection, request: Request) -> None:
        """REDELIVER: give messages back to their consumers."""
        seen = request.get("JMQSetRedelivered", bool, False)
        by_consumer: dict[Consumer, list[Copy]] = {}
        for consumer_id, key in blocks_of(request.body) or ():
            consumer = link.consumers.get(consumer_id)
            copy = None if consumer is None else consumer.held.get(key)
            if consumer is not None and copy is not None:
                self._transactions.withdraw(copy)
                by_consumer.setdefault(consumer, []).append(copy)
        for consumer, copies in by_consumer.items():
            to = None if consumer.is_closed else consumer
            self.router.give_back(copies, seen=seen, to=to)
            forget_if_empty(link, consumer)

    def browse(self, link: Connection, request: Request) -> None:
        """BROWSE: list the messages of a queue."""
        destination = self._parts.existing(request)
        if destination.backlog is None:
            raise Refusal(codes.BAD_REQUEST, f"browses {destination.id}, which is no queue")
        self._parts.check_access(link, destination.name, True, writes=False)
        selector = selector_of(request)
        keys = [
            copy.message.key
            for copy in destination.backlog.sorted()
            if not self.router.is_expired(copy.message)
            and (selector is None or selector.matches(copy.message.values()))
        ]
        browser = self._next_id()
        if keys:
            self._parts.check_room(link, link.browsers, "browsers")
            link.browsers[browser] = destination
        accept(link, request, {"JMQConsumerID": browser}, b"".join(keys))

    def deliver(self, link: Connection, request: Request) -> None:
        """DELIVER: send copies of messages that a browser has found."""
        destination = link.browsers.get(request.get("JMQConsumerID", int, 0))
        backlog = None if destination is None else destination.backlog
        keys = keys_of(request.body)
        if backlog is None or keys is None:
            raise Refusal(codes.NOT_FOUND, "wants messages that no browser found")
        found = [backlog.copies[key].message for key in keys if key in backlog.copies]
        if not found:
            raise Refusal(codes.NOT_FOUND, "no message is there any longer", is_notable=False)
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

    def resume_flow(self, link: Connection, request: Request) -> None:
        """RESUME_FLOW: of a consumer, or of the connection."""
        number = request.get("JMQConsumerID", int)
        if number is None:
            link.flow.resume(request.get("JMQRBufferSize", int, link.buffer_size))
            self.router.feed_all(link)
            return
        consumer = link.consumers.get(number)
        if consumer is not None:
            consumer.flow.resume(request.get("JMQSize", int, 0))
            self.router.feed(consumer)


def _acknowledge_event(request: Request, is_transacted: bool) -> str:
    kind = request.get("JMQAckType", int)
    if kind is None:
        return "acknowledge_in_transaction" if is_transacted else "acknowledge"
    if kind == UNDELIVERABLE:
        return "decline"
    if kind == DEAD:
        return "expire" if request.get("JMQDeadReason", int) == EXPIRED else "bury"
    raise Refusal(codes.BAD_REQUEST, f"acknowledges by the type {kind}, which there is not")
