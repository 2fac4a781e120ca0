"""Where every message went: a verdict for each message and matching subscriber, and replies.

What belongs together has a topic and a payload in common, so of a topic one payload is looked at
after the other. A reply has the response topic and the correlation data of its request.
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

from wireyard.layers.mqtt.expected import Audience, Expected, assign, expected_deliveries
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
"""The order of the records."""
_ORDER_OF_OLDER: Final = (_OLDER, 0, 0, 0, "", 0)
_AT_ONCE: Final = 1024
"""Records looked at together if they have different contents, which is faster."""

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
"""Where a message went, as seen from one subscriber."""


def subscribed_record(topic: str, place: int, subscribed: Subscribed) -> KeyedRecord:
    """Pass on a subscription that matches a topic; of those that do, by its place."""
    order = _SUBSCRIBED, place, *subscribed.asked.order
    return KeyedRecord(DELIVERIES, (*subscribed.client[:2], topic), order, subscribed)


class Older(NamedTuple):
    """That a broker has sessions older than the capture, which may subscribe to the topic."""

    topic: str


def older_record(broker: Key, topic: str) -> KeyedRecord:
    """Note, for a topic, that not all subscriptions of its broker were seen."""
    return KeyedRecord(DELIVERIES, (*broker, topic), _ORDER_OF_OLDER, Older(topic))


def asked_record(request: Message) -> KeyedRecord:
    """Note, for the topic that a request wants its reply on, that there are requests."""
    key = (*request.client[:2], request.response_topic)
    return KeyedRecord(DELIVERIES, key, (_ASKED, 0, *request.sent.order), None)


def content_record(one: Message | Attempt) -> KeyedRecord:
    """Pass on a message that was sent or delivered."""
    at, client = one.sent if isinstance(one, Message) else one.at, one.client
    order = _CONTENT, crc32(one.content), *at.order
    return keyed_record((DELIVERIES, (client.source, client.server, one.topic), order, one))


def deliver(records: Iterator[Subscribed | Older | Message | Attempt | None]) -> Iterator[Found]:
    """Yield what became of the messages of a topic.

    Limits
    ------
    What is held is the subscriptions of the topic, and all that has one payload.
    """
    subscriptions: list[Subscribed] = []
    is_asked = has_older = False
    for record in records:
        if isinstance(record, Subscribed):
            subscriptions.append(record)
        elif isinstance(record, Older):
            has_older = True
        elif record is None:
            is_asked = True
        else:
            rest = cast(Iterator[Message | Attempt], chain((record,), records))
            audience, progress = Audience(subscriptions), Progress()
            for several in _by_content(rest):
                yield from _deliver(several, audience, is_asked, progress, has_older)
            yield from progress.records()


def _by_content(records: Iterator[Message | Attempt]) -> Iterator[list[Message | Attempt]]:
    """Yield some records at a time; those with the same content are together."""
    several: list[Message | Attempt] = []
    for _, same in groupby(records, key=lambda one: crc32(one.content)):
        several += same
        if len(several) >= _AT_ONCE:
            yield several
            several = []
    yield several


def _deliver(
    records: list[Message | Attempt],
    audience: Audience,
    asked: bool,
    progress: Progress,
    has_older: bool,
) -> Iterator[Found]:
    """Yield what became of all messages with some payloads."""
    messages = [one for one in records if isinstance(one, Message)]
    # The last packet of a connection may be a message; its will comes behind that.
    messages.sort(key=lambda one: (one.start, one.origin == "will"))
    attempts = [one for one in records if isinstance(one, Attempt)]
    attempts.sort(key=attrgetter("at"))
    if asked:
        yield from (reply_record(one) for one in messages if one.origin == "publish")
    expected = list(expected_deliveries(messages, audience))
    unexpected = _assign_all(expected, attempts)
    taken = _taken(expected, messages)
    for one in expected:
        progress.add(one)
        yield from _found(one, taken.get(one.message), progress, has_older)
    found_for = {one.message for one in expected}
    if unexpected:
        yield from _unexpected(unexpected, expected, messages, found_for, has_older)
    for message in messages:
        if message not in found_for:
            verdict = _without_subscriber(message, has_older)
            yield Fact(DELIVERIES, delivery_row(message, None, None, verdict))


def _unexpected(
    attempts: list[Attempt],
    expected: list[Expected],
    messages: list[Message],
    found_for: set[Message],
    has_older: bool,
) -> Iterator[Found]:
    """Yield what was delivered and not expected; add the messages it is of to `found_for`.

    Parameters
    ----------
    has_older
        Whether messages of before the capture may be among it, and subscriptions that nobody saw.
    """
    clients = {(one.name, one.message.content) for one in expected}
    by_sending = {message.sent: message for message in messages}
    by_content: dict[bytes, list[Message]] = {}
    for message in messages:
        by_content.setdefault(message.content, []).append(message)
    of_older = _of_older(attempts, by_content) if has_older else {}
    for each in attempts:
        if each.setter is not None:
            found = by_sending.get(each.setter)
        elif not each.is_live:
            found = None
        elif has_older:
            found = of_older.get(each)
        else:
            found = _latest(by_content.get(each.content, []), each)
        verdict = _verdict(each, found)
        if found is not None:
            found_for.add(found)
            if has_older and verdict == "delivered" and found.copies > 1:
                verdict = "undecided"
            elif each.is_live and (each.client.name, each.content) in clients:
                verdict = "undecided" if has_older else "duplicate"
        yield Fact(DELIVERIES, delivery_row(found, each, None, verdict))


def _of_older(
    attempts: list[Attempt], by_content: Mapping[bytes, list[Message]]
) -> dict[Attempt, Message]:
    """Return which messages were delivered, if a client gets one as often as it was sent.

    From the last one back, so that what is left over is of before the capture.
    """
    found: dict[Attempt, Message] = {}
    left: dict[tuple[str, bytes], tuple[int, int]] = {}
    for each in reversed(attempts):
        messages, key = by_content.get(each.content, []), (each.client.name, each.content)
        stop = bisect_left(messages, each.at, key=attrgetter("start"))
        count, copies = left.get(key, (stop, 0))
        if stop < count:
            count, copies = stop, 0
        if count and copies == messages[count - 1].copies:
            count, copies = count - 1, 0
        if count:
            found[each] = messages[count - 1]
        left[key] = count, copies + 1
    return found


def _latest(messages: list[Message], each: Attempt) -> Message | None:
    """Return the latest message of some content before it was delivered."""
    place = bisect_left(messages, each.at, key=attrgetter("start"))
    return messages[place - 1] if place else None


def _assign_all(expected: Iterable[Expected], attempts: Iterable[Attempt]) -> list[Attempt]:
    """Give everybody what was delivered to them; return what was not expected."""
    due: dict[tuple[object, ...], list[Expected]] = {}
    shared: dict[bytes, list[Expected]] = {}
    for one in expected:
        content = one.message.content
        if one.matching[0].group:
            shared.setdefault(content, []).append(one)
        else:
            due.setdefault((one.name, content, one.retain), []).append(one)
    got: dict[tuple[object, ...], list[Attempt]] = {}
    for each in attempts:
        retain = each.retain if each.is_live else None
        got.setdefault((each.client.name, each.content, retain), []).append(each)
    rest: dict[bytes, list[Attempt]] = {}
    for key, of_client in got.items():
        for each in assign(due.get(key, []), of_client):
            rest.setdefault(each.content, []).append(each)
    for content, groups in shared.items():
        rest[content] = _assign_shared(groups, rest.get(content, []))
    return [each for left in rest.values() for each in left]


def _assign_shared(groups: list[Expected], rest: list[Attempt]) -> list[Attempt]:
    """Give groups what their members got and no subscription of their own accounts for."""
    by_group: dict[str, list[Expected]] = {}
    for one in groups:
        by_group.setdefault(one.name, []).append(one)
    by_member: dict[str, list[Attempt]] = {}
    for each in rest:
        by_member.setdefault(each.client.name, []).append(each)
    for of_group in by_group.values():
        members = {sub.client.name for one in of_group for sub in one.matching} & by_member.keys()
        theirs = [each for name in members for each in by_member.pop(name)]
        theirs.sort(key=attrgetter("at"))
        for each in assign(of_group, theirs):
            by_member.setdefault(each.client.name, []).append(each)
    return [each for left in by_member.values() for each in left]


# --- verdicts -------------------------------------------------------------------------------


def _taken(expected: Iterable[Expected], messages: Iterable[Message]) -> dict[Message, Position]:
    """Return when brokers showed that they had taken messages: by an answer, or forwarding them.

    What was delivered may be an earlier message with the same payload, so beside an answer it
    shows that of the first one only.
    """
    taken: dict[Message, Position] = {}
    firsts: dict[bytes, Message] = {}
    for message in messages:
        firsts.setdefault(message.content, message)
    for one in expected:
        message = one.message
        if message.refused is not None or message.malformed:
            continue
        if message.accepted is not None:
            taken.setdefault(message, message.accepted)
        if one.attempts and (message.accepted is None or firsts[message.content] is message):
            first = one.attempts[0].at
            taken[message] = min(taken.get(message, first), first)
    return taken


def _found(
    one: Expected, taken: Position | None, progress: Progress, has_older: bool
) -> Iterator[Found]:
    """Yield what became of a message and one of those who were due to get it.

    Parameters
    ----------
    taken
        When the broker showed that it had taken the message, if it did.
    has_older
        Whether there may be subscriptions that nobody saw, so that a group may have more members.
    """
    due = one.copies
    for place, each in enumerate(one.attempts):
        # What its client sent again may come again, and is a copy too many all the same.
        verdict = _verdict(each, one.message) if place < due else "duplicate"
        row = delivery_row(one.message, each, _subscription(one, each), verdict)
        yield fact_of((DELIVERIES, row))
    if one.attempts:
        return
    message = one.message
    if message.refused is not None:
        verdict = "refused"
    elif taken is None:
        verdict = "unaccepted"
    elif has_older and one.matching[0].group:
        verdict = "undecided"
    elif certain := one.certain(taken):
        progress.missed.add(one.name)
        yield missing_record(message, one.name, one.matching[0], certain, taken)
        return
    else:
        verdict = "undecided"
    yield Fact(DELIVERIES, delivery_row(message, None, one.matching[0], verdict))


def _subscription(one: Expected, each: Attempt) -> Subscribed:
    """Return the subscription that a message came by: by its identifier, or any that matches."""
    client, found = each.client.name, None
    for subscribed in one.matching:
        mine = subscribed.client.name == client
        if (mine or subscribed.group is None) and subscribed.identifier in each.identifiers:
            return subscribed
        if mine and found is None:
            found = subscribed
    return found or one.matching[0]


def _without_subscriber(message: Message, has_older: bool) -> str:
    """Return what became of a message that nobody was due to get, as far as was seen."""
    if message.refused is not None:
        return "refused"
    is_open = message.qos > 0 and message.accepted is None
    if is_open:
        return "unaccepted"
    return "undecided" if has_older else "no_subscriber"


def _verdict(each: Attempt, message: Message | None) -> str:
    """Return what became of a message that was delivered."""
    if each.refused is not None:
        return "refused_by_client"
    if each.qos and each.acknowledged is None:
        if each.untraced:
            return "undecided"
        return "abandoned" if each.abandoned else "in_flight"
    if message is not None and message.is_repeated:
        return "undecided"  # Its first copy may have been delivered before.
    return "lost_ack" if each.lost_ack else "delivered"


CONVERSATIONS: Final = "conversations"
MAX_WAITING: Final = 1 << 17
"""Requests with the same topic and data that wait for replies: at about 1 KB each 128 MiB."""
_REPLY, _REQUEST = range(2)
"""A message may be both; it does not answer itself."""


class Asked(NamedTuple):
    """A message that has a response topic."""

    message: Message


def request_record(message: Message) -> KeyedRecord:
    """Pass on a request where its replies go."""
    key = (*message.client[:2], message.response_topic, message.correlation_data)
    return KeyedRecord(CONVERSATIONS, key, (*message.sent.order, _REQUEST), Asked(message))


def reply_record(message: Message) -> KeyedRecord:
    """Pass on a message that may be a reply, because others ask for replies on its topic."""
    key = (*message.client[:2], message.topic, message.correlation_data)
    return KeyedRecord(CONVERSATIONS, key, (*message.sent.order, _REPLY), message)


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


def message_records(message: Message) -> Iterator[KeyedRecord]:
    """Pass on a message that a client sent, or a will that was published."""
    change = message.change()
    if change is not None:
        yield from value_records(change)
    if message.value is not None:
        message = replace(message, value=None)
    yield content_record(message)
    if message.response_topic is not None and message.origin == "publish":
        yield asked_record(message)
        yield request_record(message)
