"""JMQ packets to build and to look at: the client-broker packet of Sun/Open Message Queue.

The page docs/packets.md has examples. `Packet` is what `wireyard.decode` returns and
`wireyard.encode` takes; `Sender` makes its id one of its own, `JmsMessage` and `body_value` show it
in the words of JMS, and `RouterView` changes a header without touching the rest.

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
