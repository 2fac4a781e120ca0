"""What becomes of messages: sent, acknowledged, given back, looked at."""

from __future__ import annotations

from collections.abc import Callable

from wireyard.broker.jmq.answers import Refusal, accept
from wireyard.broker.jmq.connections import Connection, Consumer, Producer
from wireyard.broker.jmq.destinations import Copy
from wireyard.broker.jmq.parts import Parts, forget_if_empty, selector_of
from wireyard.broker.jmq.transactions import Transaction, Transactions
from wireyard.endpoints.jmq import Message, Request
from wireyard.endpoints.jmq.codes import (
    BAD_REQUEST,
    CONFLICT,
    ERROR,
    GONE,
    NOT_FOUND,
    NOT_MODIFIED,
)
from wireyard.endpoints.jmq.packets import blocks_of, keys_of
from wireyard.formats.jmq.layout import FLAGS
from wireyard.layers.jmq.rules import DEAD, EXPIRED, OK, UNDELIVERABLE

_FLAG_A, _FLAG_C, _FLAG_F = FLAGS["A"], FLAGS["C"], FLAGS["F"]


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
                raise Refusal(ERROR, f"sends to '{name}', which there is not")
            self._parts.check_access(link, name, message.is_queue, writes=True)
            destination = found
        if destination.is_gone:
            raise Refusal(ERROR, f"sends to {destination.id}, which there is no longer")
        message.origin = link.origin
        backlog = destination.backlog
        if backlog is not None and message.key in backlog.copies:
            return NOT_MODIFIED
        number = message.items.get("transaction_id")
        if number:
            return self._transactions.send(number, message, destination)
        return self.router.publish(message, destination)

    def acknowledge(self, link: Connection, request: Request) -> None:
        """ACKNOWLEDGE: end deliveries, now or with a transaction."""
        blocks = blocks_of(request.body)
        if blocks is None:
            raise Refusal(BAD_REQUEST, "acknowledges by a body that is no list of messages")
        transaction = None
        if request.transaction_id:
            transaction = self._transactions.to_acknowledge(request.transaction_id)
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
            raise Refusal(BAD_REQUEST, f"browses {destination.id}, which is no queue")
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
    raise Refusal(BAD_REQUEST, f"acknowledges by the type {kind}, which there is not")
