"""Rules that select messages and name the decoder of their payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wireyard.errors import UsageError
from wireyard.payloads.decoders import Decoder, get_decoder


@dataclass(frozen=True)
class Rule:
    """A selection of messages by destination and properties, and their decoder."""

    filter: str
    """An MQTT topic filter with ``+`` and ``#``, or the same with dots between its levels, for JMS
    destinations."""
    properties: tuple[tuple[str, str], ...]
    """Names and values, all of which a message has to have."""
    decoder: Decoder

    def matches(self, destination: str, separator: str) -> bool:
        """Return whether the filter matches a destination."""
        wanted, levels = self.filter.split(separator), destination.split(separator)
        if levels[0].startswith("$") and wanted[0] in ("+", "#"):
            return False  # MQTT 5.0, 4.7.2: a leading wildcard does not match $ topics
        for at, level in enumerate(wanted):
            if level == "#":
                return True
            if at == len(levels) or level not in ("+", levels[at]):
                return False
        return len(wanted) == len(levels)

    def has_properties(self, properties: Mapping[str, Sequence[str]]) -> bool:
        """Return whether these properties of a message include all of the rule's."""
        return all(value in properties.get(name, ()) for name, value in self.properties)


def parse_rule(text: str) -> Rule:
    """Parse a rule, ``FILTER[;PROPERTY=VALUE]..=DECODER``.

    Raises
    ------
    UsageError
        A syntax error, or an unknown decoder.
    """
    selector, sign, decoder = text.rpartition("=")
    if not (selector and sign and decoder):
        raise UsageError(f"payload rule '{text}' is not FILTER=DECODER, as in 'plant/#=json'")
    return _rule(selector, decoder)


def parse_rules(
    given: Mapping[str, str | Decoder | Callable[[bytes, str], Any]] | Sequence[str],
) -> tuple[Rule, ...]:
    """Return rules, given as ``{FILTER: DECODER}`` or as texts, in order of precedence."""
    if isinstance(given, Mapping):
        return tuple(_rule(selector, decoder) for selector, decoder in given.items())
    return tuple(map(parse_rule, given))


def _rule(selector: str, decoder: str | Decoder | Callable[[bytes, str], Any]) -> Rule:
    filter, *rest = selector.split(";")
    pairs = [part.partition("=") for part in rest]
    if not filter or not all(name and sign for name, sign, _ in pairs):
        raise UsageError(f"payload rule '{selector}' is not FILTER or FILTER;PROPERTY=VALUE")
    for level in filter.replace(".", "/").split("/")[:-1]:
        if level == "#":
            raise UsageError(f"payload rule '{selector}': # stands at the end only")
    return Rule(filter, tuple((name, value) for name, _, value in pairs), get_decoder(decoder))
