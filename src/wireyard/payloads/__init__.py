"""Decoding of payloads by rule: JSON, CBOR, MessagePack, Protobuf, Avro, Sparkplug B, text.

A rule selects messages by destination and properties, and names a decoder. Decoders are never
guessed: a payload without a rule stays bytes, and so does one that its decoder rejects, with the
reason.
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
