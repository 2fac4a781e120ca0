"""Faults by rule: packets that are dropped, sent twice or late, and connections that are cut.

A rule is of the form ``before PUBACK to CLIENT on TOPIC, nth 3``. Only the type of the packet is
needed. Rules count the packets that they match over all connections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from wireyard.errors import DecodeError, UsageError
from wireyard.formats.base import Format
from wireyard.layers.mqtt.deliveries.topics import matches
from wireyard.tap.packets import FORMATS, Conversation, Span

Action = Literal["cut", "delay", "drop", "duplicate"]
_FORM: Final = re.compile(
    r"(?:(?P<when>before|after)\s+)?(?P<type>[A-Z_]+)"
    r"(?:\s+(?P<side>from|to)\s+(?P<client>\S+?))?(?:\s+on\s+(?P<topic>.+?))?"
    r"(?P<rest>(?:\s*,\s*[^,]+)*)",
)
_COUNT: Final = re.compile(r"(?P<how>nth|every)\s+(?P<number>[1-9]\d{0,8})")
_TIME: Final = re.compile(r"(?P<number>\d{1,6}(?:\.\d{1,6})?)\s*(?P<unit>ms|s)")


class Step(NamedTuple):
    """What a direction of a connection does next: pass bytes on, wait, or cut the connection."""

    data: bytes = b""
    spans: Sequence[Span] = ()
    seconds: float = 0.0
    cuts: bool = False
    ends: bool = False
    """Whether it is the end of the direction."""


@dataclass(slots=True)
class Rule:
    """One fault, and the packets that have it."""

    action: Action
    text: str
    packet_type: str
    is_after: bool = False
    from_client: bool | None = None
    """The direction; None for both."""
    client: str = "*"
    """Client id, with the wildcards of a shell."""
    topic: str | None = None
    """Filter of topics, or a destination of JMQ."""
    nth: int = 0
    every: int = 0
    seconds: float = 0.0
    seen: int = field(default=0, compare=False)

    def count(self) -> bool:
        """Count a packet that the rule matches; return whether it has the fault."""
        self.seen += 1
        if self.nth:
            return self.seen == self.nth
        return not self.every or self.seen % self.every == 0


def parse_rule(action: Action, text: str) -> Rule:
    """Return the rule that a text describes.

    Raises
    ------
    UsageError
        It has another form.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise _usage(action, text, "is not of the form [before|after] TYPE [from|to CLIENT]"
                     " [on TOPIC], nth N")  # fmt: skip
    kind = match["type"]
    if not any(kind in _types_of(name).values() for name in FORMATS):
        raise _usage(action, text, f"has no packet type of MQTT or JMQ: {kind}")
    if match["when"] and action != "cut":
        raise _usage(action, text, f"has '{match['when']}', which only --cut takes")
    rule = Rule(action, text, kind, match["when"] == "after", topic=match["topic"])
    if match["side"]:
        rule.from_client, rule.client = match["side"] == "from", match["client"]
    for part in filter(None, map(str.strip, match["rest"].split(","))):
        count, time = _COUNT.fullmatch(part), _TIME.fullmatch(part)
        if count is not None and not rule.nth and not rule.every:
            setattr(rule, count["how"], int(count["number"]))
        elif time is not None and action == "delay" and not rule.seconds:
            rule.seconds = float(time["number"]) / (1000 if time["unit"] == "ms" else 1)
        else:
            raise _usage(action, text, f"has '{part}', which is none of: nth N, every N"
                         + ", 50 ms" * (action == "delay"))  # fmt: skip
    if action == "delay" and not rule.seconds:
        raise _usage(action, text, "has no time, as in 'PUBLISH to till, 50 ms'")
    return rule


def _usage(action: str, text: str, problem: str) -> UsageError:
    return UsageError(f"--{action}: the rule '{text}' {problem}")


def _types_of(name: str) -> dict[int, str]:
    """Return the names of the packet types of a format."""
    if name == "mqtt":
        from wireyard.formats.mqtt.layout import PACKET_TYPES
    else:
        from wireyard.formats.jmq.layout import PACKET_TYPES
    return dict(PACKET_TYPES)


class Names:
    """The client of a connection, and the topics that its first 1,000 aliases stand for."""

    _MOST_ALIASES: Final = 1000

    def __init__(self) -> None:
        self.client = ""
        self._topics: dict[tuple[bool, int], str] = {}

    def learn(self, packet: object) -> None:
        """Read the client id in CONNECT, CONNACK or SET_CLIENTID."""
        properties = dict(getattr(packet, "properties", None) or ())
        assigned = properties.get("assigned_client_identifier")
        jmq = properties.get("JMQClientID")
        name = assigned or getattr(jmq, "value", jmq) or getattr(packet, "client_id", None)
        self.client = str(name or self.client)

    def destination(self, packet: object, from_client: bool) -> str | None:
        """Return the topic of a PUBLISH, or the destination of a JMQ packet."""
        topic: str | None = getattr(packet, "topic", None)
        if topic is None:
            found: str | None = getattr(packet, "destination", None)
            return found
        alias = dict(getattr(packet, "properties", ())).get("topic_alias")
        if alias is not None:
            key = from_client, alias
            if topic and (key in self._topics or len(self._topics) < self._MOST_ALIASES):
                self._topics[key] = topic
            return self._topics.get(key, topic)
        return topic


class Faults:
    """The rules of a proxy."""

    _NAMING: Final = {"mqtt": ("CONNECT", "CONNACK"), "jmq": ("SET_CLIENTID",)}

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._types = {name: _types_of(name) for name in FORMATS}
        self._wanted = {rule.packet_type for rule in rules}
        if any(rule.topic is not None for rule in rules):
            self._wanted.add("PUBLISH")  # which may define an alias

    def __bool__(self) -> bool:
        return bool(self.rules)

    def steps(
        self, conversation: Conversation, data: bytes, spans: Sequence[Span], names: Names,
        from_client: bool,
    ) -> Iterator[Step | Rule]:  # fmt: skip
        """Yield what is done with some bytes of a connection, each rule before its effect."""
        format, done, whole = conversation.format, 0, len(data)
        for at, span in enumerate(spans):
            if format is None or span.packet_type < 0 or span.stop > whole:
                continue
            packet = data[span.start : span.stop]
            found = self._of(format, span, packet, names, from_client)
            if not found:
                continue
            yield _pass(data, spans[:at], done, span.start)
            done = span.stop
            yield from found
            actions = {rule.action for rule in found}
            if any(rule.action == "cut" and not rule.is_after for rule in found):
                yield Step(cuts=True)
            seconds = sum(rule.seconds for rule in found)
            if seconds:
                yield Step(seconds=seconds)
            times = 0 if "drop" in actions else 1 + ("duplicate" in actions)
            for _ in range(times):
                yield _pass(data, (span,), span.start, span.stop)
            if "cut" in actions:
                yield Step(cuts=True)
        yield _pass(data, spans, done, whole)

    def _of(
        self, format: Format, span: Span, data: bytes, names: Names, from_client: bool
    ) -> list[Rule]:
        """Return the rules that one whole packet matches."""
        kind = self._types[format.name].get(span.packet_type, "")
        is_naming = kind in self._NAMING[format.name]
        if kind not in self._wanted and not is_naming:
            return []
        try:
            packet = format.decode(data, span.context)
        except DecodeError:
            packet = None
        if is_naming:
            names.learn(packet)
        destination = names.destination(packet, from_client)
        return [
            rule
            for rule in self.rules
            if rule.packet_type == kind
            and rule.from_client in (None, from_client)
            and fnmatchcase(names.client, rule.client)
            and (rule.topic is None or _is_on(rule.topic, destination, format))
            and rule.count()
        ]


def _pass(data: bytes, spans: Sequence[Span], start: int, stop: int) -> Step:
    """Return the step that passes a part of some bytes on, with the packets in it."""
    inside = [
        span._replace(start=span.start - start, stop=span.stop - start)
        for span in spans
        if start <= span.start < stop
    ]
    return Step(data[start:stop], inside)


def _is_on(topic: str, destination: str | None, format: Format) -> bool:
    if destination is None:
        return False
    return matches(topic, destination) if format.name == "mqtt" else topic == destination
