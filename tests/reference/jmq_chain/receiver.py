"""The receiving half of a connection: consumers, deliveries and acknowledgements."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Final

from tests.reference.jmq_chain.consumers import Consumer, Consumers, MessageId
from tests.reference.jmq_chain.flow import Flow
from tests.reference.jmq_chain.records import Report
from tests.reference.jmq_chain.requests import Requests
from wireyard.formats.jmq.layout import FLAGS, HEADERS, SYS_MESSAGE_ID
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text
from wireyard.layers.endpoints import endpoint
from wireyard.layers.jmq.packet_row import PacketRow, number, properties_of, text
from wireyard.layers.jmq.records import Delivery
from wireyard.layers.jmq.rules import (
    DEAD,
    DEAD_MESSAGE_QUEUE,
    DEAD_REASON,
    EXPIRED,
    NO_ACKNOWLEDGE,
    UNDELIVERABLE,
)
from wireyard.layers.records import Position

__all__ = ["Receiver"]

_REDELIVERED: Final = FLAGS["R"]
_ID: Final = struct.Struct(f">{MESSAGE_ID_CODES}")
_BLOCKS: Final = {
    version: struct.Struct(f">{header['consumer_id'].code}{MESSAGE_ID_CODES}")
    for version, header in HEADERS.items()
}
"""A consumer id, which has the width of the version's header field, and a SysMessageID."""

_MESSAGE_ID: Final = itemgetter(*SYS_MESSAGE_ID)

_Block = tuple[int, MessageId]


class Receiver:
    """The receiving half of a connection.

    Parameters
    ----------
    report
        The output of deliveries.
    requests
        The requests of the client.
    """

    def __init__(self, report: Report, requests: Requests) -> None:
        self._report = report
        self._requests = requests
        self.consumers = Consumers(report.output)
        self.flow = Flow(report)

    # --- consumers --------------------------------------------------------------------------

    def add(self, row: PacketRow, at: Position) -> None:
        """Observe an ADD_CONSUMER."""
        properties = properties_of(row)
        ack_mode = number(properties, "JMQAckMode")
        consumer = Consumer(
            session_id=number(properties, "JMQSessionID"),
            subscription=text(properties, "JMQDurableName")
            or text(properties, "JMQSharedSubscriptionName"),
            initial_state="no_ack_wanted" if ack_mode == NO_ACKNOWLEDGE else "held",
            from_dead_queue=text(properties, "JMQDestination") == DEAD_MESSAGE_QUEUE,
        )
        self._requests.add_request(row, at, partial(self._added, consumer))

    def browse(self, row: PacketRow, at: Position) -> None:
        """Observe a BROWSE: its reply names a consumer that gets copies."""
        self._requests.add_request(row, at, partial(self._added, Consumer(initial_state="browsed")))

    def _added(
        self, consumer: Consumer, reply: PacketRow | None, accepted: bool, at: Position
    ) -> None:
        consumer_id = number(properties_of(reply), "JMQConsumerID") if reply else None
        if accepted and consumer_id is not None:
            self.consumers.add(consumer_id, consumer)

    def delete(self, row: PacketRow, at: Position) -> None:
        """Observe a DELETE_CONSUMER, or an unsubscription, which names no consumer."""
        consumer_id = number(properties_of(row), "JMQConsumerID")
        body = row.get("body") or b""
        last_seen = _ID.unpack(body) if len(body) == _ID.size else None
        self._requests.add_request(row, at, partial(self._deleted, consumer_id, last_seen))

    def _deleted(
        self,
        consumer_id: int | None,
        last_seen: MessageId | None,
        reply: PacketRow | None,
        accepted: bool,
        at: Position,
    ) -> None:
        if accepted and consumer_id is not None:
            self.consumers.delete(consumer_id, last_seen)
            self.flow.end_pause(consumer_id, at)

    def destroy_session(self, row: PacketRow, at: Position) -> None:
        """Observe a DESTROY_SESSION."""
        session_id = number(properties_of(row), "JMQSessionID")
        self._requests.add_request(row, at, partial(self._session_destroyed, session_id))

    def _session_destroyed(
        self, session_id: int | None, reply: PacketRow | None, accepted: bool, at: Position
    ) -> None:
        if accepted and session_id is not None:
            self.consumers.close_session(session_id)

    # --- messages ---------------------------------------------------------------------------

    def deliver(self, row: PacketRow, at: Position) -> None:
        """Observe a message from the broker."""
        consumer_id = row["consumer_id"]
        consumer = self.consumers.get(consumer_id)
        if consumer is None or consumer.deleted:
            self._report.add_violation("unknown_consumer", row, at, row["sys_message_id"])
            if consumer is None:
                # It may be a browser, or never acknowledge.
                consumer = Consumer(initial_state="undecided")
                self.consumers.add(consumer_id, consumer)
        delivery = Delivery(
            row["sys_message_id"],
            endpoint(row["source_ip_text"].partition("(")[0], row["source_port"]),
            row.get("destination"),
            self._report.client,
            self._report.server,
            consumer_id,
            self._report.client_id,
            consumer.subscription,
            bool(row["bit_flags"] & _REDELIVERED),
            row.get("delivery_count"),
            at,
            consumer.initial_state,
            text(properties_of(row), DEAD_REASON) if consumer.from_dead_queue else None,
            row.get("reply_to"),
            row.get("correlation_id"),
            row.get("message_id"),
        )
        if not self.consumers.deliver(consumer_id, _MESSAGE_ID(row), delivery):
            self._report.add_violation("handed_over_twice", row, at, row["sys_message_id"])
        self.flow.send(consumer_id, row, at)

    def resume(self, row: PacketRow, at: Position) -> None:
        """Observe a RESUME_FLOW of the client."""
        self.flow.resume(number(properties_of(row), "JMQConsumerID"), row, at)

    # --- acknowledgements -------------------------------------------------------------------

    def acknowledge(self, row: PacketRow, at: Position) -> None:
        """Observe an ACKNOWLEDGE."""
        properties = properties_of(row)
        if number(properties, "JMSXDeliveryCountUpdateOnly"):
            self._requests.add_request(row, at)
            return
        transaction_id = row.get("transaction_id") or None  # 103 has it in every header.
        event = "acknowledge_in_transaction" if transaction_id else "acknowledge"
        ack_type = number(properties, "JMQAckType")
        if ack_type == UNDELIVERABLE:
            event = "decline"
        elif ack_type == DEAD:
            event = "expire" if number(properties, "JMQDeadReason") == EXPIRED else "bury"
        pending: list[_Block] = []
        not_held: MessageId | None = None
        blocks = 0
        for consumer_id, message in self._blocks(row, at):
            blocks += 1
            delivery = self.consumers.apply(consumer_id, message, event)
            if delivery is None:
                not_held = not_held or message
                continue
            delivery.acknowledged = at
            delivery.gaps_acknowledged = self.consumers.gaps
            delivery.transaction_id = transaction_id
            pending.append((consumer_id, message))
        if not_held is not None:
            key = message_id_text(*not_held)
            self._report.add_violation("acknowledged_nothing", row, at, key, blocks - len(pending))
        if transaction_id:
            self._report.use(transaction_id, "acknowledge", at, blocks)
        settle = partial(self._acknowledged, pending, transaction_id, blocks)
        self._requests.add_request(row, at, settle)

    def _acknowledged(
        self,
        pending: list[_Block],
        transaction_id: int | None,
        blocks: int,
        reply: PacketRow | None,
        accepted: bool,
        at: Position,
    ) -> None:
        for consumer_id, message in pending:
            delivery = self.consumers.apply(
                consumer_id, message, "confirmed" if accepted else "denied"
            )
            if delivery is not None and not accepted:
                delivery.acknowledged = delivery.transaction_id = None
        if transaction_id and not accepted:
            self._report.use(transaction_id, "deny_acknowledge", at, blocks)

    def redeliver(self, row: PacketRow, at: Position) -> None:
        """Observe a REDELIVER of messages, which are new again unless the application saw them."""
        seen = number(properties_of(row), "JMQSetRedelivered")
        event = "redeliver_seen" if seen else "redeliver_unseen"
        for consumer_id, message in self._blocks(row, at):
            self.consumers.apply(consumer_id, message, event)

    def _blocks(self, row: PacketRow, at: Position) -> Iterator[_Block]:
        body = row.get("body") or b""
        block = _BLOCKS[row["version"]]
        if len(body) % block.size:
            self._report.add_violation("malformed_records", row, at)
            return
        for fields in block.iter_unpack(body):
            yield fields[0], fields[1:]
