"""One set of topics: what JMS clients get of MQTT clients, and the reverse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker import talk as mqtt_talk
from tests.broker.jmq import talk as jmq_talk
from tests.broker.jmq.talk import QUEUE, TOPIC
from wireyard import jmq, mqtt
from wireyard.broker.bridge import Bridge
from wireyard.broker.jmq.destinations import name_of, topic_of
from wireyard.broker.settings import JmqLimits
from wireyard.formats.jmq.body import body_value

NOW = 1_000_000.0


class Both:
    """Both halves of a broker, with a client of each kind."""

    def __init__(self, **settings: Any) -> None:
        self.mqtt, self.jmq = mqtt_talk.Broker(), jmq_talk.Broker(**settings)
        Bridge(self.mqtt.core, self.jmq.core)

    def consumer(self, name: str, kind: int = TOPIC, **more: Any) -> jmq_talk.Peer:
        peer = jmq_talk.joined(self.jmq)
        peer.consumer(peer.session(2), name, kind, **more)
        return peer

    def subscriber(self, filter: str, qos: int = 2, version: int = 5) -> mqtt_talk.Peer:
        peer = mqtt_talk.joined(self.mqtt, f"s{version}", version)
        mqtt_talk.subscribed(peer, (filter, qos))
        return peer

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 1, **more: Any) -> int | None:
        """Publish at QoS 1; return the reason code."""
        version = more.pop("version", 5)
        peer = mqtt_talk.joined(self.mqtt, f"p{version}", version)
        peer.send(
            mqtt.Publish,
            topic=topic,
            payload=payload,
            qos=qos,
            packet_id=7 if qos else None,
            **more,
        )
        (answer,) = peer.received() or (None,)
        return answer.return_code or 0 if isinstance(answer, mqtt.PubAck) else None

    def send(self, name: str, body: Any = "x", kind: str = "TEXT_MESSAGE", **more: Any) -> None:
        peer = jmq_talk.joined(self.jmq)
        producer = peer.producer(name, TOPIC)
        fields = {"destination": name, "bit_flags": "P"} | more
        peer.tell(kind, fields.pop("properties", None), producer_id=producer, body=body, **fields)


@pytest.fixture
def both() -> Both:
    return Both()


def published(peer: mqtt_talk.Peer) -> mqtt.Publish:
    (one,) = (packet for packet in peer.received() if isinstance(packet, mqtt.Publish))
    return one


@pytest.mark.parametrize(
    ("topic", "name"),
    [("plant/a", "plant.a"), ("plant/v1.2", "plant.v1$2E2"), ("1/a-b", "$31.a$2Db"),
     ("/a//$x", "$2Fa..$24x"), ("küche/²", "küche.$C2$B2"), ("a*/>", "a$2A.$3E"),
     ("temporary_destination://topic/1.2/3", "temporary_destination://topic/1.2/3")],
)  # fmt: skip
def test_a_topic_has_one_name_on_each_side(topic: str, name: str) -> None:
    assert name_of(topic) == name and topic_of(name) == topic


def test_a_message_of_mqtt_is_one_of_jms(both: Both) -> None:
    peer = both.consumer("plant.>", Selector="unit = 'C'")
    properties = {
        "payload_format_indicator": 1, "message_expiry_interval": 60, "content_type": "t/x",
        "response_topic": "re/1.2", "correlation_data": b"\xff\x00",
        "user_property": [("unit", "C"), ("unit", "F"), ("no name", "1"), ("JMSXUserID", "root")],
    }  # fmt: skip
    assert both.publish("plant/a", "é".encode(), properties=properties) == 0
    assert both.publish("plant/a") == 0  # the selector does not match
    (message,) = peer.messages()
    assert isinstance(message, jmq.Packet)
    assert (message.packet_type_name, body_value(message)) == ("TEXT_MESSAGE", "é")
    assert (message.destination, message.destination_class) == (
        "plant.a", "com.sun.messaging.BasicTopic",
    )  # fmt: skip
    assert (message.expiration, message.priority, "P" in message.flags) == (
        int((NOW + 60) * 1000), 4, True,
    )  # fmt: skip
    assert (message.reply_to, message.reply_to_class) == (
        "re.1$2E2",
        "com.sun.messaging.BasicTopic",
    )
    assert (message.correlation_id, message.message_type) == ("0xff00", "t/x")
    assert jmq_talk.values(message) == {"unit": "C"}
    assert message.timestamp == NOW * 1000


def test_bytes_of_mqtt_without_an_indicator(both: Both) -> None:
    peer = both.consumer("*")
    assert both.publish("a", b"\xff", qos=0) is None
    both.publish("a", b"", version=4)
    first, second = peer.messages()
    assert (first.packet_type_name, first.body, "P" in first.flags) == (
        "BYTES_MESSAGE", b"\xff", False,
    )  # fmt: skip
    assert (second.body, "P" in second.flags) == (None, True)


def test_a_message_of_jms_is_one_of_mqtt(both: Both) -> None:
    peer, old = both.subscriber("plant/#"), both.subscriber("plant/+", 1, 4)
    more: dict[str, Any] = {"correlation_id": "c", "message_type": "t", "reply_to": "re.q",
            "reply_to_class": "com.sun.messaging.BasicQueue",
            "expiration": int(NOW * 1000) + 1500}  # fmt: skip
    properties = {"unit": "C", "count": 3, "ok": True, "half": 0.5}
    both.send("plant.a", "é", properties=properties, **more)
    one = published(peer)
    assert (one.topic, one.payload, one.qos, one.retain) == ("plant/a", "é".encode(), 2, False)
    assert one.properties == (
        ("payload_format_indicator", 1), ("message_expiry_interval", 2), ("content_type", "t"),
        ("response_topic", "$Q/re/q"), ("correlation_data", b"c"),
        ("user_property", ("unit", "C")), ("user_property", ("count", "3")),
        ("user_property", ("ok", "true")), ("user_property", ("half", "0.5")),
    )  # fmt: skip
    assert old.messages() == [("plant/a", "é".encode(), 1, False)]


@pytest.mark.parametrize("data", [b"text", b"\xff", b"0xff", b"0xzz", b"0x", b"", b"\0"])
def test_correlation_data_come_back_as_they_were(both: Both, data: bytes) -> None:
    peer, back = both.consumer("ask"), both.subscriber("answer")
    both.publish("ask", properties={"correlation_data": data})
    (message,) = peer.messages()
    both.send("answer", correlation_id=message.correlation_id)
    found = dict(published(back).properties)["correlation_data"]
    assert found == (data if data != b"0xff" else b"\xff")


def test_what_bodies_of_jms_are(both: Both) -> None:
    peer = both.subscriber("a")
    for kind, body in (("BYTES_MESSAGE", b"\1"), ("MESSAGE", None), ("TEXT_MESSAGE", None),
                       ("MAP_MESSAGE", {"a": 1}), ("STREAM_MESSAGE", [1])):  # fmt: skip
        both.send("a", body, kind, bit_flags="")
    assert peer.messages() == [("a", b"\1", 0, False), ("a", b"", 0, False), ("a", b"", 0, False)]
    said = [line for line in both.jmq.lines if "nothing for MQTT" in line]
    assert said == [
        f"T:a: a message is nothing for MQTT clients: it is a {one}Message"
        for one in ("Map", "Stream")
    ]


def test_a_queue_takes_messages_of_mqtt(both: Both) -> None:
    assert both.publish("$Q/shop/orders", b"first") == 0
    peer = both.consumer("shop.orders", QUEUE)
    assert both.publish("$Q/shop/orders", b"second") == 0
    messages = peer.messages()
    assert [one.body for one in messages] == [b"first", b"second"]
    assert all("Q" in one.flags for one in messages)
    for topic in (
        "$Q/mq/sys/dmq",
        "$Q/temporary_destination://queue/1/1/1",
        "$SYS/x",
        "$Q/" + "x" * 1025,
    ):
        assert both.publish(topic) == 16


def test_a_reply_to_a_temporary_queue(both: Both) -> None:
    peer = jmq_talk.joined(both.jmq)
    name = "temporary_destination://queue/127.0.0.1/1/1"
    peer.ask("CREATE_DESTINATION", {"JMQDestination": name, "JMQDestType": 0x11})
    peer.consumer(peer.session(2), name)
    asked = both.subscriber("ask")
    both.send("ask", reply_to=name)
    topic = str(dict(published(asked).properties)["response_topic"])
    assert both.publish(topic, b"answer") == 0
    (message,) = peer.messages()
    assert message.body == b"answer"


def test_a_full_queue_is_refused() -> None:
    both = Both(jmq=JmqLimits(max_kept=1))
    assert [both.publish("$Q/q") for _ in range(2)] == [0, 151]
    peer = mqtt_talk.joined(both.mqtt, "p", 4)
    peer.send(mqtt.Publish, topic="$Q/q", payload="x", qos=1, packet_id=1)
    assert peer.link.endpoint.ended is not None
    both.consumer("t", Size=1)
    assert both.publish("t") == 0


def test_what_stays_on_its_side(both: Both) -> None:
    peer = both.subscriber("#")
    jms = jmq_talk.joined(both.jmq)
    name = "temporary_destination://topic/127.0.0.1/1/1"
    jms.ask("CREATE_DESTINATION", {"JMQDestination": name, "JMQDestType": 0x12})
    for topic in (name, "$SYS.x", "a$61", "a$FF", "a$2B"):
        both.send(topic)
    both.send("late", expiration=1)
    assert peer.messages() == []
    both.consumer(">")
    assert both.publish("x" * 1025) == 0  # MQTT clients get it
    both.send("none", body="x")
    assert [one[0] for one in peer.messages()] == ["x" * 1025, "none"]


def test_nobody_gets_a_message_back(both: Both) -> None:
    peer, consumer = both.subscriber("#"), both.consumer("**")
    both.publish("a")
    both.send("b")
    assert [one[0] for one in peer.messages()] == ["a", "b"]
    assert [one.destination for one in consumer.messages()] == ["a", "b"]
