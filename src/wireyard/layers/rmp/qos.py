"""Qualities of service: the guarantees of the ring for a packet, and so of the layer."""

from __future__ import annotations

from enum import Enum, StrEnum


class Order(StrEnum):
    """The order in which a receiver delivers messages."""

    NONE = "none"
    """Each message is delivered when it is complete."""
    SOURCE = "source"
    """The messages of one source are delivered in the order of their first packets."""
    TOTAL = "total"
    """All messages of a ring are delivered in the order of their first packets."""


class QoS(Enum):
    """Quality of service of a packet, chosen by its sender.

    K-resilience and beyond is implemented by the ring, which holds a packet back until enough
    members have it. To the layer such packets are totally ordered.
    """

    UNRELIABLE = "unreliable", Order.NONE, False
    UNORDERED = "unordered", Order.NONE, True
    SOURCE_ORDERED = "source ordered", Order.SOURCE, True
    TOTALLY_ORDERED = "totally ordered", Order.TOTAL, True
    K_RESILIENT = "K-resilient", Order.TOTAL, True
    MAJORITY_RESILIENT = "majority resilient", Order.TOTAL, True
    TOTALLY_RESILIENT = "totally resilient", Order.TOTAL, True

    def __init__(self, label: str, order: Order, reliable: bool) -> None:
        self.label = label
        self.order = order
        self.reliable = reliable
        """Whether every member of the view receives it, the sender too."""
