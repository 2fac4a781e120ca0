"""Packet classes of GPacket, the broker-broker packet of Sun/Open Message Queue.

The page docs/packets.md has examples. `wireyard.decode` returns and `wireyard.encode` accepts a
`Packet`, or a `LinkPacket`, which opens a connection between brokers; `Sender` gives a packet its
time and sequence.

>>> import wireyard
>>> from wireyard import gpacket
>>> ping = gpacket.Packet(packet_type="G_PING", bit_flags="A", properties={"S": 7})
>>> wireyard.decode(wireyard.encode(ping), "gpacket") == ping
True
"""

from wireyard.formats.gpacket.packet import LinkPacket, Packet
from wireyard.formats.gpacket.sender import Sender
from wireyard.formats.properties import Property

__all__ = ["LinkPacket", "Packet", "Property", "Sender"]
