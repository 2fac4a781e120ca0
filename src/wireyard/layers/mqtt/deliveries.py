"""Deliveries: a verdict for each message and matching subscriber; requests and their replies.

A delivery attempt has the topic and payload of its message, so the messages of a topic are handled
one payload after the other. A reply has the response topic and correlation data of its request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, cast
from zlib import crc32

from wireyard.layers.mqtt.expected import Expected, SubscriptionHistory, assign, expected_deliveries
from wireyard.layers.mqtt.missing import Progress, missing_record
from wireyard.layers.mqtt.records import Attempt, Message, Subscribed, value_records
from wireyard.layers.mqtt.rows import conversation_row, delivery_row
from wireyard.layers.records import Position
from wireyard.layers.stages import Dropped, Fact, Found, Key, KeyedRecord, fact_of, keyed_record

__all__ = [
    "CONVERSATIONS",
    "DELIVERIES",
    "MAX_WAITING",
    "VERDICTS",
    "RequestMessage",
    "asked_record",
    "content_record",
    "converse",
    "deliver",
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
_BATCH: Final = 1024
"""Records of different payloads that are handled together, because that is faster."""

VERDICTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "delivered": "delivered, and acknowledged as its QoS requires",
        "lost_ack": "delivered again after its acknowledgement, which the broker did not read",
        "in_flight": "delivered, and its acknowledgement was not complete when the capture ended",
        "duplicate": "delivered once more than its subscriptions account for, also where its"
        " publisher sent it again",
        "abandoned": "delivered, and the session ended before it was acknowledged",
        "refused_by_client": "delivered, and acknowledged with an error",
        "refused": "the broker acknowledged it with an error, and need not forward it",
        "unaccepted": "nothing shows that the broker accepted it: no PUBACK, PUBCOMP, later answer"
        " or delivery to anybody",
        "no_subscriber": "no subscription was seen that matches it",
        "queued": "its subscriber was away or its window full, and the broker keeps it for later",
        "offline": "its subscriber was away, and at QoS 0 a broker need not keep it",
        "discarded": "it waited for its subscriber, whose session ended",
        "expired": "it waited for its subscriber longer than its expiry interval",
        "too_large": "it is above the Maximum Packet Size of its subscriber",
        "not_forwarded": "the broker accepted it and did not deliver it to a connected subscriber",
        "undecided": "the capture does not show which of these it was",
    }
)
"""Each verdict about a message and one subscriber, with its meaning."""


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


def deliver(records: Iterator[Subscribed | Older | Message | Attempt | None]) -> Iterator[Found]:
    """Yield the deliveries of a topic.

    Limits
    ------
    The subscriptions of the topic are held, and the records of one batch of payloads.
    """
    subscriptions: list[Subscribed] = []
    has_requests = has_older = False
    for record in records:
        if isinstance(record, Subscribed):
            subscriptions.append(record)
        elif isinstance(record, Older):
            has_older = True
        elif record is None:
            has_requests = True
        else:
            rest = cast(Iterator[Message | Attempt], chain((record,), records))
            history, progress = SubscriptionHistory(subscriptions), Progress()
            for batch in _by_content(rest):
                yield from _deliver_batch(batch, history, has_requests, progress, has_older)
            yield from progress.records()


def _by_content(records: Iterator[Message | Attempt]) -> Iterator[list[Message | Attempt]]:
    """Yield batches of records; a batch has all records of its payloads."""
    batch: list[Message | Attempt] = []
    for _, same in groupby(records, key=lambda one: crc32(one.content)):
        batch += same
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    yield batch


def _deliver_batch(
    records: list[Message | Attempt],
    history: SubscriptionHistory,
    has_requests: bool,
    progress: Progress,
    has_older: bool,
) -> Iterator[Found]:
    """Yield the deliveries of the messages of a batch."""
    messages = [one for one in records if isinstance(one, Message)]
    # The last packet of a connection may be a message; its will comes after that.
    messages.sort(key=lambda one: (one.start, one.origin == "will"))
    attempts = [one for one in records if isinstance(one, Attempt)]
    attempts.sort(key=attrgetter("at"))
    if has_requests:
        yield from (reply_record(one) for one in messages if one.origin == "publish")
    expected = list(expected_deliveries(messages, history))
    unexpected = _assign_all(expected, attempts)
    confirmed = _confirmations(expected, messages)
    for one in expected:
        progress.add(one)
        yield from _delivery_rows(one, confirmed.get(one.message), progress, has_older)
    with_row = {one.message for one in expected}
    if unexpected:
        yield from _unexpected(unexpected, expected, messages, with_row, has_older)
    for message in messages:
        if message not in with_row:
            verdict = _unmatched_verdict(message, has_older)
            yield Fact(DELIVERIES, delivery_row(message, None, None, verdict))


def _unexpected(
    attempts: list[Attempt],
    expected: list[Expected],
    messages: list[Message],
    with_row: set[Message],
    has_older: bool,
) -> Iterator[Found]:
    """Yield the deliveries that were not expected; add their messages to `with_row`.

    Parameters
    ----------
    has_older
        Whether there may be messages and subscriptions from before the capture.
    """
    clients = {(one.name, one.message.content) for one in expected}
    by_sending = {message.sent: message for message in messages}
    by_content: dict[bytes, list[Message]] = {}
    for message in messages:
        by_content.setdefault(message.content, []).append(message)
    of_older = _match_older(attempts, by_content) if has_older else {}
    for attempt in attempts:
        if attempt.setter is not None:
            matched = by_sending.get(attempt.setter)
        elif not attempt.is_live:
            matched = None
        elif has_older:
            matched = of_older.get(attempt)
        else:
            matched = _latest(by_content.get(attempt.content, []), attempt)
        verdict = _verdict(attempt, matched)
        if matched is not None:
            with_row.add(matched)
            if has_older and verdict == "delivered" and matched.copies > 1:
                verdict = "undecided"
            elif attempt.is_live and (attempt.client.name, attempt.content) in clients:
                verdict = "undecided" if has_older else "duplicate"
        yield Fact(DELIVERIES, delivery_row(matched, attempt, None, verdict))


def _match_older(
    attempts: list[Attempt], by_content: Mapping[bytes, list[Message]]
) -> dict[Attempt, Message]:
    """Return the message of each attempt, assuming that a client gets one as often as it was sent.

    Attempts are assigned from the last one back, so those left over are of messages from before the
    capture.
    """
    message_of: dict[Attempt, Message] = {}
    progress: dict[tuple[str, bytes], tuple[int, int]] = {}
    for attempt in reversed(attempts):
        messages, key = by_content.get(attempt.content, []), (attempt.client.name, attempt.content)
        stop = bisect_left(messages, attempt.at, key=attrgetter("start"))
        count, copies = progress.get(key, (stop, 0))
        if stop < count:
            count, copies = stop, 0
        if count and copies == messages[count - 1].copies:
            count, copies = count - 1, 0
        if count:
            message_of[attempt] = messages[count - 1]
        progress[key] = count, copies + 1
    return message_of


def _latest(messages: list[Message], attempt: Attempt) -> Message | None:
    """Return the latest of some messages before a delivery attempt."""
    place = bisect_left(messages, attempt.at, key=attrgetter("start"))
    return messages[place - 1] if place else None


def _assign_all(expected: Iterable[Expected], attempts: Iterable[Attempt]) -> list[Attempt]:
    """Assign attempts to the expected deliveries; return the attempts that were not expected."""
    by_client: dict[tuple[object, ...], list[Expected]] = {}
    shared: dict[bytes, list[Expected]] = {}
    for one in expected:
        content = one.message.content
        if one.matching[0].group:
            shared.setdefault(content, []).append(one)
        else:
            by_client.setdefault((one.name, content, one.retain), []).append(one)
    delivered: dict[tuple[object, ...], list[Attempt]] = {}
    for attempt in attempts:
        retain = attempt.retain if attempt.is_live else None
        delivered.setdefault((attempt.client.name, attempt.content, retain), []).append(attempt)
    rest: dict[bytes, list[Attempt]] = {}
    for key, of_client in delivered.items():
        for attempt in assign(by_client.get(key, []), of_client):
            rest.setdefault(attempt.content, []).append(attempt)
    for content, groups in shared.items():
        rest[content] = _assign_shared(groups, rest.get(content, []))
    return [attempt for left in rest.values() for attempt in left]


def _assign_shared(groups: list[Expected], rest: list[Attempt]) -> list[Attempt]:
    """Assign to groups the attempts that no subscription of the member itself accounts for."""
    by_group: dict[str, list[Expected]] = {}
    for one in groups:
        by_group.setdefault(one.name, []).append(one)
    by_member: dict[str, list[Attempt]] = {}
    for attempt in rest:
        by_member.setdefault(attempt.client.name, []).append(attempt)
    for of_group in by_group.values():
        members = {sub.client.name for one in of_group for sub in one.matching} & by_member.keys()
        of_members = [attempt for name in members for attempt in by_member.pop(name)]
        of_members.sort(key=attrgetter("at"))
        for attempt in assign(of_group, of_members):
            by_member.setdefault(attempt.client.name, []).append(attempt)
    return [attempt for left in by_member.values() for attempt in left]


# --- verdicts -------------------------------------------------------------------------------


def _confirmations(
    expected: Iterable[Expected], messages: Iterable[Message]
) -> dict[Message, Position]:
    """Return when the broker confirmed messages, by an answer or by forwarding them.

    A delivery may be of an earlier message with the same payload. So if there is an answer, a
    delivery counts for the first message of a payload only.
    """
    confirmed: dict[Message, Position] = {}
    firsts: dict[bytes, Message] = {}
    for message in messages:
        firsts.setdefault(message.content, message)
    for one in expected:
        message = one.message
        if message.refused is not None or message.malformed:
            continue
        if message.accepted is not None:
            confirmed.setdefault(message, message.accepted)
        if one.attempts and (message.accepted is None or firsts[message.content] is message):
            first = one.attempts[0].at
            confirmed[message] = min(confirmed.get(message, first), first)
    return confirmed


def _delivery_rows(
    one: Expected, confirmed: Position | None, progress: Progress, has_older: bool
) -> Iterator[Found]:
    """Yield the deliveries of a message to one client or group that should get it.

    Parameters
    ----------
    confirmed
        When the broker confirmed the message, if it did.
    has_older
        Whether there may be messages and subscriptions that were not captured, so a group may have
        more members.
    """
    copies = one.copies
    # A copy that was not captured may have been before the ones that were.
    is_short = has_older and one.message.copies > 1 and len(one.attempts) < one.capacity
    for place, attempt in enumerate(one.attempts):
        # A copy too many is a duplicate, even if the publisher sent the message again.
        verdict = _verdict(attempt, one.message) if place < copies else "duplicate"
        if is_short and verdict == "delivered":
            verdict = "undecided"
        row = delivery_row(one.message, attempt, _subscription(one, attempt), verdict)
        yield fact_of((DELIVERIES, row))
    if one.attempts:
        return
    message = one.message
    if message.refused is not None:
        verdict = "refused"
    elif confirmed is None:
        verdict = "unaccepted"
    elif has_older and one.matching[0].group:
        verdict = "undecided"
    elif active := one.active_until(confirmed):
        progress.missed.add(one.name)
        yield missing_record(message, one.name, one.matching[0], active, confirmed)
        return
    else:
        verdict = "undecided"
    yield Fact(DELIVERIES, delivery_row(message, None, one.matching[0], verdict))


def _subscription(one: Expected, attempt: Attempt) -> Subscribed:
    """Return the subscription of an attempt: by its identifier, or any that matches."""
    client, own = attempt.client.name, None
    for subscribed in one.matching:
        is_own = subscribed.client.name == client
        if (is_own or subscribed.group is None) and subscribed.identifier in attempt.identifiers:
            return subscribed
        if is_own and own is None:
            own = subscribed
    return own or one.matching[0]


def _unmatched_verdict(message: Message, has_older: bool) -> str:
    """Return the verdict of a message that no captured subscription matches."""
    if message.refused is not None:
        return "refused"
    is_open = message.qos > 0 and message.accepted is None
    if is_open:
        return "unaccepted"
    return "undecided" if has_older else "no_subscriber"


def _verdict(attempt: Attempt, message: Message | None) -> str:
    """Return the verdict of a delivery attempt."""
    if attempt.refused is not None:
        return "refused_by_client"
    if attempt.qos and attempt.acknowledged is None:
        if attempt.untraced:
            return "undecided"
        return "abandoned" if attempt.abandoned else "in_flight"
    if message is not None and message.is_repeated:
        return "undecided"  # Its first copy may have been delivered before.
    return "lost_ack" if attempt.lost_ack else "delivered"


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
    return Fact("conversations", conversation_row(request, reply))


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
