"""What messages carry, opened by rule: JSON, CBOR, MessagePack, Protobuf, Avro, Sparkplug B, text.

A rule says which messages, by destination and properties, and which decoder. Nothing is guessed: a
payload that no rule is for stays bytes, and one that its decoder refuses too, with the reason.
"""

from wireyard.payloads.decoders import Decoder, PayloadError, get_decoder, register
from wireyard.payloads.rules import Rule, parse_rule, parse_rules

__all__ = [
    "Decoder",
    "PayloadError",
    "Rule",
    "get_decoder",
    "parse_rule",
    "parse_rules",
    "register",
]
