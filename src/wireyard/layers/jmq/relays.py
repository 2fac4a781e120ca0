"""Messages between brokers: which JMQ message a GPacket brings, from whom, and for which consumers.

The key of a relay is the message and the consumer: consumer ids are unique in a cluster, so the
delivery of the same two is what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.formats.gpacket.payload import payload_value
from wireyard.formats.jmq.packet import read_row
from wireyard.layers.endpoints import endpoint
from wireyard.layers.jmq.facts import Relay, number, place_of, properties_of, text

__all__ = ["relays"]

_MESSAGE_DATA: Final = 1


def relays(row: Row) -> Iterator[Relay]:
    """Yield what the row of a GPacket relays; nothing if it is not a message, or damaged."""
    if row["packet_type"] != _MESSAGE_DATA:
        return
    try:
        payload = payload_value(row)
    except DecodeError:
        return
    if payload is None:
        return
    message, error = read_row(payload["packet"], 0)
    if error is not None:
        return
    properties = properties_of(row)
    host, port = text(properties, "host"), number(properties, "port")
    broker = None if host is None or port is None else endpoint(host, port)
    for consumer in payload["consumers"]:
        yield Relay(message["sys_message_id"], consumer["consumer_id"], broker, place_of(row))
