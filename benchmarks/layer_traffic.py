"""Synthetic conversations of each format, for the benchmark of the layers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.layers.mqtt import make as mqtt
from tests.layers.rmp import make as rmp
from tests.layers.rmp.captured import Sent, rows_of
from wireyard.formats.base import Row
from wireyard.layers.rmp import QoS
from wireyard.layers.rmp.chain import key_of
from wireyard.layers.stages import Key

__all__ = ["PAYLOAD", "mqtt_packets", "rmp_packets"]

PAYLOAD = b"21.5 C, 40 % rH " * 4
_CONNECTIONS, _ROUNDS = 2, 40
"""Few enough for rows to stay in the processor's caches, as in a task that has just made them."""


def mqtt_packets() -> list[tuple[Key, Row]]:
    """Return the packets of clients that subscribe, publish and receive messages, with keys."""
    capture = mqtt.Capture(5)
    for number in range(_CONNECTIONS):
        capture.connect(f"sub{number}")
        capture.subscribe(f"sub{number}", f"plant/{number}/#", f"site/{number}/+")
        capture.connect(f"pub{number}")
        capture.subscribe(f"pub{number}", f"answers/{number}")
    for place in range(_CONNECTIONS * _ROUNDS):
        _mqtt_round(capture, place % _CONNECTIONS, place // _CONNECTIONS)
    return list(mqtt.keyed_rows(capture.rows, capture.streams))


def _mqtt_round(capture: mqtt.Capture, number: int, place: int) -> None:
    """Add 22 packets: a message at each QoS and a request, nearly all delivered, two retained."""
    publisher, subscriber, packet_id = f"pub{number}", f"sub{number}", place % 1_000 + 1
    request = [("response_topic", f"answers/{number}"), ("correlation_data", b"%d" % place)]
    expiring = [("message_expiry_interval", 60)]
    for qos, properties in ((0, None), (1, expiring), (2, None), (1, request)):
        topic = f"plant/{number}/{place % 100}/{qos}"
        payload = b"%d %s %s" % (place, str(properties).encode(), PAYLOAD)
        named = {"retain": qos == 1, "properties": properties}
        capture.message(publisher, topic, payload, qos, packet_id, **named)
        if place % 5 or qos < 2:
            capture.hand(subscriber, topic, payload, qos, packet_id, properties=properties)
    answer = f"answers/{number}", PAYLOAD, 0
    capture.message(subscriber, *answer, properties=request[1:])
    capture.hand(publisher, *answer, properties=request[1:])
    capture.ping(publisher)


def rmp_packets() -> list[tuple[Key, Row]]:
    """Return the rows of captured packets: packets of several small messages, and segments."""
    sender = rmp.layer(1_400, members=None, max_delay_s=0.001)
    for place in range(2_000):
        sender.send(rmp.RING, b"%d " % place + PAYLOAD, qos=QoS.UNRELIABLE, now=0.0)
        if place % 200 == 99:
            sender.send(rmp.RING, PAYLOAD * 300, qos=QoS.UNRELIABLE, now=0.0)
    sender.flush()
    sent = (Sent(packet, 0.0001 * place) for place, packet in enumerate(rmp.packets(sender)))
    return [(key_of(row), row) for row in rows_of(_with_replies(sent))]


def _with_replies(sent: Iterator[Sent]) -> Iterator[Sent]:
    """Yield packets, and after every second one a request and another process's reply."""
    for place, packet in enumerate(sent):
        yield packet
        if place % 2:
            number = place % 0x8000 + 0x4000
            request = rmp.segment(number, 1, 1, PAYLOAD, reply_requested=True)
            yield Sent(request, packet.at_s + 0.00002)
            named = {"reply_message_number": number, "reply_source": "10.0.0.1:5001"}
            yield Sent(rmp.plain(b"%d" % place, **named), packet.at_s + 0.00004, port=5002)
