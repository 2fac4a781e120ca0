"""Topic names, topic filters (MQTT 5.0, 4.7 and 4.8) and topic aliases (3.3.2.3.4)."""

from __future__ import annotations

from zlib import crc32

from wireyard.formats.mqtt.topics import is_shared

__all__ = [
    "Aliases",
    "matches",
    "split_shared",
    "topic_hash",
]


def split_shared(filter: str) -> tuple[str | None, str]:
    """Return the share name of a filter, None if it is not shared, and what it matches with."""
    if not is_shared(filter):
        return None, filter
    group, _, rest = filter.removeprefix("$share/").partition("/")
    return group, rest


def topic_hash(topic: str) -> int:
    """Return a hash that is the same everywhere, to put the records of a topic together."""
    return crc32(topic.encode("utf-8", "surrogatepass"))


def matches(filter: str, topic: str) -> bool:
    """Return whether a topic filter, without a share name, matches a topic name.

    A filter that begins with a wildcard matches no topic that begins with ``$``.
    """
    if topic.startswith("$") and filter[:1] in ("+", "#"):
        return False
    wanted, levels = filter.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


class Aliases:
    """What each alias stands for; a new connection has a new one.

    Parameters
    ----------
    maximum
        The highest alias that the side which is published to takes; None if that is not known.

    Limits
    ------
    An alias has 16 bits, so there are at most 65,535.
    """

    __slots__ = ("_topics", "maximum")

    def __init__(self, maximum: int | None = None) -> None:
        self.maximum = maximum
        self._topics: dict[int, str] = {}

    def resolve(self, topic: str, alias: int | None) -> tuple[str | None, str | None]:
        """Return the topic that a PUBLISH means, and the fault if there is one.

        Returns
        -------
        topic, fault
            None for a topic that is unknown. The fault is ``alias_unknown`` or
            ``alias_maximum``; an alias above the maximum is understood all the same.
        """
        if alias is None:
            return topic, None
        above = self.maximum is not None and alias > self.maximum
        if topic:
            self._topics[alias] = topic
            return topic, "alias_maximum" if above else None
        known = self._topics.get(alias)
        return known, "alias_maximum" if above else None if known else "alias_unknown"
