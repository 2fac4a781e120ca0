"""The packet identifiers of one direction of a session, each where its table says.

An endpoint runs the table of its role in each direction; who watches a connection runs both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.flow_tables import IN_FLIGHT
from wireyard.layers.states import Cell, StateTable

__all__ = ["MAX_IN_FLIGHT", "Flows", "event_of"]

MAX_IN_FLIGHT: Final = 65_535
"""Receive Maximum where none was told (MQTT 5.0, 3.1.2.11.3): there are no more identifiers."""
_ERROR: Final = 128
"""The lowest reason code that says no."""

_PUBLISHED: Final = {
    (qos, dup): f"{'dup' if dup else 'publish'}_{qos}" for qos in (1, 2) for dup in (False, True)
}
_ANSWERS: Final = {
    layout.PUBACK: ("puback", "puback_error"),
    layout.PUBREC: ("pubrec", "pubrec_error"),
    layout.PUBREL: ("pubrel", "pubrel"),
    layout.PUBCOMP: ("pubcomp", "pubcomp"),
}
_NEW_CONNECTION: Final = {True: "resumed", False: "discarded"}
_QUOTA: Final = {
    **dict.fromkeys(_PUBLISHED.values(), -1),
    **dict.fromkeys(("puback", "puback_error", "pubrec_error", "pubcomp"), 1),
}


def event_of(packet_type: int, qos: int = 0, dup: bool = False, code: int = 0) -> str | None:
    """Return the event that a packet is to its flow, None if it belongs to none.

    Parameters
    ----------
    code
        Return or reason code of an acknowledgement.
    """
    if packet_type == layout.PUBLISH:
        return _PUBLISHED.get((qos, dup))
    names = _ANSWERS.get(packet_type)
    return names and names[code >= _ERROR]


class Flows:
    """All flows of one role in one direction of a session.

    Parameters
    ----------
    table
        `SENDER` or `RECEIVER`.
    known
        Whether the session is seen from its beginning.

    Limits
    ------
    There are 65,535 packet identifiers, so no more states than that.
    """

    __slots__ = ("_first", "_quota", "_states", "_table", "receive_maximum")

    def __init__(self, table: StateTable[str, str, str], known: bool = True) -> None:
        self._table = table
        self._first = "free" if known else "unknown"
        self._states: dict[int, str] = {}
        self.receive_maximum = self._quota = MAX_IN_FLIGHT

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._states

    def state(self, packet_id: int) -> str:
        """Return the state of a packet identifier."""
        return self._states.get(packet_id, self._first)

    def step(self, packet_id: int, event: str) -> Cell[str, str]:
        """Take one packet of a flow; return what it did."""
        state = self._states.get(packet_id, self._first)
        cell = self._table.get((state, event))
        if cell is None:
            return self._table.lookup(state, event)
        self._states[packet_id] = cell.state
        freed = _QUOTA.get(event)
        if freed is not None and self._quota + freed <= self.receive_maximum:
            self._quota += freed
        return cell

    @property
    def over_quota(self) -> bool:
        """Whether more was published on this connection than the other side takes at once."""
        return self._quota < 0

    def connect(self, kept: bool, receive_maximum: int = MAX_IN_FLIGHT) -> None:
        """Begin a new connection.

        Parameters
        ----------
        kept
            Whether the session goes on with it.
        receive_maximum
            How many messages the side that is published to takes at once.
        """
        event = _NEW_CONNECTION[kept]
        table = self._table
        moved = {packet_id: table[state, event].state for packet_id, state in self._states.items()}
        if not kept:
            self._first = "free"
        first = self._first
        self._states = {packet_id: state for packet_id, state in moved.items() if state != first}
        self.receive_maximum = self._quota = receive_maximum

    def in_flight(self) -> Iterator[int]:
        """Yield the packet identifiers of the messages that are on their way."""
        return (packet_id for packet_id, state in self._states.items() if state in IN_FLIGHT)
