"""A simulated ring with one order, views, and faults, repeatable by its seed.

It is for trying the layer, and programs on top of it, without a network::

    ring = SimRing(seed=7)
    anna, bert = ring.join("10.0.0.1:7001"), ring.join("10.0.0.2:7001")
    anna.send(b"x" * 5000)
    ring.run()
    [event.data for event in bert.events if isinstance(event, Delivered)]

A packet that a member has sent waits until the ring orders it; an ordered packet waits in the inbox
of each member until it is delivered. `run` does these steps in random order, `order` and `deliver`
do chosen ones.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, NamedTuple

from wireyard.errors import UsageError
from wireyard.layers.rmp.events import Event
from wireyard.layers.rmp.layer import MessagingLayer
from wireyard.layers.rmp.limits import NUMBERS, Limits
from wireyard.layers.rmp.qos import Order, QoS

__all__ = ["RING", "SimMember", "SimRing"]

RING = "sim"
"""The name of the ring at its members."""
_STEP_S = 0.0001
"""The simulated time of a step, in seconds."""


class _View(NamedTuple):
    number: int
    members: tuple[str, ...]


class _Packet(NamedTuple):
    source: str
    qos: QoS
    data: bytes


class SimMember:
    """A process on the ring."""

    def __init__(self, ring: SimRing, layer: MessagingLayer) -> None:
        self.layer = layer
        self.events: list[Event] = []
        """All events of its layer."""
        self.views: list[int] = []
        """Numbers of the views delivered to it; the same number is the same view."""
        self.paused = False
        """Whether `step` delivers nothing to it for now."""
        self._ring = ring
        self._part = 0
        self._inbox: deque[_View | _Packet] = deque()

    @property
    def process_id(self) -> str:
        """Its process id."""
        return self.layer.process_id(RING)

    def send(self, data: bytes, **named: Any) -> None:
        """Send a message now; the options are those of `MessagingLayer.send`."""
        self.layer.send(RING, data, now=self._ring.now, **named)

    def request(self, data: bytes, **named: Any) -> int:
        """Send a request now; the options are those of `MessagingLayer.request`."""
        return self.layer.request(RING, data, now=self._ring.now, **named)

    def _deliver_next(self) -> None:
        """Deliver the first item of the inbox."""
        item = self._inbox.popleft()
        now = self._ring.now
        if isinstance(item, _View):
            self.views.append(item.number)
            self.layer.view(RING, item.members, now=now)
        else:
            self.layer.receive(RING, item.source, item.data, qos=item.qos, now=now)
        self._collect()

    def _collect(self) -> None:
        while (event := self.layer.next_event()) is not None:
            self.events.append(event)

    def _enqueue(self, item: _View | _Packet, rng: Random) -> None:
        """Put an item into the inbox at a random place that its quality of service allows."""
        place = len(self._inbox)
        if isinstance(item, _Packet) and item.qos.order is not Order.TOTAL:
            earliest = place
            while earliest and not _waits_for(item, self._inbox[earliest - 1]):
                earliest -= 1
            place = rng.randint(earliest, place)
        self._inbox.insert(place, item)


def _waits_for(item: _Packet, before: _View | _Packet) -> bool:
    if isinstance(before, _View):
        return True
    return item.qos.order is Order.SOURCE and before.source == item.source


class SimRing:
    """The simulated ring.

    Parameters
    ----------
    seed
        The same seed and the same calls give the same events.
    max_packet_bytes
        Longest packet.
    limits
        Bounds and delays of every member.
    loss, duplication
        The probability that an unreliable packet is lost or duplicated, for each member separately.
    ordered_duplication
        The probability that any other packet is duplicated, for all members. No real ring does so.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        max_packet_bytes: int = 1400,
        limits: Limits | None = None,
        loss: float = 0.0,
        duplication: float = 0.0,
        ordered_duplication: float = 0.0,
    ) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self.members: dict[str, SimMember] = {}
        """The members by process id, without those that have crashed."""
        self._views = 0
        self._rng = Random(seed)
        self._max_packet_bytes = max_packet_bytes
        self._limits = limits
        self._loss = loss
        self._duplication = duplication
        self._ordered_duplication = ordered_duplication

    # --- members ----------------------------------------------------------------------------

    def join(
        self, process_id: str, *, first_number: int | None = None, consume_replies: bool = False
    ) -> SimMember:
        """Add a member; a process that crashed may join again as a new one.

        Raises
        ------
        UsageError
            A member with this process id exists.
        """
        if process_id in self.members:
            raise UsageError(f"{process_id} is a member already")
        if first_number is None:
            first_number = self._rng.randrange(NUMBERS)
        layer = MessagingLayer(
            process_id,
            first_number=first_number,
            limits=self._limits,
            consume_replies=consume_replies,
        )
        layer.add_ring(RING, self._max_packet_bytes)
        member = self.members[process_id] = SimMember(self, layer)
        self._send_view(member._part)
        return member

    def crash(self, process_id: str) -> None:
        """Remove a process; its packets that the ring has not ordered are lost."""
        member = self.members.pop(process_id)
        self._send_view(member._part)

    def partition(self, *parts: tuple[str, ...]) -> None:
        """Split the ring: each part, and the members in none of them, become rings of their own."""
        for member in self.members.values():
            places = [n for n, part in enumerate(parts, 1) if member.process_id in part]
            member._part = places[0] if places else 0
        for number in range(len(parts) + 1):
            self._send_view(number)

    def heal(self) -> None:
        """Join all parts again."""
        self.partition()

    # --- steps ------------------------------------------------------------------------------

    def order(self, process_id: str, packets: int = 1) -> int:
        """Order up to `packets` packets of a member; return how many there were."""
        member = self.members[process_id]
        for done in range(packets):
            packet = member.layer.next_packet(RING)
            if packet is None:
                return done
            self._order(member, *packet)
        return packets

    def deliver(self, process_id: str, items: int = 1) -> int:
        """Deliver up to `items` packets and views to a member; return how many there were."""
        member = self.members[process_id]
        for done in range(items):
            if not member._inbox:
                return done
            member._deliver_next()
        return items

    def step(self) -> bool:
        """Order a packet, deliver an item, or advance the time; return whether one was possible."""
        self.now += _STEP_S
        members = list(self.members.values())
        self._rng.shuffle(members)
        for member in members:
            takes = bool(member._inbox) and not member.paused
            orders = not takes or self._rng.random() < 0.5
            if orders and self.order(member.process_id):
                return True
            if takes:
                member._deliver_next()
                return True
        return self._wait(members)

    def run(self, steps: int = 1_000_000) -> None:
        """Do steps until none is possible.

        Raises
        ------
        RuntimeError
            Steps were still possible after `steps` steps.
        """
        for _ in range(steps):
            if not self.step():
                return
        raise RuntimeError(f"not done after {steps} steps")

    def _wait(self, members: list[SimMember]) -> bool:
        """Advance the time to the next timer of a member."""
        times = [(member.layer.get_timer(), member) for member in members]
        due = [time for time, _ in times if time is not None]
        if not due:
            return False
        self.now = max(self.now, min(due))
        for time, member in times:
            if time is not None and time <= self.now:
                member.layer.handle_timer(self.now)
                member._collect()
        return True

    # --- the network ------------------------------------------------------------------------

    def _order(self, member: SimMember, qos: QoS, data: bytes) -> None:
        packet = _Packet(member.process_id, qos, data)
        reached = [other for other in self.members.values() if other._part == member._part]
        if qos.reliable:
            copies = 1 + (self._rng.random() < self._ordered_duplication)
            for other in reached:
                for _ in range(copies):
                    other._enqueue(packet, self._rng)
            return
        for other in reached:
            if self._rng.random() >= self._loss:
                for _ in range(1 + (self._rng.random() < self._duplication)):
                    other._enqueue(packet, self._rng)

    def _send_view(self, part: int) -> None:
        members = [member for member in self.members.values() if member._part == part]
        self._views += 1
        view = _View(self._views, tuple(member.process_id for member in members))
        for member in members:
            member._enqueue(view, self._rng)
