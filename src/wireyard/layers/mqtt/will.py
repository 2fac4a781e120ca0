"""The state of a will: from its CONNECT until it is published or dropped (MQTT 5.0, 3.1.2.5)."""

from __future__ import annotations

from typing import Final

from wireyard.layers.mqtt.records import Message
from wireyard.layers.records import Position
from wireyard.layers.states import Cell, StateTable

__all__ = ["WILL", "WILL_EVENTS", "Will"]

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


class Will:
    """A will and its state.

    Parameters
    ----------
    message
        The message to publish.
    delay_s
        The Will Delay Interval: seconds from the end of the connection.
    """

    __slots__ = ("delay_s", "due", "message", "state")

    def __init__(self, message: Message, delay_s: int = 0) -> None:
        self.message = message
        self.delay_s = delay_s
        self.due: Position | None = None
        """The end of its delay, once the delay has begun."""
        self.state = WILL["none", "connected"].state

    def step(self, event: str) -> str | None:
        """Apply an event of `WILL_EVENTS`; return ``published``, ``dropped`` or None."""
        cell = WILL[self.state, event]
        self.state = cell.state
        return cell.effect
