"""What a message of a client is to the steps that take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wireyard.layers.mqtt.conversations import request_note
from wireyard.layers.mqtt.deliveries import asked_note, content_note
from wireyard.layers.mqtt.records import Message
from wireyard.layers.mqtt.values import value_notes
from wireyard.layers.steps import Note

__all__ = ["message_notes"]


def message_notes(message: Message) -> Iterator[Note]:
    """Note a message that a client sent, or a will that was published."""
    change = message.change()
    if change is not None:
        yield from value_notes(change)
    if message.value is not None:
        message = replace(message, value=None)
    yield content_note(message)
    if message.response_topic is not None and message.origin == "publish":
        yield asked_note(message)
        yield request_note(message)
