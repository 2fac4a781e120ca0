"""The rows of the table `deliveries`, and the rules that a delivery breaks.

A delivery is judged only if its message is the only one with its topic and payload and was sent
once, and if all subscriptions to the topic were captured; else it may be of another message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Grid32, Int32s, Ints
from wireyard.layers.mqtt.deliveries.grids import (
    Columns,
    DeliveryGrids,
    Numbers,
    Positions,
    values_at,
)
from wireyard.layers.mqtt.grids import NO_TIME, NONE, Status
from wireyard.layers.mqtt.kernels.deliveries import VERDICT_NAMES, Delivered, DeliveryRow
from wireyard.layers.mqtt.kernels.expected import Expected, Message, Subscription
from wireyard.layers.mqtt.packets import KnownStream
from wireyard.layers.mqtt.records import Client, Subscribed, TopicKey
from wireyard.layers.tables import as_fact_table, packet_keys, text_array

_OUTCOMES: Final = ("no_ack_wanted", "acknowledged", "unacknowledged", "expired")
_EXPIRED: Final = VERDICT_NAMES.index("expired")
_ORIGINS: Final = ("publish", "will", "broker")
_NS_PER_S: Final = 1_000_000_000
_SLACK_NS: Final = _NS_PER_S
"""Expiry intervals are whole seconds, and all copies of a message are sent within one."""


@dataclass(slots=True)
class Numbered:
    """The values that the numbers in grids refer to."""

    positions: Positions
    clients: Numbers[Client]
    topics: Numbers[TopicKey]
    names: Numbers[tuple[str, str, str]]
    """Source, server and name of each client and shared filter."""
    streams: Sequence[KnownStream]
    sent: Columns
    delivered: Columns
    message_order: Ints
    attempt_order: Ints
    """The row of each message, and of each attempt."""
    by_rank: Ints
    """The number of a position of each rank."""
    subscriptions: list[Subscribed]
    granted: Ints
    """The number of the position of each."""
    several: Mapping[int, Sequence[int]]
    """By row, the subscription identifiers of the attempts that have several."""


def delivery_table(of: Numbered, g: DeliveryGrids, rows: Grid32) -> pa.Table:
    """Return the rows of the table `deliveries`."""
    _name_subscriptions(of, g, rows)
    message, attempt, sub = (rows[:, column] for column in list(DeliveryRow)[:3])
    none_sent, none_delivered, none_sub = message == NONE, attempt == NONE, sub == NONE
    sent_row = values_at(of.message_order, message)
    attempt_row = values_at(of.attempt_order, attempt)

    def sent(name: str) -> Ints:
        return values_at(of.sent[name], sent_row)

    def delivered(name: str) -> Ints:
        return values_at(of.delivered[name], attempt_row)

    def position(numbers: Ints, name: str) -> pa.Array:
        return _integers(*of.positions.column(numbers, name))

    entry = rows[:, DeliveryRow.EXPECTED]
    is_unsure = (entry != NONE) & (values_at(g.expected[:, Expected.IS_UNSURE], entry) == 1)
    sub_clients = np.array([of.clients[one.client] for one in of.subscriptions], np.int64)
    expected = np.where(none_sub | is_unsure, NONE, values_at(sub_clients, sub))
    absent = rows[:, DeliveryRow.CLIENT]
    consumer = np.where(
        none_delivered, np.where(absent != NONE, absent, expected), delivered("client")
    )
    producer = np.where(none_sent, NONE, sent("client"))
    sent_at = np.where(none_sent, NONE, sent("sent"))
    at = np.where(none_delivered, NONE, delivered("at"))
    proof = np.where(none_delivered, sent_at, at)
    done = ~none_delivered & (delivered("is_acknowledged") == 1)
    own_ns = delivered("acknowledged_ns")
    none_done = ~done | (own_ns == NO_TIME)
    # A delivery that was captured before its message has the time of that.
    # The first copy of a message that was first seen with DUP may be anywhere.
    first_at = np.where(sent("is_repeated") == 1, NONE, sent_at)
    sent_ns, none_sent_ns = of.positions.column(first_at, "ns")
    at_ns, none_at_ns = of.positions.column(at, "ns")
    at_ns = np.maximum(at_ns, sent_ns)
    own_ns = np.where(none_at_ns, own_ns, np.maximum(own_ns, at_ns))
    qos, status = delivered("qos"), delivered("status")
    redelivered, is_untraced = (status & bit != 0 for bit in (Status.AGAIN, Status.UNTRACED))
    outcome = np.where(qos == 0, 0, np.where(done, 1, 2))
    outcome = np.where((qos > 0) & is_untraced & ~done, NONE, outcome)
    never = np.where(rows[:, DeliveryRow.VERDICT] == _EXPIRED, 3, NONE)
    own_identifiers = [one.identifier for one in of.subscriptions]
    identifier = values_at(np.array([NONE if one is None else one for one in own_identifiers]), sub)
    stream, _ = of.positions.column(proof, "stream")
    clients, keys = of.clients.all, _message_keys(of)
    columns = {
        "message_key": _texts(message, keys),
        "protocol": _texts(np.zeros(len(rows), np.int64), ["mqtt"]),
        "origin": _texts(np.where(none_sent, 2, sent("is_will")), _ORIGINS),
        "producer": _texts(producer, [client.endpoint for client in clients]),
        "producer_client_id": _texts(producer, [client.client_id for client in clients]),
        "destination": _texts(
            np.where(none_sent, delivered("topic"), sent("topic")),
            [topic for _, _, topic in of.topics.all],
        ),
        "consumer": _texts(consumer, [client.endpoint for client in clients]),
        "consumer_client_id": _texts(consumer, [client.client_id for client in clients]),
        "consumer_id": _integers(identifier, none_sub | (identifier < 0)),
        "subscription": _texts(sub, [one.filter for one in of.subscriptions]),
        "qos": _integers(qos, none_delivered),
        "retained": pa.array(
            delivered("is_live") == 0, mask=none_delivered | (delivered("may_be_live") == 1)
        ),
        "sent_ns": _integers(sent_ns, none_sent_ns),
        "delivered_ns": _integers(at_ns, none_at_ns),
        "acknowledged_ns": _integers(own_ns, none_done),
        "redelivered": pa.array(redelivered, mask=none_delivered | (is_untraced & ~redelivered)),
        "delivery_count": _integers(delivered("copies"), none_delivered),
        "outcome": _texts(np.where(none_delivered, never, outcome), _OUTCOMES),
        "verdict": _texts(rows[:, DeliveryRow.VERDICT], VERDICT_NAMES),
        "sent_frame": position(first_at, "frame"),
        "accepted_frame": position(np.where(none_sent, NONE, sent("accepted")), "frame"),
        "subscribed_frame": position(np.where(none_sub, NONE, values_at(of.granted, sub)), "frame"),
        "delivered_frame": position(at, "frame"),
        "acknowledged_frame": _integers(delivered("acknowledged_frame"), none_done),
        "source": _texts(stream, [one.source for one in of.streams]),
        "stream": _texts(stream, [one.name for one in of.streams]),
        "offset": pa.array(of.positions.column(proof, "offset")[0]),
    }
    return as_fact_table("deliveries", columns)


def _name_subscriptions(of: Numbered, g: DeliveryGrids, rows: Grid32) -> None:
    """Find the subscriptions of attempts that have several subscription identifiers."""
    is_wanted = (rows[:, DeliveryRow.DELIVERED] != NONE) & (rows[:, DeliveryRow.EXPECTED] != NONE)
    for row in np.flatnonzero(is_wanted).tolist() if of.several else ():
        attempt = int(rows[row, DeliveryRow.DELIVERED])
        place = int(of.attempt_order[attempt])
        for one in g.subs_of(int(rows[row, DeliveryRow.EXPECTED])).tolist():
            is_own = g.subs[one, Subscription.NAME] == g.attempts[attempt, Delivered.NAME]
            by_it = of.subscriptions[one].identifier in of.several.get(place, ())
            if by_it and (is_own or of.subscriptions[one].group is None):
                rows[row, DeliveryRow.SUBSCRIPTION] = one
                break


def _message_keys(of: Numbered) -> pa.Array:
    """Return the keys of all messages."""
    numbers = of.sent["sent"][of.message_order]
    stream, offset = (of.positions.column(numbers, name)[0] for name in ("stream", "offset"))
    return packet_keys(_texts(stream, [one.name for one in of.streams]), pa.array(offset))


def _texts(numbers: Ints | Int32s, texts: Sequence[str | None] | pa.Array) -> pa.DictionaryArray:
    """Return texts by number; null where that is -1.

    Each text is in the dictionary once, because a dictionary with duplicates is written row by row.
    """
    coded = (texts if isinstance(texts, pa.Array) else text_array(texts)).dictionary_encode()
    return coded.take(pa.array(numbers, mask=numbers == NONE))


def _integers(values: Ints, missing: Bools) -> pa.Array:
    return pa.array(values, mask=missing)


# --- rules -----------------------------------------------------------------------------------


class Times(NamedTuple):
    """Times of messages (m) and attempts (d), besides those in the grids."""

    expires_s: Ints
    """The Message Expiry Interval of each message; -1 without one."""
    taken_ns: Ints
    """When the broker took each message over; `NO_TIME` if that is unknown."""
    left_s: Ints
    """The Message Expiry Interval that each attempt has; -1 without one."""
    is_again: Bools
    """Whether the attempt, or a copy of it, is a redelivery."""
    ends_ns: Ints
    """When the capture of each attempt ends; `NO_TIME` if that is unknown."""


def broken_rules(
    g: DeliveryGrids, rows: Grid32, times: Times, matching: Callable[[int], Ints]
) -> Iterator[tuple[str, int, int, int]]:
    """Yield each broken rule with its subscription, delivery attempt and message.

    `rows` are columns of `DeliveryRow`; `matching` returns the subscriptions that match a topic.
    """
    messages, attempts = g.messages, g.attempts
    sizes = np.bincount(messages[:, Message.GROUP], minlength=g.groups)
    is_sure = (sizes[messages[:, Message.GROUP]] == 1) & (messages[:, Message.HAS_OLDER] == 0)
    is_sure &= messages[:, Message.IS_AGAIN] == 0
    yield from _of_expected(g, is_sure, times)
    message, attempt = rows[:, DeliveryRow.MESSAGE], rows[:, DeliveryRow.DELIVERED]
    is_found = (rows[:, DeliveryRow.EXPECTED] == NONE) & (attempt != NONE) & (message != NONE)
    found = message[is_found], attempt[is_found]
    wanted = is_sure[found[0]] & (attempts[found[1], Delivered.IS_LIVE] == 1)
    wanted &= attempts[found[1], Delivered.NAME] == messages[found[0], Message.NAME]
    for number, one in zip(*(each[wanted].tolist() for each in found), strict=True):
        own = matching(int(messages[number, Message.TOPIC]))
        own = own[g.subs[own, Subscription.NAME] == messages[number, Message.NAME]]
        is_excluded = g.subs[own, Subscription.NO_LOCAL] != 0
        is_excluded &= g.subs[own, Subscription.GRANTED] < messages[number, Message.START]
        if len(own) and is_excluded.all():
            yield "own_message", int(own[0]), one, number


def _of_expected(
    g: DeliveryGrids, is_sure: Bools, times: Times
) -> Iterator[tuple[str, int, int, int]]:
    """Yield the rules that are broken by attempts that are assigned to expected deliveries."""
    message, subs = g.expected[:, Expected.MESSAGE], g.subs
    is_flagged = g.expected[:, Expected.RETAIN] == 1
    wanted = ~g.is_shared & ((g.expected[:, Expected.SUBSCRIPTIONS] > 1) | is_flagged)
    wanted |= times.expires_s[message] != NONE
    wanted &= is_sure[message]
    if not wanted.any():
        return
    attempts: defaultdict[int, list[int]] = defaultdict(list)
    assigned = np.flatnonzero(g.assigned != NONE)
    for attempt in assigned[wanted[g.assigned[assigned]]].tolist():
        attempts[int(g.assigned[attempt])].append(attempt)
    for entry, own in attempts.items():
        own.sort(key=lambda attempt: int(g.attempts[attempt, Delivered.AT]))
        of_entry, number = g.subs_of(entry), int(message[entry])
        sub = int(of_entry[0])
        if g.is_shared[entry]:
            if _is_only(g, of_entry, own[0]) and (rule := _expiry_rule(g, times, number, own[0])):
                yield rule, sub, own[0], number
            continue
        start, qos = g.messages[number, [Message.START, Message.QOS]].tolist()
        highest = np.minimum(subs[of_entry, Subscription.QOS], qos).max()
        is_certain = (subs[of_entry, Subscription.GRANTED] < start).all()
        is_certain &= (subs[of_entry, Subscription.LEAVING] == NONE).all()
        # A copy at the highest QoS may follow until all have come, or the capture went on.
        is_full = len(own) >= g.expected[entry, Expected.CAPACITY]
        is_certain &= is_full or _is_left(g, times, own[-1])
        is_lower = g.attempts[own, Delivered.QOS].max() < highest
        if len(of_entry) > 1 and is_certain and is_lower:
            yield "overlapping_qos", sub, own[0], number
        is_kept = is_flagged[entry] and (subs[of_entry, Subscription.RETAIN_AS_PUBLISHED]).all()
        for attempt in own:
            if is_kept and not g.attempts[attempt, Delivered.RETAIN]:
                yield "retained_unpublished", sub, attempt, number
            if rule := _expiry_rule(g, times, number, attempt):
                yield rule, sub, attempt, number


def _is_only(g: DeliveryGrids, members: Ints, attempt: int) -> bool:
    """Return whether a group certainly got its message once: with an attempt to one of it."""
    groups = g.attempts[:, Delivered.GROUP]
    start, stop = np.searchsorted(groups, groups[attempt] + np.arange(2)).tolist()
    got = np.isin(g.attempts[start:stop, Delivered.NAME], g.subs[members, Subscription.NAME])
    return bool(got.sum() == 1 and g.subs[members, Subscription.IS_WHOLE].all())


def _is_left(g: DeliveryGrids, times: Times, attempt: int) -> bool:
    """Return whether the capture goes on for a while after an attempt."""
    at_ns, ends_ns = int(g.at_ns[attempt]), int(times.ends_ns[attempt])
    return NO_TIME not in (at_ns, ends_ns) and ends_ns - at_ns > _SLACK_NS


def _expiry_rule(g: DeliveryGrids, times: Times, message: int, attempt: int) -> str | None:
    """Return the rule on message expiry that an attempt breaks."""
    expires_s, started_ns = int(times.expires_s[message]), int(times.taken_ns[message])
    at_ns, left_s = int(g.at_ns[attempt]), int(times.left_s[attempt])
    if expires_s == NONE or NO_TIME in (started_ns, at_ns) or times.is_again[attempt]:
        return None
    waited_ns = at_ns - started_ns - _SLACK_NS
    if waited_ns > expires_s * _NS_PER_S:
        return "delivered_expired"
    if left_s != NONE and waited_ns > (expires_s - left_s) * _NS_PER_S:
        return "expiry_kept"
    return None
