"""The connections of one member: one that it opened to each other address, and those it accepted.

A process sends on the connections that it opened, and reads from those it accepted; on the first
kind only a Hello comes back, which shows who has the address now. So no two processes can open the
same connection at once, and a connection that is lost in one direction does not take the other with
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wireyard.layers.sequencer.frames import Frame, FrameReader, Member, encode

__all__ = ["Answer", "Command", "Dial", "Drop", "HangUp", "Incoming", "Link", "Links", "Write"]

_MAX_STRANGERS = 64
"""Accepted connections without a Hello: as many as a ring has members."""


class Dial(NamedTuple):
    """Open a connection to an address; one that is open or being opened is dropped before."""

    place: int


class Write(NamedTuple):
    """Send bytes on the connection that was opened to an address."""

    place: int
    data: bytes


class Answer(NamedTuple):
    """Send bytes back on an accepted connection."""

    connection: int
    data: bytes


class Drop(NamedTuple):
    """Close the connection that was opened to an address."""

    place: int


class HangUp(NamedTuple):
    """Close an accepted connection; `reason` is for people, None if nothing is wrong."""

    connection: int
    reason: str | None


Command = Dial | Write | Answer | Drop | HangUp


@dataclass(slots=True)
class Link:
    """The connection that this process opened to an address."""

    place: int
    reader: FrameReader
    dialing: bool = False
    target: Member | None = None
    """The member of the view that was expected there when it was dialled."""
    member: Member | None = None
    """Who answered; None until the connection is up."""
    up_at: float = 0.0
    redial_at: float = 0.0
    streaming: bool = False
    """Whether packets, or their order, are sent on it as they come."""


@dataclass(slots=True)
class Incoming:
    """A connection that this process accepted."""

    reader: FrameReader
    until: float
    """When it is closed if no Hello came."""
    member: Member | None = None


class Links:
    """All connections of a process, and what has to be done with them.

    Parameters
    ----------
    places
        How many addresses the ring has.
    me
        This process.
    max_packet_bytes
        Longest packet.
    """

    def __init__(self, places: int, me: Member, max_packet_bytes: int) -> None:
        self._max_packet_bytes = max_packet_bytes
        self._links = {n: Link(n, self._reader()) for n in range(places) if n != me.place}
        self._incoming: dict[int, Incoming] = {}
        self._commands: deque[Command] = deque()

    def _reader(self) -> FrameReader:
        return FrameReader(self._max_packet_bytes)

    def __getitem__(self, place: int) -> Link:
        return self._links[place]

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def next_command(self) -> Command | None:
        """Return what the shell has to do next, None if that is all."""
        return self._commands.popleft() if self._commands else None

    # --- connections that this process opens ------------------------------------------------

    def dial(self, link: Link, target: Member | None) -> None:
        """Open a connection."""
        self._down(link)
        link.dialing, link.target = True, target
        link.reader = self._reader()
        self._commands.append(Dial(link.place))

    def up(self, link: Link, member: Member, now: float) -> None:
        """Take note of who answered."""
        link.dialing, link.member, link.up_at = False, member, now

    def failed(self, link: Link, redial_at: float) -> None:
        """Take note that a connection is not there, or not any more."""
        self._down(link)
        link.redial_at = redial_at

    def drop(self, link: Link) -> None:
        """Close a connection."""
        if link.dialing or link.member is not None:
            self._down(link)
            self._commands.append(Drop(link.place))

    def _down(self, link: Link) -> None:
        link.dialing = link.streaming = False
        link.member = None

    def write(self, link: Link, frame: Frame) -> None:
        """Send a frame."""
        self.write_bytes(link, encode(frame))

    def write_bytes(self, link: Link, data: bytes) -> None:
        """Send an encoded frame."""
        self._commands.append(Write(link.place, data))

    # --- connections that it accepts --------------------------------------------------------

    def accept(self, connection: int, until: float) -> None:
        """Take an accepted connection, unless too many others have not said who they are."""
        strangers = sum(one.member is None for one in self._incoming.values())
        self._incoming[connection] = Incoming(self._reader(), until)
        if strangers >= _MAX_STRANGERS:
            self.hang_up(connection, f"{strangers} connections before it have sent no Hello")

    def incoming(self, connection: int) -> Incoming | None:
        """Return an accepted connection, None if it is closed."""
        return self._incoming.get(connection)

    def identified(self, connection: int, member: Member) -> None:
        """Take note of whose connection it is; it replaces an older one of the same process."""
        for other, incoming in list(self._incoming.items()):
            if incoming.member == member:
                self.hang_up(other, None)
        self._incoming[connection].member = member

    def answer(self, connection: int, frame: Frame) -> None:
        """Send a frame back."""
        self._commands.append(Answer(connection, encode(frame)))

    def closed(self, connection: int) -> None:
        """Forget an accepted connection that was closed by the other side."""
        self._incoming.pop(connection, None)

    def hang_up(self, connection: int, reason: str | None) -> None:
        """Close an accepted connection."""
        if self._incoming.pop(connection, None) is not None:
            self._commands.append(HangUp(connection, reason))

    def expire(self, now: float) -> None:
        """Close accepted connections that have not begun with a Hello in time."""
        for connection, incoming in list(self._incoming.items()):
            if incoming.member is None and incoming.until < now:
                self.hang_up(connection, "no Hello came")

    def close(self) -> None:
        """Close everything."""
        for link in self:
            self.drop(link)
        for connection in list(self._incoming):
            self.hang_up(connection, None)
