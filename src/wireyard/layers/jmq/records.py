"""Records of messages that the first phase derives: they were sent, delivered or relayed.

No record holds a packet, only its `Position`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wireyard.layers.records import Position

__all__ = ["Delivery", "Relay", "Sending"]


@dataclass(slots=True)
class Sending:
    """A message that a client sent, and the broker's reply to it.

    A message whose sending was not captured has one too, made of its first delivery.
    """

    message_key: str
    producer: str
    server: str
    client_id: str | None
    destination: str | None
    reply_to: str | None
    correlation_id: str | None
    message_id: str | None
    transaction_id: int | None
    at: Position
    accepted: Position | None = None
    status: int | None = None
    rolled_back: bool = False
    """Whether the transaction that it was sent in was rolled back."""


@dataclass(slots=True)
class Delivery:
    """A delivery attempt of a message to a consumer; `state` is a state of `DELIVERY`."""

    message_key: str
    producer: str
    destination: str | None
    consumer: str
    server: str
    consumer_id: int
    client_id: str | None
    subscription: str | None
    redelivered: bool
    delivery_count: int | None
    at: Position
    state: str
    dead_reason: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    acknowledged: Position | None = None
    transaction_id: int | None = None
    gaps: int = 0
    gaps_acknowledged: int = 0
    """The values of `Consumers.gaps` when it was delivered, and when it was acknowledged."""


class Relay(NamedTuple):
    """A message that one broker relayed to another, for a consumer there."""

    message_key: str
    consumer_id: int
    broker: str | None
    """Endpoint of the port mapper of the broker that relays it."""
    at: Position
    sender: str
    receiver: str
    """Endpoints of both brokers."""
    kind: str = "relayed"
    """``relayed``, or ``relay_acknowledged`` for the consumer's acknowledgement on its way back."""
