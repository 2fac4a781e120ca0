"""Packets as UDP multicast: no order, no views, and some are lost. Nothing has to be installed.

A process sends from a socket of its own, so its address and port are its process id, and one that
is started again is another process to everybody. What comes to the group's address and port is
received on a second socket, which every member on a machine has bound.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Sequence

from wireyard.errors import UsageError
from wireyard.layers.rmp import QoS
from wireyard.net.transport import Receiver, RingFailed

__all__ = ["GROUP", "LOOPBACK", "PORT", "UdpMulticast"]

GROUP, PORT = "239.255.77.77", 7077
"""Of the range that stays inside an organisation."""
LOOPBACK = "127.0.0.1"
_MAX_PACKET_BYTES = 1400
"""Fits an Ethernet frame with what else may be around it."""
_RECEIVE_BUFFER_BYTES = 4 << 20
"""Requested; systems give less unless they are configured to."""
_DATAGRAM_BYTES = 1 << 16
_IP_MULTICAST_ALL = 49
"""Of Linux's ``in.h``; Python has no name for it."""
_AT_ONCE = 64
"""Datagrams read before the event loop gets its turn."""
_DATAGRAM_OVERHEAD_BYTES = 768
"""What a datagram takes of the receivers' buffers beside its own bytes, counted with it."""
_RATE_BYTES_S = 16e6
"""A receiver in Python keeps up with this, in packets of many small messages and of one alike."""
_BURST_BYTES = 64 << 10
"""Fits the receive buffer that systems give unasked."""


class UdpMulticast:
    """A ring as a multicast group.

    Parameters
    ----------
    group, port
        Where it is.
    interface
        Address of the network interface; loopback reaches this machine only.
    max_packet_bytes
        Longest packet.
    rate_bytes_s
        How fast to send, what datagrams cost receivers included: nothing shows when one is behind.
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
        """Join, and return the process id: where this process sends from."""
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
        # Bound to the group, it gets nothing that was sent to another address; and on Linux nothing
        # that came by an interface on which somebody else has joined the group.
        self._receiving.bind(self._group)
        if sys.platform == "linux":
            self._receiving.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        joined = socket.inet_aton(self._group[0]) + socket.inet_aton(interface)
        self._receiving.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)

    def send(self, qos: QoS, packet: bytes) -> bool:
        """Send a packet, if that keeps the rate."""
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
        """Take nothing; what does not fit the system's buffer meanwhile is lost."""
        self._loop.remove_reader(self._receiving)

    def resume(self) -> None:
        """Take what comes."""
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
        """Leave."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._receiving)
        self._sending.close()
        self._receiving.close()
