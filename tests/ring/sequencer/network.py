"""A simulated network of ring members: connections, processes and time, all by one seed.

Everything can happen to a process (killed, stopped, woken, started again at the same address, not
reading) and to a connection (chopped, slow, lost with all that is on the way); pairs of processes
can be cut off from each other. `python -m tests.ring.sequencer.model` runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from wireyard_ring.sequencer import (
    Answer,
    Dial,
    Drop,
    Event,
    HangUp,
    Phase,
    RingMember,
    Settings,
    Write,
)

__all__ = ["SETTINGS", "Network", "Process"]

SETTINGS = Settings(max_packet_bytes=64, window_bytes=1500, patience_s=1.0, give_up_s=8.0)
STEP_S = 0.0004


@dataclass(eq=False)
class Connection:
    """Bytes and news on their way, both ways, each in order."""

    number: int
    caller: Process
    owner: Process | None
    """Who listened there; None until the connection is made."""
    place: int
    forth: deque[bytes] = field(default_factory=deque)
    back: deque[bytes] = field(default_factory=deque)
    caller_open: bool = True
    owner_open: bool = True
    taken: bool = False
    """Whether the owner has accepted it."""
    lost_at_caller: bool = False
    """Whether the caller still has to learn that it is lost."""
    lost_at_owner: bool = False


class Process:
    """A process: its member, and what its application has seen."""

    def __init__(self, network: Network, place: int) -> None:
        self.network = network
        self.place = place
        self.incarnation = network.rng.getrandbits(64)
        self.killed = False
        self.stopped = False
        self.reading = True
        self.events: list[Event] = []
        self.sent: list[bytes] = []
        self.calls: dict[int, Connection] = {}
        self.member = RingMember(
            network.addresses, place, self.incarnation, network.now, SETTINGS
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether it is a process that has not failed."""
        return not self.killed and self.member.phase is not Phase.GONE

    def pause(self, paused: bool) -> None:
        self.reading = not paused
        if paused:
            self.member.pause()
        else:
            self.member.resume(self.network.now)

    def pump(self) -> None:
        """Do what the member asks for, as a shell does."""
        while (command := self.member.next_command()) is not None:
            if isinstance(command, Dial):
                self.network.dial(self, command.place)
            elif isinstance(command, Write):
                self.network.write(self.calls[command.place], command.data)
            elif isinstance(command, Answer):
                self.network.answer(command.connection, command.data)
            elif isinstance(command, Drop):
                self.network.close(self.calls.pop(command.place), by_caller=True)
            elif isinstance(command, HangUp):
                self.network.hang_up(command.connection)
                if command.reason not in (None, "no Hello came"):
                    self.network.complaints.append(str(command.reason))
        while self.reading or self.member.phase is Phase.GONE:
            event = self.member.next_event()
            if event is None:
                break
            self.events.append(event)
        if self.member.phase is Phase.GONE:
            self.network.hang_up_all(self)


class Network:
    """The network, and what happens on it."""

    def __init__(self, seed: int, places: int) -> None:
        self.rng = Random(seed)
        self.now = 100.0
        self.addresses = tuple(f"10.0.0.{n}:7077" for n in range(1, places + 1))
        self.all: list[Process] = []
        self.listening: dict[int, Process] = {}
        self.connections: dict[int, Connection] = {}
        self.complaints: list[str] = []
        """Why members closed connections of other members: there is no reason to."""
        self.cut: set[frozenset[int]] = set()
        """Pairs of places that do not reach each other."""

    # --- what can be done to processes ------------------------------------------------------

    def start(self, place: int) -> Process:
        """Start a process at a free address."""
        assert place not in self.listening
        process = Process(self, place)
        self.listening[place] = process
        self.all.append(process)
        process.pump()
        return process

    def kill(self, process: Process) -> None:
        """Kill a process: its connections are lost, what it wrote may arrive or not."""
        process.killed = True
        self.hang_up_all(process)

    def hang_up_all(self, process: Process) -> None:
        """Close all that a process has open, its listening socket too."""
        if self.listening.get(process.place) is process:
            del self.listening[process.place]
        for connection in list(self.connections.values()):
            if connection.caller is process:
                self.close(connection, by_caller=True)
            elif connection.owner is process:
                self.close(connection, by_caller=False)

    # --- connections ------------------------------------------------------------------------

    def dial(self, caller: Process, place: int) -> None:
        number = max(self.connections, default=0) + 1
        made = Connection(number, caller, None, place)
        self.connections[number] = made
        old = caller.calls.get(place)
        if old is not None and old.number in self.connections:
            self.close(old, by_caller=True)
        caller.calls[place] = made

    def write(self, connection: Connection, data: bytes) -> None:
        if connection.caller_open:  # else it is lost, and the caller will learn it
            connection.forth.append(data)

    def answer(self, number: int, data: bytes) -> None:
        connection = self.connections.get(number)
        if connection is not None and connection.owner_open:
            connection.back.append(data)

    def hang_up(self, number: int) -> None:
        connection = self.connections.get(number)
        if connection is not None:
            self.close(connection, by_caller=False)

    def close(self, connection: Connection, by_caller: bool) -> None:
        """Close one side: what is on its way to the other arrives up to any place."""
        if by_caller:
            was_open, connection.caller_open = connection.caller_open, False
            connection.lost_at_caller = False
            connection.back.clear()
            if was_open and connection.owner is not None:
                self._lose(connection.forth)
                connection.lost_at_owner = connection.owner_open
        else:
            was_open, connection.owner_open = connection.owner_open, False
            connection.lost_at_owner = False
            connection.forth.clear()
            if was_open:
                self._lose(connection.back)
                connection.lost_at_caller = connection.caller_open
        self._forget(connection)

    def lose(self, connection: Connection) -> None:
        """Lose a connection at both ends, with what is on the way."""
        self._lose(connection.forth)
        self._lose(connection.back)
        connection.lost_at_caller = connection.caller_open
        connection.lost_at_owner = connection.owner is not None and connection.owner_open
        connection.caller_open = connection.owner_open = False
        self._forget(connection)

    def _lose(self, data: deque[bytes]) -> None:
        for _ in range(self.rng.randint(0, len(data))):
            data.pop()

    def _forget(self, connection: Connection) -> None:
        caller, owner = connection.caller, connection.owner
        at_caller = connection.caller_open or connection.lost_at_caller
        at_owner = connection.owner_open or connection.lost_at_owner
        if (caller.killed or not at_caller) and (owner is None or owner.killed or not at_owner):
            self.connections.pop(connection.number, None)

    # --- steps ------------------------------------------------------------------------------

    def step(self) -> None:
        """Let one thing happen that can happen."""
        self.now += STEP_S * self.rng.random() * 2
        moves = [one for one in self.connections.values() if self._can_move(one)]
        timers = [
            one
            for one in self.listening.values()
            if not one.stopped and (due := one.member.get_timer()) is not None and due <= self.now
        ]
        if timers and (not moves or self.rng.random() < 0.3):
            process = self.rng.choice(timers)
            process.member.handle_timer(self.now)
            process.pump()
        elif moves:
            connection = self.rng.choice(moves)
            self.rng.choice(list(self._moves(connection)))(connection)
        else:
            self.now += SETTINGS.tick_s / 4

    def _reaches(self, connection: Connection) -> bool:
        return frozenset((connection.caller.place, connection.place)) not in self.cut

    def _can_move(self, connection: Connection) -> bool:
        # Most wait for nothing: that is seen before what may move them is looked at.
        waits = connection.forth or connection.back or connection.owner is None
        if not (waits or connection.lost_at_caller or connection.lost_at_owner):
            return False
        return next(self._moves(connection), None) is not None

    def _moves(self, connection: Connection) -> Iterator[Callable[[Connection], None]]:
        """Yield what can happen to a connection next, at each of its ends."""
        caller, owner = connection.caller, connection.owner
        caller_runs = not caller.stopped and not caller.killed
        owner_runs = owner is not None and not owner.stopped and not owner.killed
        if self._reaches(connection):
            if owner is None:
                if caller_runs and connection.caller_open:
                    yield self._open
            elif connection.forth and owner_runs:
                yield self._forth
            if connection.back and caller_runs:
                yield self._back
        if connection.lost_at_caller and caller_runs and not connection.back:
            yield self._lost_at_caller
        if connection.lost_at_owner and owner_runs and not connection.forth:
            yield self._lost_at_owner

    def _open(self, connection: Connection) -> None:
        caller, place = connection.caller, connection.place
        current = caller.calls.get(place) is connection
        if place not in self.listening:
            self.connections.pop(connection.number)
            if current:
                del caller.calls[place]
                caller.member.refused(place, self.now)
        else:
            connection.owner = self.listening[place]
            if current:
                caller.member.connected(place, self.now)
        caller.pump()

    def _forth(self, connection: Connection) -> None:
        owner = connection.owner
        assert owner is not None
        data = self._some(connection.forth)
        if not connection.taken:
            connection.taken = True
            owner.member.accepted(connection.number, self.now)
        if connection.owner_open or connection.lost_at_owner:
            owner.member.receive(connection.number, data, self.now)
        owner.pump()

    def _back(self, connection: Connection) -> None:
        caller = connection.caller
        data = self._some(connection.back)
        if caller.calls.get(connection.place) is connection:
            caller.member.answered(connection.place, data, self.now)
        caller.pump()

    def _lost_at_caller(self, connection: Connection) -> None:
        caller, place = connection.caller, connection.place
        connection.lost_at_caller = connection.caller_open = False
        if caller.calls.get(place) is connection:
            del caller.calls[place]
            caller.member.lost(place, self.now)
            caller.pump()
        self._forget(connection)

    def _lost_at_owner(self, connection: Connection) -> None:
        connection.lost_at_owner = connection.owner_open = False
        assert connection.owner is not None
        connection.owner.member.closed(connection.number, self.now)
        connection.owner.pump()
        self._forget(connection)

    def _some(self, data: deque[bytes]) -> bytes:
        """Return the next bytes on their way: a part of a write, or several."""
        taken = b"".join(data.popleft() for _ in range(self.rng.randint(1, len(data))))
        if len(taken) > 1 and self.rng.random() < 0.3:
            at = self.rng.randint(1, len(taken) - 1)
            data.appendleft(taken[at:])
            taken = taken[:at]
        return taken

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            self.step()
