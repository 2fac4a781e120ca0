"""Topics that are others in a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from wireyard.errors import UsageError
from wireyard.formats.jmq.packet import Packet as JmqPacket
from wireyard.formats.mqtt.control import Connect, Packet, Publish, Subscribe, Unsubscribe
from wireyard.layers.mqtt.deliveries.topics import split_shared

_BELOW: Final = "/#"


class Renaming:
    """Rules of the form ``OLD=NEW``, or ``OLD/#=NEW/#`` for a topic and all below it.

    The first rule that a topic begins with holds. Filters are renamed like topics, also behind
    ``$share/GROUP/``; one whose first levels are wildcards stays as it is. A `UsageError` is raised
    if a rule has another form.
    """

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self._rules: list[tuple[str, str, bool]] = []
        for rule in rules:
            old, _, new = rule.partition("=")
            ends = {old.endswith(_BELOW), new.endswith(_BELOW)}
            names = old.removesuffix(_BELOW), new.removesuffix(_BELOW)
            if len(ends) > 1 or not all(names) or any(set(name) & set("+#=") for name in names):
                raise UsageError(f"--rename: '{rule}' is not OLD=NEW or OLD/#=NEW/#")
            self._rules.append((*names, ends.pop()))

    def topic(self, name: str) -> str:
        """Return the new name of a topic or a filter."""
        group, rest = split_shared(name)
        if group is not None and rest:
            return name.removesuffix(rest) + self.topic(rest)
        for old, new, is_below in self._rules:
            if name == old or (is_below and name.startswith(f"{old}/")):
                return new + name[len(old) :]
        return name

    def expression(self, column: str) -> str:
        """Return the new name of the topic in a column, in SQL."""
        cases = []
        for old, new, is_below in self._rules:
            first, second = (name.replace("'", "''") for name in (old, new))
            below = f" OR starts_with({column}, '{first}/')" * is_below
            rest = f"substr({column}, {len(old) + 1})"
            cases.append(f"WHEN {column} = '{first}'{below} THEN '{second}' || {rest}")
        return f"CASE {' '.join(cases)} ELSE {column} END" if cases else column

    def packet(self, packet: Packet) -> Packet:
        """Return a packet with the new names."""
        if not self._rules:
            return packet
        if isinstance(packet, Publish):
            properties = tuple(
                one._replace(value=self.topic(str(one.value)))
                if one.name == "response_topic" else one
                for one in packet.properties
            )  # fmt: skip
            return replace(packet, topic=self.topic(packet.topic), properties=properties)
        if isinstance(packet, Connect) and packet.will_topic is not None:
            return replace(packet, will_topic=self.topic(packet.will_topic))
        if isinstance(packet, Subscribe | Unsubscribe):
            filters = [one._replace(filter=self.topic(one.filter or "")) for one in packet.filters]
            return replace(packet, filters=filters)
        return packet

    def jmq(self, packet: JmqPacket) -> JmqPacket:
        """Return a packet of JMQ with the new names of destinations."""
        if not self._rules:
            return packet
        named = {name: getattr(packet, name) for name in ("destination", "reply_to")}
        fields: dict[str, Any] = {name: self.topic(old) for name, old in named.items() if old}
        if packet.properties and "JMQDestination" in packet.properties:
            old = packet.properties["JMQDestination"]
            new = old._replace(value=self.topic(str(old.value)))
            fields["properties"] = {**packet.properties, "JMQDestination": new}
        return replace(packet, **fields)


AS_IS: Final = Renaming()
"""Topics keep their names."""
