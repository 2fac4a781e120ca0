"""The decision of a view's members on the next view: single-value Paxos with failure detection.

The first member that is not suspected begins a ballot. Its voters are all members that it does not
suspect. Each voter that suspects the other members too promises to hold no more packets of the
view, and to vote in no lesser ballot. When all voters have promised, the proposer sends its
proposal. It is the one that a voter accepted in the greatest earlier ballot, because that may have
been decided; if there is none, it is the voters and the joining processes, with the last packet
that all voters hold as the cut. When all voters have accepted, the proposal is decided. A ballot
whose voters change, or that takes too long, is dropped, and another one begins.

All voters must agree, not a majority of them. So a member outside is suspected by all of them: no
voter has a lease from it (`contacts`), and two ballots without a common voter cannot both be
decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wireyard_ring.sequencer.contacts import Contacts
from wireyard_ring.sequencer.frames import (
    Accept,
    Accepted,
    Ballot,
    ChangeFrame,
    Frame,
    Member,
    Prepare,
    Promise,
    Refuse,
)
from wireyard_ring.sequencer.states import (
    BALLOTS,
    PHASES,
    BallotAction,
    BallotEvent,
    Phase,
    PhaseEvent,
    Stage,
)

__all__ = ["Addressed", "Changes", "Decision"]

Addressed = list[tuple[Member, Frame]]
"""Frames with their receivers."""


class Decision(NamedTuple):
    """The members of the next view, and the last packet of this one."""

    members: tuple[Member, ...]
    cut: int


@dataclass(slots=True)
class _OwnBallot:
    """A ballot of this member."""

    ballot: Ballot
    voters: tuple[Member, ...]
    until: float
    stage: Stage = Stage.IDLE
    promises: dict[Member, Promise] = field(default_factory=dict)
    accepted: set[Member] = field(default_factory=set)
    proposal: Decision | None = None


class Changes:
    """The change of one view at one member: its promise, its acceptance, and its own ballot.

    `me` is this process, `contacts` the failure detector, and `ballot_s` the longest time of a
    ballot.
    """

    def __init__(self, me: Member, contacts: Contacts, ballot_s: float) -> None:
        self._me = me
        self._contacts = contacts
        self._ballot_s = ballot_s
        self.begin(0, ())

    def begin(self, view: int, members: tuple[Member, ...]) -> None:
        """Begin a view without promises."""
        self.decision: Decision | None = None
        """The decision of this member's ballot."""
        self.renounced = False
        """Whether a member has promised to exclude this one in a ballot that was not decided."""
        self._view = view
        self._members = members
        self._promised = Ballot(0, 0)
        self._promised_at = 0.0
        self._accepted = Ballot(0, 0), Decision((), 0)
        self._round = 0
        self._joiners: tuple[Member, ...] = ()
        self._own: _OwnBallot | None = None

    def review(self, phase: Phase, joiners: tuple[Member, ...], now: float) -> Addressed:
        """Begin a ballot if the view has to change and this member has to propose it."""
        self._joiners = joiners
        voters = tuple(member for member in self._members if not self._suspected(member, now))
        if self._own is not None:
            if self._own.voters == voters and now < self._own.until:
                return []
            self._apply(self._own, BallotEvent.OVER)
        has_promised = phase is not Phase.MEMBER
        is_smaller = len(voters) < len(self._members)
        has_change = bool(joiners) or self.renounced or has_promised or is_smaller
        awaits_other = has_promised and self._promised.place != self._me.place
        if (
            voters[0] != self._me
            or not has_change
            or (awaits_other and now < self._promised_at + self._ballot_s)
            or not self._contacts.may_decide(self._members, voters)
        ):
            return []
        self._round = max(self._round, self._promised.round) + 1
        ballot = Ballot(self._round, self._me.place)
        self._own = _OwnBallot(ballot, voters, now + self._ballot_s)
        return self._apply(self._own, BallotEvent.CALL)

    def _suspected(self, member: Member, now: float) -> bool:
        return member != self._me and self._contacts.suspected(member, now)

    def receive(
        self, phase: Phase, sender: Member, frame: ChangeFrame, held: int, now: float
    ) -> tuple[Phase, Addressed]:
        """Handle a frame of a ballot; return the new phase, and the answers.

        `held` is the number of the last packet of the view that this member holds.
        """
        if isinstance(frame, Prepare):
            return self._on_prepare(phase, sender, frame, held, now)
        if isinstance(frame, Accept):
            return self._on_accept(phase, sender, frame)
        own = self._own
        if own is None:
            return phase, []
        if isinstance(frame, Refuse):
            self._round = max(self._round, frame.round)
            if (frame.round, frame.place) > own.ballot:
                return phase, self._apply(own, BallotEvent.OVER)
        elif isinstance(frame, Promise | Accepted) and (frame.round, frame.place) == own.ballot:
            if isinstance(frame, Promise) and own.stage is Stage.PREPARING:
                own.promises[sender] = frame
                if len(own.promises) == len(own.voters):
                    return phase, self._apply(own, BallotEvent.ALL)
            elif isinstance(frame, Accepted) and own.stage is Stage.ACCEPTING:
                own.accepted.add(sender)
                if len(own.accepted) == len(own.voters):
                    return phase, self._apply(own, BallotEvent.ALL)
        return phase, []

    # --- this member as a voter -------------------------------------------------------------

    def _on_prepare(
        self, phase: Phase, sender: Member, frame: Prepare, held: int, now: float
    ) -> tuple[Phase, Addressed]:
        ballot = Ballot(frame.round, frame.place)
        if ballot <= self._promised:
            return phase, [(sender, Refuse(self._view, *self._promised))]
        if self._me not in frame.members or sender not in frame.members:
            return phase, []
        outside = [member for member in self._members if member not in frame.members]
        if not all(self._suspected(member, now) for member in outside):
            first = next(member for member in self._members if not self._suspected(member, now))
            if sender == first:  # the rightful proposer: suspect the others too, after `patience`
                self._contacts.renounce(outside)
            return phase, []
        self._contacts.renounce(outside)
        self._promised, self._promised_at = ballot, now
        before, decision = self._accepted
        promise = Promise(
            self._view, *ballot, held, *before, decision.cut, decision.members
        )  # fmt: skip
        phase = PHASES[phase, PhaseEvent.PREPARE].state
        return phase, [(sender, promise)]

    def _on_accept(self, phase: Phase, sender: Member, frame: Accept) -> tuple[Phase, Addressed]:
        ballot = Ballot(frame.round, frame.place)
        if ballot != self._promised or phase is not Phase.PROMISED:
            return phase, []
        self._accepted = ballot, Decision(frame.members, frame.cut)
        phase = PHASES[phase, PhaseEvent.ACCEPT].state
        return phase, [(sender, Accepted(self._view, *ballot))]

    # --- this member as a proposer ----------------------------------------------------------

    def _apply(self, own: _OwnBallot, event: BallotEvent) -> Addressed:
        own.stage, action, _ = BALLOTS[own.stage, event]
        if action is BallotAction.PREPARE:
            prepare = Prepare(self._view, *own.ballot, own.voters)
            return [(voter, prepare) for voter in own.voters]
        if action is BallotAction.PROPOSE:
            own.proposal = self._proposal(own)
            cut, members = own.proposal.cut, own.proposal.members
            accept = Accept(self._view, *own.ballot, cut, members)
            return [(voter, accept) for voter in own.voters]
        self._own = None
        if action is BallotAction.DECIDE:
            self.decision = own.proposal
        return []

    def _proposal(self, own: _OwnBallot) -> Decision:
        promises: Sequence[Promise] = list(own.promises.values())
        last = max(promises, key=lambda promise: (promise.accepted_round, promise.accepted_place))
        if last.accepted_round:
            return Decision(last.members, last.cut)
        return Decision(own.voters + self._joiners, min(promise.held for promise in promises))
