"""Random runs of the simulated network, and what must hold of them.

`python -m tests.ring.sequencer.model --runs 10000` does as many, and prints the seed of each that
breaks a rule. `--mutant` does it with one of the wrong variants, which must be found out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from unittest import mock

from tests.ring.model import History, broken_rule_of, check_runs
from tests.ring.sequencer.network import SETTINGS, Network, Process
from wireyard.layers.rmp import Delivered, Event, QoS
from wireyard.layers.rmp.events import ViewChanged
from wireyard_ring.sequencer import NewView, Packet, Phase
from wireyard_ring.sequencer.contacts import Contacts
from wireyard_ring.sequencer.order import Sequencer

__all__ = ["MUTANTS", "broken_rule", "mutated"]

PLACES = 6
ACTIONS = 70


class Run:
    """One run: what happens to a ring, and to what is left of it."""

    def __init__(self, seed: int) -> None:
        self.network = Network(seed, PLACES)
        self.rng = self.network.rng
        for place in self.rng.sample(range(PLACES), self.rng.randint(2, 5)):
            self.network.start(place)
            self.network.run(self.rng.choice((0.0, 0.01, 0.3)))
        self.network.run(self.rng.choice((0.0, 0.5)))

    def act(self) -> None:
        """Do one thing to the ring."""
        rng, network = self.rng, self.network
        alive = [one for one in network.all if one.alive]
        running = [one for one in alive if not one.stopped]
        kind = rng.random()
        if kind < 0.5 and running:
            for _ in range(rng.choice((1, 2, 4, 40))):
                self.send(rng.choice(running))
        elif kind < 0.55 and running:
            one = rng.choice(running)
            one.pause(one.reading)
            one.pump()
        elif kind < 0.60 and len(alive) > 1:
            network.kill(rng.choice(alive))
        elif kind < 0.64 and running:
            rng.choice(running).stopped = True
        elif kind < 0.68 and len(alive) > 1:
            self.strike()
        elif kind < 0.74:
            stopped = [one for one in alive if one.stopped]
            if stopped:
                rng.choice(stopped).stopped = False
        elif kind < 0.80:
            free = set(range(PLACES)) - set(network.listening)
            if free:
                network.start(rng.choice(sorted(free)))
        elif kind < 0.88 and network.connections:
            network.lose(rng.choice(list(network.connections.values())))
        elif kind < 0.90:
            pair = rng.sample(range(PLACES), 2)
            network.cut.symmetric_difference_update({frozenset(pair)})
        network.run(rng.choice((0.002, 0.02, 0.1, 0.4)))
        if rng.random() < 0.1:
            network.run(rng.choice((1.5, 3.0)))

    def strike(self) -> None:
        """Kill or stop a member while a proposal is accepted by some and not installed by all."""
        network = self.network
        for _ in range(300):
            network.step()
            changing = [one for one in network.all if one.alive and not one.stopped
                        and one.member.phase is Phase.ACCEPTED]  # fmt: skip
            if changing:
                chosen = self.rng.choice([one for one in network.all if one.alive])
                if self.rng.random() < 0.5:
                    network.kill(chosen)
                else:
                    chosen.stopped = True
                return

    def send(self, process: Process) -> None:
        name = f"{process.incarnation:x}/{len(process.sent)}".encode()
        data = name + bytes(self.rng.choice((0, 5, 30)))
        if process.events and process.member.send(data, self.network.now):
            process.sent.append(data)
        process.pump()

    def settle(self) -> None:
        """Let everything run that can, until all is quiet."""
        self.network.cut.clear()
        for process in self.network.all:
            process.stopped = False
            if process.alive and not process.reading:
                process.pause(False)
                process.pump()
        self.network.run(3 * SETTINGS.give_up_s)

    def histories(self) -> list[History]:
        return [history(process) for process in self.network.all]


def history(process: Process) -> History:
    """Return what a process has seen, in the words of the messaging layer."""
    views: list[int] = []
    events: list[Event] = []
    for event in process.events:
        if isinstance(event, NewView):
            views.append(event.ring << 32 | event.number)
            events.append(ViewChanged("ring", event.members, (), ()))
        elif isinstance(event, Packet):
            total = QoS.TOTALLY_ORDERED
            events.append(
                Delivered("ring", event.source, total, 0, None, None, None, None, False,
                          event.data, ())
            )  # fmt: skip
    process_id = process.member.process_id
    return History(process_id, views, events, process.alive, [process.sent])


def broken_rule(seed: int) -> str | None:
    """Do a run and return which rule it breaks, None if none."""
    run = Run(seed)
    for _ in range(ACTIONS):
        run.act()
    run.settle()
    found = run.histories()
    return broken_rule_of(found) or _views(run) or _left_over(run)


def _views(run: Run) -> str | None:
    """A view has the same members for all, follows the one before, and has nobody twice."""
    known: dict[tuple[int, int], tuple[str, ...]] = {}
    for process in run.network.all:
        before: NewView | None = None
        for event in process.events:
            if isinstance(event, NewView):
                if known.setdefault((event.ring, event.number), event.members) != event.members:
                    return f"view {event.number} has different members"
                if process.member.process_id not in event.members:
                    return f"{process.member.process_id} took a view that it is not in"
                if before and (event.ring, event.number) != (before.ring, before.number + 1):
                    return f"{process.member.process_id} left out a view"
                before = event
    return None


def _left_over(run: Run) -> str | None:
    """In the end all that are alive are in one view, and nothing waits."""
    alive = [process for process in run.network.all if process.alive]
    last = set()
    if run.network.complaints:
        return f"a member did not understand another: {run.network.complaints[0]}"
    for process in alive:
        views = [event for event in process.events if isinstance(event, NewView)]
        if not views or len(views[-1].members) != len(alive):
            return f"{process.member.process_id} is not with the {len(alive)} that are alive"
        last.add((views[-1].ring, views[-1].number))
        if process.member.waiting_bytes:
            return f"a packet of {process.member.process_id} was not ordered"
    if len(last) > 1:
        return "there are two rings"
    return None


# --- the variants that are known to be wrong ------------------------------------------------


def _delivers_at_once() -> Any:
    """Deliver what is ordered without waiting for all members to hold it."""
    acknowledge = Sequencer.acknowledge

    def eager(self: Sequencer, member: Any, number: int) -> int:
        acknowledge(self, member, number)
        return number

    return mock.patch.object(Sequencer, "acknowledge", eager)


def _counts_the_dead_out() -> Any:
    """Count all dead members out, also after having been silent itself."""
    return mock.patch.object(Contacts, "has_lease", lambda _self, _member, _now: True)


def _any_number_decides() -> Any:
    """Let any members decide, however few."""
    return mock.patch.object(Contacts, "may_decide", lambda _self, _view, _voters: True)


MUTANTS: MappingProxyType[str, Callable[[], Any]] = MappingProxyType(
    {
        "delivers-at-once": _delivers_at_once,
        "counts-the-dead-out": _counts_the_dead_out,
        "any-number-decides": _any_number_decides,
    }
)


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run members as one of the wrong variants."""
    if name is None:
        yield
        return
    with MUTANTS[name]():
        yield


if __name__ == "__main__":
    sys.exit(check_runs(broken_rule, mutated, MUTANTS, __doc__))
