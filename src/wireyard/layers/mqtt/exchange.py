"""Messages on their way: PUBLISH and its acknowledgements, in both directions of a session."""

from __future__ import annotations

from typing import Any, Final

from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.flow_tables import Cell
from wireyard.layers.mqtt.flows import event_of
from wireyard.layers.mqtt.notes import Connection, Notes, Row, properties_of
from wireyard.layers.mqtt.records import Handed, Message, Moment

__all__ = ["Exchange"]

_MAX_UNPROVED: Final = 10_000
"""Messages at QoS 0 of one connection that wait for a sign that they were read."""


class Exchange:
    """Follows the messages of all connections, and notes them down."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def publish(self, connection: Connection, row: Row, at: Moment, upward: bool) -> None:
        """Take a PUBLISH, from the client if it goes `upward`."""
        properties = properties_of(row.get("properties"))
        sent_topic, alias = row.get("topic"), properties.get("topic_alias")
        if sent_topic is None or row.get("qos") not in (0, 1, 2):
            return
        topic, fault = connection.aliases[upward].resolve(sent_topic, alias)
        if fault == "alias_maximum":
            fault = "alias_maximum_client" if upward else "alias_maximum_broker"
        if fault:
            self._notes.violation(fault, connection, at)
        if upward and "subscription_identifier" in properties:
            self._notes.violation("subscription_identifier", connection, at)
        if topic is None:
            return
        new = _message if upward else _handed
        found = new(connection, row, at, topic, properties)
        packet_id = row.get("packet_id")
        if row["qos"] == 0 or not packet_id:
            self._notes.fact("sent", connection.link, upward, None, at)
            self._notes.fact("delivered", connection.link, upward, None, at)
            self._note(connection, found, at)
        else:
            self._publish_flow(connection, row, at, upward, found)

    def _publish_flow(
        self,
        connection: Connection,
        row: Row,
        at: Moment,
        upward: bool,
        found: Message | Handed,
    ) -> None:
        notes, packet_id = self._notes, row["packet_id"]
        direction = connection.session.up if upward else connection.session.down
        event = event_of(layout.PUBLISH, row["qos"], bool(row["dup"]))
        assert event is not None
        before: Message | Handed | None = direction.carried.get(packet_id)
        if before is None and connection.broker.carried >= connection.broker.most_carried:
            connection.broker.dropped["flows"] += 1
            self._note(connection, found, at)
            return
        sender, receiver = direction.step(packet_id, event)
        same = before is not None and _same(before, found)
        again = sender.fact in ("repeated", "lost_ack") and same
        rule = sender.rule
        if before is not None and sender.fact in ("repeated", "lost_ack") and not same:
            rule = "id_in_use"
        connection.broker.carried += before is None
        if again and before is not None:
            found = before
            _again(before, at, sender, receiver)
        else:
            direction.carried[packet_id] = found
            self._note(connection, found, at)
        message = found if isinstance(found, Message) else None
        if rule == "id_in_use" and not upward:
            rule = "id_in_use_broker"
        if rule is not None:
            notes.violation(rule, connection, at, message)
        if direction.sender.over_quota:
            side = "client" if upward else "broker"
            notes.violation(f"receive_maximum_{side}", connection, at, message)
        notes.fact(sender.fact, connection.link, upward, packet_id, at)
        notes.fact(receiver.fact, connection.link, upward, packet_id, at)

    def _note(self, connection: Connection, found: Message | Handed, at: Moment) -> None:
        """Note a message that was not there before."""
        if isinstance(found, Handed):
            self._notes.handed.append(found)
            return
        self._notes.messages.append(found)
        if found.qos == 0:
            if len(connection.unproved) < _MAX_UNPROVED:
                connection.unproved.append(found)
            else:
                self._notes.dropped["unproved"] += 1

    def acknowledge(self, connection: Connection, row: Row, at: Moment, by_client: bool) -> None:
        """Take a PUBACK, PUBREC, PUBREL or PUBCOMP."""
        packet_id, kind = row.get("packet_id"), row["packet_type"]
        code = row.get("return_code") or 0
        event = event_of(kind, code=code)
        if not packet_id or event is None:
            return
        by_sender = kind == layout.PUBREL
        upward = by_client == by_sender
        direction = connection.session.up if upward else connection.session.down
        sender, receiver = direction.step(packet_id, event)
        own = sender if by_sender else receiver
        record: Message | Handed | None = direction.carried.get(packet_id)
        if own.rule is not None:
            message = record if isinstance(record, Message) else None
            self._notes.violation(own.rule, connection, at, message)
        fact = sender.fact or receiver.fact
        self._notes.fact(fact, connection.link, upward, packet_id, at)
        if isinstance(record, Message):
            if not by_client:
                connection.prove(record.again[-1] if record.again else record.sent, at)
            self._settle(record, fact, code, at)
        elif record is not None and fact == "acknowledged":
            record.acknowledged = record.acknowledged or at
        elif record is not None and fact == "refused":
            record.refused = code

    @staticmethod
    def _settle(message: Message, fact: str | None, code: int, at: Moment) -> None:
        """Note how far a client's message got."""
        if fact == "refused":
            message.refused = code
        elif fact == "released" and message.released is None:
            message.released = at
        elif fact == "acknowledged" and message.accepted is None and message.refused is None:
            message.accepted = at


def _message(
    connection: Connection, row: Row, at: Moment, topic: str, properties: dict[str, Any]
) -> Message:
    return Message(
        origin="publish",
        sent=at,
        link=connection.link,
        topic=topic,
        payload=row.get("payload") or b"",
        qos=row["qos"],
        retain=bool(row.get("retain")),
        length=row.get("length") or 0,
        expires_s=properties.get("message_expiry_interval"),
        response_topic=properties.get("response_topic"),
        correlation_data=properties.get("correlation_data"),
        malformed=bool(row.get("verdict")),
    )


def _handed(
    connection: Connection, row: Row, at: Moment, topic: str, properties: dict[str, Any]
) -> Handed:
    return Handed(
        at=at,
        link=connection.link,
        topic=topic,
        payload=row.get("payload") or b"",
        qos=row["qos"],
        retain=bool(row.get("retain")),
        identifiers=tuple(properties.get("subscription_identifier", ())),
        redelivered=bool(row.get("dup")),
    )


def _same(before: Message | Handed, found: Message | Handed) -> bool:
    """Tell whether what is flagged as sent again is what was sent."""
    return before.topic == found.topic and before.payload == found.payload


def _again(record: Message | Handed, at: Moment, sender: Cell, receiver: Cell) -> None:
    """Note that a message was sent again."""
    if isinstance(record, Message):
        record.again.append(at)
        record.copies += receiver.fact == "delivered" or record.qos == 1
    else:
        record.count += 1
        record.redelivered = True
        record.lost_ack |= sender.fact == "lost_ack"
