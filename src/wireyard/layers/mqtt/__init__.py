"""What MQTT packets do: delivery state, sessions, subscriptions, retained values, wills.

The machines serve an endpoint and an observer alike. An endpoint has a `Session`, of which it runs
the roles that are its own, and a broker has `Subscriptions` and `Retained` beside it. An observer
has both sides' packets, and `derive_tables` says what became of every message.

Where what is decided:

- ``connection``: what either side may send when, CONNECT, CONNACK and DISCONNECT
- ``session``: what outlives a connection; ``will``: when a will is published
- ``publish``: PUBLISH and its acknowledgements; ``qos``: the flows of QoS 1 and 2
- ``subscriptions``, ``retained``, ``topics``
- ``expected``, ``deliveries``, ``missing``: who should get a message, who got it, and why not
- ``violations``: the rules that take more than one packet to break
- ``directions``: which stream of a connection is the client's
- ``observer``: all of it over the packets of a capture; ``derive``: the stages, and their keys

``columns``, ``tracking``, ``qos_kernels`` and what they import do the same over columns.
"""

from wireyard.layers.mqtt.derive import CHAIN, derive_tables
from wireyard.layers.mqtt.directions import in_order, known_streams, sides_of
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.qos import Flows
from wireyard.layers.mqtt.retained import Retained, Value
from wireyard.layers.mqtt.session import Session
from wireyard.layers.mqtt.subscriptions import Subscription, Subscriptions
from wireyard.layers.mqtt.will import Will

__all__ = [
    "CHAIN",
    "Flows",
    "Observer",
    "Retained",
    "Session",
    "Subscription",
    "Subscriptions",
    "Value",
    "Will",
    "derive_tables",
    "in_order",
    "known_streams",
    "sides_of",
]
