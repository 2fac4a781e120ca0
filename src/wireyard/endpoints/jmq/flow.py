"""The flow of messages to a consumer or to a connection, by the state table `FLOW`."""

from __future__ import annotations

from wireyard.layers.jmq.states import FLOW

_OPEN = FLOW.states[0]


class Flow:
    """How many messages may be sent until the other side resumes the flow.

    Parameters
    ----------
    size
        Messages until then; without a limit if it is not positive.
    """

    __slots__ = ("is_open", "left", "state")

    def __init__(self, size: int = 0) -> None:
        self.state = _OPEN
        self.is_open = True
        """Whether a message may be sent."""
        self.left = max(size, 0)

    def send(self) -> bool:
        """Count a message; return whether it is the last one, which is sent with a flag."""
        if not self.left:
            return False
        self.left -= 1
        self._advance("send" if self.left else "send_last")
        return not self.left

    def take(self, *, is_last: bool) -> bool:
        """Count a message that came; return False if it may not, as the flow was not resumed."""
        event = "send_last" if is_last else "send"
        is_allowed = FLOW.lookup(self.state, event).rule is None
        if is_allowed:
            self._advance(event)
        return is_allowed

    def resume(self, size: int, *, stops: bool = False) -> None:
        """Let `size` messages flow; if it is not positive any number, or none if 0 stops it."""
        self._advance("stop" if stops and not size else "resume")
        self.left = max(size, 0)

    def _advance(self, event: str) -> None:
        self.state = FLOW[self.state, event].state
        self.is_open = self.state == _OPEN
