"""Requests and their replies.

A reply has the response topic and correlation data of its request, so records have these as keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from wireyard.layers.mqtt.records import Message
from wireyard.layers.stages import Dropped, Fact, Found, KeyedRecord

_NS_PER_MS: Final = 1_000_000
CONVERSATIONS: Final = "conversations"
MAX_WAITING: Final = 1 << 17
"""Requests that wait for replies with one topic and data: at about 1 KB each 128 MiB."""
_REPLY, _REQUEST = range(2)
"""The order of the two records of one message, which is no reply to itself."""


class RequestMessage(NamedTuple):
    """A message with a response topic."""

    message: Message


def request_record(message: Message) -> KeyedRecord:
    """Return the record of a request, keyed by its response topic."""
    key = (*message.client[:2], message.response_topic, message.correlation_data)
    return KeyedRecord(CONVERSATIONS, key, (*message.sent.order, _REQUEST), RequestMessage(message))


def reply_record(message: Message) -> KeyedRecord:
    """Return the record of a message on a response topic, which may be a reply."""
    key = (*message.client[:2], message.topic, message.correlation_data)
    return KeyedRecord(CONVERSATIONS, key, (*message.sent.order, _REPLY), message)


def converse(records: Iterator[Message | RequestMessage]) -> Iterator[Found]:
    """Yield the requests of one response topic and correlation data with their replies.

    A reply answers the request that has waited longest; if none waits, it answers the request that
    was answered last once more.
    """
    waiting: deque[Message] = deque()
    answered: Message | None = None
    for record in records:
        if isinstance(record, Message):
            if waiting:
                answered = waiting.popleft()
            if answered is not None:
                yield _conversation(answered, record)
            continue
        waiting.append(record.message)
        if len(waiting) > MAX_WAITING:
            yield _conversation(waiting.popleft(), None)
            yield Dropped("requests", 1)
    for request in waiting:
        yield _conversation(request, None)


def _conversation(request: Message, reply: Message | None) -> Fact:
    row: dict[str, Any] = {
        "kind": "mqtt5",
        "request_key": request.key,
        "requester": request.client.endpoint,
        "requested_ns": request.sent.ns,
        "request": request.topic,
        "requested_frame": request.sent.frame,
        **request.sent.lead,
    }
    if reply is None:
        return Fact("conversations", row)
    latency_ms = None
    if reply.sent.ns is not None and request.sent.ns is not None:
        latency_ms = (reply.sent.ns - request.sent.ns) // _NS_PER_MS
    row |= {
        "reply_key": reply.key,
        "responder": reply.client.endpoint,
        "replied_ns": reply.sent.ns,
        "latency_ms": latency_ms,
        "replied_frame": reply.sent.frame,
    }
    return Fact("conversations", row)
