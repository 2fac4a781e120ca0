"""Packet classes of JMQ, the client-broker packet of Sun/Open Message Queue.

The page docs/packets.md has examples. `wireyard.decode` returns and `wireyard.encode` accepts a
`Packet`; `Sender` gives it a unique id, `JmsMessage` and `body_value` return its headers and its
body under the names of JMS, and `RouterView` changes header fields without decoding the rest.

>>> import wireyard
>>> from wireyard import jmq
>>> order = jmq.Packet(packet_type="TEXT_MESSAGE", bit_flags="QP", destination="orders", body="hi")
>>> wireyard.decode(wireyard.encode(order), "jmq") == order
True
"""

from wireyard.formats.jmq.body import body_value
from wireyard.formats.jmq.message import JmsMessage
from wireyard.formats.jmq.packet import Packet
from wireyard.formats.jmq.router import RouterView
from wireyard.formats.jmq.sender import Sender
from wireyard.formats.properties import Property

__all__ = ["JmsMessage", "Packet", "Property", "RouterView", "Sender", "body_value"]
