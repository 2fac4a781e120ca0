"""A table of the rules that only several packets together can break.

``wireyard.formats.mqtt.rules`` has the rules for single packets. Each rule has a citation for every
version that has it; connections of other versions cannot violate it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from wireyard.formats.mqtt.rules import Rule
from wireyard.layers.mqtt.records import Client
from wireyard.layers.records import Position, Violation

_ASSUMED_VERSION: Final = 4
"""The version whose rules apply to a connection without its CONNECT."""


def _rule(name: str, v2: str, v3: str, v4: str, v5: str, text: str) -> Rule:
    places = {2: v2, 3: v3, 4: v4, 5: v5}
    cited = {version: place for version, place in places.items() if place}
    return Rule(name, text, MappingProxyType(cited))


_TABLE: Final = (
    # Name, then the citation in each version: 1999, 3.1, 3.1.1, 5.0.
    # --- connections
    ("connect_first", "CONNECT", "3.1", "MQTT-3.1.0-1", "MQTT-3.1.0-1",
     "the first packet of a client is CONNECT"),
    ("connect_twice", "CONNECT", "3.1", "MQTT-3.1.0-2", "MQTT-3.1.0-2",
     "a connection has one CONNECT"),
    ("connack_first", "", "", "MQTT-3.2.0-1", "MQTT-3.2.0-1",
     "the first packet of a broker is CONNACK; only AUTH may come before it"),
    ("connack_twice", "CONNACK", "3.2", "3.2", "MQTT-3.2.0-2",
     "a connection has one CONNACK"),
    ("after_disconnect", "DISCONNECT", "3.14", "MQTT-3.14.4-2", "MQTT-3.14.4-1",
     "nothing follows a DISCONNECT of the same side"),
    ("after_refusal", "CONNACK", "3.2", "MQTT-3.2.2-5", "MQTT-3.2.2-7",
     "nothing follows a CONNACK that refuses"),
    ("wrong_side", "Message Type", "2.1", "2.2.1", "2.1.2",
     "a packet is of a type that its sender may send"),
    ("session_present_clean", "", "", "MQTT-3.2.2-1", "MQTT-3.2.2-2",
     "no session is present after a clean start"),
    ("suback_unasked", "SUBACK", "3.9", "MQTT-2.3.1-7", "MQTT-2.2.1-6",
     "SUBACK answers a SUBSCRIBE, with one code for each filter"),
    ("unsuback_unasked", "UNSUBACK", "3.11", "MQTT-2.3.1-7", "MQTT-2.2.1-6",
     "UNSUBACK answers an UNSUBSCRIBE"),
    ("pingresp_unasked", "PINGRESP", "3.13", "3.13", "3.13",
     "PINGRESP answers a PINGREQ"),
    # --- flows
    ("id_in_use", "Variable Header", "2.4", "MQTT-2.3.1-2", "MQTT-2.2.1-3",
     "a new message of a client has a packet identifier that is not in use"),
    ("id_in_use_broker", "Variable Header", "2.4", "MQTT-2.3.1-4", "MQTT-2.2.1-4",
     "a new message of a broker has a packet identifier that is not in use"),
    ("dup_missing", "Fixed Header", "2.1", "MQTT-3.3.1-1", "MQTT-3.3.1-1",
     "a message that is sent again has DUP set"),
    ("dup_first", "Fixed Header", "2.1", "3.3.1.1", "3.3.1.1",
     "DUP is 0 where a message is sent for the first time"),
    ("resend_unasked", "", "", "", "MQTT-4.4.0-1",
     "a message is sent again on a new connection only"),
    ("resend_released", "", "", "MQTT-4.3.3-1", "MQTT-4.3.3-6",
     "a message is not sent again once its PUBREL was sent"),
    ("session_over", "", "", "MQTT-3.1.2-6", "MQTT-3.2.2-5",
     "messages in flight end with their session"),
    ("puback_unasked", "PUBACK", "3.4", "MQTT-2.3.1-6", "MQTT-2.2.1-5",
     "PUBACK answers a PUBLISH at QoS 1"),
    ("pubrec_unasked", "PUBREC", "3.5", "MQTT-2.3.1-6", "MQTT-2.2.1-5",
     "PUBREC answers a PUBLISH at QoS 2"),
    ("pubrel_unasked", "PUBREL", "3.6", "MQTT-2.3.1-6", "MQTT-2.2.1-5",
     "PUBREL answers a PUBREC"),
    ("pubcomp_unasked", "PUBCOMP", "3.7", "3.7.4", "3.7.2.1",
     "PUBCOMP answers a PUBREL"),
    ("receive_maximum_client", "", "", "", "MQTT-3.3.4-7",
     "a client has no more in flight than the broker's Receive Maximum"),
    ("receive_maximum_broker", "", "", "", "MQTT-3.3.4-9",
     "a broker has no more in flight than the client's Receive Maximum"),
    ("packet_size_client", "", "", "", "MQTT-3.2.2-15",
     "a client sends no packet above the broker's Maximum Packet Size"),
    ("packet_size_broker", "", "", "", "MQTT-3.1.2-24",
     "a broker sends no packet above the client's Maximum Packet Size"),
    ("subscription_identifier", "", "", "", "MQTT-3.3.4-6",
     "a client publishes without a subscription identifier"),
    # --- retained values
    ("retained_qos", "RETAIN", "3.8", "MQTT-3.8.4-6", "MQTT-3.8.4-8",
     "a retained value is sent at the lower of the QoS it was published with and that granted"),
    ("retained_live", "RETAIN", "3.3.1", "MQTT-3.3.1-9", "MQTT-3.3.1-12",
     "a message that matches an established subscription is sent without RETAIN"),
    ("retained_unpublished", "", "", "", "MQTT-3.3.1-13",
     "with Retain As Published a message is sent with the RETAIN that it was published with"),
    ("retained_unmarked", "RETAIN", "2.1", "MQTT-3.3.1-8", "3.3.1.3",
     "a retained value is sent with RETAIN"),
    ("retained_early", "RETAIN", "", "", "",
     "a retained value comes after the SUBACK"),
    ("retained_stale", "RETAIN", "2.1", "MQTT-3.3.1-6", "MQTT-3.3.1-9",
     "the retained value that is sent is the latest"),
    ("retained_existing", "", "", "", "MQTT-3.3.1-10",
     "with Retain Handling 1 a retained value is sent for a new subscription only"),
    ("retained_unwanted", "", "", "", "MQTT-3.3.1-11",
     "with Retain Handling 2 no retained value is sent"),
    ("retained_missing", "", "2.1", "MQTT-3.3.1-6", "MQTT-3.3.1-9",
     "the retained value of each topic that a new subscription matches is sent"),
    # --- deliveries
    ("unsubscribed", "SUBSCRIBE", "3.8", "3.8", "3.8",
     "a client gets messages of its subscriptions only"),
    ("own_message", "", "", "", "MQTT-3.8.3-3",
     "with No Local a client does not get its own messages"),
    ("overlapping_qos", "", "3.3", "MQTT-3.3.5-1", "MQTT-3.3.4-2",
     "a message comes at the highest QoS of the subscriptions that match"),
    ("delivered_expired", "", "", "", "MQTT-3.3.2-5",
     "no delivery begins once the Message Expiry Interval has passed"),
    ("expiry_kept", "", "", "", "MQTT-3.3.2-6",
     "the Message Expiry Interval is reduced by the time that the message waited"),
    # --- topics
    ("alias_maximum_client", "", "", "", "MQTT-3.3.2-9",
     "a client's topic alias is within the broker's Topic Alias Maximum"),
    ("alias_maximum_broker", "", "", "", "MQTT-3.3.2-11",
     "a broker's topic alias is within the client's Topic Alias Maximum"),
    ("alias_unknown", "", "", "", "3.3.2.3.4",
     "a PUBLISH without a topic has an alias that was set before on the same connection"),
)  # fmt: skip

RULES: Final = MappingProxyType({row[0]: _rule(*row) for row in _TABLE})
"""Every rule by its name."""

NEEDS_ALL_PACKETS: Final = frozenset(
    {
        "connack_first", "suback_unasked", "unsuback_unasked", "pingresp_unasked", "alias_unknown",
        "id_in_use", "id_in_use_broker", "dup_missing", "dup_first",
        "puback_unasked", "pubrec_unasked", "pubrel_unasked", "pubcomp_unasked",
        "receive_maximum_client", "receive_maximum_broker", "resend_unasked", "resend_released",
        "session_over",
    }
)  # fmt: skip
"""Rules that are checked only if all packets before were captured: a missing packet may be the
request, the first copy or the acknowledgement."""

NEEDS_ALL_CONNECTIONS: Final = frozenset({"dup_first", "pubrel_unasked"})
"""Rules that are checked only if all earlier connections of the client were captured too: a resend
may belong to a session that ended before."""


def cite(name: str, version: int) -> tuple[str, str] | None:
    """Return number and text of a rule, None if the version (0: unknown) does not have it."""
    rule = RULES[name]
    version = version or _ASSUMED_VERSION
    if not rule.holds(version):
        return None
    return rule.verdict(version), f"against the rule that {rule.text}"


def violation_of(
    rule: str, text: str, client: Client, from_client: bool, at: Position, message_key: str | None
) -> Violation:
    """Return a violation by a client, or by its broker if not `from_client`."""
    endpoint = client.endpoint if from_client else client.server
    return Violation(rule, text, at, endpoint, client.client_id, message_key)
