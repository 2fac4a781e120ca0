"""Flow control: pauses that begin with flag F or C and end with RESUME_FLOW.

A broker sets the flag on the last message that a connection (F) or a consumer (C) has room for, a
client on the last one that its connection (F) or producer (C) may send.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tests.reference.jmq_chain.records import Report
from wireyard.formats.jmq.layout import FLAGS
from wireyard.layers.jmq import rules
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.jmq.states import FLOW
from wireyard.layers.records import Position

__all__ = ["Flow"]

_OF_CONNECTION, _OF_ONE = FLAGS["F"], FLAGS["C"]
_MARKS: Final = _OF_CONNECTION | _OF_ONE


class Flow:
    """The pauses of one direction of a connection: its own, and those of consumers or producers.

    Parameters
    ----------
    report
        The output of violations.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._paused: OrderedDict[int | None, tuple[str, int | None]] = OrderedDict()
        """State and time of what is not flowing, by id; the connection itself has the id None."""
        self.pauses = 0
        self.paused_ns = 0

    def state(self, target: int | None) -> str:
        """Return the state of a consumer or producer, or of the connection."""
        paused = self._paused.get(target)
        return paused[0] if paused else "flowing"

    def send(self, target: int | None, row: PacketRow, at: Position) -> None:
        """Observe a message to a consumer, or from a producer."""
        flags = row["bit_flags"] & _MARKS
        if not flags and not self._paused:
            return
        self._apply(None, "send_last" if flags & _OF_CONNECTION else "send", row, at)
        if target is not None:
            self._apply(target, "send_last" if flags & _OF_ONE else "send", row, at)

    def resume(self, target: int | None, row: PacketRow, at: Position, stop: bool = False) -> None:
        """Observe a RESUME_FLOW for a consumer or producer, or for the connection."""
        self._apply(target, "stop" if stop else "resume", row, at)

    def end_pause(self, target: int, at: Position) -> None:
        """End the pause of a consumer or producer that was deleted."""
        if target in self._paused:
            self._resume(target, at)

    def miss(self) -> None:
        """Observe that packets are missing: the present pauses and their ends are unknown."""
        self._report.output.release("MAX_PAUSED", len(self._paused))
        self._paused.clear()

    def close(self, at: Position) -> None:
        """End all pauses with the connection."""
        for target in list(self._paused):
            self._resume(target, at)

    def _apply(self, target: int | None, event: str, row: PacketRow, at: Position) -> None:
        state = self.state(target)
        following, _, rule = FLOW.lookup(state, event)
        if rule is not None:
            key = row.get("sys_message_id")
            self._report.add_violation(rule, row, at, key)
        elif following != state:
            if state != "flowing":
                self._resume(target, at)
            if following != "flowing":
                self._pause(target, following, at)

    def _pause(self, target: int | None, state: str, at: Position) -> None:
        self.pauses += 1
        if not self._report.output.admit("MAX_PAUSED", rules.MAX_PAUSED):
            if not self._paused:
                return
            self._resume(next(iter(self._paused)), at)
            self._report.output.admit("MAX_PAUSED", rules.MAX_PAUSED)
        self._paused[target] = state, at.ns

    def _resume(self, target: int | None, at: Position) -> None:
        _, since = self._paused.pop(target)
        self._report.output.release("MAX_PAUSED")
        if since is not None and at.ns is not None:
            self.paused_ns += max(at.ns - since, 0)
