"""Flows of packet identifiers, packet by packet: the state tables of `qos`, looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.qos import IN_FLIGHT, MAX_IN_FLIGHT, RECEIVER, SENDER
from wireyard.layers.records import Position
from wireyard.layers.states import Cell, StateTable

__all__ = ["Direction", "Flows", "event_of"]

_ERROR: Final = 128
"""The lowest reason code that is an error."""

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
    """Return the event of a packet in its flow, None if it belongs to no flow.

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
        Whether the session was captured from its beginning.

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
        """Apply an event to a flow; return the cell of the transition."""
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
        """Whether more messages are in flight on this connection than Receive Maximum allows."""
        return self._quota < 0

    def connect(self, kept: bool, receive_maximum: int = MAX_IN_FLIGHT) -> None:
        """Begin a new connection.

        Parameters
        ----------
        kept
            Whether it resumes the session.
        receive_maximum
            Receive Maximum of the side that receives the messages.
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
        """Yield the packet identifiers of the messages in flight."""
        return (packet_id for packet_id, state in self._states.items() if state in IN_FLIGHT)


class Direction:
    """The messages of a session in one direction.

    Parameters
    ----------
    known
        Whether the session was captured from its beginning.
    """

    __slots__ = ("receiver", "sender", "tracked")

    def __init__(self, known: bool) -> None:
        self.sender = Flows(SENDER, known)
        self.receiver = Flows(RECEIVER, known)
        self.tracked: dict[int, Any] = {}
        """The messages in flight by packet identifier, as the tracker represents them."""

    def connect(self, kept: bool, receive_maximum: int) -> list[Any]:
        """Begin a new connection, as `Flows.connect` does; return the messages that this ends."""
        self.sender.connect(kept, receive_maximum)
        self.receiver.connect(kept, receive_maximum)
        over = [packet_id for packet_id in self.tracked if packet_id not in self.sender]
        return [self.tracked.pop(packet_id) for packet_id in over]

    def abandon(self) -> None:
        """Mark the tracked messages: the session ends before they are acknowledged."""
        for attempt in self.tracked.values():
            attempt.abandoned = True

    def untrace(self, before: Position) -> None:
        """Mark tracked messages sent before a position, unless they are acknowledged."""
        for attempt in self.tracked.values():
            attempt.untraced |= attempt.acknowledged is None and attempt.at < before

    def leave(self) -> Iterable[Any]:
        """Remove the tracked messages; return them."""
        tracked, self.tracked = self.tracked, {}
        return tracked.values()

    def in_flight(self) -> list[int]:
        """Return the packet identifiers of the messages in flight."""
        return sorted(self.sender.in_flight())
