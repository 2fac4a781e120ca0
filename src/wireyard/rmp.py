"""The message class of the RMP messaging layer.

The page docs/packets.md has examples. A packet is one message or several; `encode_packet` encodes
all messages of a packet, `decode_packet` returns them.

>>> from wireyard import rmp
>>> packet = rmp.encode_packet([rmp.Message(layer="RPC", data=b"a"), rmp.Message(data=b"b")])
>>> [message.data for message in rmp.decode_packet(packet)]
[b'a', b'b']
"""

from wireyard.formats.rmp.packet import Message, decode_packet, encode_packet

__all__ = ["Message", "decode_packet", "encode_packet"]
