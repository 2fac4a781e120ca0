"""The interface between a ring and the transport of its packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wireyard.errors import SourceError
from wireyard.layers.rmp import QoS

__all__ = ["Receiver", "RingFailed", "Transport"]


class RingFailed(SourceError):
    """The ring cannot be joined, or is gone."""


class Receiver(Protocol):
    """The callbacks of a transport, in the event loop."""

    def packet(self, source: str, qos: QoS, packet: bytes) -> None:
        """Handle a packet."""

    def view(self, members: Sequence[str]) -> None:
        """Handle a view, in the order of packets."""

    def writable(self) -> None:
        """Send the packets again that `Transport.send` had no room for."""

    def failed(self, error: RingFailed) -> None:
        """Handle the failure of the ring, after which no packets come."""


class Transport(Protocol):
    """The connection of one member to a ring."""

    @property
    def name(self) -> str:
        """The name of the ring."""

    @property
    def max_packet_bytes(self) -> int:
        """Longest packet, the same at all members."""

    @property
    def qualities(self) -> Sequence[QoS]:
        """The qualities of service that a packet can be sent with, the default first."""

    @property
    def has_views(self) -> bool:
        """Whether the transport delivers views, on which all members agree."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that `send` has accepted and that would be lost with this process.

        When it becomes 0, `Receiver.writable` is called.
        """

    async def open(self, receiver: Receiver) -> str:
        """Join, and return the process id of this member; packets are received after `resume`.

        Raises
        ------
        RingFailed
            It cannot be joined.
        """

    def send(self, qos: QoS, packet: bytes) -> bool:
        """Send a packet; without room return False, and call `Receiver.writable` once there is."""

    def pause(self) -> None:
        """Stop receiving packets."""

    def resume(self) -> None:
        """Receive packets again."""

    def close(self) -> None:
        """Leave the ring."""
