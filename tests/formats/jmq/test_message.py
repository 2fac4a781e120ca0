from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.formats.jmq.recorded import logged_value, received, recorded_packets
from wireyard.errors import UsageError
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.message import JmsMessage, destination_kind, reply_to_kind
from wireyard.formats.jmq.packet import Packet, decode, encode, read_row
from wireyard.formats.jmq.secrets import redact
from wireyard.formats.properties import Properties, Property
from wireyard.formats.property_rows import property_text

SCENARIOS = (
    "acks",
    "bodies",
    "bulk",
    "cluster",
    "deadletters",
    "flow",
    "jms20",
    "pubsub",
    "requests",
    "transactions",
)

PACKET = Packet(
    packet_type=1,
    timestamp=1105948800061,
    expiration=1105948900061,
    source_ip=bytes(10) + b"\xff\xff" + bytes([192, 168, 1, 17]),
    source_port=49152,
    sequence=62,
    priority=4,
    bit_flags=FLAGS["Q"] | FLAGS["P"] | FLAGS["R"],
    delivery_time=1105948800161,
    delivery_count=2,
    destination="orders",
    correlation_id="c-1",
    reply_to="temporary_destination://topic/127.0.0.1/1/1",
    message_type="order",
    properties=Properties(
        {"JMSXGroupID": Property("string", "g"), "total": Property("double", 2.5)}
    ),
)
ID = "62-192.168.1.17-49152-1105948800061"


def test_headers_follow_the_table_of_the_specification() -> None:
    assert JmsMessage.of(PACKET).headers() == {
        "JMSDestination": "orders",
        "JMSDeliveryMode": 2,
        "JMSRedelivered": True,
        "JMSExpiration": 1105948900061,
        "JMSPriority": 4,
        "JMSTimestamp": 1105948800061,
        "JMSMessageID": f"ID:{ID}",
        "JMSCorrelationID": "c-1",
        "JMSReplyTo": "temporary_destination://topic/127.0.0.1/1/1",
        "JMSType": "order",
        "JMSDeliveryTime": 1105948800161,
        "JMSXGroupID": "g",
        "JMSXDeliveryCount": 2,
    }


def test_kinds_of_destination_reply_and_body() -> None:
    message = JmsMessage.of(PACKET)
    assert message.destination_kind == "queue"
    assert message.reply_to_kind == "temporary_topic"
    assert message.body_kind == "text"


def test_what_the_packet_does_not_have_is_none() -> None:
    message = JmsMessage.of(Packet(packet_type=6, sequence=1))
    assert message.destination is None
    assert message.destination_kind is None
    assert message.reply_to_kind is None
    assert message.delivery_time is None
    assert message.jmsx == {}
    assert message.delivery_mode == 1


def test_an_id_of_the_clients_choice_is_shown_and_does_not_identify() -> None:
    message = JmsMessage.of(decode(encode(Packet(packet_type=1, message_id="mine", sequence=5))))
    assert message.jms_message_id == "ID:mine"
    assert message.sys_message_id == "5-0.0.0.0-0-0"


@pytest.mark.parametrize(
    ("name", "flags", "kind"),
    [
        ("a", "Q", "queue"),
        ("a", "", "topic"),
        ("temporary_destination://queue/127.0.0.1/1/1", "Q", "temporary_queue"),
        ("temporary_destination://topic/127.0.0.1/1/1", "P", "temporary_topic"),
        ("my.temporary_destination://queue/", "Q", "queue"),
        (None, "Q", None),
    ],
)
def test_destination_kind(name: str | None, flags: str, kind: str | None) -> None:
    assert destination_kind(name, sum(FLAGS[letter] for letter in flags)) == kind


@pytest.mark.parametrize(
    ("name", "class_name", "kind"),
    [
        ("a", "com.sun.messaging.BasicQueue", "queue"),
        ("a", "com.sun.messaging.BasicTopic", "topic"),
        ("a", None, None),
        ("a", "org.example.Place", None),
        ("temporary_destination://queue/127.0.0.1/1/1", None, "temporary_queue"),
        ("temporary_destination://topic/127.0.0.1/1/1", "x.TemporaryTopicImpl", "temporary_topic"),
        (None, "com.sun.messaging.BasicQueue", None),
    ],
)
def test_reply_to_kind(name: str | None, class_name: str | None, kind: str | None) -> None:
    assert reply_to_kind(name, class_name) == kind


def test_a_row_gives_the_message_of_its_packet() -> None:
    row, error = read_row(encode(PACKET))
    assert error is None
    assert JmsMessage.of(row) == JmsMessage.of(PACKET)


def test_a_row_from_columns_gives_the_message_of_its_packet() -> None:
    row, _ = read_row(encode(PACKET))
    row["properties"] = {
        name: {"type": entry.type, "value": property_text(*entry)}
        for name, entry in row["properties"].items()
    }
    assert JmsMessage.of(row) == JmsMessage.of(PACKET)


def test_a_packet_without_a_message_is_refused() -> None:
    with pytest.raises(UsageError, match="24"):
        JmsMessage.of(Packet(packet_type=24))


def test_a_row_whose_header_was_not_read_is_refused() -> None:
    row, error = read_row(encode(PACKET)[:40])
    assert error is not None
    with pytest.raises(UsageError):
        JmsMessage.of(row)


def test_redact_takes_out_the_password_and_leaves_the_size() -> None:
    login = b"\0\x05guest\0\x08Z3Vlc3Q="
    row, _ = read_row(encode(Packet(packet_type=12, body=login)))
    clean = redact(row)
    assert clean["body"] is None
    assert clean["body_size"] == len(login)
    assert {**clean, "body": login} == row
    assert row["body"] == login, "the row itself is not changed"


def test_redact_leaves_every_other_row_alone() -> None:
    row, _ = read_row(encode(Packet(packet_type=13, body=b"body")))
    assert redact(row) is row


def _as_logged(message: JmsMessage) -> dict[str, Any]:
    """Return a message in the form of the client program's log."""

    def place(name: str | None, kind: str | None) -> str | None:
        return name and f"{kind}:{name}"

    return {
        "jms_message_id": message.jms_message_id,
        "jms_timestamp": message.timestamp,
        "jms_correlation_id": message.correlation_id,
        "jms_reply_to": place(message.reply_to, message.reply_to_kind),
        "jms_destination": place(message.destination, message.destination_kind),
        "jms_delivery_mode": message.delivery_mode,
        "jms_redelivered": message.redelivered,
        "jms_type": message.message_type,
        "jms_expiration": message.expiration,
        "jms_priority": message.priority,
        "jms_delivery_time": message.delivery_time or 0,
        "properties": {name: tuple(entry) for name, entry in message.properties.items()}
        | {"JMSXDeliveryCount": ("integer", message.delivery_count or 0)},
        "kind": message.body_kind,
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_client_saw_the_same_message(shared: Path, scenario: str) -> None:
    delivered = defaultdict(list)
    for data in recorded_packets(shared, scenario):
        packet = decode(data)
        if packet.packet_type in range(1, 7):
            message = _as_logged(JmsMessage.of(packet))
            delivered[message["jms_message_id"]].append(message)
    events = list(received(shared, scenario))
    assert events
    for event in events:
        candidates = delivered[event["jms_message_id"]]
        assert candidates
        event["properties"] = {
            name: (entry["type"], logged_value(entry))
            for name, entry in event["properties"].items()
        }
        assert {name: event[name] for name in candidates[0]} in candidates
