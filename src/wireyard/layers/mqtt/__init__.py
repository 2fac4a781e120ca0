"""What MQTT packets do: delivery state, sessions, subscriptions, retained values, wills.

The machines serve an endpoint and an observer alike. An endpoint has a `Session`, of which it runs
the roles that are its own, and a broker has `Subscriptions` and `Retained` beside it. An observer
has both sides' packets, and `derive_tables` says what became of every message.
"""

from wireyard.layers.mqtt.derive import CHAIN, derive_tables
from wireyard.layers.mqtt.directions import in_order, known_streams, sides_of
from wireyard.layers.mqtt.flows import Flows
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.retained import Retained, Value
from wireyard.layers.mqtt.sessions import Session, Will
from wireyard.layers.mqtt.subscriptions import Subscription, Subscriptions

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
