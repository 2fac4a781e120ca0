"""Failure detection: suspected members, and the members that may decide on a view without others.

The rules that prevent a ring from becoming two:

- A member may vote for a view without another member only if that one is dead, or `patience` after
  the last heartbeat of it that this member has echoed. So an echo is a promise to the sender of the
  heartbeat not to exclude it before that time. The promise is the sender's lease.
- A process is dead if its address refuses connections, or if another process answers there.
- A view is decided by more than half of the members of the previous view, or by exactly half if the
  first member is among them. Dead members do not count if they were found dead before the lease
  that they had granted ended, because then they cannot have excluded anyone.

When a process that was stopped continues, all its leases have ended. It can go on with the others
if they have not excluded it, or with a majority of all members; alone with dead ones it cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

from wireyard_ring.sequencer.frames import Beat, Member

__all__ = ["Contacts"]

_MICROSECONDS = 1_000_000
_LEASE = 0.9
"""The length of a lease as a part of `patience`; the rest allows for clocks of different speed."""


class Contacts:
    """The heartbeats that one process has received, and the leases between it and the others.

    A process is suspected after `patience_s` without a heartbeat.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._beats: dict[Member, tuple[float, Beat]] = {}
        self._granted: dict[Member, float] = {}
        self._echoes: dict[Member, int] = {}
        self._leases: dict[Member, float] = {}
        self._renounced: set[Member] = set()
        self._dead: set[Member] = set()
        self._discounted: set[Member] = set()

    def beat(self, sender: Member, beat: Beat, now: float, grant: bool) -> None:
        """Observe a heartbeat; with `grant` it will be echoed."""
        self._beats[sender] = now, beat
        if beat.echo:
            lease = beat.echo / _MICROSECONDS + self._patience_s * _LEASE
            self._leases[sender] = max(lease, self._leases.get(sender, 0.0))
        if grant and sender not in self._renounced:
            self._granted[sender] = now
            self._echoes[sender] = beat.sent

    def stamp(self, now: float) -> int:
        """Return `now` in the form of heartbeats, never 0."""
        return int(now * _MICROSECONDS) + 1

    def echo(self, member: Member) -> int:
        """Return the echo for a process; 0 is no promise."""
        return self._echoes.get(member, 0)

    def heard(self, now: float) -> dict[Member, Beat]:
        """Return the last heartbeat of each process that is alive."""
        return {
            member: beat
            for member, (time, beat) in self._beats.items()
            if member not in self._dead and now <= time + self._patience_s
        }

    def has_lease(self, member: Member, now: float) -> bool:
        """Return whether this process has a lease from a member, which has not excluded it then."""
        return now < self._leases.get(member, 0.0)

    def had_lease(self, member: Member) -> bool:
        """Return whether a member ever granted this process a lease."""
        return member in self._leases

    def suspected(self, member: Member, now: float) -> bool:
        """Return whether this process may vote for a view without a member."""
        return member in self._dead or now > self._granted.get(member, 0.0) + self._patience_s

    def is_dead(self, member: Member) -> bool:
        """Return whether a process has ended."""
        return member in self._dead

    def died(self, member: Member, now: float) -> None:
        """Record that a process has ended."""
        if member not in self._dead:
            self._dead.add(member)
            if self.has_lease(member, now):
                self._discounted.add(member)

    def renounce(self, members: Sequence[Member]) -> None:
        """Grant members no more leases; they are suspected after `patience`."""
        for member in members:
            self._renounced.add(member)
            self._echoes.pop(member, None)

    def may_decide(self, view: Sequence[Member], voters: Sequence[Member]) -> bool:
        """Return whether `voters` may decide on the view after `view`."""
        counted = [member for member in view if member not in self._discounted]
        if 2 * len(voters) == len(counted):
            return counted[0] in voters
        return 2 * len(voters) > len(counted)

    def installed(self, view: Sequence[Member], now: float) -> None:
        """Begin a view, with new leases."""
        self._renounced.clear()
        for member in view:
            self._granted[member] = max(now, self._granted.get(member, now))
        self.forget(view, now)

    def forget(self, view: Sequence[Member], now: float) -> None:
        """Remove processes that are silent and not in the view."""
        kept = set(view).union(
            member for member, (time, _) in self._beats.items() if now <= time + self._patience_s
        )
        for by_member in (self._beats, self._granted, self._echoes, self._leases):
            for member in set(by_member) - kept:
                del by_member[member]
        self._dead &= kept
        self._discounted &= kept

    def resumed(self, now: float) -> None:
        """Do not count the time in which this process itself did not run as silence of others."""
        for member in self._granted:
            self._granted[member] = now
