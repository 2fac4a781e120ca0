"""The rows of the table `deliveries`, and the rules that a delivery breaks.

A delivery is judged only if its message is the only one with its topic and payload, and if all
subscriptions to the topic were captured; else it may be of another message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Grid, Ints
from wireyard.layers.mqtt.delivery_grids import DeliveredColumns, SentColumns
from wireyard.layers.mqtt.delivery_kernels import VERDICT_NAMES, Delivered, DeliveryRow
from wireyard.layers.mqtt.expected_kernels import Expected, Message, Subscription
from wireyard.layers.mqtt.grids import NONE, Status
from wireyard.layers.mqtt.numbering import Numbers, Positions, values_at
from wireyard.layers.mqtt.packets import NO_TIME, KnownStream
from wireyard.layers.mqtt.records import Client, Subscribed, TopicKey
from wireyard.layers.tables import as_fact_table, packet_keys, text_array

__all__ = ["DeliveryGrids", "Numbered", "Times", "broken_rules", "delivery_table"]

_OUTCOMES: Final = pa.array(["no_ack_wanted", "acknowledged", "unacknowledged", "expired"])
_EXPIRED: Final = VERDICT_NAMES.index("expired")
_ORIGINS: Final = pa.array(["publish", "will", "broker"])
_NS_PER_S: Final = 1_000_000_000
_SLACK_NS: Final = _NS_PER_S
"""Expiry intervals are whole seconds, and all copies of a message are sent within one."""


class Numbered(NamedTuple):
    """The positions and values that the numbers in columns refer to."""

    positions: Positions
    clients: Numbers[Client]
    topics: Numbers[TopicKey]
    streams: Sequence[KnownStream]


@dataclass(slots=True)
class DeliveryGrids:
    """Expected deliveries and delivery attempts: the grids of the kernels, and their orders."""

    messages: Grid
    expected: Grid
    expected_subs: Ints
    attempts: Grid
    """Columns of `Delivered`."""
    assigned: Ints
    message_order: Ints
    delivered_order: Ints
    by_rank: Ints
    """The number of a position of each rank."""
    subscriptions: list[Subscribed]
    subs: Grid
    """The same as columns of `Subscription`."""
    names: Numbers[tuple[str, str, str]]
    """Source, server and name of each client and shared filter."""


def delivery_table(
    of: Numbered, sent: SentColumns, delivered: DeliveredColumns, grids: DeliveryGrids, rows: Grid
) -> pa.Table:
    """Return the rows of the table `deliveries`."""
    message, attempt = rows[:, DeliveryRow.MESSAGE], rows[:, DeliveryRow.DELIVERED]
    _name_subscriptions(grids, rows, delivered)
    sub = rows[:, DeliveryRow.SUBSCRIPTION]
    none_sent, none_delivered, none_sub = message == NONE, attempt == NONE, sub == NONE
    entry = rows[:, DeliveryRow.EXPECTED]
    is_unsure = (entry != NONE) & (values_at(grids.expected[:, Expected.IS_UNSURE], entry) == 1)
    source_rows = values_at(grids.message_order, message), values_at(grids.delivered_order, attempt)
    positions = of.positions
    sub_clients = np.array([of.clients[one.client] for one in grids.subscriptions] or [0], np.int64)
    clients = of.clients.all
    endpoints = text_array([client.endpoint for client in clients])
    client_ids = text_array([client.client_id for client in clients])
    consumer = np.where(
        none_delivered,
        np.where(
            rows[:, DeliveryRow.CLIENT] != NONE,
            rows[:, DeliveryRow.CLIENT],
            np.where(none_sub | is_unsure, NONE, values_at(sub_clients, sub)),
        ),
        values_at(delivered.client, source_rows[1]),
    )
    producer = np.where(none_sent, NONE, values_at(sent.client, source_rows[0]))
    sent_at = np.where(none_sent, NONE, values_at(sent.sent, source_rows[0]))
    at = np.where(none_delivered, NONE, values_at(delivered.at, source_rows[1]))
    proof = np.where(none_delivered, sent_at, at)
    accepted = np.where(none_sent, NONE, values_at(sent.accepted, source_rows[0]))
    done = np.where(none_delivered, 0, values_at(delivered.is_acknowledged, source_rows[1])) == 1
    own_ns = values_at(delivered.acknowledged_ns, source_rows[1])
    own_frame = values_at(delivered.acknowledged_frame, source_rows[1])
    none_done = ~done | (own_ns == NO_TIME)
    # A delivery that was captured before its message has the time of that.
    # The first copy of a message that was first seen with DUP may be anywhere.
    first_at = np.where(values_at(sent.is_repeated, source_rows[0]) == 1, NONE, sent_at)
    sent_ns, none_sent_ns = positions.column(first_at, "ns")
    at_ns, none_at_ns = positions.column(at, "ns")
    at_ns = np.maximum(at_ns, sent_ns)
    topic = np.where(
        none_sent, values_at(delivered.topic, source_rows[1]), values_at(sent.topic, source_rows[0])
    )
    qos = values_at(delivered.qos, source_rows[1])
    status = values_at(delivered.status, source_rows[1])
    redelivered, is_untraced = (status & bit != 0 for bit in (Status.AGAIN, Status.UNTRACED))
    outcome = np.where(qos == 0, 0, np.where(done, 1, 2))
    outcome = np.where((qos > 0) & is_untraced & ~done, NONE, outcome)
    never = np.where(rows[:, DeliveryRow.VERDICT] == _EXPIRED, 3, NONE)
    origin = np.where(none_sent, 2, values_at(sent.is_will, source_rows[0]))
    identifiers = np.array(
        [NONE if one.identifier is None else one.identifier for one in grids.subscriptions] or [0],
        np.int64,
    )
    identifier = values_at(identifiers, sub)
    granted = of.positions.numbers([one.granted for one in grids.subscriptions])
    stream, _ = positions.column(proof, "stream")
    offset, _ = positions.column(proof, "offset")
    streams = text_array([one.name for one in of.streams])
    sources = text_array([one.source for one in of.streams])
    columns = {
        "message_key": _message_keys(of, sent, grids, message),
        "protocol": _texts(np.zeros(len(rows), np.int64), text_array(["mqtt"])),
        "origin": _texts(origin, _ORIGINS),
        "producer": _texts(producer, endpoints),
        "producer_client_id": _texts(producer, client_ids),
        "destination": _texts(topic, text_array([topic for _, _, topic in of.topics.all])),
        "consumer": _texts(consumer, endpoints),
        "consumer_client_id": _texts(consumer, client_ids),
        "consumer_id": _integers(identifier, none_sub | (identifier < 0)),
        "subscription": _texts(sub, text_array([one.filter for one in grids.subscriptions])),
        "qos": _integers(qos, none_delivered),
        "retained": pa.array(
            values_at(delivered.is_live, source_rows[1]) == 0,
            mask=none_delivered | (values_at(delivered.may_be_live, source_rows[1]) == 1),
        ),
        "sent_ns": _integers(sent_ns, none_sent_ns),
        "delivered_ns": _integers(at_ns, none_at_ns),
        "acknowledged_ns": pa.array(
            np.where(none_at_ns, own_ns, np.maximum(own_ns, at_ns)), mask=none_done
        ),
        "redelivered": pa.array(redelivered, mask=none_delivered | (is_untraced & ~redelivered)),
        "delivery_count": _integers(values_at(delivered.copies, source_rows[1]), none_delivered),
        "outcome": _texts(np.where(none_delivered, never, outcome), _OUTCOMES),
        "verdict": _texts(rows[:, DeliveryRow.VERDICT], text_array(VERDICT_NAMES)),
        "sent_frame": _integers(*positions.column(first_at, "frame")),
        "accepted_frame": _integers(*positions.column(accepted, "frame")),
        "subscribed_frame": _integers(
            *positions.column(np.where(none_sub, NONE, values_at(granted, sub)), "frame")
        ),
        "delivered_frame": _integers(*positions.column(at, "frame")),
        "acknowledged_frame": pa.array(own_frame, mask=none_done),
        "source": _texts(stream, sources),
        "stream": _texts(stream, streams),
        "offset": pa.array(offset),
    }
    return as_fact_table("deliveries", columns)


def _name_subscriptions(grids: DeliveryGrids, rows: Grid, delivered: DeliveredColumns) -> None:
    """Find the subscriptions of attempts that have several subscription identifiers."""
    if not delivered.several:
        return
    for row in rows[
        (rows[:, DeliveryRow.DELIVERED] != NONE) & (rows[:, DeliveryRow.EXPECTED] != NONE)
    ]:
        attempt = int(row[DeliveryRow.DELIVERED])
        place = int(grids.delivered_order[attempt])
        first, count = grids.expected[
            row[DeliveryRow.EXPECTED], [Expected.FIRST, Expected.SUBSCRIPTIONS]
        ]
        for one in grids.expected_subs[first : first + count].tolist():
            is_own = grids.subs[one, Subscription.NAME] == grids.attempts[attempt, Delivered.NAME]
            by_it = grids.subscriptions[one].identifier in delivered.several.get(place, ())
            if by_it and (is_own or grids.subscriptions[one].group is None):
                row[DeliveryRow.SUBSCRIPTION] = one
                break


def _message_keys(of: Numbered, sent: SentColumns, grids: DeliveryGrids, message: Ints) -> pa.Array:
    """Return the message keys of rows, by their messages."""
    numbers = sent.sent[grids.message_order]
    stream, offset = (of.positions.column(numbers, name)[0] for name in ("stream", "offset"))
    names = _texts(stream, text_array([stream.name for stream in of.streams]))
    return _texts(message, packet_keys(names, pa.array(offset)))


def _texts(numbers: Ints, texts: pa.Array) -> pa.DictionaryArray:
    """Return texts by number; null where that is -1.

    Each text is in the dictionary once, because a dictionary with duplicates is written row by row.
    """
    return texts.dictionary_encode().take(pa.array(numbers, mask=numbers < 0))


def _integers(values: Ints, missing: Bools) -> pa.Array:
    return pa.array(values, mask=missing)


# --- rules -----------------------------------------------------------------------------------


class Times(NamedTuple):
    """Times of messages (m) and attempts (d), in ns; `NO_TIME` where there is none."""

    started_ns: Ints
    expires_s: Ints
    """The Message Expiry Interval of each message; -1 without one."""
    at_ns: Ints
    left_s: Ints
    """The Message Expiry Interval that each attempt has; -1 without one."""
    is_again: Bools
    """Whether the attempt, or a copy of it, is a redelivery."""
    ends_ns: Ints
    """When the capture of each attempt ends."""


def broken_rules(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid,
    assigned: Ints, rows: Grid, times: Times, matching: Callable[[int], Ints],
) -> Iterator[tuple[str, int, int, int]]:  # fmt: skip
    """Yield each broken rule with its subscription, delivery attempt and message.

    Parameters
    ----------
    rows
        Columns of `DeliveryRow`.
    matching
        Returns the subscriptions that match a topic.
    """
    sizes = np.bincount(messages[:, Message.GROUP]) if len(messages) else np.zeros(0, np.int64)
    is_sure = (sizes[messages[:, Message.GROUP]] == 1) & (messages[:, Message.HAS_OLDER] == 0)
    yield from _of_expected(
        messages, expected, expected_subs, subs, delivered, assigned, is_sure, times
    )
    found = rows[
        (rows[:, DeliveryRow.EXPECTED] == NONE)
        & (rows[:, DeliveryRow.DELIVERED] != NONE)
        & (rows[:, DeliveryRow.MESSAGE] != NONE)
    ]
    for message, attempt in found[:, [DeliveryRow.MESSAGE, DeliveryRow.DELIVERED]].tolist():
        name = messages[message, Message.NAME]
        is_live = delivered[attempt, Delivered.IS_LIVE] and is_sure[message]
        if not is_live or delivered[attempt, Delivered.NAME] != name:
            continue
        own = matching(int(messages[message, Message.TOPIC]))
        own = own[subs[own, Subscription.NAME] == name]
        is_excluded = subs[own, Subscription.NO_LOCAL] != 0
        is_excluded &= subs[own, Subscription.GRANTED] < messages[message, Message.START]
        if len(own) and is_excluded.all():
            yield "own_message", int(own[0]), attempt, message


def _of_expected(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid,
    assigned: Ints, is_sure: Bools, times: Times,
) -> Iterator[tuple[str, int, int, int]]:  # fmt: skip
    """Yield the rules that are broken by attempts that are assigned to expected deliveries."""
    if not len(expected):
        return
    message = expected[:, Expected.MESSAGE]
    is_own = subs[expected_subs[expected[:, Expected.FIRST]], Subscription.IS_SHARED] == 0
    several = expected[:, Expected.SUBSCRIPTIONS] > 1
    is_flagged = expected[:, Expected.RETAIN] == 1
    wanted = several | is_flagged | (times.expires_s[message] != NONE)
    wanted &= is_own & is_sure[message]
    attempts: defaultdict[int, list[int]] = defaultdict(list)
    for attempt in np.flatnonzero((assigned != NONE) & wanted[np.maximum(assigned, 0)]).tolist():
        attempts[int(assigned[attempt])].append(attempt)
    for entry, own in attempts.items():
        own.sort(key=lambda attempt: int(delivered[attempt, Delivered.AT]))
        first, count = expected[entry, [Expected.FIRST, Expected.SUBSCRIPTIONS]].tolist()
        of_entry, number = expected_subs[first : first + count], int(message[entry])
        sub = int(of_entry[0])
        highest = np.minimum(subs[of_entry, Subscription.QOS], messages[number, Message.QOS]).max()
        is_certain = (subs[of_entry, Subscription.GRANTED] < messages[number, Message.START]).all()
        is_certain &= (subs[of_entry, Subscription.LEAVING] == NONE).all()
        # A copy at the highest QoS may follow until all have come, or the capture went on.
        is_certain &= len(own) >= expected[entry, Expected.CAPACITY] or _is_left(times, own[-1])
        if count > 1 and is_certain and delivered[own, Delivered.QOS].max() < highest:
            yield "overlapping_qos", sub, own[0], number
        is_kept = (subs[of_entry, Subscription.RETAIN_AS_PUBLISHED] != 0).all() and is_flagged[
            entry
        ]
        for attempt in own:
            if is_kept and not delivered[attempt, Delivered.RETAIN]:
                yield "retained_unpublished", sub, attempt, number
            if rule := _expiry_rule(times, number, attempt):
                yield rule, sub, attempt, number


def _is_left(times: Times, attempt: int) -> bool:
    """Return whether the capture goes on for a while after an attempt."""
    at_ns, ends_ns = int(times.at_ns[attempt]), int(times.ends_ns[attempt])
    return NO_TIME not in (at_ns, ends_ns) and ends_ns - at_ns > _SLACK_NS


def _expiry_rule(times: Times, message: int, attempt: int) -> str | None:
    """Return the rule on message expiry that an attempt breaks."""
    expires_s, started_ns = int(times.expires_s[message]), int(times.started_ns[message])
    at_ns, left_s = int(times.at_ns[attempt]), int(times.left_s[attempt])
    if expires_s == NONE or NO_TIME in (started_ns, at_ns) or times.is_again[attempt]:
        return None
    waited_ns = at_ns - started_ns - _SLACK_NS
    if waited_ns > expires_s * _NS_PER_S:
        return "delivered_expired"
    if left_s != NONE and waited_ns > (expires_s - left_s) * _NS_PER_S:
        return "expiry_kept"
    return None
