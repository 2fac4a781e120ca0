"""A table of the rules for single control packets, with the versions that have them.

3.1.1 and 5.0 number their conformance statements; such a number is the verdict on a packet that
breaks the statement. Rules without a number, and all rules of earlier versions, have names of ours.
Rules about several packets (a second CONNECT, an acknowledgement without a PUBLISH, a topic alias
that was never set) are not here.

While the version in force is unknown, packets are read as those of 3.1.1, and only violations of
both 3.1 and 3.1.1 are faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from wireyard.formats.mqtt.layout import PROTOCOLS, SPECS

_NUMBERED = "MQTT-"
_UNKNOWN, _OLDER, _READ_AS = 0, 3, 4


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; `cited` has its number, or the section that states it, by version."""

    name: str
    text: str
    cited: MappingProxyType[int, str]

    def verdict(self, version: int) -> str:
        """Return the code of the rule in a version that has it."""
        cited = self.cited[version if version in PROTOCOLS else _READ_AS]
        return cited if cited.startswith(_NUMBERED) else self.name

    def spec(self, version: int) -> str:
        """Return document and place of the rule in a version that has it."""
        version = version if version in PROTOCOLS else _READ_AS
        return f"{SPECS[version]}, {self.cited[version]}"

    def holds(self, version: int) -> bool:
        """Return whether a version has the rule."""
        if version == _UNKNOWN:
            return _OLDER in self.cited and _READ_AS in self.cited
        return version in self.cited


def _rule(
    name: str, mqipdp: str | None, v31: str | None, v311: str | None, v5: str | None, text: str
) -> Rule:
    cited = {}
    for version, place in ((2, mqipdp), (3, v31), (4, v311), (5, v5)):
        if place is not None:
            number = place.strip("[]")
            cited[version] = place if number == place else _NUMBERED + number
    return Rule(name, text, MappingProxyType(cited))


_TABLE = (
    # Name, then its place in: 1999, 3.1, 3.1.1, 5.0; [n] is conformance statement MQTT-n.
    # --- fixed header
    ("truncated", "Remaining Length", "2.1", "2.2.3", "2.1.4",
     "every field ends within the packet"),
    ("trailing_bytes", "Remaining Length", "2.1", "2.2.3", "2.1.4",
     "nothing follows the last field"),
    ("remaining_length", "Remaining Length", "2.1", "2.2.3", "1.5.5",
     "Remaining Length takes four bytes at most"),
    ("overlong_integer", None, None, None, "[1.5.5-1]",
     "a variable byte integer takes as few bytes as it can"),
    ("packet_type", "Message Type", "2.1", "2.2.1", "2.1.2",
     "the type is one that the version defines"),
    ("fixed_flags", None, None, "[2.2.2-2]", "[2.1.3-1]",
     "the low nibble is 0"),
    ("pubrel_flags", None, None, "[3.6.1-1]", "[3.6.1-1]",
     "the low nibble of PUBREL is 2"),
    ("subscribe_flags", None, None, "[3.8.1-1]", "[3.8.1-1]",
     "the low nibble of SUBSCRIBE is 2"),
    ("unsubscribe_flags", None, None, "[3.10.1-1]", "[3.10.1-1]",
     "the low nibble of UNSUBSCRIBE is 2"),
    ("disconnect_flags", None, None, "[3.14.1-1]", "[3.14.1-1]",
     "the low nibble of DISCONNECT is 0"),
    ("auth_flags", None, None, None, "[3.15.1-1]",
     "the low nibble of AUTH is 0"),
    # --- text and integers
    ("bad_utf8", "UTF", "2.5", "[1.5.3-1]", "[1.5.4-1]",
     "text is UTF-8, without surrogates"),
    ("null_character", None, None, "[1.5.3-2]", "[1.5.4-2]",
     "text has no U+0000"),
    ("variable_byte_integer", None, None, None, "1.5.5",
     "a variable byte integer takes four bytes at most"),
    ("packet_id_0", "Variable Header", "2.4", "[2.3.1-1]", "[2.2.1-3]",
     "the packet identifier of PUBLISH, SUBSCRIBE, UNSUBSCRIBE is not 0"),
    # --- CONNECT
    ("protocol_name", "CONNECT", "3.1", "[3.1.2-1]", "[3.1.2-1]",
     "the protocol name is one of MQTT's"),
    ("protocol_level", "CONNECT", "3.1", "[3.1.2-2]", "[3.1.2-2]",
     "the protocol level is one that goes with the name"),
    ("connect_reserved", None, None, "[3.1.2-3]", "[3.1.2-3]",
     "the reserved Connect Flag is 0"),
    ("will_qos_3", "Quality of Service", "3.1", "[3.1.2-14]", "[3.1.2-12]",
     "Will QoS is not 3"),
    ("will_qos_without_will", None, None, "[3.1.2-13]", "[3.1.2-11]",
     "Will QoS is 0 where there is no will"),
    ("will_retain_without_will", None, None, "[3.1.2-15]", "[3.1.2-13]",
     "Will Retain is 0 where there is no will"),
    ("password_without_username", None, "3.1", "[3.1.2-22]", None,
     "there is no password without a user name"),
    ("client_id_length", "CONNECT", "3.1", None, None,
     "a client identifier has 1 to 23 characters"),
    ("client_id_empty", None, None, "[3.1.3-7]", None,
     "an empty client identifier comes with Clean Session"),
    ("will_topic_wildcard", None, None, "[4.7.1-1]", "[4.7.0-1]",
     "the will's topic has no wildcard"),
    # --- CONNACK and other answers
    ("connack_flags", None, None, "3.2.2.1", "[3.2.2-1]",
     "the upper Connect Acknowledge Flags are 0"),
    ("session_present", None, None, "[3.2.2-4]", "[3.2.2-6]",
     "no session is present where the connection is refused"),
    ("connack_code", "CONNACK", "3.2", "3.2.2.3", "[3.2.2-8]",
     "the return code of CONNACK is one of its list"),
    ("puback_code", None, None, None, "[3.4.2-1]",
     "the reason code of PUBACK is one of its list"),
    ("pubrec_code", None, None, None, "[3.5.2-1]",
     "the reason code of PUBREC is one of its list"),
    ("pubrel_code", None, None, None, "[3.6.2-1]",
     "the reason code of PUBREL is one of its list"),
    ("pubcomp_code", None, None, None, "[3.7.2-1]",
     "the reason code of PUBCOMP is one of its list"),
    ("suback_code", None, None, "[3.9.3-2]", "[3.9.3-2]",
     "the return codes of SUBACK are of its list"),
    ("unsuback_code", None, None, None, "[3.11.3-2]",
     "the reason codes of UNSUBACK are of its list"),
    ("disconnect_code", None, None, None, "[3.14.2-1]",
     "the reason code of DISCONNECT is one of its list"),
    ("auth_code", None, None, None, "[3.15.2-1]",
     "the reason code of AUTH is one of its list"),
    # --- PUBLISH
    ("qos_3", "Quality of Service", "2.1", "[3.3.1-4]", "[3.3.1-4]",
     "QoS is not 3"),
    ("dup_qos_0", None, None, "[3.3.1-2]", "[3.3.1-2]",
     "DUP is 0 at QoS 0"),
    ("topic_wildcard", None, "3.3", "[3.3.2-2]", "[3.3.2-2]",
     "the topic of PUBLISH has no wildcard"),
    ("empty_topic", None, "Appendix A", "[4.7.3-1]", "[4.7.3-1]",
     "a topic has a character, or an alias stands for it"),
    # --- SUBSCRIBE, UNSUBSCRIBE
    ("subscribe_empty", None, "3.8", "[3.8.3-3]", "[3.8.3-2]",
     "SUBSCRIBE has a topic filter"),
    ("unsubscribe_empty", None, "3.10", "[3.10.3-2]", "[3.10.3-2]",
     "UNSUBSCRIBE has a topic filter"),
    ("subscribe_qos", "SUBSCRIBE", "3.8", "[3.8.3-4]", "3.8.3.1",
     "the QoS asked for is not 3"),
    ("subscribe_reserved", None, None, "[3.8.3-4]", "[3.8.3-5]",
     "the reserved bits beside the QoS asked for are 0"),
    ("retain_handling", None, None, None, "3.8.3.1",
     "Retain Handling is not 3"),
    ("multi_level_wildcard", None, "Appendix A", "[4.7.1-2]", "[4.7.1-1]",
     "# is a level of its own, the last one"),
    ("single_level_wildcard", None, "Appendix A", "[4.7.1-3]", "[4.7.1-2]",
     "+ is a level of its own"),
    ("share_name", None, None, None, "[4.8.2-1]",
     "a share name has a character"),
    ("share_filter", None, None, None, "[4.8.2-2]",
     "a share name has no wildcard, and a filter follows it"),
    ("no_local_shared", None, None, None, "[3.8.3-4]",
     "No Local is 0 for a shared subscription"),
    # --- properties
    ("property_length", None, None, None, "2.2.2.1",
     "Property Length ends within the packet"),
    ("property_id", None, None, None, "2.2.2.2",
     "the property's identifier is one of the list"),
    ("property_place", None, None, None, "2.2.2.2",
     "the property may stand in this packet"),
    ("property_twice", None, None, None, "2.2.2.2",
     "the property is there once"),
    ("property_value", None, None, None, "2.2.2.2",
     "the property's value is one of those allowed"),
    ("topic_alias_0", None, None, None, "[3.3.2-8]",
     "a topic alias is not 0"),
    ("response_topic_wildcard", None, None, None, "[3.3.2-14]",
     "a response topic has no wildcard"),
    ("auth_data_alone", None, None, None, "3.1.2.11.10",
     "authentication data of CONNECT comes with a method"),
    ("auth_method_missing", None, None, None, "3.15.2.2.2",
     "AUTH names its method"),
)  # fmt: skip

RULES: Final = MappingProxyType({row[0]: _rule(*row) for row in _TABLE})
"""Every rule by its name."""
