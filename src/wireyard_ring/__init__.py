"""Rings that carry the packets of the RMP messaging layer between processes, and their asyncio.

`Ring` combines the layer (`wireyard.layers.rmp`) and a `Transport`: `Tcp`, `Corosync`,
`UdpMulticast` or `MemoryHub`. `sequencer` is the protocol of `Tcp`, sans-IO, and `sim` a simulated
ring.
"""

from wireyard_ring.command import read_lines, run, transport_named
from wireyard_ring.corosync import Corosync
from wireyard_ring.inbox import Client, Replies
from wireyard_ring.memory import MemoryHub
from wireyard_ring.process import Process
from wireyard_ring.ring import Ring
from wireyard_ring.tcp import Tcp
from wireyard_ring.transport import RingFailed, Transport
from wireyard_ring.udp import UdpMulticast

__all__ = [
    "Client",
    "Corosync",
    "MemoryHub",
    "Process",
    "Replies",
    "Ring",
    "RingFailed",
    "Tcp",
    "Transport",
    "UdpMulticast",
    "read_lines",
    "run",
    "transport_named",
]
