"""The rules of topic names and topic filters."""

from __future__ import annotations

from wireyard.formats.mqtt.cursor import Cursor

_SHARED = "$share/"


def has_wildcard(topic: str) -> bool:
    """Return whether a topic has ``+`` or ``#``, which only topic filters may have."""
    return "+" in topic or "#" in topic


def is_shared(text: str) -> bool:
    """Return whether a topic filter is of a shared subscription (MQTT 5.0)."""
    return text.startswith(_SHARED)


def check_filter(cursor: Cursor, text: str, at: int) -> None:
    """Record the faults of the topic filter at `at`."""
    if cursor.version == 5 and is_shared(text):
        name, slash, text = text.removeprefix(_SHARED).partition("/")
        if not name:
            cursor.fault("share_name", "topic filter", at, "has no share name")
        if has_wildcard(name) or not slash or not text:
            problem = "has a wildcard in its share name, or no filter behind it"
            cursor.fault("share_filter", "topic filter", at, problem)
        if not text:
            return
    if not text:
        cursor.fault("empty_topic", "topic filter", at, "is empty")
    levels = text.split("/")
    if any("#" in level and level != "#" for level in levels) or "#" in levels[:-1]:
        cursor.fault("multi_level_wildcard", "topic filter", at, "has # that is not the last level")
    if any("+" in level and level != "+" for level in levels):
        cursor.fault("single_level_wildcard", "topic filter", at, "has + that is not a level")
