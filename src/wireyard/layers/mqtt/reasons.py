"""Names of return and reason codes, and SQL that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.layers.symptoms import code_text

REASONS: Final[Mapping[int, str]] = MappingProxyType(
    {
        # CONNACK before 5.0 (MQTT 3.1.1, 3.2.2.3).
        1: "unacceptable protocol version", 2: "identifier rejected", 3: "server unavailable",
        4: "bad user name or password", 5: "not authorized",
        # MQTT 5.0, 2.4. Before 5.0 a SUBACK has 128 for any failure.
        128: "Unspecified error", 129: "Malformed Packet", 130: "Protocol Error",
        131: "Implementation specific error", 132: "Unsupported Protocol Version",
        133: "Client Identifier not valid", 134: "Bad User Name or Password",
        135: "Not authorized", 136: "Server unavailable", 137: "Server busy", 138: "Banned",
        139: "Server shutting down", 140: "Bad authentication method", 141: "Keep Alive timeout",
        142: "Session taken over", 143: "Topic Filter invalid", 144: "Topic Name invalid",
        145: "Packet Identifier in use", 146: "Packet Identifier not found",
        147: "Receive Maximum exceeded", 148: "Topic Alias invalid", 149: "Packet too large",
        150: "Message rate too high", 151: "Quota exceeded", 152: "Administrative action",
        153: "Payload format invalid", 154: "Retain not supported", 155: "QoS not supported",
        156: "Use another server", 157: "Server moved",
        158: "Shared Subscriptions not supported", 159: "Connection rate exceeded",
        160: "Maximum connect time", 161: "Subscription Identifiers not supported",
        162: "Wildcard Subscriptions not supported",
    }
)  # fmt: skip
"""Codes that refuse something, or end a connection."""


def reason_string(properties: str) -> str:
    """Return SQL for the Reason String in a column of properties; null if it has none."""
    return f"[x.value FOR x IN {properties} IF x.name = 'reason_string'][1]"


def reason_text(code: str, reason: str = "NULL") -> str:
    """Return SQL for a code with its name, and a reason string."""
    return code_text(code, REASONS, reason)
