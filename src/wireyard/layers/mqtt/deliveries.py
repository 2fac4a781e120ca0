"""Where every message went: a verdict for each message and matching subscriber."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from wireyard.layers.mqtt.broker import Broker
from wireyard.layers.mqtt.expected import Expected, Presence, expected_deliveries, start_of
from wireyard.layers.mqtt.matching import assign
from wireyard.layers.mqtt.records import Handed, Link, Message, Subscribed
from wireyard.layers.mqtt.subscriptions import Subscriptions

__all__ = ["VERDICTS", "deliveries"]

VERDICTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "delivered": "handed over, and acknowledged as its QoS asks",
        "lost_ack": "the same, but again: the broker did not read the first acknowledgement",
        "in_flight": "handed over, and not acknowledged to the end by the end of the capture",
        "duplicate": "handed over, and once more than its subscriptions account for",
        "abandoned": "handed over, and the session ended before it was acknowledged",
        "refused_by_client": "handed over, and acknowledged with an error",
        "refused": "the broker acknowledged it with an error, and need not forward it",
        "unaccepted": "nothing shows that the broker took it: no PUBACK, PUBCOMP or later answer",
        "no_subscriber": "no subscription was seen that matches it",
        "queued": "its subscriber was away or its window full, and the broker keeps it for later",
        "offline": "its subscriber was away, and at QoS 0 a broker need not keep it",
        "discarded": "it waited for its subscriber, whose session ended",
        "expired": "it waited for its subscriber longer than its expiry interval",
        "too_large": "it is above the Maximum Packet Size of its subscriber",
        "not_forwarded": "the broker took it and did not hand it to a subscriber who was there",
        "undecided": "the capture does not show which of these it was",
    }
)
"""Where a message went, as seen from one subscriber."""

_SMALLEST_WINDOW: Final = 10
"""Messages in flight at which a broker may wait for acknowledgements: the smallest in use."""
_ADDED_BYTES: Final = 16
"""What a broker may add to a message: packet, subscription and alias identifiers."""
_NS_PER_S: Final = 1_000_000_000

Content = tuple[str, bytes]
Row = dict[str, Any]


def deliveries(
    broker: Broker,
    messages: Iterable[Message],
    handed: Iterable[Handed],
    subscriptions: Iterable[Subscribed],
    links: Iterable[Link],
) -> Iterator[Row]:
    """Yield the rows of one broker's deliveries; everything in the order of the capture."""
    every = sorted([*messages, *broker.wills], key=start_of)
    tree = Subscriptions()
    expected = list(expected_deliveries(every, subscriptions, tree))
    if tree.refused:
        broker.dropped["filters"] += tree.refused
    unexpected = _assign_all(expected, handed)
    presence = Presence(links)
    for one in expected:
        yield from _rows(one, presence, broker)
    found_for = {one.message for one in expected}
    clients = {(one.name, one.message.topic, one.message.payload) for one in expected}
    by_content: dict[Content, list[Message]] = {}
    for message in every:
        by_content.setdefault((message.topic, message.payload), []).append(message)
    for each in unexpected:
        content = each.topic, each.payload
        found = each.value if each.retain else _latest(by_content.get(content, []), each)
        verdict = _verdict(each)
        if found is not None:
            found_for.add(found)
            if not each.retain and (each.link.name, *content) in clients:
                verdict = "duplicate"
        yield _row(found, each, None, verdict)
    for message in every:
        if message not in found_for:
            verdict = "refused" if message.refused else "no_subscriber"
            yield _row(message, None, None, verdict)


def _latest(messages: list[Message], each: Handed) -> Message | None:
    """Return the latest message of some content before it was handed over."""
    place = bisect_left(messages, each.at.place, key=start_of)
    return messages[place - 1] if place else None


def _assign_all(expected: Iterable[Expected], handed: Iterable[Handed]) -> list[Handed]:
    """Give everybody what was handed to them; return what was not expected."""
    due: dict[tuple[object, ...], list[Expected]] = {}
    shared: dict[Content, list[Expected]] = {}
    for one in expected:
        content = one.message.topic, one.message.payload
        if one.matching[0].group:
            shared.setdefault(content, []).append(one)
        else:
            due.setdefault((one.name, *content, one.retain), []).append(one)
    got: dict[tuple[object, ...], list[Handed]] = {}
    for each in handed:
        got.setdefault((each.link.name, each.topic, each.payload, each.retain), []).append(each)
    rest: dict[Content, list[Handed]] = {}
    for key, of_client in got.items():
        for each in assign(due.get(key, []), of_client):
            rest.setdefault((each.topic, each.payload), []).append(each)
    for content, groups in shared.items():
        rest[content] = _assign_shared(groups, rest.get(content, []))
    return [each for left in rest.values() for each in left]


def _assign_shared(groups: list[Expected], rest: list[Handed]) -> list[Handed]:
    """Give groups what their members got and no subscription of their own accounts for."""
    by_group: dict[str, list[Expected]] = {}
    for one in groups:
        by_group.setdefault(one.name, []).append(one)
    by_member: dict[str, list[Handed]] = {}
    for each in rest:
        by_member.setdefault(each.link.name, []).append(each)
    for of_group in by_group.values():
        members = {sub.name for one in of_group for sub in one.matching} & by_member.keys()
        theirs = [each for name in members for each in by_member.pop(name)]
        theirs.sort(key=lambda each: each.at.place)
        for each in assign(of_group, theirs):
            by_member.setdefault(each.link.name, []).append(each)
    return [each for left in by_member.values() for each in left]


# --- rows -----------------------------------------------------------------------------------


def _rows(one: Expected, presence: Presence, broker: Broker) -> Iterator[Row]:
    for each in one.handed:
        yield _row(one.message, each, _subscription(one, each), _verdict(each))
    if not one.handed:
        link, verdict = _missing(one, presence, broker)
        yield _row(one.message, None, one.matching[0], verdict, link)


def _subscription(one: Expected, each: Handed) -> Subscribed:
    """Return the subscription that a message came by: by its identifier, or any that matches."""
    for subscribed in one.matching:
        mine = subscribed.group is None or subscribed.name == each.link.name
        if mine and subscribed.identifier in each.identifiers:
            return subscribed
    mine_too = (sub for sub in one.matching if sub.name == each.link.name)
    return next(mine_too, one.matching[0])


def _verdict(each: Handed) -> str:
    """Return what became of a message that was handed over."""
    if each.refused is not None:
        return "refused_by_client"
    if each.qos and each.acknowledged is None:
        return "abandoned" if each.abandoned else "in_flight"
    return "lost_ack" if each.lost_ack else "delivered"


def _missing(one: Expected, presence: Presence, broker: Broker) -> tuple[Link | None, str]:
    """Return why a message was not handed over, and the connection it was missed on."""
    message = one.message
    if message.refused is not None:
        return None, "refused"
    if message.accepted is None or message.malformed:
        return None, "unaccepted"
    certain = one.certain
    if not certain:
        return None, "undecided"
    granted: dict[str, int] = {}
    for sub in certain:
        granted[sub.name] = max(sub.qos, granted.get(sub.name, 0))
    found: tuple[Link | None, str] = (None, "undecided")
    for name, qos in granted.items():
        found = _missed_by(name, min(qos, message.qos), message, presence, broker)
        if found[1] != "not_forwarded":
            break  # A group is served by any member the broker likes, also one that is away.
    return found


def _missed_by(
    name: str, qos: int, message: Message, presence: Presence, broker: Broker
) -> tuple[Link | None, str]:
    """Return why a client that was subscribed did not get a message that the broker took."""
    assert message.accepted is not None
    link, certain = presence.at(name, start_of(message), message.accepted.place)
    if not certain:
        return link, "undecided"
    if link is None:
        if qos == 0:
            return None, "offline"
        link = presence.after(name, message.accepted.place)
        if link is None:
            return None, "queued"
        if not link.resumed:
            return link, "discarded"
        if _expired(message, link):
            return link, "expired"
    if link.damaged or broker.last_seen <= max(message.accepted.place, link.opened.place):
        return link, "undecided"
    most = link.maximum_packet_size
    if most is not None and len(message.topic) + message.length + _ADDED_BYTES > most:
        return link, "too_large"
    if qos and link.in_flight[1] >= _SMALLEST_WINDOW:
        return link, "queued"
    return link, "not_forwarded"


def _expired(message: Message, link: Link) -> bool:
    opened, sent = link.opened.ns, message.sent.ns
    if message.expires_s is None or opened is None or sent is None:
        return False
    return opened >= sent + message.expires_s * _NS_PER_S


def _row(
    message: Message | None,
    each: Handed | None,
    subscribed: Subscribed | None,
    verdict: str,
    link: Link | None = None,
) -> Row:
    """Return a row of `DELIVERIES`."""
    consumer = each.link if each else link or (subscribed.link if subscribed else None)
    proof = each.at if each else message.sent if message else None
    topic = message.topic if message else each.topic if each else None
    assert proof is not None
    row: Row = {
        "message_key": message.key if message else None,
        "protocol": "mqtt",
        "origin": message.origin if message else "broker",
        "destination": topic,
        "consumer": consumer.client if consumer else None,
        "client_id": consumer.client_id if consumer else None,
        "consumer_id": subscribed.identifier if subscribed else None,
        "subscription": subscribed.filter if subscribed else None,
        "subscribed_frame": subscribed.granted.frame if subscribed else None,
        "verdict": verdict,
        "source": proof.source,
        "stream": proof.stream,
        "offset": proof.offset,
    }
    if message is not None:
        row |= {
            "producer": message.link.client,
            "producer_client_id": message.link.client_id,
            "sent_ns": message.sent.ns,
            "sent_frame": message.sent.frame,
            "accepted_frame": message.accepted.frame if message.accepted else None,
        }
    if each is not None:
        done = each.acknowledged
        row |= {
            "qos": each.qos,
            "retained": each.retain,
            "delivered_ns": each.at.ns,
            "delivered_frame": each.at.frame,
            "acknowledged_ns": done.ns if done else None,
            "acknowledged_frame": done.frame if done else None,
            "redelivered": each.redelivered,
            "delivery_count": each.count,
            "outcome": _outcome(each),
        }
    elif verdict == "expired":
        row["outcome"] = "expired"
    return row


def _outcome(each: Handed) -> str:
    if not each.qos:
        return "no_ack_wanted"
    return "acknowledged" if each.acknowledged else "unacknowledged"
