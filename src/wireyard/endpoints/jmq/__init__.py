"""Both ends of a live JMQ connection, without sockets and without a clock of their own.

They take bytes, and give bytes and events, by the state tables of ``wireyard.layers.jmq``, which
also judge captures.

- ``packets``: messages, read in place; requests; replies; logins
- ``endpoint``: what both sides have in common, flow too; ``server``, ``client``: the two sides
- ``codes``: statuses and reasons
"""

from wireyard.endpoints.channel import Ended
from wireyard.endpoints.jmq.client import ClientEndpoint
from wireyard.endpoints.jmq.endpoint import Answered, Event, Flow, MapperRequest, Refused
from wireyard.endpoints.jmq.packets import Message, Request
from wireyard.endpoints.jmq.server import ServerEndpoint

__all__ = [
    "Answered",
    "ClientEndpoint",
    "Ended",
    "Event",
    "Flow",
    "MapperRequest",
    "Message",
    "Refused",
    "Request",
    "ServerEndpoint",
]
