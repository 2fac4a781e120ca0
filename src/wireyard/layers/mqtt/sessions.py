"""What outlives a connection: a client's flows in both directions, its subscriptions, its will.

Everything follows the client id. An endpoint has one `Session`, of which it runs its own roles; who
watches has one for every client id of a broker and runs all four.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from wireyard.layers.mqtt.connections import WILL
from wireyard.layers.mqtt.flow_tables import RECEIVER, SENDER
from wireyard.layers.mqtt.flows import Flows
from wireyard.layers.mqtt.notes import Tracker
from wireyard.layers.mqtt.records import Link, Message, Subscribed
from wireyard.layers.records import Position

__all__ = ["MAX_FILTERS", "Direction", "Session", "Will"]

MAX_FILTERS: Final = 1 << 14
"""Subscriptions of one session; brokers in use limit them to thousands where they do."""


class Direction:
    """The messages of a session that go one way.

    Parameters
    ----------
    known
        Whether the session is seen from its beginning.
    """

    __slots__ = ("carried", "receiver", "sender")

    def __init__(self, known: bool) -> None:
        self.sender = Flows(SENDER, known)
        self.receiver = Flows(RECEIVER, known)
        self.carried: dict[int, Any] = {}
        """By packet identifier, what the caller has noted of the message."""

    def connect(self, kept: bool, receive_maximum: int) -> list[Any]:
        """Begin a new connection, as `Flows.connect` does; return what is over with that."""
        self.sender.connect(kept, receive_maximum)
        self.receiver.connect(kept, receive_maximum)
        over = [packet_id for packet_id in self.carried if packet_id not in self.sender]
        return [self.carried.pop(packet_id) for packet_id in over]

    def abandon(self) -> None:
        """Note that the session ends before these messages are acknowledged."""
        for attempt in self.carried.values():
            attempt.abandoned = True

    def untrace(self) -> None:
        """Note that the connection ends, and that nobody knows whose session it was."""
        for attempt in self.carried.values():
            attempt.untraced = attempt.acknowledged is None

    def leave(self) -> Iterable[Any]:
        """Forget the messages; return them."""
        carried, self.carried = self.carried, {}
        return carried.values()

    def in_flight(self) -> list[int]:
        """Return the packet identifiers of the messages that are on their way."""
        return sorted(self.sender.in_flight())


class Will:
    """A will, from the CONNECT that brought it until it is published or dropped.

    Parameters
    ----------
    message
        What is published.
    delay_s
        How long after the end of the connection.
    """

    __slots__ = ("delay_s", "due", "message", "state")

    def __init__(self, message: Message, delay_s: int = 0) -> None:
        self.message = message
        self.delay_s = delay_s
        self.due: Position | None = None
        """When its delay is over, once it has begun."""
        self.state = WILL["none", "connected"].state

    def step(self, event: str) -> str | None:
        """Take an event of `WILL_EVENTS`; return ``published``, ``dropped`` or None."""
        cell = WILL[self.state, event]
        self.state = cell.state
        return cell.effect


class Session:
    """What a broker and a client keep for each other.

    Parameters
    ----------
    name
        The client id.
    known
        Whether the session is seen from its beginning.
    tracker
        Who tracks its messages.
    """

    __slots__ = (
        "down", "expires", "filters", "known", "link", "name", "served_as", "up", "will",
    )  # fmt: skip

    def __init__(self, name: str, known: bool, tracker: Tracker) -> None:
        self.name = name
        self.known = known
        """Whether all of its subscriptions were seen."""
        self.up, self.down = tracker.new_direction(known), tracker.new_direction(known)
        self.filters: dict[str, Subscribed] = {}
        self.served_as: dict[str, None] = {}
        """Under which names messages ever went to it: its own, or a filter that it shares."""
        self.link: Link | None = None
        """The connection it is on, or was on last."""
        self.will: Will | None = None
        self.expires: Position | None = None
        """When it ends, unless its client comes back before."""

    def connect(self, link: Link, kept: bool, limits: tuple[int, int]) -> list[Any]:
        """Take up the session on a new connection; return the messages that are over with that.

        Parameters
        ----------
        kept
            Whether it goes on; if not, this is a new one of the same name.
        limits
            Receive Maximum of the broker, and of the client.
        """
        self.link, self.expires = link, None
        self.known |= not kept
        if not kept:
            self.down.abandon()
        return self.up.connect(kept, limits[0]) + self.down.connect(kept, limits[1])

    def leave(self) -> Iterator[Any]:
        """Yield the messages that it remembers by packet identifier, and forget them."""
        for direction in (self.up, self.down):
            yield from direction.leave()
