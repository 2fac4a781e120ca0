"""A sender of GPackets, which gives each the time and a sequence that increases."""

from __future__ import annotations

from typing import Final

from wireyard.formats.stamps import Stamps

MAX_SEQUENCE: Final = 2**63 - 1
"""The header has 64 bits for a sequence (errata G3), which Java reads as signed."""


class Sender(Stamps):
    """Stamps packets with timestamp and sequence.

    Examples
    --------
    >>> from wireyard.formats.gpacket.packet import Packet
    >>> sender = Sender()
    >>> ping = Packet(packet_type="G_PING")
    >>> [sender.stamp(ping, now=1_000).sequence for _ in range(2)]
    [1, 2]
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(MAX_SEQUENCE)
