"""Failure detection: who is suspected, and who may decide on a view without the others.

The rules against two rings where there was one:

- A member may vote for a view without another one only if that is dead, or `patience` after the
  last beat of it that this member has echoed. So an echo is a promise to the one who sent the beat:
  until then it is not excluded. The promise is its lease.
- A process is dead when its address refuses connections, or another process answers there.
- A view is decided by more than half of the members of the view before; of exactly half if the
  first of them is among them. Members that are dead do not count, if their death was seen before
  the lease that they had given ended: until then they cannot have excluded anyone.

A process that was stopped wakes up with all leases over. It can go on with the others if they have
not excluded it, or with a majority of all; alone with the dead it cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

from wireyard.layers.sequencer.frames import Beat, Member

__all__ = ["Contacts"]

_MICROSECONDS = 1_000_000
_LEASE = 0.9
"""Of `patience`: the rest is for clocks of different speed."""


class Contacts:
    """What one process has heard of the others, and what it has promised them.

    Parameters
    ----------
    patience_s
        After this time without a beat a process is suspected.
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
        """Take note of a beat; with `grant` it will be echoed."""
        self._beats[sender] = now, beat
        if beat.echo:
            lease = beat.echo / _MICROSECONDS + self._patience_s * _LEASE
            self._leases[sender] = max(lease, self._leases.get(sender, 0.0))
        if grant and sender not in self._renounced:
            self._granted[sender] = now
            self._echoes[sender] = beat.sent

    def stamp(self, now: float) -> int:
        """Return `now` as beats have it; never 0."""
        return int(now * _MICROSECONDS) + 1

    def echo(self, member: Member) -> int:
        """Return what to echo to a process: 0 is no promise."""
        return self._echoes.get(member, 0)

    def heard(self, now: float) -> dict[Member, Beat]:
        """Return the last beats of the processes that are alive."""
        return {
            member: beat
            for member, (time, beat) in self._beats.items()
            if member not in self._dead and now <= time + self._patience_s
        }

    def has_lease(self, member: Member, now: float) -> bool:
        """Return whether a member cannot have excluded this process yet."""
        return now < self._leases.get(member, 0.0)

    def had_lease(self, member: Member) -> bool:
        """Return whether a member ever promised anything to this process."""
        return member in self._leases

    def suspected(self, member: Member, now: float) -> bool:
        """Return whether this process may vote for a view without a member."""
        return member in self._dead or now > self._granted.get(member, 0.0) + self._patience_s

    def is_dead(self, member: Member) -> bool:
        """Return whether a process has ended."""
        return member in self._dead

    def died(self, member: Member, now: float) -> None:
        """Take note that a process has ended."""
        if member not in self._dead:
            self._dead.add(member)
            if self.has_lease(member, now):
                self._discounted.add(member)

    def renounce(self, members: Sequence[Member]) -> None:
        """Promise nothing more to members; `patience` later they are suspected."""
        for member in members:
            self._renounced.add(member)
            self._echoes.pop(member, None)

    def may_decide(self, view: Sequence[Member], voters: Sequence[Member]) -> bool:
        """Return whether some members of a view may decide on the next one."""
        counted = [member for member in view if member not in self._discounted]
        if 2 * len(voters) == len(counted):
            return counted[0] in voters
        return 2 * len(voters) > len(counted)

    def installed(self, view: Sequence[Member], now: float) -> None:
        """Begin a view: promises start anew."""
        self._renounced.clear()
        for member in view:
            self._granted[member] = max(now, self._granted.get(member, now))
        self.forget(view, now)

    def forget(self, view: Sequence[Member], now: float) -> None:
        """Forget processes that are not in the view and silent."""
        kept = set(view).union(
            member for member, (time, _) in self._beats.items() if now <= time + self._patience_s
        )
        for known in (self._beats, self._granted, self._echoes, self._leases):
            for member in set(known) - kept:
                del known[member]
        self._dead &= kept
        self._discounted &= kept

    def resumed(self, now: float) -> None:
        """Suspect nobody for the time in which this process itself did not run."""
        for member in self._granted:
            self._granted[member] = now
