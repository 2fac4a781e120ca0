"""The processes at the other addresses of a ring, and the connections to them."""

from __future__ import annotations

from wireyard.errors import DecodeError
from wireyard_ring.sequencer.contacts import Contacts
from wireyard_ring.sequencer.frames import MAGIC, Frame, Hello, Member
from wireyard_ring.sequencer.links import Link, Links
from wireyard_ring.sequencer.settings import Settings
from wireyard_ring.sequencer.states import ADDRESSES, Address, AddressEvent

__all__ = ["Peers"]


class Peers:
    """The states of the other addresses of the ring, and the connections to them.

    `me` is this process with its connections, `links`; `contacts` is the failure detector, and
    `settings` has bounds and delays.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        me: Member,
        links: Links,
        contacts: Contacts,
        settings: Settings,
    ) -> None:
        self.members: tuple[Member, ...] = ()
        """The members of the view; connections to all of them are needed."""
        self._me = me
        self._links = links
        self._contacts = contacts
        self._settings = settings
        self._states = {link.place: Address.UNKNOWN for link in links}
        self._hello = Hello(MAGIC, settings.digest(addresses), *me)

    @property
    def alone(self) -> bool:
        """Whether no other process can be in a ring, and none with a lower place will form one."""
        joining = [place for place, state in self._states.items() if state is Address.JOINING]
        others = set(self._states.values())
        return others <= {Address.FREE, Address.JOINING} and all(
            place > self._me.place for place in joining
        )

    @property
    def silent(self) -> list[int]:
        """Places whose state is unknown, such as those that only accept connections."""
        return [place for place, state in self._states.items() if state is Address.UNKNOWN]

    def apply(self, place: int, event: AddressEvent) -> None:
        """Apply an event to the state of an address."""
        self._states[place] = ADDRESSES[self._states[place], event].state

    # --- connections that this process opens ------------------------------------------------

    def connected(self, link: Link) -> None:
        """Handle that an address has accepted a connection, and send a Hello."""
        self.apply(link.place, AddressEvent.CONNECTED)
        self._links.write(link, self._hello)

    def answered(self, link: Link, data: bytes, now: float) -> bool:
        """Handle an answer; return whether the connection is up now.

        If another process than expected answers, the expected one has ended.
        """
        try:
            for frame in link.reader.receive(data):
                member = self._sender_of(frame)
                if isinstance(member, str) or member.place != link.place or not link.dialing:
                    self._close(link, now)
                    return False
                if link.target not in (None, member):
                    self._died(link.target, now)
                self._links.up(link, member, now)
        except DecodeError:
            self._close(link, now)
        return link.member is not None

    def _close(self, link: Link, now: float) -> None:
        """Close a connection to a process that is no member, and do not dial it for a while."""
        self._links.drop(link)
        self._links.failed(link, now + self._settings.patience_s)

    def refused(self, link: Link, now: float) -> None:
        """Handle that no process listens at an address: the one expected there has ended."""
        self.apply(link.place, AddressEvent.REFUSED)
        self._died(link.target, now)
        self._links.failed(link, now + self._settings.tick_s)

    def lost(self, link: Link, now: float) -> None:
        """Handle that a connection has ended, or could not be opened for another reason."""
        was_up = link.member is not None
        self._links.failed(link, now if was_up else now + self._settings.tick_s)

    def _died(self, member: Member | None, now: float) -> None:
        if member is not None:
            self._contacts.died(member, now)

    def check(self, now: float, joining: bool) -> None:
        """Close connections that are not needed or do not get through, and open missing ones.

        A process that is `joining` has no view yet, and so needs connections to all addresses.
        """
        heard = (*self.members, *self._contacts.heard(now))
        wanted = {member.place for member in heard if not self._contacts.is_dead(member)}
        for link in self._links:
            if not joining and link.place not in wanted:
                self._links.drop(link)
            elif link.member is not None:
                aged = now > link.up_at + self._settings.patience_s
                if aged and not self._contacts.has_lease(link.member, now):
                    self._links.drop(link)
            elif not link.dialing and link.redial_at <= now:
                self._dial(link)

    def _dial(self, link: Link) -> None:
        target = next((member for member in self.members if member.place == link.place), None)
        self._links.dial(link, target)

    # --- connections that it accepts --------------------------------------------------------

    def identify(self, connection: int, frame: Frame) -> None:
        """Handle the first frame of an accepted connection, and answer it."""
        member = self._sender_of(frame)
        if isinstance(member, str):
            self._links.hang_up(connection, member)
            return
        self._links.identified(connection, member)
        self._links.answer(connection, self._hello)
        self.apply(member.place, AddressEvent.CONNECTED)
        link = self._links[member.place]
        if link.member is None and not link.dialing:
            self._dial(link)

    def _sender_of(self, frame: Frame) -> Member | str:
        """Return the sender of a connection's first frame, or the reason why it is no member."""
        if not isinstance(frame, Hello) or frame.magic != MAGIC:
            return "the first frame is no Hello of this version"
        if frame.digest != self._hello.digest:
            return "its ring has other addresses or settings"
        if frame.place not in self._states:
            return "its address is this process' own, or not in the ring"
        return Member(frame.place, frame.incarnation)
