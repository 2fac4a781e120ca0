"""Requests and replies: a reply goes to the response topic of its request, with its data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from wireyard.layers.mqtt.records import Message
from wireyard.layers.mqtt.rows import conversation_row
from wireyard.layers.steps import Dropped, Fact, Found, Note

__all__ = ["CONVERSATIONS", "MAX_WAITING", "converse", "reply_note", "request_note"]

CONVERSATIONS: Final = "conversations"
MAX_WAITING: Final = 1 << 17
"""Requests with the same topic and data that wait for replies: at about 1 KB each 128 MiB."""
_REPLY, _REQUEST = range(2)
"""A message may be both; it does not answer itself."""


class Asked(NamedTuple):
    """A message that has a response topic."""

    message: Message


def request_note(message: Message) -> Note:
    """Note a request where its replies go."""
    key = (*message.client[:2], message.response_topic, message.correlation_data)
    return Note(CONVERSATIONS, key, (*message.sent.order, _REQUEST), Asked(message))


def reply_note(message: Message) -> Note:
    """Note a message that may be a reply, because others ask for replies on its topic."""
    key = (*message.client[:2], message.topic, message.correlation_data)
    return Note(CONVERSATIONS, key, (*message.sent.order, _REPLY), message)


def converse(records: Iterator[Message | Asked]) -> Iterator[Found]:
    """Yield requests with their replies, of those that have topic and data in common.

    The one that waits longest is answered; if none waits, the one that was answered last is
    answered again.
    """
    waiting: deque[Message] = deque()
    answered: Message | None = None
    for record in records:
        if isinstance(record, Message):
            if waiting:
                answered = waiting.popleft()
            if answered is not None:
                yield _fact(answered, record)
            continue
        waiting.append(record.message)
        if len(waiting) > MAX_WAITING:
            yield _fact(waiting.popleft(), None)
            yield Dropped("requests", 1)
    for request in waiting:
        yield _fact(request, None)


def _fact(request: Message, reply: Message | None) -> Fact:
    return Fact("conversations", conversation_row(request, reply))
