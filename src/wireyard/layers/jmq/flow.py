"""Who must not send for a while: pauses by flags F and C, until RESUME_FLOW.

A broker marks the last message that a connection (F) or a consumer (C) has room for; a client marks
the last one that its connection (F) or producer (C) may send.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.formats.jmq.layout import FLAGS
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.jmq.records import Report
from wireyard.layers.records import Position
from wireyard.layers.states import StateTable

__all__ = ["FLOW", "FLOW_EVENTS", "MAX_PAUSED", "Flow"]

MAX_PAUSED: Final = 1 << 16
"""Consumers and producers of all connections that may be paused at once; applications have tens."""

FLOW_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "send": "a message without the flag",
        "send_last": "a message with the flag",
        "resume": "RESUME_FLOW for it, with any size but 0",
        "stop": "RESUME_FLOW of a broker, with size 0",
    }
)
"""What each event is."""

FLOW: Final[StateTable[str, str, str]] = StateTable(
    {
        "flowing": {
            "send": "flowing",
            "send_last": "paused",
            "resume": "flowing",
            "stop": "stopped",
        },
        "paused": {"resume": "flowing", "stop": "stopped"},
        # A message may have been under way when the broker stopped the producer.
        "stopped": {
            "send": "stopped",
            "send_last": "stopped",
            "resume": "flowing",
            "stop": "stopped",
        },
    },
    FLOW_EVENTS,
    state_rules={"paused": "sent_while_paused"},
)
"""A consumer, a producer or a connection that may send, or not."""


_OF_CONNECTION, _OF_ONE = FLAGS["F"], FLAGS["C"]
_MARKS: Final = _OF_CONNECTION | _OF_ONE


class Flow:
    """The pauses of one direction of a connection: of itself, and of consumers or producers.

    Parameters
    ----------
    report
        Where broken rules go.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._paused: OrderedDict[int | None, tuple[str, int | None]] = OrderedDict()
        """State and time by id, None for the connection; what flows is not in it."""
        self.pauses = 0
        self.paused_ns = 0

    def state(self, who: int | None) -> str:
        """Return the state of a consumer or producer, or of the connection."""
        known = self._paused.get(who)
        return known[0] if known else "flowing"

    def send(self, who: int | None, row: PacketRow, at: Position) -> None:
        """Observe a message for a consumer, or of a producer."""
        flags = row["bit_flags"] & _MARKS
        if not flags and not self._paused:
            return
        self._step(None, "send_last" if flags & _OF_CONNECTION else "send", row, at)
        if who is not None:
            self._step(who, "send_last" if flags & _OF_ONE else "send", row, at)

    def resume(self, who: int | None, row: PacketRow, at: Position, stop: bool = False) -> None:
        """Observe a RESUME_FLOW for a consumer or producer, or for the connection."""
        self._step(who, "stop" if stop else "resume", row, at)

    def forget(self, who: int, at: Position) -> None:
        """Record that a consumer or producer is gone."""
        if who in self._paused:
            self._resume(who, at)

    def miss(self) -> None:
        """Record that packets are missing: what is paused behind them is unknown, and how long."""
        self._report.output.release("MAX_PAUSED", len(self._paused))
        self._paused.clear()

    def close(self, at: Position) -> None:
        """Record that the connection is over."""
        for who in list(self._paused):
            self._resume(who, at)

    def _step(self, who: int | None, event: str, row: PacketRow, at: Position) -> None:
        state = self.state(who)
        following, _, rule = FLOW.lookup(state, event)
        if rule is not None:
            key = row.get("sys_message_id")
            self._report.breach(rule, row, at, key)
        elif following != state:
            if state != "flowing":
                self._resume(who, at)
            if following != "flowing":
                self._pause(who, following, at)

    def _pause(self, who: int | None, state: str, at: Position) -> None:
        self.pauses += 1
        if not self._report.output.admit("MAX_PAUSED", MAX_PAUSED):
            if not self._paused:
                return
            self._resume(next(iter(self._paused)), at)
            self._report.output.admit("MAX_PAUSED", MAX_PAUSED)
        self._paused[who] = state, at.ns

    def _resume(self, who: int | None, at: Position) -> None:
        _, since = self._paused.pop(who)
        self._report.output.release("MAX_PAUSED")
        if since is not None and at.ns is not None:
            self.paused_ns += max(at.ns - since, 0)
