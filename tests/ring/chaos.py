"""Real processes on a ring over TCP, killed and stopped at random, and checked by the model.

`python -m tests.ring.chaos --runs 100` does so many rings, a few seconds each, and prints what
broke a rule. A process of one is `python -m tests.ring.chaos ADDRESSES LOG SEED`: it sends until
SIGUSR1, and writes to its log what it sent and what it saw, line by line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar
from unittest import mock

from tests.ring.model import History, broken_rule_of
from wireyard.layers.rmp import Delivered, Event, QoS
from wireyard.layers.rmp.events import ViewChanged
from wireyard_ring import Ring, RingFailed, Tcp, run, tcp
from wireyard_ring.inbox import Inbox
from wireyard_ring.sequencer import NewView, RingMember, Settings
from wireyard_ring.sequencer import member as sequencer

__all__ = ["Chaos", "free_ports"]

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = Settings(max_packet_bytes=4000, window_bytes=40_000, patience_s=0.8, give_up_s=20.0)
SIZES = (0, 16, 300, 3_000, 30_000)


def free_ports(count: int, rng: Random) -> str:
    """Return a ring of ports in a row that are free now and that no system gives to callers."""
    while True:
        first = rng.randrange(12_000, 30_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{first}-{first + count - 1}"


# --- one process ----------------------------------------------------------------------------


class Noting(RingMember):
    """A member that keeps the names of the views that it gave to its shell."""

    views: ClassVar[deque[NewView]] = deque()

    def next_event(self) -> sequencer.Event | None:
        event = super().next_event()
        if isinstance(event, NewView):
            self.views.append(event)
        return event


class Member:
    """A process of a ring, and its log."""

    def __init__(self, addresses: str, log: str, seed: int) -> None:
        self.addresses = addresses
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.rng = Random(seed)
        self.quiet = False

    def note(self, *words: object) -> None:
        os.write(self.log, json.dumps(words).encode() + b"\n")

    async def main(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.be_quiet)
        try:
            async with Ring(Tcp(self.addresses, settings=SETTINGS)) as ring:
                events = ring.events()
                self.note("joined", ring.process_id)
                now = Noting.views[-1]  # others may have come before `events` saw any
                Noting.views.clear()
                self.note("view", f"{now.ring}/{now.number}", *now.members)
                await asyncio.gather(self.send(ring), self.receive(events))
        except RingFailed as error:
            self.note("failed", str(error))

    async def receive(self, events: Inbox[Event]) -> None:
        async for event in events:
            if isinstance(event, ViewChanged):
                view = Noting.views.popleft()
                self.note("view", f"{view.ring}/{view.number}", *event.members)
            elif isinstance(event, Delivered):
                self.note("got", event.source, event.data[:40].rstrip(b"x").decode())

    def be_quiet(self) -> None:
        self.quiet = True

    async def send(self, ring: Ring) -> None:
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        count = 0
        while not self.quiet:
            for _ in range(self.rng.randint(1, 9)):
                count += 1
                data = f"{name}/{count}".encode()
                self.note("sent", data.decode())
                size = self.rng.choice(SIZES)
                await ring.send(data + b"x" * size, urgent=self.rng.random() < 0.2)
            await asyncio.sleep(self.rng.random() * 0.02)
        ring.flush()
        while ring._waiting_bytes:
            await asyncio.sleep(0.01)
        self.note("quiet")


# --- all of them ----------------------------------------------------------------------------


class Chaos:
    """One ring of real processes.

    Parameters
    ----------
    seed
        Of what is done to it; when it happens is up to the machine.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = Random(seed)
        self.addresses = free_ports(6, self.rng)
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.killed: set[int] = set()
        self.stopped: set[int] = set()
        self.done: Counter[str] = Counter()

    def start(self) -> None:
        place = len(self.processes)
        words = [self.addresses, str(self.folder / f"{place}.log"), str(self.rng.getrandbits(32))]
        self.processes.append(
            subprocess.Popen([sys.executable, "-m", "tests.ring.chaos", *words], cwd=ROOT)
        )

    def log(self, place: int) -> list[list[str]]:
        path = self.folder / f"{place}.log"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def ended(self, place: int) -> bool:
        return place in self.killed or self.processes[place].poll() is not None

    def alive(self) -> list[int]:
        return [n for n in range(len(self.processes)) if not self.ended(n)]

    def wait(self, what: str, holds: object, seconds: float) -> str | None:
        """Wait until something holds; return what did not."""
        assert callable(holds)
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                return what
            time.sleep(0.02)
        return None

    def sequencer(self) -> int | None:
        """Return the process that is first in the last view that anybody noted."""
        for place in self.alive():
            log = self.log(place)
            views = [words for words in log if words[0] == "view"]
            joined = [words for words in log if words[0] == "joined"]
            if views and joined and joined[0][1] == views[-1][2]:
                return place
        return None

    def signal(self, place: int, number: signal.Signals) -> None:
        self.done[number.name] += 1
        self.processes[place].send_signal(number)

    def act(self) -> None:
        """Do one thing to the ring."""
        kind = self.rng.random()
        running = [n for n in self.alive() if n not in self.stopped]
        victim = self.sequencer() if self.rng.random() < 0.5 else None
        if victim is None and running:
            victim = self.rng.choice(running)
        if kind < 0.3 and victim is not None and len(running) > 1:
            self.signal(victim, signal.SIGKILL)
            self.processes[victim].wait()
            self.killed.add(victim)
            self.stopped.discard(victim)
        elif kind < 0.6 and victim is not None and len(running) > 1:
            self.signal(victim, signal.SIGSTOP)
            self.stopped.add(victim)
        elif kind < 0.8 and self.stopped:
            self.wake(self.rng.choice(sorted(self.stopped)))
        elif len(self.alive()) < 5:
            self.start()

    def wake(self, place: int) -> None:
        self.stopped.discard(place)
        if not self.ended(place):
            self.signal(place, signal.SIGCONT)

    def run(self, actions: int) -> str | None:
        """Do so many things to a ring, and return which rule was broken, None if none."""
        try:
            for _ in range(self.rng.randint(2, 5)):
                self.start()
            first = self.wait("nobody joined", lambda: any(self.log(n) for n in self.alive()), 60)
            if first is not None:
                return first
            time.sleep(self.rng.random())
            for _ in range(actions):
                self.act()
                time.sleep(self.rng.random() * self.rng.choice((0.05, 0.5, 1.5)))
            return self.settle() or self.broken_rule()
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def settle(self) -> str | None:
        for place in sorted(self.stopped):
            self.wake(place)
        waiting = self.wait("some did not join", lambda: all(map(self.is_in, self.alive())), 60)
        if waiting is not None:
            return waiting
        for place in self.alive():
            self.processes[place].send_signal(signal.SIGUSR1)
        waiting = self.wait(
            "a message was not ordered", lambda: all(map(self.is_quiet, self.alive())), 60
        )
        time.sleep(0.3)
        return waiting

    def is_in(self, place: int) -> bool:
        return bool(self.log(place)) or self.ended(place)

    def is_quiet(self, place: int) -> bool:
        return ["quiet"] in self.log(place) or self.ended(place)

    def broken_rule(self) -> str | None:
        alive = self.alive()
        if not alive:
            self.done["nobody left"] += 1
        histories = [history(self.log(n), n in alive) for n in range(len(self.processes))]
        last = {one.views[-1] for one in histories if one.alive}
        if len(last) > 1:
            return "those that are left are in different views"
        self.done["views"] += len({view for one in histories for view in one.views})
        self.done["messages"] += sum(len(one.events) for one in histories)
        self.done["failed"] += sum(
            any(words[0] == "failed" for words in self.log(n)) for n in range(len(self.processes))
        )
        return broken_rule_of(histories)


def history(log: list[list[str]], alive: bool) -> History:
    views: list[int] = []
    events: list[Event] = []
    process_id = ""
    for kind, *words in log:
        if kind == "joined":
            process_id = words[0]
        elif kind == "view":
            ring, _, number = words[0].partition("/")
            views.append(int(ring) << 32 | int(number))
            events.append(ViewChanged("ring", tuple(words[1:]), (), ()))
        elif kind == "got":
            total, data = QoS.TOTALLY_ORDERED, words[1].encode()
            events.append(
                Delivered("ring", words[0], total, 0, None, None, None, None, False, data, ())
            )
    sent = [words[1].encode() for words in log if words[0] == "sent"]
    return History(process_id, views, events, alive, [sent])


def runs(count: int, seed: int, actions: int) -> Iterator[tuple[int, str | None, Counter[str]]]:
    for number in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as folder:
            chaos = Chaos(number, Path(folder))
            broken = chaos.run(actions)
            if broken is not None:
                for place in range(len(chaos.processes)):
                    kept = Path(tempfile.gettempdir()) / f"chaos-{number}-{place}.log"
                    kept.write_text("\n".join(map(json.dumps, chaos.log(place))))
            yield number, broken, chaos.done


def main() -> int:
    if len(sys.argv) == 4 and not sys.argv[1].startswith("-"):
        with mock.patch.object(tcp, "RingMember", Noting):
            run(Member(sys.argv[1], sys.argv[2], int(sys.argv[3])).main())
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actions", type=int, default=8)
    asked = parser.parse_args()
    done: Counter[str] = Counter()
    broken = 0
    for number, rule, what in runs(asked.runs, asked.seed, asked.actions):
        done += what
        if rule is not None:
            broken += 1
            print(f"seed {number}: {rule}", flush=True)
    print(f"{asked.runs} runs, {broken} of them break a rule; {dict(done)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
