"""The RMP messaging layer above packets, sans-IO.

`MessagingLayer` is the interface, `Limits` its bounds, `events` its output. The package
`wireyard_ring` has rings to run it on, one of them simulated. Each name is imported at its first
use, because `facts` is loaded by every command that answers from tables.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = ("delivery", "events", "layer", "limits", "qos", "requests")

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


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        if hasattr(module := import_module(f"{__name__}.{home}"), name):
            return getattr(module, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
