"""Connections, and the sessions of client ids, which last from one connection to the next."""

from __future__ import annotations

from collections import deque
from typing import Final

from wireyard.broker.half import BaseLink
from wireyard.broker.settings import Conversation
from wireyard.endpoints import Delivery, Flows, Message, ServerEndpoint
from wireyard.formats.mqtt.control import Connect, Publish
from wireyard.layers.mqtt.deliveries.subscriptions import Subscription

FOR_EVER: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not end (MQTT 5.0, 3.1.2.11.2)."""


class Link(BaseLink[ServerEndpoint]):
    """One connection of a client."""

    __slots__ = ("conversation", "session")

    def __init__(self, endpoint: ServerEndpoint, name: str) -> None:
        super().__init__(endpoint, name)
        self.session: Session | None = None
        self.conversation: Conversation | None = None

    @property
    def client_id(self) -> str | None:
        """The client id, once it is known."""
        return None if self.session is None else self.session.client_id


class Session:
    """The state of a client id; without a connection it ends at `expires_at`."""

    __slots__ = (
        "client_id", "dropped", "expires_at", "expiry_s", "flows", "is_durable", "is_stored",
        "kept_bytes", "link", "queue", "subscriptions", "user", "will",
    )  # fmt: skip

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.user: str | None = None
        self.link: Link | None = None
        self.flows = Flows()
        self.subscriptions: dict[str, Subscription] = {}
        self.queue: deque[Delivery] = deque()
        self.kept_bytes = 0
        """Of messages that wait or are in flight."""
        self.dropped = 0
        """Messages that were not kept for it, since it was last said."""
        self.expiry_s = 0
        self.is_durable = False
        """Whether it outlives its connection, so that a store has all that it has."""
        self.is_stored = False
        """Whether a store has a row of it; it may be for its will alone."""
        self.expires_at: float | None = None
        self.will: Will | None = None


class Will:
    """The will of a connection, and its state in the table `WILL`."""

    __slots__ = ("delay_s", "due", "packet", "state")

    def __init__(self, packet: Connect) -> None:
        delays = [one.value for one in packet.will_properties if one.name == "will_delay_interval"]
        self.state = "none"
        self.delay_s = int(str(delays[0])) if delays else 0
        self.due: float | None = None
        """When it is published, if the client is not back by then."""
        self.packet = packet

    def message(self, now: float) -> Message:
        """Return the message; its expiry interval begins now."""
        packet = self.packet
        publish = Publish(
            topic=packet.will_topic or "",
            payload=packet.will_payload or b"",
            qos=packet.will_qos or 0,
            retain=bool(packet.will_retain),
            properties=[one for one in packet.will_properties if one.name != "will_delay_interval"],
        )
        return Message.of(publish, publish.topic, now)


def expiry_asked(packet: Connect, most: int) -> int:
    """Return the Session Expiry Interval of a CONNECT, of any version."""
    if packet.version_in_force != 5:
        return 0 if packet.clean_start else most
    asked = dict(packet.properties).get("session_expiry_interval", 0)
    assert isinstance(asked, int)
    return min(asked, most)
