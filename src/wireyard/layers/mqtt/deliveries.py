"""The verdicts about deliveries, the records of later stages, and requests with their replies.

A delivery attempt has the topic and payload of its message, a reply the response topic and
correlation data of its request: so records of messages have these as keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple
from zlib import crc32

from wireyard.layers.mqtt.records import Attempt, Message, Subscribed, value_records
from wireyard.layers.stages import Dropped, Fact, Found, Key, KeyedRecord, keyed_record

__all__ = [
    "CONVERSATIONS",
    "DELIVERIES",
    "MAX_WAITING",
    "RequestMessage",
    "asked_record",
    "content_record",
    "converse",
    "message_records",
    "older_record",
    "reply_record",
    "request_record",
    "subscribed_record",
]

DELIVERIES: Final = "deliveries"
_SUBSCRIBED, _OLDER, _ASKED, _CONTENT = range(4)
"""The order of the kinds of records."""
_ORDER_OF_OLDER: Final = (_OLDER, 0, 0, 0, "", 0)


def subscribed_record(topic: str, number: int, subscribed: Subscribed) -> KeyedRecord:
    """Return the record of a subscription that matches a topic; `number` orders them."""
    order = _SUBSCRIBED, number, *subscribed.asked.order
    return KeyedRecord(DELIVERIES, (*subscribed.client[:2], topic), order, subscribed)


class Older(NamedTuple):
    """A mark for a topic: its broker has sessions older than the capture, which may subscribe."""

    topic: str


def older_record(broker: Key, topic: str) -> KeyedRecord:
    """Return the record that not all subscriptions to a topic were captured."""
    return KeyedRecord(DELIVERIES, (*broker, topic), _ORDER_OF_OLDER, Older(topic))


def asked_record(request: Message) -> KeyedRecord:
    """Return the record that a topic is the response topic of a request."""
    key = (*request.client[:2], request.response_topic)
    return KeyedRecord(DELIVERIES, key, (_ASKED, 0, *request.sent.order), None)


def content_record(record: Message | Attempt) -> KeyedRecord:
    """Return the keyed record of a message or a delivery attempt."""
    at = record.sent if isinstance(record, Message) else record.at
    order = _CONTENT, crc32(record.content), *at.order
    return keyed_record((DELIVERIES, (*record.client[:2], record.topic), order, record))


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


def message_records(message: Message) -> Iterator[KeyedRecord]:
    """Yield the records of a message that a client sent, or of a published will."""
    change = message.change()
    if change is not None:
        yield from value_records(change)
    if message.value is not None:
        message = replace(message, value=None)
    yield content_record(message)
    if message.response_topic is not None and message.origin == "publish":
        yield asked_record(message)
        yield request_record(message)
