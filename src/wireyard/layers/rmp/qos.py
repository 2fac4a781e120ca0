"""Qualities of service: what the ring promises of a packet, and so what the layer may promise."""

from __future__ import annotations

from enum import Enum, StrEnum

__all__ = ["Order", "QoS"]


class Order(StrEnum):
    """Which messages wait for each other at a receiver."""

    NONE = "none"
    """Each is delivered when it is complete."""
    SOURCE = "source"
    """Those of one source, in the order of their first packets."""
    TOTAL = "total"
    """All of a ring, in the order of their first packets."""


class QoS(Enum):
    """Quality of service of a packet, chosen by its sender.

    K-resilience and beyond is the ring's business: it holds a packet back until enough members
    have it. Above the ring such packets are totally ordered ones.
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
        """Whether every member of the view gets it, the sender too."""
