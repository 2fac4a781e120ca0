"""What the layer keeps of one token ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wireyard.errors import UsageError
from wireyard.layers.rmp.clients import Clients
from wireyard.layers.rmp.counters import Drops
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.rmp.numbers import Numbers
from wireyard.layers.rmp.own import OwnMessages
from wireyard.layers.rmp.packing import Head, Packing
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.reassembly import Reassembly

__all__ = ["Ring"]

_LEAST_PACKET_BYTES = 64
"""Shortest packets of a ring: a third of that may be heads already."""


class Ring:
    """One ring: its clients, what arrives, what waits to be sent.

    Every message that is sent passes `packing` or is behind a flush of it, so what one process
    sends stays in its order; a message of another QoS flushes it too, for a packet has one.
    """

    def __init__(
        self, name: str, max_packet_bytes: int, limits: Limits, numbers: Numbers, drops: Drops
    ) -> None:
        if max_packet_bytes < _LEAST_PACKET_BYTES:
            raise UsageError(f"packets of {max_packet_bytes} bytes, {_LEAST_PACKET_BYTES} at least")
        self.name = name
        self.max_packet_bytes = max_packet_bytes
        self.clients = Clients()
        self.members: tuple[str, ...] | None = None
        """None until the first view, so on a ring without views."""
        self.reassemblies = {
            order: Reassembly(order, name, max_packet_bytes, limits, drops) for order in Order
        }
        self.own = OwnMessages(numbers)
        self.packets: deque[tuple[QoS, bytes]] = deque()
        self.flush_at: float | None = None
        self._packet_bytes = 0
        self._packing = Packing(max_packet_bytes)
        self._packing_qos = QoS.TOTALLY_ORDERED

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the ring has not taken, or not given back and may have to be given again."""
        return self._packet_bytes + self.own.waiting_bytes

    def pack(self, qos: QoS, head: Head, data: bytes, flush_at: float) -> None:
        """Put a message into the packet being filled, which goes at `flush_at` at the latest."""
        self.pack_all(qos, head, (data,), 0, flush_at)

    def pack_all(
        self, qos: QoS, head: Head, messages: Sequence[bytes], at: int, flush_at: float
    ) -> int:
        """Put the messages from `at` on into one packet; return which is the first that is not.

        The one at `at` always is: a full packet goes before it.
        """
        if self._packing_qos is not qos:
            self.flush()
            self._packing_qos = qos
        stop = self._packing.add_all(head, messages, at)
        if stop == at:
            self.flush()
            stop = self._packing.add_all(head, messages, at)
        if self.flush_at is None:
            self.flush_at = flush_at
        if stop < len(messages):  # full, and counted as waiting from now on
            self.flush()
        return stop

    def flush(self) -> None:
        """Have everything that was packed wait to be sent."""
        if self._packing:
            self.put(self._packing_qos, self._packing.take())
        self.flush_at = None

    def put(self, qos: QoS, packet: bytes) -> None:
        """Have a packet wait to be sent."""
        self.packets.append((qos, packet))
        self._packet_bytes += len(packet)

    def take(self) -> tuple[QoS, bytes] | None:
        """Return the next packet to send, None if there is none."""
        if not self.packets:
            return None
        qos, packet = self.packets.popleft()
        self._packet_bytes -= len(packet)
        return qos, packet
