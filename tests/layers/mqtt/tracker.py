"""Messages in flight, packet by packet: PUBLISH and its acknowledgements, in both directions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from tests.layers.mqtt.flows import Direction, event_of
from wireyard.formats.base import Row
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.connection import Connection
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.packet_row import PacketRow, Properties
from wireyard.layers.mqtt.qos_kernels import MAX_UNREAD
from wireyard.layers.mqtt.records import (
    Attempt,
    FlowEvent,
    Message,
    Output,
    content_of,
    properties_of,
)
from wireyard.layers.mqtt.subscriptions import MAX_ASKED
from wireyard.layers.records import Position
from wireyard.layers.states import Cell

__all__ = ["MessageTracker", "observer_of"]


def observer_of(
    streams: Iterable[Row], on_event: Callable[[FlowEvent], None] | None = None
) -> Observer:
    """Return an observer that tracks messages packet by packet."""
    return Observer(streams, MessageTracker, on_event)


class MessageTracker:
    """Tracker of the messages of all connections, packet by packet."""

    def __init__(self, output: Output) -> None:
        self._output = output
        output.tracker = self

    def new_direction(self, known: bool) -> Direction:
        """Return one direction of a new session."""
        return Direction(known)

    def accept_before(self, connection: Connection, request: Position, answer: Position) -> None:
        """Mark all messages before an answered request as accepted by the broker."""
        unread = connection.unread
        while unread and unread[0].sent < request:
            message = unread.popleft()
            message.accepted = answer
            self._output.messages.append(message)

    def accept_all(self, connection: Connection, at: Position) -> None:
        """Mark all messages of a connection as accepted by the broker."""
        for message in connection.unread or ():
            message.accepted = at

    def leave(self, connection: Connection) -> None:
        """Output the messages of a connection without evidence that the broker accepted them."""
        self._output.messages += connection.unread or ()
        connection.unread = None

    def over(self, records: Iterable[Message | Attempt]) -> None:
        """Output messages and delivery attempts that are final."""
        for record in records:
            if isinstance(record, Message):
                self._output.messages.append(record)
            else:
                self._output.attempts.append(record)

    def observe(
        self, connection: Connection, row: PacketRow, at: Position, from_client: bool
    ) -> None:
        """Observe a PUBLISH, an acknowledgement of one, or a ping."""
        kind = row["packet_type"]
        if kind == layout.PUBLISH:
            self._publish(connection, row, at, from_client)
        elif kind == layout.PINGREQ:
            self._pingreq(connection, at)
        elif kind == layout.PINGRESP:
            self._pingresp(connection, at)
        else:
            self._acknowledge(connection, row, at, from_client)

    def _pingreq(self, connection: Connection, at: Position) -> None:
        if len(connection.pings) < MAX_ASKED:
            connection.pings.append(at)
        else:
            self._output.dropped["requests"] += 1

    def _pingresp(self, connection: Connection, at: Position) -> None:
        if connection.pings:
            connection.confirm_read(connection.pings.popleft(), at)
        else:
            connection.breaks("pingresp_unasked", False, at)

    def _publish(
        self, connection: Connection, row: PacketRow, at: Position, to_broker: bool
    ) -> None:
        topic, qos, properties = (
            row.get("topic"),
            row.get("qos"),
            properties_of(row.get("properties")),
        )
        if topic is None or qos not in (0, 1, 2):
            return
        if properties:
            topic = _topic(connection, topic, properties, at, to_broker)
            if topic is None:
                return
        new = _message if to_broker else _attempt
        record = new(connection, row, at, topic, properties)
        if qos and row.get("packet_id"):
            self._publish_flow(connection, row, at, to_broker, record)
            return
        output = self._output
        output.flow_event("sent", connection.record, to_broker, None, at)
        output.flow_event("delivered", connection.record, to_broker, None, at)
        if isinstance(record, Attempt):
            output.attempts.append(record)
            return
        unread = connection.unread
        if unread is None:
            unread = connection.unread = deque()
        if len(unread) < MAX_UNREAD:
            unread.append(record)
        else:
            output.dropped["unread"] += 1
            output.messages.append(record)

    def _publish_flow(
        self,
        connection: Connection,
        row: PacketRow,
        at: Position,
        to_broker: bool,
        record: Message | Attempt,
    ) -> None:
        output, packet_id = self._output, row["packet_id"]
        direction = _direction(connection, to_broker)
        event = event_of(layout.PUBLISH, row["qos"], bool(row["dup"]))
        assert event is not None
        before: Message | Attempt | None = direction.tracked.get(packet_id)
        if before is None and connection.broker.tracked >= connection.broker.most_tracked:
            output.dropped["flows"] += 1
            self.over((record,))
            return
        sender = direction.sender.step(packet_id, event)
        receiver = direction.receiver.step(packet_id, event)
        same = before is not None and _is_same(before, record)
        again = sender.effect in ("repeated", "lost_ack") and same
        rule = sender.rule
        if before is not None and sender.effect in ("repeated", "lost_ack") and not same:
            rule = "id_in_use"
        connection.broker.tracked += before is None
        if before is None and isinstance(record, Message) and record.qos == 1 and row["dup"]:
            record.is_repeated = sender.effect == "repeated" or connection.broker.has_older
        if again and before is not None:
            record = before
            _count_resend(before, at, sender, receiver)
        else:
            direction.tracked[packet_id] = record
            if before is not None:
                if connection.record.has_gap and isinstance(before, Attempt):
                    before.untraced |= before.acknowledged is None
                self.over((before,))
        key = record.key if isinstance(record, Message) else None
        if rule == "id_in_use" and not to_broker:
            rule = "id_in_use_broker"
        if rule is not None:
            connection.breaks(rule, to_broker, at, key)
        if direction.sender.over_quota:
            side = "client" if to_broker else "broker"
            connection.breaks(f"receive_maximum_{side}", to_broker, at, key)
        output.flow_event(sender.effect, connection.record, to_broker, packet_id, at)
        output.flow_event(receiver.effect, connection.record, to_broker, packet_id, at)

    def _acknowledge(
        self, connection: Connection, row: PacketRow, at: Position, from_client: bool
    ) -> None:
        packet_id, kind = row.get("packet_id"), row["packet_type"]
        code = row.get("return_code") or 0
        event = event_of(kind, 0, False, code)
        if not packet_id or event is None:
            return
        by_sender = kind == layout.PUBREL
        to_broker = from_client == by_sender
        direction = _direction(connection, to_broker)
        sender = direction.sender.step(packet_id, event)
        receiver = direction.receiver.step(packet_id, event)
        own = sender if by_sender else receiver
        record: Message | Attempt | None = direction.tracked.get(packet_id)
        if own.rule is not None:
            key = record.key if isinstance(record, Message) else None
            connection.breaks(own.rule, from_client, at, key)
        fact = sender.effect or receiver.effect
        self._output.flow_event(fact, connection.record, to_broker, packet_id, at)
        if isinstance(record, Message):
            if not from_client:
                connection.confirm_read(record.again[-1] if record.again else record.sent, at)
            self._settle(record, fact, code, at)
        elif record is not None and fact == "acknowledged":
            record.acknowledged = record.acknowledged or at
        elif record is not None and fact == "refused":
            record.refused = code

    def _settle(self, message: Message, fact: str | None, code: int, at: Position) -> None:
        """Update a client's message by an acknowledgement; output its retained-value change."""
        if fact == "refused":
            message.refused = code
        elif fact == "released" and message.released is None:
            message.released = at
        elif fact == "acknowledged" and message.accepted is None and message.refused is None:
            message.accepted = at
        if message.value is not None and message.accepted:
            change = message.change()
            if change is not None:
                # The message may be resent, but its payload may be large: release it now.
                self._output.changes.append(change)
                message.value = None


def _direction(connection: Connection, to_broker: bool) -> Direction:
    session = connection.session
    return cast(Direction, session.to_broker if to_broker else session.to_client)


def _topic(
    connection: Connection, sent: str, properties: Properties, at: Position, to_broker: bool
) -> str | None:
    """Return the topic of a PUBLISH with properties, None if its alias is unknown."""
    topic, fault = connection.aliases[to_broker].resolve(sent, properties.get("topic_alias"))
    if fault == "alias_maximum":
        fault = "alias_maximum_client" if to_broker else "alias_maximum_broker"
    if fault:
        connection.breaks(fault, to_broker, at)
    if to_broker and "subscription_identifier" in properties:
        connection.breaks("subscription_identifier", to_broker, at)
    return topic


def _message(
    connection: Connection, row: PacketRow, at: Position, topic: str, properties: Properties
) -> Message:
    payload, retain = row.get("payload") or b"", bool(row.get("retain"))
    return Message(
        "publish",
        at,
        connection.record.client,
        topic,
        content_of(payload),
        row["qos"],
        retain,
        payload if retain else None,
        row.get("length") or 0,
        properties.get("message_expiry_interval"),
        properties.get("response_topic"),
        properties.get("correlation_data"),
        row.get("verdict") is not None,
    )


def _attempt(
    connection: Connection, row: PacketRow, at: Position, topic: str, properties: Properties
) -> Attempt:
    return Attempt(
        at,
        connection.record.client,
        topic,
        content_of(row.get("payload") or b""),
        row["qos"],
        bool(row.get("retain")),
        tuple(properties.get("subscription_identifier", ())),
        bool(row.get("dup")),
        may_be_live=bool(row.get("retain")) and connection.may_publish_as_retained,
    )


def _is_same(before: Message | Attempt, record: Message | Attempt) -> bool:
    """Return whether a resend has the topic and payload of the message before."""
    return before.topic == record.topic and before.content == record.content


def _count_resend(
    record: Message | Attempt, at: Position, sender: Cell[str, str], receiver: Cell[str, str]
) -> None:
    """Count a resend of a message."""
    if isinstance(record, Message):
        record.again.append(at)
        record.copies += receiver.effect == "delivered" or record.qos == 1
    else:
        record.count += 1
        record.redelivered = True
        record.lost_ack |= sender.effect == "lost_ack"
