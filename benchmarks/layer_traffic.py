"""Synthetic conversations of each format, for the benchmark of the layers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.layers.rmp import make as rmp
from tests.layers.rmp.captured import Sent, rows_of
from wireyard.formats.base import Row
from wireyard.layers.rmp import QoS
from wireyard.layers.rmp.chain import key_of
from wireyard.layers.stages import Key

__all__ = ["PAYLOAD", "rmp_packets"]

PAYLOAD = b"21.5 C, 40 % rH " * 4


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
