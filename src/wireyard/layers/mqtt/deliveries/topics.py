"""Topic names and topic filters (MQTT 5.0, 4.7 and 4.8)."""

from __future__ import annotations

from typing import Final

from wireyard.formats.mqtt.topics import is_shared

OWN_PREFIXES: Final = ("$queue", "$exclusive")
"""Prefixes of some brokers for filters that one client at a time is served for."""
DELAYED_PREFIX: Final = "$delayed/"
"""What some brokers publish later, on the topic behind it and a number of seconds."""


def split_shared(filter: str) -> tuple[str | None, str]:
    """Return the share name of a filter, None if it is not shared, and the filter without it.

    Brokers share in every version, and some have prefixes of their own.
    """
    prefix, _, rest = filter.partition("/")
    if prefix in OWN_PREFIXES and rest:
        return prefix, rest
    if not is_shared(filter):
        return None, filter
    group, _, rest = filter.removeprefix("$share/").partition("/")
    return group, rest


def is_of_broker(filter: str) -> bool:
    """Return whether brokers may define what a filter matches: it begins with another $ name."""
    first = split_shared(filter)[1].partition("/")[0]
    return first.startswith("$") and first != "$SYS"


def matches(filter: str, topic: str) -> bool:
    """Return whether a topic filter, without a share name, matches a topic name.

    A filter that begins with a wildcard matches no topic that begins with ``$``.
    """
    if topic.startswith("$") and filter[:1] in ("+", "#"):
        return False
    filter_levels, levels = filter.split("/"), topic.split("/")
    for place, level in enumerate(filter_levels):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(filter_levels) == len(levels)
