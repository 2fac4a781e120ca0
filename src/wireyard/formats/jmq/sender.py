"""A sender of JMQ packets, which gives each a unique SysMessageID.

A SysMessageID is timestamp, address, port and sequence. The specification requires increasing
sequences and unique ids (``wireyard.formats.stamps``).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from wireyard.formats.fields import in_range
from wireyard.formats.jmq.layout import HEADERS
from wireyard.formats.jmq.packet import Packet, source_address
from wireyard.formats.stamps import Stamps

__all__ = ["MAX_SEQUENCE", "Sender"]

MAX_SEQUENCE = 2**31 - 1
"""The text form of ids has no minus sign (errata 45)."""
_PORT = HEADERS[301]["source_port"]


class Sender:
    """Stamps packets with timestamp, sequence, address and port.

    Parameters
    ----------
    address
        Address of the sender, as text or as its 16 bytes.
    port
        Port of the sender.

    Raises
    ------
    EncodeError
        No address, or a port of more than 32 bits.

    Examples
    --------
    >>> sender = Sender("10.0.0.7", 7676)
    >>> ping = Packet(packet_type="PING")
    >>> [sender.stamp(ping, now=1_000).sys_message_id for _ in range(2)]
    ['1-10.0.0.7-7676-1000', '2-10.0.0.7-7676-1000']
    """

    __slots__ = ("_address", "_port", "_stamps")

    def __init__(self, address: str | bytes, port: int) -> None:
        self._address = source_address("source_ip", address)
        self._port = in_range(_PORT, port)
        self._stamps = Stamps(MAX_SEQUENCE)

    def stamp(self, packet: Packet, now: int | datetime) -> Packet:
        """Return the packet with the next id of this sender; `now` is the time of its clock.

        Raises
        ------
        EncodeError
            A time that is neither ms since epoch nor a `datetime` with its time zone.
        """
        timestamp, sequence = self._stamps.next(now)
        return replace(
            packet,
            timestamp=timestamp,
            sequence=sequence,
            source_ip=self._address,
            source_port=self._port,
        )
