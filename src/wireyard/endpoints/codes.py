"""The reason code that ends a connection, for each rule that can be violated on it.

Rules of one packet are those of ``wireyard.formats.mqtt.rules``, rules of several packets those of
``wireyard.layers.mqtt.violations``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from wireyard.errors import DecodeError, LimitExceeded
from wireyard.formats.mqtt.layout import SPECS
from wireyard.formats.mqtt.rules import RULES

WITH_WILL: Final = 4
NO_SUBSCRIBERS: Final = 16
MALFORMED: Final = 129
PROTOCOL_ERROR: Final = 130
UNKNOWN_VERSION: Final = 132
BAD_LOGIN: Final = 134
NOT_AUTHORIZED: Final = 135
SHUTTING_DOWN: Final = 139
BAD_METHOD: Final = 140
KEEP_ALIVE_TIMEOUT: Final = 141
TAKEN_OVER: Final = 142
NOT_FOUND: Final = 146
TOO_LARGE: Final = 149
QUOTA_EXCEEDED: Final = 151

_OF_PACKET_RULES: Final = MappingProxyType(
    {
        "protocol_name": 132, "protocol_level": 132, "client_id_length": 133,
        "client_id_empty": 133, "empty_topic": 130, "topic_alias_0": 148, "subscribe_empty": 130,
        "unsubscribe_empty": 130, "no_local_shared": 130, "property_twice": 130,
        "property_value": 130, "auth_data_alone": 130, "auth_method_missing": 130,
        "response_topic_wildcard": 130, "topic_wildcard": 144, "multi_level_wildcard": 143,
        "single_level_wildcard": 143, "share_name": 143, "share_filter": 143,
    }
)  # fmt: skip
"""Other rules of one packet make it a Malformed Packet."""

_OF_RULES: Final = MappingProxyType(
    {
        "packet_size_client": TOO_LARGE, "packet_size_broker": TOO_LARGE,
        "receive_maximum_client": 147, "receive_maximum_broker": 147,
        "alias_maximum_client": 148, "alias_maximum_broker": 148,
    }
)  # fmt: skip
"""Other rules of several packets are Protocol Errors."""

_BY_VERDICT: Final = MappingProxyType(
    {
        (version, rule.verdict(version)): _OF_PACKET_RULES.get(name, MALFORMED)
        for name, rule in RULES.items()
        for version in SPECS
        if rule.holds(version)
    }
)

CONNACK_3: Final = MappingProxyType(
    {132: 1, 133: 2, 134: 4, 140: 5, 135: 5, 138: 5} | dict.fromkeys((136, 137, 139, 151), 3)
)
"""Return codes of CONNACK before 5.0 by reason code; without one the connection is only closed."""


def code_of_error(error: DecodeError, version: int) -> int:
    """Return the reason code for a packet that cannot be decoded."""
    if isinstance(error, LimitExceeded):
        return TOO_LARGE
    return _BY_VERDICT.get((version, error.code), MALFORMED)


def code_of_rule(rule: str) -> int:
    """Return the reason code for a rule that several packets together break."""
    return _OF_RULES.get(rule, PROTOCOL_ERROR)
