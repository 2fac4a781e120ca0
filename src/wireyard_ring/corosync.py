"""Packets over corosync, which provides the total order and the views, on one node or on many."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from wireyard.errors import UsageError
from wireyard.layers.rmp import QoS
from wireyard_ring.cpg import CpgError, Group, Member
from wireyard_ring.transport import Receiver, RingFailed

__all__ = ["Corosync"]

GROUP = "wireyard"
_LONGEST_NAME_BYTES = 127
_MAX_PACKET_BYTES = 32 << 10
"""A call costs the same up to about a kilobyte, and corosync splits longer packets by itself: above
this there is no gain."""
_TRY_AGAIN_S = 0.001
"""Retry interval, because corosync has no event for room in its buffers."""
_AT_ONCE = 64
"""The most packets received before other callbacks of the event loop run."""
_JOIN_TRIES = 1000
"""Enough for a second, in which corosync may be busy with a change of members."""


class Corosync:
    """A ring as a closed process group of corosync.

    A process id is the number of the node and the low 16 bits of the pid, as address and port. A
    process leaves again if another member of the group has the same id.

    Parameters
    ----------
    group
        The name of the group.
    max_packet_bytes
        Longest packet, the same at all members.
    """

    qualities: Sequence[QoS] = (QoS.TOTALLY_ORDERED,)
    has_views = True
    waiting_bytes = 0

    def __init__(self, group: str = GROUP, *, max_packet_bytes: int = _MAX_PACKET_BYTES) -> None:
        if not 0 < len(group.encode()) <= _LONGEST_NAME_BYTES:
            raise UsageError(f"a group's name has 1 to {_LONGEST_NAME_BYTES} bytes")
        self._group_name = group
        self.name = f"corosync:{group}"
        self.max_packet_bytes = max_packet_bytes
        self._group: Group | None = None
        self._later: asyncio.TimerHandle | None = None
        self._paused = True

    async def open(self, receiver: Receiver) -> str:
        """Join, and return the process id."""
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        try:
            self._group = Group(self._group_name, self._deliver, self._change)
            await self._join(self._group)
            self._me = Member(self._group.node, os.getpid())
            self._descriptor = self._group.fileno()
        except OSError as error:
            raise RingFailed(f"{self.name}: corosync's library is not there ({error})") from None
        except CpgError as error:
            self.close()
            raise RingFailed(f"{self.name}: {error}") from None
        return _process_id(self._me)

    async def _join(self, group: Group) -> None:
        for tries_left in reversed(range(_JOIN_TRIES)):
            try:
                return group.join()
            except CpgError as error:
                if not (error.try_again and tries_left):
                    raise
            await asyncio.sleep(_TRY_AGAIN_S)

    def send(self, qos: QoS, packet: bytes) -> bool:
        """Send a packet; return whether corosync has accepted it."""
        assert self._group is not None
        try:
            is_sent = self._group.send(packet)
        except CpgError as error:
            self._fail(str(error))
            return False
        if not is_sent and (self._later is None or self._later.when() <= self._loop.time()):
            self._later = self._loop.call_later(_TRY_AGAIN_S, self._receiver.writable)
        return is_sent

    def pause(self) -> None:
        """Stop receiving; corosync buffers packets, and then holds all members back."""
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Receive packets again."""
        if self._paused:
            self._paused = False
            self._loop.add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if self._paused or self._group is None:
                return
            try:
                if not self._group.dispatch():
                    return
            except CpgError as error:
                self._fail(str(error))

    def _deliver(self, sender: Member, message: bytes) -> None:
        self._receiver.packet(_process_id(sender), QoS.TOTALLY_ORDERED, message)

    def _change(self, members: list[Member]) -> None:
        ids = [_process_id(member) for member in members]
        if ids.count(_process_id(self._me)) > 1:
            self._fail(f"another member has the process id {_process_id(self._me)} already")
            return
        self._receiver.view(sorted(ids))

    def _fail(self, reason: str) -> None:
        self.pause()
        self._receiver.failed(RingFailed(f"{self.name}: {reason}"))

    def close(self) -> None:
        """Leave the group."""
        if self._later is not None:
            self._later.cancel()
        self.pause()
        if self._group is not None:
            self._group.leave()
            self._group = None


def _process_id(member: Member) -> str:
    octets = member.node.to_bytes(4, "big")
    return f"{'.'.join(map(str, octets))}:{member.pid & 0xFFFF}"
