"""Own messages that have a number, until all of them is back: what a view cuts is sent again.

A view drops what is unfinished at every member. A message of which some packets came before the
view and some did not is cut: its sender has to send it whole again, under a new number, for the
tail of the old one still arrives. One that no packet is back of will be ordered whole in the new
view; sent again, it would be there twice. All members agree which is which, for the sender sees
its own packets and the view in the same order as everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.qos import QoS
from wireyard.layers.rmp.segments import Draft
from wireyard.layers.rmp.states import OWN, Effect, Own, OwnEvent

__all__ = ["OwnMessage", "OwnMessages"]


@dataclass(slots=True)
class OwnMessage:
    """A message on its way through the ring and back."""

    draft: Draft | None
    """What to send again; None once that was done."""
    qos: QoS
    count: int
    back: set[int] = field(default_factory=set)
    """Which packets."""
    state: Own = Own.SENT
    request: int | None = None
    """The request that it is, whose number changes when it is sent again."""


class OwnMessages:
    """The messages of one ring that are not back."""

    def __init__(self, numbers: Numbers) -> None:
        self.waiting_bytes = 0
        """Bytes kept to be sent again."""
        self._numbers = numbers
        self._messages: dict[int, OwnMessage] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, number: int, message: OwnMessage) -> None:
        """Follow a message that is being sent."""
        self._messages[number] = message
        self.waiting_bytes += _kept_bytes(message)

    def packet_back(self, number: int, packet_number: int) -> None:
        """Take note of a packet that the ring gave back."""
        message = self._messages.get(number)
        if message is None:
            return  # sent by who had this process id before
        message.back.add(packet_number)
        last = len(message.back) == message.count
        event = OwnEvent.LAST if last else OwnEvent.PACKET
        message.state, effect = OWN[message.state, event]
        if effect is Effect.FREE:
            del self._messages[number]
            self.waiting_bytes -= _kept_bytes(message)
            self._numbers.release(number, Hold.ON_THE_WAY)

    def view(self) -> list[tuple[int, OwnMessage]]:
        """Return the messages that a new view cut and their numbers, to be sent again in order."""
        again = []
        for number, message in self._messages.items():
            message.state, effect = OWN[message.state, OwnEvent.VIEW]
            if effect is Effect.RESEND:
                again.append((number, replace(message, back=set(), state=Own.SENT)))
                self.waiting_bytes -= _kept_bytes(message)
                message.draft = None
        return again


def _kept_bytes(message: OwnMessage) -> int:
    return 0 if message.draft is None else len(message.draft.data)
