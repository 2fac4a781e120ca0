"""The rules that take more than one packet to break, as one table.

What a single packet can break is in ``wireyard.formats.mqtt.rules``. A rule is cited by version;
where a version does not have it, nothing that its clients do is a violation.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from wireyard.formats.mqtt.rules import Rule
from wireyard.layers.mqtt.records import Client, ConnectionRecord
from wireyard.layers.records import Position, Violation

__all__ = [
    "OF_ALL_CONNECTIONS",
    "OF_ALL_PACKETS",
    "RULES",
    "SEEN_AS",
    "Breach",
    "broken",
    "violation_of",
]

SEEN_AS: Final = 4
"""The version a connection is judged by whose CONNECT nobody saw."""


def _rule(name: str, v2: str, v3: str, v4: str, v5: str, text: str) -> Rule:
    places = {2: v2, 3: v3, 4: v4, 5: v5}
    cited = {version: place for version, place in places.items() if place}
    return Rule(name, text, MappingProxyType(cited))


_TABLE: Final = (
    # Name, then where it stands in: 1999, 3.1, 3.1.1, 5.0.
    # --- connections
    ("connect_first", "CONNECT", "3.1", "MQTT-3.1.0-1", "MQTT-3.1.0-1",
     "the first packet of a client is CONNECT"),
    ("connect_twice", "CONNECT", "3.1", "MQTT-3.1.0-2", "MQTT-3.1.0-2",
     "a connection has one CONNECT"),
    ("connack_first", "", "", "MQTT-3.2.0-1", "MQTT-3.2.0-1",
     "the first packet of a broker is CONNACK, but for AUTH"),
    ("connack_twice", "CONNACK", "3.2", "3.2", "MQTT-3.2.0-2",
     "a connection has one CONNACK"),
    ("after_disconnect", "DISCONNECT", "3.14", "MQTT-3.14.4-2", "MQTT-3.14.4-1",
     "nothing follows a DISCONNECT of the same side"),
    ("after_refusal", "CONNACK", "3.2", "MQTT-3.2.2-5", "MQTT-3.2.2-7",
     "nothing follows a CONNACK that refuses"),
    ("wrong_side", "Message Type", "2.1", "2.2.1", "2.1.2",
     "the packet is one of the side that sends it"),
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
    ("session_over", "", "", "MQTT-3.1.2-6", "MQTT-3.2.2-5",
     "what was in flight is over with its session"),
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
    ("retained_missing", "", "2.1", "MQTT-3.3.1-6", "MQTT-3.3.1-9",
     "the retained value of each topic that a new subscription matches is sent"),
    # --- topics
    ("alias_maximum_client", "", "", "", "MQTT-3.3.2-9",
     "a client's topic alias is within the broker's Topic Alias Maximum"),
    ("alias_maximum_broker", "", "", "", "MQTT-3.3.2-11",
     "a broker's topic alias is within the client's Topic Alias Maximum"),
    ("alias_unknown", "", "", "", "3.3.2.3.4",
     "a topic alias without a topic was given one before on the same connection"),
)  # fmt: skip

RULES: Final = MappingProxyType({row[0]: _rule(*row) for row in _TABLE})
"""Every rule by its name."""

OF_ALL_PACKETS: Final = frozenset(
    {
        "connack_first", "suback_unasked", "unsuback_unasked", "pingresp_unasked", "alias_unknown",
        "id_in_use", "id_in_use_broker", "dup_missing", "dup_first",
        "puback_unasked", "pubrec_unasked", "pubrel_unasked", "pubcomp_unasked",
        "receive_maximum_client", "receive_maximum_broker", "resend_unasked", "session_over",
    }
)  # fmt: skip
"""Those that are broken only if all packets before are known: one that was not captured may be the
request, the first copy or the acknowledgement."""

OF_ALL_CONNECTIONS: Final = frozenset({"dup_first", "pubrel_unasked"})
"""Those that are broken only if all earlier connections of the client are known, too: what is sent
again may be of a session that was over before."""


def broken(rule: str, version: int) -> tuple[str, str] | None:
    """Return number and text of a broken rule, None if the version (0: not known) has it not."""
    found = RULES[rule]
    version = version or SEEN_AS
    if not found.holds(version):
        return None
    return found.verdict(version), f"against the rule that {found.text}"


class Breach(NamedTuple):
    """A rule that was broken on a connection whose client id a later packet may still assign."""

    rule: str
    text: str
    connection: ConnectionRecord
    by_client: bool
    """Whether the client broke it, and not the broker."""
    at: Position
    message_key: str | None = None

    @property
    def violation(self) -> Violation:
        """The violation by the client id that the connection has now."""
        return violation_of(
            self.rule, self.text, self.connection.client, self.by_client, self.at, self.message_key
        )


def violation_of(
    rule: str, text: str, client: Client, by_client: bool, at: Position, message_key: str | None
) -> Violation:
    """Return a violation by a client, or by the broker that it is connected to."""
    endpoint = client.endpoint if by_client else client.server
    return Violation(rule, text, at, endpoint, client.client_id, message_key)
