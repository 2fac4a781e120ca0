"""The interface between the shell of a ring and what carries its packets."""

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
        """Take a packet."""

    def view(self, members: Sequence[str]) -> None:
        """Take a view, at its place among the packets."""

    def writable(self) -> None:
        """Try again what `Transport.send` had no room for."""

    def failed(self, error: RingFailed) -> None:
        """Learn that nothing will come any more."""


class Transport(Protocol):
    """A way to the other members of one ring."""

    @property
    def name(self) -> str:
        """The ring's name."""

    @property
    def max_packet_bytes(self) -> int:
        """Longest packet, the same at all members."""

    @property
    def qualities(self) -> Sequence[QoS]:
        """The guarantees that a packet can be sent with, the default first."""

    @property
    def has_views(self) -> bool:
        """Whether members are known, and agree on who they are."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that `send` took and that would be lost with this process.

        When none wait any more, `Receiver.writable` is called.
        """

    async def open(self, receiver: Receiver) -> str:
        """Join, and return the process id of this member; nothing is taken before `resume`.

        Raises
        ------
        RingFailed
            It cannot be joined.
        """

    def send(self, qos: QoS, packet: bytes) -> bool:
        """Send a packet; if there is no room say so, and call `Receiver.writable` when there is."""

    def pause(self) -> None:
        """Take nothing from the ring for now."""

    def resume(self) -> None:
        """Take what comes again."""

    def close(self) -> None:
        """Leave."""
