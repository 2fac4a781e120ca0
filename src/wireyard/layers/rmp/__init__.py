"""The RMP messaging layer above packets, sans-IO.

`MessagingLayer` is the interface, `Limits` its bounds, `events` its output. The package
`wireyard_ring` has rings to run it on, one of them simulated.
"""

from wireyard.layers.rmp.delivery import MESSAGING
from wireyard.layers.rmp.events import Delivered, Event, Foreign, MessageId, Piece
from wireyard.layers.rmp.layer import MessagingLayer
from wireyard.layers.rmp.limits import (
    Drop,
    Limits,
    MessageTooBig,
    NotWritable,
    NumbersExhausted,
    SendRefused,
)
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.requests import Want

__all__ = [
    "MESSAGING",
    "Delivered",
    "Drop",
    "Event",
    "Foreign",
    "Limits",
    "MessageId",
    "MessageTooBig",
    "MessagingLayer",
    "NotWritable",
    "NumbersExhausted",
    "Order",
    "Piece",
    "QoS",
    "SendRefused",
    "Want",
]
