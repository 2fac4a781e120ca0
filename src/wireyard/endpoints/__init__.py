"""Both ends of a live MQTT connection, without sockets and without a clock of their own.

An endpoint takes bytes and the time, and gives bytes and events. Its flows follow the state tables
of ``wireyard.layers.mqtt``, which also judge captures: where a table names a rule, the endpoint
ends the connection with the reason code of that rule (``codes``).

- ``messages``: application messages, the PUBLISH packets that carry them, and those in flight of a
  session, over all of its connections
- ``packets``, ``endpoint``: what both sides have in common; ``sides``: the two sides
- ``websocket``: the same inside a WebSocket
"""

from wireyard.endpoints.channel import Ended, Limits, Tap
from wireyard.endpoints.messages import Delivery, Flows, Message
from wireyard.endpoints.packets import Burst, Completed, Event, Received, Released
from wireyard.endpoints.sides import ClientEndpoint, ServerEndpoint
from wireyard.endpoints.websocket import WebSocket

__all__ = [
    "Burst",
    "ClientEndpoint",
    "Completed",
    "Delivery",
    "Ended",
    "Event",
    "Flows",
    "Limits",
    "Message",
    "Received",
    "Released",
    "ServerEndpoint",
    "Tap",
    "WebSocket",
]
