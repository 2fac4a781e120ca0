"""The order of one view's packets, and own packets that are not ordered yet.

The sequencer gives each packet a number and sends it to all members. A member acknowledges the
packets that it holds. A packet that all members hold is committed, and only committed packets are
delivered. So a packet that any member has delivered, even a dead one, is held by all, and no
packets have to be fetched when the sequencer dies. The survivors deliver the packets that all of
them hold, and submit the rest of their own packets again in the next view. A packet is held until
it is delivered, no longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wireyard.errors import LimitExceeded, Malformed
from wireyard_ring.sequencer.frames import Member, Order

__all__ = ["Holding", "Outgoing", "Own", "Sequencer"]

_SPEC = "docs/layers/rmp.md, over TCP"
PACKET_OVERHEAD_BYTES = 128
"""The memory of a held packet besides its data. It counts towards bounds, so that empty packets
fill them as well."""


class Own(NamedTuple):
    """A packet of this process."""

    serial: int
    data: bytes


def cost(data: bytes) -> int:
    """Return the bytes that a packet takes of a window."""
    return len(data) + PACKET_OVERHEAD_BYTES


class Outgoing:
    """Packets of this process that are not delivered yet, in order.

    Above `window_bytes` no more packets are accepted.
    """

    def __init__(self, window_bytes: int) -> None:
        self.packets: deque[Own] = deque()
        self.waiting_bytes = 0
        self._window_bytes = window_bytes
        self._serial = 0

    @property
    def full(self) -> bool:
        """Whether no more packets are accepted."""
        return self.waiting_bytes >= self._window_bytes

    def add(self, data: bytes) -> Own:
        """Add a packet."""
        self._serial += 1
        own = Own(self._serial, data)
        self.packets.append(own)
        self.waiting_bytes += cost(data)
        return own

    def delivered(self, serial: int) -> None:
        """Remove the first packet, which has come back."""
        own = self.packets.popleft()
        assert own.serial == serial, "own packets come back in order"
        self.waiting_bytes -= cost(own.data)


class Holding:
    """The packets of one view that a member holds and has not delivered.

    `max_bytes` is the sum of the windows of all members.
    """

    def __init__(self, max_bytes: int) -> None:
        self.held = 0
        """Number of the last packet."""
        self.delivered = 0
        self._max_bytes = max_bytes
        self._bytes = 0
        self._packets: deque[Order] = deque()

    def hold(self, order: Order) -> None:
        """Hold the next packet; one that was sent again is ignored.

        A DecodeError is raised if a packet is missing, or the packets exceed the windows.
        """
        if order.number <= self.held:
            return
        if order.number != self.held + 1:
            problem = f"is {order.number}, the next is {self.held + 1}"
            raise Malformed("ring", "Order number", 5, problem, _SPEC)
        self._bytes += cost(order.data)
        if self._bytes > self._max_bytes:
            problem = f"is over {self._max_bytes} bytes that wait"
            raise LimitExceeded("ring", "Order data", 5, problem, _SPEC)
        self.held = order.number
        self._packets.append(order)

    def deliver(self, number: int) -> Iterator[Order]:
        """Remove and yield the packets up to a number."""
        while self.delivered < min(number, self.held):
            order = self._packets.popleft()
            self.delivered = order.number
            self._bytes -= cost(order.data)
            yield order

    def after(self, number: int) -> Iterator[Order]:
        """Yield the held packets after a number."""
        return (order for order in self._packets if order.number > number)


class Sequencer:
    """The numbering of one view's packets, and the acknowledgements of its members.

    `view` is the number of the view. The members are all, this one too; of each, `window_bytes` of
    packets may wait.
    """

    def __init__(self, view: int, members: Sequence[Member], window_bytes: int) -> None:
        self._view = view
        self._number = 0
        self._window_bytes = window_bytes
        self._serials: dict[Member, int] = {}
        self._waiting: dict[int, int] = {member.place: 0 for member in members}
        self._acknowledged = dict.fromkeys(members, 0)

    def order(self, source: Member, serial: int, data: bytes) -> Order | None:
        """Return a packet with its number; None if it was sent again and has one already.

        A DecodeError is raised if a packet before it is missing, or its sender exceeds its window.
        """
        last = self._serials.get(source, serial - 1)
        if serial <= last:
            return None
        if serial != last + 1:
            problem = f"is {serial}, the next is {last + 1}"
            raise Malformed("ring", "Submit serial", 5, problem, _SPEC)
        if self._waiting[source.place] >= self._window_bytes:
            problem = f"is over the window of {self._window_bytes} bytes"
            raise LimitExceeded("ring", "Submit data", 5, problem, _SPEC)
        self._serials[source] = serial
        self._waiting[source.place] += cost(data)
        self._number += 1
        return Order(self._view, self._number, source.place, serial, data)

    def acknowledge(self, member: Member, number: int) -> int:
        """Handle an acknowledgement; return the number up to which all have acknowledged.

        A DecodeError is raised if there is no such packet.
        """
        if number > self._number:
            problem = f"is {number}, the last is {self._number}"
            raise Malformed("ring", "Held number", 5, problem, _SPEC)
        self._acknowledged[member] = max(number, self._acknowledged[member])
        return min(self._acknowledged.values())

    def delivered(self, order: Order) -> None:
        """Release a packet's bytes of its sender's window."""
        self._waiting[order.source] -= cost(order.data)
