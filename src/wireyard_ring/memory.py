"""Packets between members in one event loop, with total order and views, for tests of programs.

``hub = MemoryHub()``, then ``Ring(hub.transport())`` for each member.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from wireyard.layers.rmp import QoS
from wireyard_ring.transport import Receiver

__all__ = ["Memory", "MemoryHub"]

_MAX_PACKET_BYTES = 32 << 10
_WINDOW_BYTES = 1 << 20
"""Bytes that wait for one member before no more packets are accepted: 32 of the longest."""
_PACKET_OVERHEAD_BYTES = 128
_hub_numbers = count(1)
_AT_ONCE = 64
"""The most packets delivered to a receiver before other callbacks of the event loop run."""


class MemoryHub:
    """A ring in memory: the members, and the order of their packets."""

    def __init__(self, *, max_packet_bytes: int = _MAX_PACKET_BYTES) -> None:
        self.name = f"memory:{next(_hub_numbers)}"
        self.max_packet_bytes = max_packet_bytes
        self._ports = count(1)
        self._members: dict[str, Memory] = {}

    def transport(self) -> Memory:
        """Return the transport of a new member."""
        return Memory(self, f"127.0.0.1:{next(self._ports)}")

    def join(self, member: Memory) -> None:
        """Add a member, and deliver a new view to all members."""
        self._members[member.process_id] = member
        self._put_view()

    def leave(self, member: Memory) -> None:
        """Remove a member, and deliver a new view to the others."""
        if self._members.pop(member.process_id, None) is not None:
            self._put_view()
            self.try_again()

    def _put_view(self) -> None:
        view = _View(tuple(self._members))
        for member in self._members.values():
            member.put(view)

    def order(self, source: str, packet: bytes) -> bool:
        """Order a packet if there is room for it at every member; return whether there was."""
        members = self._members.values()
        if any(member.full for member in members):
            return False
        for member in members:
            member.put(_Packet(source, packet))
        return True

    def try_again(self) -> None:
        """Call the members again whose packets had no room."""
        for member in tuple(self._members.values()):
            member.try_again()


class _View(NamedTuple):
    members: tuple[str, ...]


class _Packet(NamedTuple):
    source: str
    data: bytes


class Memory:
    """The transport of one member of the ring `hub`.

    The process id is unique in the ring.
    """

    qualities: Sequence[QoS] = (QoS.TOTALLY_ORDERED,)
    has_views = True
    waiting_bytes = 0

    def __init__(self, hub: MemoryHub, process_id: str) -> None:
        self.name = hub.name
        self.process_id = process_id
        self.max_packet_bytes = hub.max_packet_bytes
        self._hub = hub
        self._items: deque[_View | _Packet] = deque()
        self._bytes = 0
        self._paused = True
        self._had_no_room = False
        self._due: asyncio.Handle | None = None

    async def open(self, receiver: Receiver) -> str:
        """Join, and return the process id."""
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._hub.join(self)
        return self.process_id

    def send(self, qos: QoS, packet: bytes) -> bool:
        """Send a packet; return whether every member had room for it."""
        is_sent = self._hub.order(self.process_id, packet)
        self._had_no_room = not is_sent
        return is_sent

    def pause(self) -> None:
        """Stop receiving; the others wait when too many packets wait for this member."""
        self._paused = True

    def resume(self) -> None:
        """Receive packets again."""
        self._paused = False
        self._deliver_soon()

    def close(self) -> None:
        """Leave the ring."""
        self._paused = True
        self._hub.leave(self)
        if self._due is not None:
            self._due.cancel()

    # --- for the hub ------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether too many packets wait for this member."""
        return self._bytes >= _WINDOW_BYTES

    def put(self, item: _View | _Packet) -> None:
        """Add a packet or a view to the queue of this member."""
        self._items.append(item)
        if isinstance(item, _Packet):
            self._bytes += len(item.data) + _PACKET_OVERHEAD_BYTES
        self._deliver_soon()

    def try_again(self) -> None:
        """Call `Receiver.writable` if there was no room for a packet before."""
        if self._had_no_room:
            self._had_no_room = False
            self._receiver.writable()

    # --- inside -----------------------------------------------------------------------------

    def _deliver_soon(self) -> None:
        if self._due is None and self._items and not self._paused:
            self._due = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._due = None
        was_full = self.full
        for _ in range(_AT_ONCE):
            if self._paused or not self._items:
                break
            item = self._items.popleft()
            if isinstance(item, _View):
                self._receiver.view(item.members)
            else:
                self._bytes -= len(item.data) + _PACKET_OVERHEAD_BYTES
                self._receiver.packet(item.source, QoS.TOTALLY_ORDERED, item.data)
        self._deliver_soon()
        if was_full and not self.full:
            self._hub.try_again()
