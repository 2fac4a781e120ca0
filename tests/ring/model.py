"""Random runs of the simulated ring with crashes and joins anywhere, and the rules they must keep.

`python -m tests.ring.model --runs 100000` does as many, and prints the seed of each that
breaks a rule. `--mutant` does it with one of the wrong variants, which must break one. Every third
run or so has bounds and message numbers so few that sending is refused and receivers have no room.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from types import MappingProxyType
from typing import NamedTuple
from unittest import mock

from wireyard.layers.rmp import (
    Delivered,
    Limits,
    NumbersExhausted,
    Order,
    QoS,
    SendRefused,
    Want,
    numbers,
    outgoing,
)
from wireyard.layers.rmp.events import Event, RequestDone, ViewChanged
from wireyard.layers.rmp.limits import NUMBERS
from wireyard.layers.rmp.numbers import Hold
from wireyard.layers.rmp.outgoing import Outgoing, OwnMessage
from wireyard.layers.rmp.reassembly import Reassembly
from wireyard.layers.rmp.states import OWN, Arrival, Effect, Own, OwnEvent
from wireyard.layers.states import Cell
from wireyard_ring.sim import SimMember, SimRing

__all__ = ["MUTANTS", "History", "broken_rule", "broken_rule_of", "check_runs", "mutated"]

PACKET_BYTES = 64
ACTIONS = 50
FIRST_NUMBER = 0xFFF0
TIGHT = Limits(max_outgoing_bytes=1200, max_held_bytes=2600)
"""Room for one message of the longest, and a little more."""
TIGHT_NUMBERS = 8
QUALITIES = (QoS.TOTALLY_ORDERED,) * 6 + (QoS.K_RESILIENT, QoS.SOURCE_ORDERED, QoS.UNORDERED)


class History(NamedTuple):
    """What one member has seen, of the simulation or of a real ring."""

    process_id: str
    views: list[int]
    """Numbers of its views; the same number is the same view."""
    events: list[Event]
    alive: bool
    sent: list[list[bytes]]
    """The messages it sent, those that wait for each other in one list."""


class Run:
    """One run: its members, dead ones too, and the messages of each."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.tight = self.rng.random() < 0.3
        limits = TIGHT if self.tight else None
        self.ring = SimRing(seed, max_packet_bytes=PACKET_BYTES, limits=limits)
        self.all: list[SimMember] = []
        self.sent: dict[int, list[bytes]] = {}
        self.sent_in: dict[tuple[int, Order], dict[bytes, int]] = defaultdict(dict)
        """The place of each message among those of its sender that wait for each other."""
        self.requests: Counter[int] = Counter()
        self.splits = self.rng.random() < 0.3
        for _ in range(self.rng.randint(1, 4)):
            self.join()

    def join(self) -> None:
        """Join as somebody new, or as somebody who has been there."""
        free = [
            f"10.0.0.{n}:7001" for n in range(1, 6) if f"10.0.0.{n}:7001" not in self.ring.members
        ]
        if free:
            number = FIRST_NUMBER + self.rng.randrange(32)
            self.sent[len(self.all)] = []
            self.all.append(self.ring.join(self.rng.choice(free), first_number=number))

    def send(self, place: int) -> None:
        member = self.all[place]
        name = f"{place}/{len(self.sent[place])}/".encode()
        data = name + bytes(self.rng.choice((0, 3, 20, 60, 120, 300)))
        qos = self.rng.choice(QUALITIES)
        try:
            self._send(member, data, qos, place)
        except SendRefused:
            return
        self.sent[place].append(data)
        upgraded = qos is QoS.UNORDERED and not is_short(data)
        among = self.sent_in[place, Order.SOURCE if upgraded else qos.order]
        among[data] = len(among)

    def _send(self, member: SimMember, data: bytes, qos: QoS, place: int) -> None:
        if self.rng.random() < 0.2:
            want = self.rng.choice((1, 2, Want.ALL, Want.STREAM)) if member.views else 1
            member.request(data, qos=qos, want=want, timeout_s=1.0)
            self.requests[place] += 1
        else:
            member.send(data, qos=qos, urgent=self.rng.random() < 0.3)

    def act(self) -> None:
        rng, ring = self.rng, self.ring
        alive = [n for n, member in enumerate(self.all) if self.is_alive(member)]
        kind = rng.random()
        if kind < 0.45 and alive:
            self.send(rng.choice(alive))
        elif kind < 0.85:
            for _ in range(rng.randint(1, 12)):
                ring.step()
        elif kind < 0.91 and alive:
            ring.crash(self.all[rng.choice(alive)].process_id)
        elif kind < 0.97:
            self.join()
        elif self.splits and rng.random() < 0.5:
            ring.partition(tuple(who for who in ring.members if rng.random() < 0.5))
        elif self.splits:
            ring.heal()

    def is_alive(self, member: SimMember) -> bool:
        return self.ring.members.get(member.process_id) is member

    def histories(self) -> list[History]:
        return [
            History(
                one.process_id,
                one.views,
                one.events,
                self.is_alive(one),
                [list(self.sent_in[place, order]) for order in Order],
            )
            for place, one in enumerate(self.all)
        ]


def views_of(member: History) -> Iterator[tuple[int, list[Delivered]]]:
    """Yield each view of a member and what was delivered in it."""
    numbers = iter(member.views)
    found: list[Delivered] = []
    number = 0
    for event in member.events:
        if isinstance(event, ViewChanged):
            if number:
                yield number, found
            number, found = next(numbers), []
        elif isinstance(event, Delivered):
            found.append(event)
    if number:
        yield number, found


def ordered(found: list[Delivered]) -> list[tuple[str, bytes]]:
    return [(one.source, one.data) for one in found if one.qos.order is Order.TOTAL]


def of_sources(found: list[Delivered]) -> dict[str, list[bytes]]:
    lists: dict[str, list[bytes]] = {}
    for one in found:
        if one.qos.order is Order.SOURCE:
            lists.setdefault(one.source, []).append(one.data)
    return lists


def unordered(found: list[Delivered]) -> Counter[bytes]:
    return Counter(one.data for one in found if one.qos.order is Order.NONE)


def is_short(data: bytes) -> bool:
    """Return whether a message fits one packet."""
    return len(data) < PACKET_BYTES - 22


def broken_rule(seed: int) -> str | None:
    """Do a run and return which rule it breaks, None if none."""
    run = Run(seed)
    with mock.patch.object(numbers, "NUMBERS", TIGHT_NUMBERS if run.tight else NUMBERS):
        for _ in range(ACTIONS):
            run.act()
        run.ring.run()
    return broken_rule_of(run.histories()) or _loose_end(run)


def broken_rule_of(histories: Sequence[History]) -> str | None:
    """Return which rule the members of a ring have broken, None if none."""
    return _disagreement(histories) or _disorder(histories) or _miscount(histories)


def _disagreement(histories: Sequence[History]) -> str | None:
    """Members of a view deliver identical lists; who crashed in it, the beginning of them."""
    whole: dict[int, list[Delivered]] = {}
    partial: list[tuple[int, list[Delivered]]] = []
    for member in histories:
        found = list(views_of(member))
        for place, (view, delivered) in enumerate(found):
            if place == len(found) - 1 and not member.alive:
                partial.append((view, delivered))
            elif view not in whole:
                whole[view] = delivered
            elif (
                ordered(delivered) != ordered(whole[view])
                or of_sources(delivered) != of_sources(whole[view])
                or unordered(delivered) != unordered(whole[view])
            ):
                return f"members of view {view} delivered different messages"
    for view, delivered in partial:
        if view in whole:
            first = ordered(delivered)
            if first != ordered(whole[view])[: len(first)]:
                return f"who crashed in view {view} delivered what the others did not"
            if not unordered(delivered) <= unordered(whole[view]):
                return f"who crashed in view {view} delivered unordered what the others did not"
    return None


def _disorder(histories: Sequence[History]) -> str | None:
    """Each member delivers a sender's messages in the order sent, and while both stay, every one.

    The first it delivers of a sender that it has not been with so far may be any of them.
    """
    places = {
        data: (sender, among, place)
        for sender, history in enumerate(histories)
        for among, messages in enumerate(history.sent)
        for place, data in enumerate(messages)
    }
    for member in histories:
        last: dict[tuple[int, int], int] = {}
        met: set[tuple[int, int]] = set()
        for event in member.events:
            if isinstance(event, ViewChanged):
                met = {key for key in met if histories[key[0]].process_id in event.members}
            elif isinstance(event, Delivered) and event.qos.order is not Order.NONE:
                if event.data not in places:
                    return f"{member.process_id} delivered what nobody sent"
                *who, place = places[event.data]
                key = who[0], who[1]
                if place <= last.get(key, -1):
                    return f"{member.process_id} delivered messages of {event.source} out of order"
                if key in met and place > last[key] + 1:
                    return f"{member.process_id} missed a message of {event.source}"
                last[key] = place
                met.add(key)
    return None


def _miscount(histories: Sequence[History]) -> str | None:
    """No member delivers a message twice or one that was not sent; a survivor's come once."""
    sent = [{data for messages in history.sent for data in messages} for history in histories]
    known = set().union(*sent)
    for member, own in zip(histories, sent, strict=True):
        counts = Counter(one.data for one in member.events if isinstance(one, Delivered))
        if not counts.keys() <= known:
            return f"{member.process_id} delivered what nobody sent"
        if counts and max(counts.values()) > 1:
            return f"{member.process_id} delivered a message twice"
        if member.alive and not own <= counts.keys():
            return f"a message of {member.process_id} was lost"
    return None


def _loose_end(run: Run) -> str | None:
    """When all is quiet, nothing is kept and every request has ended."""
    for place, member in enumerate(run.all):
        if run.is_alive(member):
            done = sum(isinstance(event, RequestDone) for event in member.events)
            if done != run.requests[place]:
                return f"a request of {member.process_id} did not end once"
            if member.layer.waiting_bytes("sim"):
                return f"{member.process_id} keeps messages that are delivered"
    return None


# --- the variants that are known to be wrong ------------------------------------------------


@contextmanager
def _table(*cells: tuple[tuple[Own, OwnEvent], tuple[Own, Effect]]) -> Iterator[None]:
    """Have own messages follow another table."""
    with mock.patch.object(outgoing, "OWN", {**OWN, **{key: Cell(*cell) for key, cell in cells}}):
        yield


_NOT_CUT = (Own.PARTLY, OwnEvent.VIEW), (Own.PARTLY, Effect.NOTHING)


def _keep_living(self: Reassembly) -> None:
    """Abort the unfinished messages of members that left only."""
    for key in list(self._open):
        if key[0] not in _living:
            self._abort(key, Arrival.VIEW)


_living: set[str] = set()


@contextmanager
def _keeps_living() -> Iterator[None]:
    """Drop the unfinished messages of who left only, as systems do that order by last packets."""
    take = SimMember._deliver_next

    def taking(member: SimMember) -> None:
        _living.clear()
        _living.update(getattr(member._inbox[0], "members", ()))
        take(member)

    with (
        _table(_NOT_CUT),
        mock.patch.object(Reassembly, "view", _keep_living),
        mock.patch.object(SimMember, "_deliver_next", taking),
    ):
        yield


def _resends_uncut() -> AbstractContextManager[None]:
    """Send again what no packet is back of, too."""
    return _table(((Own.SENT, OwnEvent.VIEW), (Own.TAIL, Effect.STOP)))


def _resends_nothing() -> AbstractContextManager[None]:
    """Leave what a view cut as it is."""
    return _table(_NOT_CUT)


@contextmanager
def _forgets_bounds() -> Iterator[None]:
    """Send again what views cut, and not what receivers dropped for want of room."""
    with mock.patch.object(Outgoing, "no_room", lambda _self, _number: None):
        yield


def _next_of_all(self: Outgoing) -> tuple[QoS, bytes] | None:
    """Return the next packet, with nothing waiting for a message to come back."""
    first = self._queue[0] if self._queue else None
    if not isinstance(first, OwnMessage) or first.sent + 1 < first.count:
        return _next_packet(self)
    found = _next_packet(self)
    if self._queue and self._queue[0] is first:
        self._queue.popleft()
    return found


_next_packet = Outgoing.next_packet


@contextmanager
def _sends_on(again: Callable[[Outgoing, OwnMessage], None]) -> Iterator[None]:
    """Give the ring what is behind a message, and send that again, if a view cuts it, by `again`.

    Its tail goes on arriving, so it needs another number.
    """

    def view(self: Outgoing) -> None:
        for message in list(self._own.values()):
            if message.state is Own.PARTLY:
                del self._own[message.number]
                try:
                    number = self._numbers.allocate(Hold.ON_THE_WAY, 0.0)
                except NumbersExhausted:
                    continue
                copy = OwnMessage(number, message.draft, message.qos, message.count)
                self._own[number] = copy
                self._begin(copy)
                again(self, copy)

    with (
        mock.patch.object(Outgoing, "next_packet", _next_of_all),
        mock.patch.object(Outgoing, "view", view),
    ):
        yield


def _resends_behind() -> AbstractContextManager[None]:
    """Queue a cut message again behind later ones."""
    return _sends_on(lambda queue, message: queue._queue.append(message))


def _resends_before() -> AbstractContextManager[None]:
    """Queue a cut message again before those that the ring has not been given yet."""
    return _sends_on(lambda queue, message: queue._queue.appendleft(message))


MUTANTS = MappingProxyType(
    {
        "keeps-living": _keeps_living,
        "resends-uncut": _resends_uncut,
        "resends-nothing": _resends_nothing,
        "resends-behind": _resends_behind,
        "resends-before": _resends_before,
        "forgets-bounds": _forgets_bounds,
    }
)


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run the layer as one of the wrong variants."""
    if name is None:
        yield
        return
    with MUTANTS[name]():
        yield


def check_runs(
    broken_rule: Callable[[int], str | None],
    mutated: Callable[[str | None], AbstractContextManager[None]],
    mutants: Iterable[str],
    description: str | None,
) -> int:
    """Run a model from the command line, and print the rule that each seed breaks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=[*mutants])
    asked = parser.parse_args()
    broken = 0
    with mutated(asked.mutant):
        for seed in range(asked.seed, asked.seed + asked.runs):
            rule = broken_rule(seed)
            if rule is not None:
                broken += 1
                if broken <= 10:
                    print(f"seed {seed}: {rule}")
    print(f"{asked.runs} runs, {broken} of them break a rule")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(check_runs(broken_rule, mutated, MUTANTS, __doc__))
