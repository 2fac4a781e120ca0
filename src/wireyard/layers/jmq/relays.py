"""Messages between brokers: which a GPacket brings or acknowledges, and for which consumers.

The key of a relay is the message and the consumer: consumer ids are unique in a cluster, so the
delivery of the same two is what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.formats.gpacket.layout import LINK_VERSION
from wireyard.formats.gpacket.payload import payload_value
from wireyard.formats.jmq.packet import read_row
from wireyard.layers.endpoints import endpoint, endpoints_of
from wireyard.layers.jmq.facts import Relay, number, properties_of, text
from wireyard.layers.records import Position

__all__ = [
    "MESSAGE_ACK",
    "MESSAGE_DATA",
    "relays",
]

MESSAGE_DATA: Final = 1
MESSAGE_ACK: Final = 3
_CONSUMED, _PREPARED = 3, 9
"""Values of the property T: consumed; acknowledged in a transaction that is being committed."""


def relays(row: Row) -> Iterator[Relay]:
    """Yield what the row of a GPacket relays: a message, or acknowledgements of messages.

    Nothing if it is neither, or damaged.
    """
    if row["packet_type"] not in (MESSAGE_DATA, MESSAGE_ACK) or row["version"] == LINK_VERSION:
        return
    properties = properties_of(row)
    kind = "relayed" if row["packet_type"] == MESSAGE_DATA else "relay_acknowledged"
    if kind == "relay_acknowledged" and number(properties, "T") not in (_CONSUMED, _PREPARED):
        return
    try:
        payload = payload_value(row)
    except DecodeError:
        return
    host, port = text(properties, "host"), number(properties, "port")
    broker = None if host is None or port is None else endpoint(host, port)
    sender, receiver = endpoints_of(row)
    at = Position.of(row)
    for message_key, consumer_id in _about(kind, payload):
        yield Relay(message_key, consumer_id, broker, at, sender, receiver, kind)


def _about(kind: str, payload: Any) -> Iterator[tuple[str, int]]:
    """Yield the messages of a payload, and the consumers that they are for."""
    if payload is None:
        return
    if kind == "relay_acknowledged":
        for one in payload:
            yield one["sys_message_id"], one["consumer"]["consumer_id"]
        return
    message, error = read_row(payload["packet"], 0)
    if error is None:
        for consumer in payload["consumers"]:
            yield message["sys_message_id"], consumer["consumer_id"]
