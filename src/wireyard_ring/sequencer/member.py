"""A member of a ring that is ordered by a sequencer: one process, sans-IO.

The first member of a view is its sequencer. Every member has a connection to every other and
detects silent members by itself. The first member that is not suspected proposes the next view,
without the suspected members and with the processes that join. A view is decided by single-value
Paxos among the members of the previous view: promises, then acceptances, of all that are not
suspected (`changes`). `contacts` has the rules for how many they must be.

It uses no sockets, clocks, threads or randomness. The shell executes the commands of
`next_command`, reports their results, calls `handle_timer` when `get_timer` is due, and takes
events when the application reads; `now` is any clock in seconds that never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from wireyard.errors import DecodeError
from wireyard_ring.sequencer.changes import Addressed, Changes, Decision
from wireyard_ring.sequencer.contacts import Contacts
from wireyard_ring.sequencer.frames import Beat, Frame, Hello, Install, Member, PacketFrame
from wireyard_ring.sequencer.links import Command, Link, Links
from wireyard_ring.sequencer.peers import Peers
from wireyard_ring.sequencer.settings import Settings
from wireyard_ring.sequencer.states import PHASES, Action, AddressEvent, Phase, PhaseEvent
from wireyard_ring.sequencer.traffic import Traffic

__all__ = ["Event", "Failed", "NewView", "Packet", "RingMember"]

_BEAT_TICKS = 4
"""Ticks between beats. A beat is sent each sixth of `patience_s`, so five may be late."""
_EXCLUDED = "the others have excluded this process"


class Packet(NamedTuple):
    """A packet, in the order of packets."""

    source: str
    data: bytes


class NewView(NamedTuple):
    """A view, in the order of packets."""

    ring: int
    """A random number of the ring, which identifies the view together with `number`."""
    number: int
    members: tuple[str, ...]


class Failed(NamedTuple):
    """The last event: the process has failed to join the ring, or to stay in it."""

    reason: str


Event = Packet | NewView | Failed


class RingMember:
    """One process of a ring.

    Parameters
    ----------
    addresses
        The addresses of the ring, as ``address:port``; the same list at all members.
    place
        The index of the address that this process listens on.
    incarnation
        A random number of 64 bits, because a restarted process is another member.
    now
        The time in seconds.
    settings
        Bounds and delays, the same at all members.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        place: int,
        incarnation: int,
        now: float,
        settings: Settings | None = None,
    ) -> None:
        self._addresses = tuple(addresses)
        self._settings = settings or Settings()
        self._me = Member(place, incarnation)
        self._phase = Phase.JOINING
        self._view = Install(0, 0, 0, ())
        """The last view that was installed."""
        self._events: deque[Event] = deque()
        self._links = Links(len(addresses), self._me, self._settings.max_packet_bytes)
        self._contacts = Contacts(self._settings.patience_s)
        self._peers = Peers(self._addresses, self._me, self._links, self._contacts, self._settings)
        self._traffic = Traffic(self._me, self._links, self._settings)
        self._changes = Changes(self._me, self._contacts, 2 * self._settings.tick_s)
        self._now = self._tick_at = self._beat_at = now
        self._progress_at = self._read_at = now
        self._review()

    # --- the application --------------------------------------------------------------------

    @property
    def process_id(self) -> str:
        """The address of this process, which is its id at all members."""
        return self._addresses[self._me.place]

    @property
    def phase(self) -> Phase:
        """The phase of this member."""
        return self._phase

    @property
    def gone(self) -> bool:
        """Whether it has left the ring or failed."""
        return self._phase is Phase.GONE

    @property
    def waiting_bytes(self) -> int:
        """Bytes of own packets that are not delivered yet."""
        return self._traffic.outgoing.waiting_bytes

    @property
    def writable(self) -> bool:
        """Whether `send` has room for a packet."""
        return not self._traffic.outgoing.full

    def send(self, data: bytes, now: float) -> bool:
        """Send a packet; return whether there was room for it."""
        if self.gone:
            return False
        self._wake(now)
        is_sent = self._traffic.send(data)
        self._collect()
        return is_sent

    def pause(self) -> None:
        """Stop acknowledging packets, so that in time all members wait for this one."""
        self._traffic.paused = True

    def resume(self, now: float) -> None:
        """Acknowledge the packets that have come, and go on."""
        self._wake(now)
        self._read_at = now
        self._traffic.paused = False
        self._traffic.acknowledge()
        self._collect()

    def leave(self) -> None:
        """Leave the ring."""
        if not self.gone:
            self._step(PhaseEvent.LEAVE)

    def next_event(self) -> Event | None:
        """Return the next event, None if there is none."""
        return self._events.popleft() if self._events else None

    def next_command(self) -> Command | None:
        """Return the next command for the shell, None if there is none."""
        return self._links.next_command()

    # --- connections ------------------------------------------------------------------------

    def connected(self, place: int, now: float) -> None:
        """Handle that an address has accepted the connection that was dialled."""
        self._wake(now)
        if not self.gone:
            self._peers.connected(self._links[place])

    def answered(self, place: int, data: bytes, now: float) -> None:
        """Handle bytes that came back on a connection that was dialled."""
        self._wake(now)
        if not self.gone:
            if self._peers.answered(self._links[place], data, now):
                self._beat(self._links[place])
            self._review()

    def refused(self, place: int, now: float) -> None:
        """Handle that no process listens at an address that was dialled."""
        self._wake(now)
        if not self.gone:
            self._peers.refused(self._links[place], now)
            self._review()

    def lost(self, place: int, now: float) -> None:
        """Handle that a connection has ended, or could not be opened for another reason."""
        self._wake(now)
        if not self.gone:
            self._peers.lost(self._links[place], now)
            self._review()

    def accepted(self, connection: int, now: float) -> None:
        """Add a connection that another process opened; `connection` is the shell's number."""
        self._wake(now)
        self._links.accept(connection, now + self._settings.patience_s)

    def closed(self, connection: int, now: float) -> None:
        """Handle that the other side has closed an accepted connection."""
        self._wake(now)
        self._links.closed(connection)

    def receive(self, connection: int, data: bytes, now: float) -> None:
        """Handle bytes from an accepted connection."""
        self._wake(now)
        incoming = self._links.incoming(connection)
        if incoming is None or self.gone:
            return
        try:
            for frame in incoming.reader.receive(data):
                if incoming.member is None:
                    self._peers.identify(connection, frame)
                else:
                    self._on_frame(incoming.member, frame)
                if self.gone or self._links.incoming(connection) is None:
                    break
        except DecodeError as error:
            self._links.hang_up(connection, str(error))
        self._traffic.acknowledge()
        self._collect()

    def _on_frame(self, sender: Member, frame: Frame) -> None:
        """Handle a frame from an identified process."""
        if isinstance(frame, Beat):
            self._on_beat(sender, frame)
        elif isinstance(frame, Install):
            self._on_install(frame)
        elif isinstance(frame, Hello):
            pass
        elif frame.view != self._view.view or sender not in self._view.members:
            pass  # frames of another view are sent again if they are still needed
        elif isinstance(frame, PacketFrame):
            self._traffic.receive(sender, frame)
            self._collect()
        else:
            held = self._traffic.held
            phase, frames = self._changes.receive(self._phase, sender, frame, held, self._now)
            self._phase = phase
            if phase is not Phase.MEMBER:
                self._traffic.close()
            self._send_frames(frames)
            if (decision := self._changes.decision) is not None:
                self._changes.decision = None
                self._decided(decision)

    def _collect(self) -> None:
        for order in self._traffic.delivered:
            self._events.append(Packet(self._addresses[order.source], order.data))
        self._traffic.delivered.clear()

    # --- time -------------------------------------------------------------------------------

    def get_timer(self) -> float | None:
        """Return the time at which `handle_timer` is due, None if this member is gone."""
        return None if self.gone else self._tick_at

    def handle_timer(self, now: float) -> None:
        """Send beats, and check for what takes too long."""
        if self.gone:
            return
        self._wake(now)
        self._tick_at = now + self._settings.tick_s
        if now >= self._beat_at:
            self._beat_all()
        self._links.expire(now)
        self._contacts.forget(self._view.members, now)
        self._review()
        reason = self._overdue()
        if reason is not None:
            self._step(PhaseEvent.EXPIRE, reason)

    def _wake(self, now: float) -> None:
        """Set the time; after a long time without running, the others' silence does not count."""
        gap = now - self._now
        if gap > self._settings.patience_s / 2:
            self._contacts.resumed(now)
            self._progress_at += gap
            self._read_at += gap
        self._now = now

    def _overdue(self) -> str | None:
        """Return the reason why this member has to give up, None if it can go on."""
        if self.gone:
            return None
        give_up_s = self._settings.give_up_s
        is_late = self._now - self._progress_at > give_up_s
        if self._phase is Phase.JOINING:
            silent = [self._addresses[place] for place in self._peers.silent]
            what = f"no answer from {', '.join(silent)}" if silent else "no member let it in"
            return f"{what} in {give_up_s:g} s" if is_late else None
        missing = [member for member in self._view.members if self._suspected(member)]
        if not missing and self._phase is Phase.MEMBER:
            self._progress_at = self._now
        elif is_late:
            names = ", ".join(self._addresses[member.place] for member in missing) or "the others"
            return f"no majority without {names} in {give_up_s:g} s"
        if not self._traffic.unread:
            self._read_at = self._now
        elif self._now - self._read_at > give_up_s:
            return f"nothing was read for {give_up_s:g} s, and the others waited"
        return None

    def _suspected(self, member: Member) -> bool:
        return member != self._me and self._contacts.suspected(member, self._now)

    # --- beats ------------------------------------------------------------------------------

    def _beat_all(self) -> None:
        self._beat_at = self._now + _BEAT_TICKS * self._settings.tick_s
        for link in self._links:
            if link.member is not None:
                self._beat(link)

    def _beat(self, link: Link) -> None:
        assert link.member is not None
        sent, echo = self._contacts.stamp(self._now), self._contacts.echo(link.member)
        within = link.member in self._view.members
        view, held = self._view, self._traffic.held
        self._links.write(link, Beat(sent, echo, view.ring, view.view, within, held))

    def _on_beat(self, sender: Member, beat: Beat) -> None:
        view = self._view
        joins, joining = beat.view == 0, self._phase is Phase.JOINING
        same = (beat.ring, beat.view) == (view.ring, view.view)
        if same and not joining and not beat.echo and self._contacts.had_lease(sender):
            self._changes.renounced = True
        self._contacts.beat(sender, beat, self._now, grant=same or joins or joining)
        event = AddressEvent.JOINER if joins else AddressEvent.MEMBER
        self._peers.apply(sender.place, event)
        if joining or not (joins or beat.ring == view.ring):
            pass  # this process waits to be let in, or the beat is from another ring
        elif beat.view > view.view:
            if not beat.within:
                self._step(PhaseEvent.EXCLUDED, _EXCLUDED)
        elif same:
            self._traffic.start(sender, beat.held)
        elif self._links[sender.place].member == sender:
            # The sender has an older view. If it is not in this one, a beat shows that.
            if sender in view.members:
                self._links.write(self._links[sender.place], view)
            else:
                self._beat(self._links[sender.place])
        self._review()

    # --- views ------------------------------------------------------------------------------

    def _review(self) -> None:
        """Form a ring if there is none; propose the next view if this one has to change."""
        if self._phase is Phase.JOINING and self._peers.alone:
            self._step(PhaseEvent.ALONE)
        if self.gone:
            return
        self._peers.check(self._now, self._phase is Phase.JOINING)
        if self._phase is not Phase.JOINING:
            self._send_frames(self._changes.review(self._phase, self._joiners(), self._now))

    def _joiners(self) -> tuple[Member, ...]:
        """Return the processes that can join in the next view."""
        taken = {member.place for member in self._view.members}
        return tuple(
            member
            for member, beat in self._contacts.heard(self._now).items()
            if beat.view == 0
            and member.place not in taken
            and self._links[member.place].member == member
        )

    def _send_frames(self, frames: Addressed) -> None:
        """Send frames of a ballot; those to this process itself last, because they may end it."""
        for member, frame in frames:
            if member != self._me and self._links[member.place].member == member:
                self._links.write(self._links[member.place], frame)
        for member, frame in frames:
            if member == self._me:
                self._on_frame(member, frame)

    def _decided(self, decision: Decision) -> None:
        """Send a decided view to all its members."""
        view = self._view
        install = Install(view.ring, view.view + 1, decision.cut, decision.members)
        self._send_frames([(member, install) for member in decision.members])
        if self._me not in decision.members:
            self._step(PhaseEvent.EXCLUDED, _EXCLUDED)

    def _on_install(self, install: Install) -> None:
        view = self._view
        follows = (install.ring, install.view) == (view.ring, view.view + 1)
        if self._me in install.members and (follows or self._phase is Phase.JOINING):
            self._view = install
            self._step(PhaseEvent.INSTALL)

    def _step(self, event: PhaseEvent, reason: str = "") -> None:
        self._phase, action, _ = PHASES[self._phase, event]
        if action is Action.FAIL or action is Action.CLOSE:
            self._links.close()
            if action is Action.FAIL:
                self._events.append(Failed(reason))
            return
        if action is Action.FOUND:
            self._view = Install(self._me.incarnation, 1, 0, (self._me,))
        elif action is Action.CHANGE:
            self._traffic.deliver(self._view.cut)
            self._collect()
        self._enter(self._view)

    def _enter(self, view: Install) -> None:
        """Deliver a view, and begin it."""
        names = tuple(self._addresses[member.place] for member in view.members)
        self._events.append(NewView(view.ring, view.view, names))
        self._progress_at = self._now
        self._peers.members = view.members
        self._contacts.installed(view.members, self._now)
        self._changes.begin(view.view, view.members)
        self._traffic.begin(view.view, view.members)
        self._collect()
        self._beat_all()
        self._review()
