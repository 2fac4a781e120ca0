"""MQTT state machines: delivery state, sessions, subscriptions, retained values, wills.

They serve an endpoint and an observer. An endpoint has a `Session` and runs its own roles of it; a
broker also has `Subscriptions` and `Retained`. An observer has the packets of both sides, and
`derive_tables` derives the outcome of every message.

The modules:

- ``connection``: the packets each side may send, and CONNECT, CONNACK and DISCONNECT
- ``session``: the state that outlives a connection; ``will``: when a will is published
- ``publish``: PUBLISH and its acknowledgements; ``qos``: the flows of QoS 1 and 2
- ``subscriptions``, ``retained``, ``topics``
- ``expected``, ``deliveries``, ``missing``: expected deliveries, actual ones, and the reasons for
  those that are missing
- ``violations``: the rules that only several packets together can break
- ``directions``: which stream of a connection the client sends
- ``observer``: all of these, applied to the packets of a capture; ``derive``: the stages and keys

``columns``, ``tracking``, ``qos_kernels`` and the modules they import do the same with columns.
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
