"""Packets and layers to try the messaging layer with."""

from __future__ import annotations

from typing import Any

from wireyard.formats.rmp.packet import Message, encode_packet
from wireyard.layers.rmp import Delivered, Event, Limits, MessagingLayer, Order, QoS
from wireyard.layers.rmp.limits import Drops
from wireyard.layers.rmp.parsing import Fields, parse_packet
from wireyard.layers.rmp.reassembly import Reassembly

__all__ = [
    "ME",
    "PACKET_BYTES",
    "RING",
    "YOU",
    "circulate",
    "delivered",
    "events",
    "layer",
    "packets",
    "part",
    "plain",
    "reassembly",
    "receive",
    "segment",
]

ME, YOU = "10.0.0.1:7001", "10.0.0.2:7001"
RING = "ring"
PACKET_BYTES = 100


def layer(
    max_packet_bytes: int = PACKET_BYTES,
    *,
    members: tuple[str, ...] | None = (ME, YOU),
    first_number: int = 0xFFF0,
    **limits: Any,
) -> MessagingLayer:
    """Return a layer on one ring, which has given its view if there are members."""
    made = MessagingLayer(ME, first_number=first_number, limits=Limits(**limits))
    made.add_ring(RING, max_packet_bytes)
    if members is not None:
        made.view(RING, members, now=0.0)
        events(made)
    return made


def plain(data: bytes, **fields: Any) -> bytes:
    """Return a packet of one message."""
    return encode_packet([Message(data=data, **fields)])


def segment(number: int, place: int, count: int, data: bytes, **fields: Any) -> bytes:
    """Return a packet of one segment."""
    named = {"message_number": number, "packet_number": place, "packet_count": count}
    return plain(data, **named, **fields)


def part(number: int, place: int, count: int, data: bytes, **fields: Any) -> tuple[Fields, bytes]:
    """Return a segment as the layer reads it."""
    ((found, (data,)),) = parse_packet(segment(number, place, count, data, **fields))
    return found, data


def reassembly(order: Order, **limits: Any) -> tuple[Reassembly, Drops]:
    """Return messages being put together, and what counts the rest."""
    drops = Drops(10)
    return Reassembly(order, RING, PACKET_BYTES, Limits(**limits), drops), drops


def packets(sender: MessagingLayer) -> list[bytes]:
    """Return all packets that wait."""
    found = []
    while (packet := sender.next_packet(RING)) is not None:
        found.append(packet[1])
    return found


def events(of: MessagingLayer) -> list[Event]:
    """Return all events that wait."""
    found = []
    while (event := of.next_event()) is not None:
        found.append(event)
    return found


def delivered(of: MessagingLayer) -> list[bytes]:
    """Return the data of the messages among the events that wait."""
    return [event.data for event in events(of) if isinstance(event, Delivered)]


def receive(
    at: MessagingLayer,
    *received: bytes,
    source: str = YOU,
    qos: QoS = QoS.TOTALLY_ORDERED,
    now: float = 0.0,
) -> None:
    """Have a layer receive packets."""
    for packet in received:
        at.receive(RING, source, packet, qos=qos, now=now)


def circulate(by: MessagingLayer) -> list[tuple[QoS, bytes]]:
    """Return all packets, and give each back to its sender as a ring does."""
    found = []
    while (packet := by.next_packet(RING)) is not None:
        found.append(packet)
        receive(by, packet[1], source=ME, qos=packet[0])
    return found
