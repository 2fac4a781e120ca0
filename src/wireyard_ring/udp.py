"""Packets over UDP multicast: without order and views, possibly lost; needs no other software.

A process sends from a socket of its own, whose address and port are its process id; a restarted
process is another process therefore. It receives the packets to the group's address and port on a
second socket, which all members on a machine bind.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Sequence

from wireyard.errors import UsageError
from wireyard.layers.rmp import QoS
from wireyard_ring.transport import Receiver, RingFailed

__all__ = ["GROUP", "LOOPBACK", "PORT", "UdpMulticast"]

GROUP, PORT = "239.255.77.77", 7077
"""A group of the range that stays inside an organisation."""
LOOPBACK = "127.0.0.1"
_MAX_PACKET_BYTES = 1400
"""Fits an Ethernet frame, with headers of tunnels around it."""
_RECEIVE_BUFFER_BYTES = 4 << 20
"""The size that is requested; systems grant less unless configured otherwise."""
_DATAGRAM_BYTES = 1 << 16
_IP_MULTICAST_ALL = 49
"""From Linux's ``in.h``; Python has no constant for it."""
_AT_ONCE = 64
"""The most datagrams read before other callbacks of the event loop run."""
_DATAGRAM_OVERHEAD_BYTES = 768
"""The bytes that a datagram takes of receive buffers besides its own; they count towards the rate.
"""
_RATE_BYTES_S = 16e6
"""A rate that receivers in Python keep up with, in packets of one or of many messages alike."""
_BURST_BYTES = 64 << 10
"""Fits the default receive buffer of systems."""


class UdpMulticast:
    """A ring as a multicast group.

    Parameters
    ----------
    group, port
        Address and port of the group.
    interface
        Address of the network interface; loopback reaches this machine only.
    max_packet_bytes
        Longest packet.
    rate_bytes_s
        The rate of sending, with the overhead at receivers, because slow receivers do not show.
    """

    qualities: Sequence[QoS] = (QoS.UNRELIABLE,)
    has_views = False
    waiting_bytes = 0

    def __init__(
        self,
        group: str = GROUP,
        port: int = PORT,
        *,
        interface: str = LOOPBACK,
        max_packet_bytes: int = _MAX_PACKET_BYTES,
        rate_bytes_s: float = _RATE_BYTES_S,
    ) -> None:
        try:
            multicast = ipaddress.IPv4Address(group).is_multicast
            self._interface = ipaddress.IPv4Address(interface)
        except ipaddress.AddressValueError as error:
            raise UsageError(f"no IPv4 address: {error}") from None
        if not multicast:
            raise UsageError(f"{group} is no multicast address: those are 224.0.0.0 and above")
        self._group = group, port
        self.name = f"udp:{group}:{port}"
        self.max_packet_bytes = max_packet_bytes
        self._rate_bytes_s = rate_bytes_s
        self._credit_bytes = float(_BURST_BYTES)
        self._credit_at = 0.0
        self._later: asyncio.TimerHandle | None = None

    async def open(self, receiver: Receiver) -> str:
        """Join, and return the process id: the address and port that this process sends from."""
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        interface = str(self._interface)
        self._sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._open_sending(interface)
            self._open_receiving(interface)
        except OSError as error:
            self.close()
            raise RingFailed(f"{self.name} on {interface}: {error.strerror or error}") from None
        address, port = self._sending.getsockname()
        return f"{address}:{port}"

    def _open_sending(self, interface: str) -> None:
        self._sending.setblocking(False)
        self._sending.bind((interface, 0))
        outward = socket.inet_aton(interface)
        self._sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, outward)
        self._sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        hops = 0 if self._interface.is_loopback else 1
        self._sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)

    def _open_receiving(self, interface: str) -> None:
        self._receiving.setblocking(False)
        self._receiving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        # Bound to the group, the socket receives no packets to other addresses; on Linux, none from
        # an interface on which another process has joined the group.
        self._receiving.bind(self._group)
        if sys.platform == "linux":
            self._receiving.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        joined = socket.inet_aton(self._group[0]) + socket.inet_aton(interface)
        self._receiving.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)

    def send(self, qos: QoS, packet: bytes) -> bool:
        """Send a packet if the rate allows it; return whether it was sent."""
        now = self._loop.time()
        earned = (now - self._credit_at) * self._rate_bytes_s
        self._credit_bytes = min(self._credit_bytes + earned, _BURST_BYTES)
        self._credit_at = now
        if self._credit_bytes < 0:
            self._try_later(-self._credit_bytes / self._rate_bytes_s)
            return False
        try:
            self._sending.sendto(packet, self._group)
        except BlockingIOError:
            self._try_later(len(packet) / self._rate_bytes_s)
            return False
        except OSError as error:
            self._receiver.failed(RingFailed(f"{self.name}: {error.strerror or error}"))
            return False
        self._credit_bytes -= len(packet) + _DATAGRAM_OVERHEAD_BYTES
        return True

    def _try_later(self, delay_s: float) -> None:
        if self._later is None or self._later.when() <= self._loop.time():
            self._later = self._loop.call_later(delay_s, self._receiver.writable)

    def pause(self) -> None:
        """Stop receiving; packets that do not fit into the system's buffer are lost."""
        self._loop.remove_reader(self._receiving)

    def resume(self) -> None:
        """Receive packets again."""
        self._loop.add_reader(self._receiving, self._read)

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet, (address, port) = self._receiving.recvfrom(_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self.pause()
                self._receiver.failed(RingFailed(f"{self.name}: {error.strerror or error}"))
                return
            self._receiver.packet(f"{address}:{port}", QoS.UNRELIABLE, packet)

    def close(self) -> None:
        """Leave the group."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._receiving)
        self._sending.close()
        self._receiving.close()
