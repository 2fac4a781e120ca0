"""Synthetic conversations of each format, for the benchmark of the layers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.layers.jmq import make as jmq
from tests.layers.rmp import make as rmp
from tests.layers.rmp.captured import Sent, rows_of
from wireyard.formats.base import Row
from wireyard.formats.property_rows import property_text
from wireyard.layers.endpoints import connection_of
from wireyard.layers.rmp import QoS
from wireyard.layers.rmp.chain import key_of
from wireyard.layers.stages import Key

__all__ = ["PAYLOAD", "jmq_packets", "rmp_packets"]

PAYLOAD = b"21.5 C, 40 % rH " * 4
_CONNECTIONS, _ROUNDS = 2, 40
"""Few enough for rows to stay in the processor's caches, as in a task that has just made them."""


def jmq_packets() -> list[tuple[Key, Row]]:
    """Return the packets of connections that send, receive, reply and commit, with their keys.

    The connections belong to one program, which numbers the packets of all of them together.
    """
    sequence = {True: 0, False: 0}
    talks = [
        jmq.Talk(client=("10.0.0.9", 50_000 + number), sequence=sequence).login()
        for number in range(_CONNECTIONS)
    ]
    for talk in talks:
        talk.consumer(1)
        talk.consumer(2)
    for place in range(_CONNECTIONS * _ROUNDS):
        _jmq_round(talks[place % _CONNECTIONS], place)
    rows = [row | _as_columns(row) for talk in talks for row in talk.goodbye().rows]
    return [(connection_of(row), row) for row in rows]


def _as_columns(row: Row) -> Row:
    """Return the properties of a packet in the form of columns, as tasks read them."""
    properties = (row["properties"] or {}).items()
    texts = {
        name: {"type": kind, "value": property_text(kind, value)}
        for name, (kind, value) in properties
    }
    return {"properties": texts or None}


def _jmq_round(talk: jmq.Talk, place: int) -> None:
    """Add 29 packets: persistent and other messages, a request, a transaction."""
    delivered = []
    for _ in range(4):
        sent = talk.request("TEXT_MESSAGE", reply="SEND_REPLY", destination="orders", flags="P")
        delivered.append(talk.deliver(sent, 1))
    talk.acknowledge(*delivered)
    request = talk.send(destination="prices", reply_to="answers", message_id=f"ID:{place}")
    talk.acknowledge(talk.deliver(request, 1), status=None)
    reply = talk.send(destination="answers", correlation_id=f"ID:{place}")
    talk.acknowledge(talk.deliver(reply, 1), status=None)
    talk.request("START_TRANSACTION", re_JMQTransactionID=place)
    held = talk.deliver(talk.send(transaction_id=place), 2)
    talk.acknowledge(held, transaction_id=place)
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=place)


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
