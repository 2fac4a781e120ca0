"""The packets of one member: to the sequencer, into their order, and to the application.

Packets are sent only to members with the same view. When a connection or a view is new, the packets
that the member may lack are sent first, and new ones follow as they come. So packets that were lost
with a connection are sent again, and receivers drop duplicates by number.
"""

from __future__ import annotations

from collections.abc import Iterator

from wireyard_ring.sequencer.frames import (
    Commit,
    Held,
    Member,
    Order,
    PacketFrame,
    Submit,
    encode,
)
from wireyard_ring.sequencer.links import Link, Links
from wireyard_ring.sequencer.order import Holding, Outgoing, Sequencer, cost
from wireyard_ring.sequencer.settings import Settings

__all__ = ["Traffic"]


class Traffic:
    """The packets of this member in its successive views.

    `links` are its connections; `settings` has the longest packet, and the window.
    """

    def __init__(self, me: Member, links: Links, settings: Settings) -> None:
        self._me = me
        self._links = links
        self._window_bytes = settings.window_bytes + cost(bytes(settings.max_packet_bytes))
        self.outgoing = Outgoing(settings.window_bytes)
        self.delivered: list[Order] = []
        """Ordered packets for the application."""
        self.paused = False
        """Whether the application does not read for now, so that nothing is acknowledged."""
        self.begin(0, ())

    def begin(self, view: int, members: tuple[Member, ...]) -> None:
        """Begin a view; own packets that are not delivered are submitted to its order."""
        self._view = view
        self._members = members
        self._acknowledged = 0
        self._holding = Holding(self._window_bytes * max(1, len(members)))
        self._sequencer: Sequencer | None = None
        self._open = bool(members)
        for link in self._links:
            link.streaming = False
        if members and members[0] == self._me:
            self._sequencer = Sequencer(view, members, self._window_bytes)
            for own in tuple(self.outgoing.packets):
                self._on_submit(self._me, Submit(view, own.serial, own.data))
            self.acknowledge()

    def close(self) -> None:
        """Hold and acknowledge no more packets of this view."""
        self._open = False

    @property
    def held(self) -> int:
        """Number of the last packet of the view that this member holds."""
        return self._holding.held

    @property
    def unread(self) -> bool:
        """Whether packets are not acknowledged because the application does not read."""
        return self.paused and self._acknowledged < self._holding.held

    def send(self, data: bytes) -> bool:
        """Send an own packet, if there is room for it."""
        if self.outgoing.full:
            return False
        own = self.outgoing.add(data)
        submit = Submit(self._view, own.serial, own.data)
        if self._sequencer is not None:
            self._on_submit(self._me, submit)
            self.acknowledge()
        elif (link := self._to_sequencer()) is not None:
            self._links.write(link, submit)
        return True

    def start(self, peer: Member, held: int) -> None:
        """Begin to send to a member that has this view and holds its packets up to `held`."""
        link = self._links[peer.place]
        if link.member != peer or link.streaming or peer not in self._members:
            return
        if self._sequencer is not None:
            link.streaming = True
            # The commit comes first, so that there is room for the packets after it.
            self._links.write(link, Commit(self._view, self._holding.delivered))
            for order in self._holding.after(held):
                self._links.write(link, order)
        elif peer == self._members[0]:
            link.streaming = True
            for own in self.outgoing.packets:
                self._links.write(link, Submit(self._view, own.serial, own.data))
            self._links.write(link, Held(self._view, self._acknowledged))

    def receive(self, sender: Member, frame: PacketFrame) -> None:
        """Handle a frame of this view from one of its members.

        A DecodeError is raised if it contradicts earlier frames.
        """
        if not self._open:
            return  # after a promise the packets held of the view must not change
        if isinstance(frame, Submit):
            self._on_submit(sender, frame)
        elif isinstance(frame, Held):
            if self._sequencer is not None:
                self._advance(self._sequencer.acknowledge(sender, frame.number))
        elif sender == self._members[0]:
            if isinstance(frame, Order):
                self._holding.hold(frame)
            else:
                self.deliver(frame.number)

    def acknowledge(self) -> None:
        """Acknowledge the packets held, unless the application does not read."""
        held = self._holding.held
        if self.paused or not self._open or held == self._acknowledged:
            return
        if self._sequencer is not None:
            self._acknowledged = held
            self._advance(self._sequencer.acknowledge(self._me, held))
        elif (link := self._to_sequencer()) is not None:
            self._acknowledged = held
            self._links.write(link, Held(self._view, held))

    def deliver(self, number: int) -> None:
        """Deliver the packets up to a number."""
        for order in self._holding.deliver(number):
            if order.source == self._me.place:
                self.outgoing.delivered(order.serial)
            if self._sequencer is not None:
                self._sequencer.delivered(order)
            self.delivered.append(order)

    # --- inside -----------------------------------------------------------------------------

    def _to_sequencer(self) -> Link | None:
        """Return the connection to the sequencer, None if it is this member or not in use."""
        if not self._open or self._members[0] == self._me:
            return None
        link = self._links[self._members[0].place]
        return link if link.streaming else None

    def _streams(self) -> Iterator[Link]:
        """Yield the connections on which the order is sent."""
        return (link for link in self._links if link.streaming)

    def _on_submit(self, sender: Member, frame: Submit) -> None:
        if self._sequencer is None or not self._open:
            return
        order = self._sequencer.order(sender, frame.serial, frame.data)
        if order is None:
            return
        self._holding.hold(order)
        encoded = encode(order)
        for link in self._streams():
            self._links.write_bytes(link, encoded)

    def _advance(self, number: int) -> None:
        """Deliver the packets that all members hold, here and at the others."""
        if number > self._holding.delivered:
            self.deliver(number)
            commit = Commit(self._view, number)
            for link in self._streams():
                self._links.write(link, commit)
