"""A sender of GPackets, which gives each the time and a sequence that increases."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from wireyard.formats.gpacket.packet import Packet
from wireyard.formats.stamps import Stamps

__all__ = ["MAX_SEQUENCE", "Sender"]

MAX_SEQUENCE: Final = 2**63 - 1
"""The header has 64 bits for a sequence (errata G3), which Java reads as signed."""


class Sender:
    """Stamps packets with timestamp and sequence.

    Examples
    --------
    >>> sender = Sender()
    >>> ping = Packet(packet_type="G_PING")
    >>> [sender.stamp(ping, now=1_000).sequence for _ in range(2)]
    [1, 2]
    """

    __slots__ = ("_stamps",)

    def __init__(self) -> None:
        self._stamps = Stamps(MAX_SEQUENCE)

    def stamp(self, packet: Packet, now: int | datetime) -> Packet:
        """Return the packet with the time of the sender's clock and the next sequence.

        Raises
        ------
        EncodeError
            A time that is neither ms since epoch nor a `datetime` with its time zone.
        """
        timestamp, sequence = self._stamps.next(now)
        return replace(packet, timestamp=timestamp, sequence=sequence)
