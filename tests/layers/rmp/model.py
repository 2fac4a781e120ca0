"""Random runs of the simulated ring with crashes and joins anywhere, and what must hold of them.

`python -m tests.layers.rmp.model --runs 100000` does as many, and prints the seed of each that
breaks a rule. `--mutant` does it with one of the wrong variants, which must be found out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import MappingProxyType
from unittest import mock

from wireyard.layers.rmp import Delivered, Order, QoS, Want, own
from wireyard.layers.rmp.events import RequestDone, ViewChanged
from wireyard.layers.rmp.reassembly import Reassembly
from wireyard.layers.rmp.sim import SimMember, SimRing
from wireyard.layers.rmp.states import OWN, Arrival, Effect, Own, OwnEvent

__all__ = ["MUTANTS", "broken_rule", "mutated"]

PACKET_BYTES = 64
ACTIONS = 50
FIRST_NUMBER = 0xFFF0
QUALITIES = (QoS.TOTALLY_ORDERED,) * 6 + (QoS.K_RESILIENT, QoS.SOURCE_ORDERED, QoS.UNORDERED)


class Run:
    """One run: its members, dead ones too, and what each has sent."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.ring = SimRing(seed, max_packet_bytes=PACKET_BYTES)
        self.all: list[SimMember] = []
        self.sent: dict[int, list[bytes]] = {}
        self.unsure: set[bytes] = set()
        """Messages whose packets may overtake each other."""
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
        self.sent[place].append(data)
        if qos.order is Order.NONE and not is_short(data):
            self.unsure.add(data)
        if self.rng.random() < 0.2:
            want = self.rng.choice((1, 2, Want.ALL, Want.STREAM)) if member.views else 1
            self.requests[place] += 1
            member.request(data, qos=qos, want=want, timeout_s=1.0)
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


def views_of(member: SimMember) -> Iterator[tuple[int, list[Delivered]]]:
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
    """Of one packet only: with no order, later packets may overtake the first, and are dropped."""
    return Counter(one.data for one in found if one.qos.order is Order.NONE and is_short(one.data))


def is_short(data: bytes) -> bool:
    return len(data) < PACKET_BYTES - 22


def broken_rule(seed: int) -> str | None:
    """Do a run and return which rule it breaks, None if none."""
    run = Run(seed)
    for _ in range(ACTIONS):
        run.act()
    run.ring.run()
    return _disagreement(run) or _miscount(run) or _loose_end(run)


def _disagreement(run: Run) -> str | None:
    """Members of a view deliver identical lists; who crashed in it, the beginning of them."""
    whole: dict[int, list[Delivered]] = {}
    partial: list[tuple[int, list[Delivered]]] = []
    for member in run.all:
        found = list(views_of(member))
        for place, (view, delivered) in enumerate(found):
            if place == len(found) - 1 and not run.is_alive(member):
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


def _miscount(run: Run) -> str | None:
    """Nobody delivers twice or what nobody sent; each message of a survivor comes once."""
    known = {data for messages in run.sent.values() for data in messages}
    for place, member in enumerate(run.all):
        counts = Counter(one.data for one in member.events if isinstance(one, Delivered))
        if not counts.keys() <= known:
            return f"{member.process_id} delivered what nobody sent"
        if counts and max(counts.values()) > 1:
            return f"{member.process_id} delivered a message twice"
        due = set(run.sent[place]) - run.unsure if run.is_alive(member) else set()
        if not due <= counts.keys():
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


def _keep_living(self: Reassembly) -> None:
    """Abort the unfinished messages of nobody: their sources live, or the timer will do it."""
    for key in list(self._open):
        if key[0] not in _living:
            self._abort(key, Arrival.VIEW)


_living: set[str] = set()


@contextmanager
def _keeps_living() -> Iterator[None]:
    """Drop the unfinished messages of who left only, as systems do that order by last packets."""
    kept = MappingProxyType({**OWN, (Own.PARTLY, OwnEvent.VIEW): (Own.PARTLY, Effect.NOTHING)})
    take = SimMember._take

    def taking(member: SimMember) -> None:
        _living.clear()
        _living.update(getattr(member._inbox[0], "members", ()))
        take(member)

    with (
        mock.patch.object(own, "OWN", kept),
        mock.patch.object(Reassembly, "view", _keep_living),
        mock.patch.object(SimMember, "_take", taking),
    ):
        yield


@contextmanager
def _resends_uncut() -> Iterator[None]:
    """Send again what no packet is back of, too."""
    again = MappingProxyType({**OWN, (Own.SENT, OwnEvent.VIEW): (Own.TAIL, Effect.RESEND)})
    with mock.patch.object(own, "OWN", again):
        yield


@contextmanager
def _resends_nothing() -> Iterator[None]:
    """Leave what a view cut as it is."""
    never = MappingProxyType({**OWN, (Own.PARTLY, OwnEvent.VIEW): (Own.TAIL, Effect.NOTHING)})
    with mock.patch.object(own, "OWN", never):
        yield


MUTANTS = MappingProxyType(
    {
        "keeps-living": _keeps_living,
        "resends-uncut": _resends_uncut,
        "resends-nothing": _resends_nothing,
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
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
    sys.exit(main())
