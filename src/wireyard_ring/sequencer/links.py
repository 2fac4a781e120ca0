"""The connections of one member: one that it opened to each other address, and those it accepted.

A process sends on the connections that it opened, and reads from those it accepted. On a connection
that it opened it reads only a Hello, which identifies the process at that address. So two processes
never open the same connection at once, and the loss of a connection does not affect the other
direction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wireyard_ring.sequencer.frames import Frame, FrameReader, Member, encode

__all__ = ["Answer", "Command", "Dial", "Drop", "HangUp", "Incoming", "Link", "Links", "Write"]

_MAX_STRANGERS = 64
"""The most accepted connections without a Hello: as many as a ring has members."""


class Dial(NamedTuple):
    """Open a connection to an address, after dropping the one that is open or being opened."""

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
    """Close an accepted connection; `reason` is a message for the log, None if nothing is wrong."""

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
    """The member of the view that was expected at the address when it was dialled."""
    member: Member | None = None
    """The process that answered; None until the connection is up."""
    up_at: float = 0.0
    redial_at: float = 0.0
    streaming: bool = False
    """Whether new packets, or their order, are sent on it."""


@dataclass(slots=True)
class Incoming:
    """A connection that this process accepted."""

    reader: FrameReader
    until: float
    """The time at which it is closed if no Hello has come."""
    member: Member | None = None


class Links:
    """All connections of the process `me`, and the commands for them.

    `places` is the number of addresses of the ring, and `max_packet_bytes` its longest packet.
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
        """Return the next command for the shell, None if there is none."""
        return self._commands.popleft() if self._commands else None

    # --- connections that this process opens ------------------------------------------------

    def dial(self, link: Link, target: Member | None) -> None:
        """Open a connection."""
        self._down(link)
        link.dialing, link.target = True, target
        link.reader = self._reader()
        self._commands.append(Dial(link.place))

    def up(self, link: Link, member: Member, now: float) -> None:
        """Record that a member has answered on a connection."""
        link.dialing, link.member, link.up_at = False, member, now

    def failed(self, link: Link, redial_at: float) -> None:
        """Record that a connection could not be opened, or was lost."""
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
        """Add an accepted connection, or close it if too many others have sent no Hello."""
        strangers = sum(incoming.member is None for incoming in self._incoming.values())
        self._incoming[connection] = Incoming(self._reader(), until)
        if strangers >= _MAX_STRANGERS:
            self.hang_up(connection, f"{strangers} connections before it have sent no Hello")

    def incoming(self, connection: int) -> Incoming | None:
        """Return an accepted connection, None if it is closed."""
        return self._incoming.get(connection)

    def identified(self, connection: int, member: Member) -> None:
        """Record the sender of a connection, which replaces an older one of the same process."""
        for other, incoming in list(self._incoming.items()):
            if incoming.member == member:
                self.hang_up(other, None)
        self._incoming[connection].member = member

    def answer(self, connection: int, frame: Frame) -> None:
        """Send a frame back on an accepted connection."""
        self._commands.append(Answer(connection, encode(frame)))

    def closed(self, connection: int) -> None:
        """Remove an accepted connection that was closed by the other side."""
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
        """Close all connections."""
        for link in self:
            self.drop(link)
        for connection in list(self._incoming):
            self.hang_up(connection, None)
