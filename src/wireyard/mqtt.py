"""Packet classes of MQTT, one for each control packet.

The page docs/packets.md has examples. `wireyard.decode` returns and `wireyard.encode` accepts them;
`Packet` is their base class. Only CONNECT has its version on the wire, so all others are decoded
under the name of their version, as in ``mqtt/5.0``.

>>> import wireyard
>>> from wireyard import mqtt
>>> news = mqtt.Publish(topic="a/b", payload="news", qos=1, packet_id=7, version_in_force=5)
>>> wireyard.decode(wireyard.encode(news), "mqtt/5.0") == news
True
"""

from wireyard.formats.mqtt.control import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.properties import Property

__all__ = [
    "Auth",
    "ConnAck",
    "Connect",
    "Disconnect",
    "Filter",
    "Packet",
    "PingReq",
    "PingResp",
    "Property",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "SubAck",
    "Subscribe",
    "UnsubAck",
    "Unsubscribe",
]
