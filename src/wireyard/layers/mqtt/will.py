"""The state of a will: from its CONNECT until it is published or dropped (MQTT 5.0, 3.1.2.5)."""

from __future__ import annotations

from typing import Final

from wireyard.layers.states import Cell, StateTable

__all__ = ["WILL", "WILL_EVENTS"]

WILL_EVENTS: Final = (
    "connected", "disconnected", "disconnected_with_will", "dropped", "delay_over",
    "session_over", "back",
)  # fmt: skip
"""``connected`` is a CONNECT with a will; ``back`` is a new connection of the client before the
will delay is over."""

WILL: Final[StateTable[str, str, str]] = StateTable(
    {
        "none": {
            **dict.fromkeys(WILL_EVENTS, Cell("none")),
            "connected": Cell("armed"),
        },
        "armed": {
            **dict.fromkeys(WILL_EVENTS, Cell("armed")),
            "disconnected": Cell("none", "dropped"),
            "disconnected_with_will": Cell("delayed"),
            "dropped": Cell("delayed"),
            "session_over": Cell("none", "published"),
        },
        # The connection has ended; without a delay, ``delay_over`` follows at once.
        "delayed": {
            **dict.fromkeys(WILL_EVENTS, Cell("delayed")),
            "back": Cell("none", "dropped"),
            "delay_over": Cell("none", "published"),
            "session_over": Cell("none", "published"),
        },
    },
    WILL_EVENTS,
)
"""The states of a will; the table is complete."""
