"""What a broker accepts: its limits, each of which is said in one line when it is reached."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wireyard.broker.access import Access
from wireyard.endpoints import Limits
from wireyard.formats.mqtt.control import Connect

Conversation = Generator[bytes, bytes, bool]
"""An enhanced authentication: yields data for AUTH packets, is sent the client's, and returns
whether the client is who it says it is."""


@dataclass(frozen=True, slots=True)
class JmqLimits:
    """Limits of the JMQ half of a broker, beside those of ``Settings``.

    `max_parts` is the number of sessions, consumers, producers, browsers and open transactions of
    one connection, of each. `max_kept` counts the messages of one queue or topic, waiting or held,
    and also those sent in one transaction. `max_name` is in characters. A producer sends
    `producer_credit` messages, and a connection `connection_credit`, until it waits for
    RESUME_FLOW. A consumer of a shared subscription gets `shared_prefetch` messages in advance.
    """

    max_destinations: int = 100_000
    max_subscriptions: int = 100_000
    max_parts: int = 10_000
    max_kept: int = 100_000
    max_dead: int = 10_000
    max_transactions: int = 10_000
    max_name: int = 1024
    producer_credit: int = 1000
    connection_credit: int = 5000
    shared_prefetch: int = 5


@dataclass(frozen=True)
class Settings:
    """The behaviour and the limits of a broker.

    Parameters
    ----------
    access
        Users and what they may read and write; None lets everybody do everything.
    enhanced
        Enhanced authentication of 5.0: by method, a function that begins a conversation.
    origins
        Origins, such as ``https://app.example``, whose pages may connect by WebSocket. Those of
        this machine may anyway, and on any address but loopback those of the same host.
    max_keep_alive
        Longest keep-alive in seconds, announced to 5.0 clients; 0 for none.
    max_unsent_bytes
        Bytes that a client has not read yet, from which on it is slow: messages of QoS 0 are
        dropped, others wait in its queue.
    """

    access: Access | None = None
    enhanced: Mapping[str, Callable[[Connect], Conversation]] = field(default_factory=dict)
    endpoint: Limits = field(default_factory=Limits)
    jmq: JmqLimits = field(default_factory=JmqLimits)
    origins: frozenset[str] = frozenset()
    max_keep_alive: int = 0
    max_connections: int = 10_000
    max_unidentified: int = 500
    """Connections whose CONNECT has not been accepted."""
    connect_timeout_s: float = 10.0
    max_sessions: int = 100_000
    max_session_expiry_s: int = 0xFFFF_FFFF
    """The largest number is for ever."""
    max_subscriptions: int = 10_000
    """Of one session."""
    max_queued: int = 100_000
    """Messages that wait for one session."""
    max_kept_bytes: int = 64 << 20
    """Of messages that wait for one session, or are in flight to it."""
    max_all_kept_bytes: int = 1 << 30
    max_held_bytes: int = 256 << 20
    """Of packets that have not arrived whole, of all connections."""
    max_retained: int = 100_000
    max_retained_bytes: int = 256 << 20
    max_unsent_bytes: int = 8 << 20

    def connack(self, packet: Connect, client_id: str) -> dict[str, Any]:
        """Return the properties of a CONNACK that depend on the CONNECT alone."""
        asked: dict[str, Any] = dict(packet.properties)
        properties: dict[str, Any] = {}
        if not packet.client_id:
            properties["assigned_client_identifier"] = client_id
        if self.max_keep_alive and not 0 < packet.keep_alive <= self.max_keep_alive:
            properties["server_keep_alive"] = self.max_keep_alive
        if asked.get("session_expiry_interval", 0) > self.max_session_expiry_s:
            properties["session_expiry_interval"] = self.max_session_expiry_s
        if asked.get("request_response_information"):
            properties["response_information"] = f"response/{client_id}"
        return properties
