"""GPackets to build and to look at: the broker-broker packet of Sun/Open Message Queue.

The page docs/packets.md has examples. `Packet` and `LinkPacket`, which opens a connection between
brokers, are what `wireyard.decode` returns and `wireyard.encode` takes.

>>> import wireyard
>>> from wireyard import gpacket
>>> ping = gpacket.Packet(packet_type="G_PING", bit_flags="A", properties={"S": 7})
>>> wireyard.decode(wireyard.encode(ping), "gpacket") == ping
True
"""

from wireyard.formats.gpacket.packet import LinkPacket, Packet
from wireyard.formats.properties import Property

__all__ = ["LinkPacket", "Packet", "Property"]
