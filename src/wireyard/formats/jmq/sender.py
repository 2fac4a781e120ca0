"""A sender of JMQ packets, which gives each a unique SysMessageID.

A SysMessageID is timestamp, address, port and sequence. The specification requires increasing
sequences and unique ids (``wireyard.formats.stamps``).
"""

from __future__ import annotations

from wireyard.formats.fields import in_range
from wireyard.formats.jmq.layout import HEADERS
from wireyard.formats.jmq.packet import source_address
from wireyard.formats.stamps import Stamps

MAX_SEQUENCE = 2**31 - 1
"""The text form of ids has no minus sign (errata 45)."""
_PORT = HEADERS[301]["source_port"]


class Sender(Stamps):
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
    >>> from wireyard.formats.jmq.packet import Packet
    >>> sender = Sender("10.0.0.7", 7676)
    >>> ping = Packet(packet_type="PING")
    >>> [sender.stamp(ping, now=1_000).sys_message_id for _ in range(2)]
    ['1-10.0.0.7-7676-1000', '2-10.0.0.7-7676-1000']
    """

    __slots__ = ()

    def __init__(self, address: str | bytes, port: int) -> None:
        source_ip, source_port = source_address("source_ip", address), in_range(_PORT, port)
        super().__init__(MAX_SEQUENCE, source_ip=source_ip, source_port=source_port)
