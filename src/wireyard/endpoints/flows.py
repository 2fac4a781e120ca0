"""Messages in flight of one session, over all of its connections.

The states are those of `SENDER` for messages that this side sends, and of `RECEIVER` for those that
it receives. A flow is kept while its message is in flight; afterwards its packet identifier is
free, because this side has read the acknowledgement itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wireyard.endpoints.messages import Delivery
from wireyard.layers.mqtt.qos import IN_FLIGHT, MAX_IN_FLIGHT, RECEIVER, SENDER
from wireyard.layers.states import Cell

_BEGINS: Final = ("", SENDER["free", "publish_1"].state, SENDER["free", "publish_2"].state)
_TO_RESEND: Final = frozenset({"resend_1", "resend_2"})
_TO_RELEASE: Final = frozenset({"unread_2", "rerelease"})


class NoIdentifier(Exception):
    """All packet identifiers are in use."""


class Flow:
    """A message that this side sends, and its state in `SENDER`."""

    __slots__ = ("delivery", "state")

    def __init__(self, delivery: Delivery, state: str) -> None:
        self.delivery, self.state = delivery, state


class Flows:
    """The flows of a session in both directions, by packet identifier."""

    def __init__(self) -> None:
        self.sending: dict[int, Flow] = {}
        """In the order in which they were first sent, in which they are sent again too."""
        self.receiving: dict[int, str] = {}
        """States in `RECEIVER`."""
        self.requests: set[int] = set()
        """Packet identifiers of SUBSCRIBE and UNSUBSCRIBE packets without an answer."""
        self._last_id = 0

    def begin(self, delivery: Delivery) -> int:
        """Begin to send a message; return its packet identifier.

        Raises
        ------
        NoIdentifier
            There is none left.
        """
        packet_id = delivery.packet_id = self.free_id()
        self.sending[packet_id] = Flow(delivery, _BEGINS[delivery.qos])
        return packet_id

    def restore(self, delivery: Delivery, is_received: bool) -> None:
        """Continue with a message that was in flight before a restart.

        Parameters
        ----------
        is_received
            Whether its PUBREC has arrived.
        """
        assert delivery.packet_id is not None
        self.sending[delivery.packet_id] = Flow(delivery, _BEGINS[delivery.qos])
        # Identifiers go on behind it: those before it were acknowledged not long ago.
        self._last_id = max(self._last_id, delivery.packet_id)
        if is_received:
            self.sent(delivery.packet_id, "pubrec")

    def hold(self, packet_id: int) -> None:
        """Continue with a packet identifier whose PUBREL had not arrived before a restart."""
        for event in ("publish_2", "pubrec"):
            self.received(packet_id, event)

    def free_id(self) -> int:
        """Return a packet identifier that is not in use."""
        for _ in range(MAX_IN_FLIGHT):
            self._last_id = self._last_id % MAX_IN_FLIGHT + 1
            if self._last_id not in self.sending and self._last_id not in self.requests:
                return self._last_id
        raise NoIdentifier

    def sent(self, packet_id: int, event: str) -> Cell[str, str]:
        """Apply an event to a flow that this side sends.

        An event that violates a rule changes nothing: the connection ends.
        """
        flow = self.sending.get(packet_id)
        state = "free" if flow is None else flow.state
        cell = SENDER.get((state, event)) or SENDER.lookup(state, event)
        if flow is not None and cell.rule is None:
            flow.state = cell.state
            if cell.state not in IN_FLIGHT:
                del self.sending[packet_id]
        return cell

    def received(self, packet_id: int, event: str) -> Cell[str, str]:
        """Apply an event to a flow that this side receives, unless it violates a rule."""
        state = self.receiving.get(packet_id, "free")
        cell = RECEIVER.get((state, event)) or RECEIVER.lookup(state, event)
        if cell.rule is None:
            if cell.state in IN_FLIGHT:
                self.receiving[packet_id] = cell.state
            else:
                self.receiving.pop(packet_id, None)
        return cell

    def resume(self) -> None:
        """Continue on a new connection."""
        for packet_id in list(self.sending):
            self.sent(packet_id, "resumed")
        for packet_id in list(self.receiving):
            self.received(packet_id, "resumed")

    def discard(self) -> list[Delivery]:
        """End the session: forget all flows; return the messages whose delivery was open."""
        deliveries = [flow.delivery for flow in self.sending.values()]
        self.sending.clear()
        self.receiving.clear()
        return deliveries

    def to_release(self) -> Iterator[int]:
        """Yield the flows whose PUBREL has to be sent again, each in its new state."""
        for packet_id, flow in list(self.sending.items()):
            if flow.state in _TO_RELEASE:
                self.sent(packet_id, "pubrel")
                yield packet_id

    def to_resend(self) -> list[int]:
        """Return the flows whose PUBLISH has to be sent again."""
        return [number for number, flow in self.sending.items() if flow.state in _TO_RESEND]

    def resend(self, packet_id: int) -> Delivery:
        """Begin a flow again with DUP; return its message."""
        flow = self.sending[packet_id]
        self.sent(packet_id, f"dup_{flow.delivery.qos}")
        return flow.delivery
