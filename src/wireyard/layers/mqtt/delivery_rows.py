"""The rows of deliveries: what kernels found of messages, as columns of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.layers.mqtt.delivery_grids import DeliveredColumns, SentColumns
from wireyard.layers.mqtt.delivery_kernels import VERDICT_NAMES, Delivered, Fate
from wireyard.layers.mqtt.expected_kernels import Expected, Grid, Subscription
from wireyard.layers.mqtt.numbering import Numbers, Positions, values_at
from wireyard.layers.mqtt.packets import NO_TIME, Bools, Ints, KnownStream
from wireyard.layers.mqtt.qos_kernels import NONE, Status
from wireyard.layers.mqtt.records import Client, Subscribed, TopicKey
from wireyard.layers.tables import as_fact_table, packet_keys, text_array

__all__ = ["Matched", "Numbered", "delivery_table"]

_OUTCOMES: Final = pa.array(["no_ack_wanted", "acknowledged", "unacknowledged", "expired"])
_EXPIRED: Final = VERDICT_NAMES.index("expired")
_ORIGINS: Final = pa.array(["publish", "will", "broker"])


class Numbered(NamedTuple):
    """What the numbers in columns stand for."""

    positions: Positions
    clients: Numbers[Client]
    topics: Numbers[TopicKey]
    streams: Sequence[KnownStream]


@dataclass(slots=True)
class Matched:
    """Who was due to get what, and who got it: grids of kernels, and what is in them."""

    messages: Grid
    expected: Grid
    expected_subs: Ints
    taken: Grid
    assigned: Ints
    message_order: Ints
    delivered_order: Ints
    by_rank: Ints
    """A position of each rank."""
    subs: list[Subscribed]
    grid: Grid
    """The subscriptions."""
    names: Numbers[tuple[str, str, str]]
    """Source, server and name of who messages are due to."""


def delivery_table(
    of: Numbered, sent: SentColumns, delivered: DeliveredColumns, found: Matched, fates: Grid
) -> pa.Table:
    """Return what became of messages as a table."""
    message, each = fates[:, Fate.MESSAGE], fates[:, Fate.DELIVERED]
    _name_subscriptions(found, fates, delivered)
    sub = fates[:, Fate.SUBSCRIPTION]
    none_sent, none_delivered, none_sub = message == NONE, each == NONE, sub == NONE
    where = values_at(found.message_order, message), values_at(found.delivered_order, each)
    positions = of.positions
    sub_clients = np.array([of.clients[one.client] for one in found.subs] or [0], np.int64)
    clients = of.clients.all
    endpoints = text_array([client.endpoint for client in clients])
    client_ids = text_array([client.client_id for client in clients])
    consumer = np.where(
        none_delivered,
        np.where(
            fates[:, Fate.CLIENT] != NONE,
            fates[:, Fate.CLIENT],
            np.where(none_sub, NONE, values_at(sub_clients, sub)),
        ),
        values_at(delivered.client, where[1]),
    )
    producer = np.where(none_sent, NONE, values_at(sent.client, where[0]))
    sent_at = np.where(none_sent, NONE, values_at(sent.sent, where[0]))
    at = np.where(none_delivered, NONE, values_at(delivered.at, where[1]))
    proof = np.where(none_delivered, sent_at, at)
    accepted = np.where(none_sent, NONE, values_at(sent.accepted, where[0]))
    done = np.where(none_delivered, 0, values_at(delivered.is_acknowledged, where[1])) == 1
    own_ns = values_at(delivered.acknowledged_ns, where[1])
    own_frame = values_at(delivered.acknowledged_frame, where[1])
    none_done = ~done | (own_ns == NO_TIME)
    topic = np.where(
        none_sent, values_at(delivered.topic, where[1]), values_at(sent.topic, where[0])
    )
    qos = values_at(delivered.qos, where[1])
    status = values_at(delivered.status, where[1])
    is_again, is_untraced = (status & bit != 0 for bit in (Status.AGAIN, Status.UNTRACED))
    outcome = np.where(qos == 0, 0, np.where(done, 1, 2))
    outcome = np.where((qos > 0) & is_untraced, NONE, outcome)
    never = np.where(fates[:, Fate.VERDICT] == _EXPIRED, 3, NONE)
    origin = np.where(none_sent, 2, values_at(sent.is_will, where[0]))
    identifiers = np.array(
        [NONE if one.identifier is None else one.identifier for one in found.subs] or [0], np.int64
    )
    identifier = values_at(identifiers, sub)
    granted = of.positions.numbers([one.granted for one in found.subs])
    stream, _ = positions.column(proof, "stream")
    offset, _ = positions.column(proof, "offset")
    streams = text_array([one.name for one in of.streams])
    sources = text_array([one.source for one in of.streams])
    columns = {
        "message_key": _message_keys(of, sent, found, message),
        "protocol": _pick(np.zeros(len(fates), np.int64), text_array(["mqtt"])),
        "origin": _pick(origin, _ORIGINS),
        "producer": _pick(producer, endpoints),
        "producer_client_id": _pick(producer, client_ids),
        "destination": _pick(topic, text_array([topic for _, _, topic in of.topics.all])),
        "consumer": _pick(consumer, endpoints),
        "consumer_client_id": _pick(consumer, client_ids),
        "consumer_id": _integers(identifier, none_sub | (identifier < 0)),
        "subscription": _pick(sub, text_array([one.filter for one in found.subs])),
        "qos": _integers(qos, none_delivered),
        "retained": pa.array(
            values_at(delivered.is_live, where[1]) == 0,
            mask=none_delivered | (values_at(delivered.may_be_live, where[1]) == 1),
        ),
        "sent_ns": _integers(*positions.column(sent_at, "ns")),
        "delivered_ns": _integers(*positions.column(at, "ns")),
        "acknowledged_ns": pa.array(own_ns, mask=none_done),
        "redelivered": pa.array(is_again, mask=none_delivered | (is_untraced & ~is_again)),
        "delivery_count": _integers(values_at(delivered.copies, where[1]), none_delivered),
        "outcome": _pick(np.where(none_delivered, never, outcome), _OUTCOMES),
        "verdict": _pick(fates[:, Fate.VERDICT], text_array(VERDICT_NAMES)),
        "sent_frame": _integers(*positions.column(sent_at, "frame")),
        "accepted_frame": _integers(*positions.column(accepted, "frame")),
        "subscribed_frame": _integers(
            *positions.column(np.where(none_sub, NONE, values_at(granted, sub)), "frame")
        ),
        "delivered_frame": _integers(*positions.column(at, "frame")),
        "acknowledged_frame": pa.array(own_frame, mask=none_done),
        "source": _pick(stream, sources),
        "stream": _pick(stream, streams),
        "offset": pa.array(offset),
    }
    return as_fact_table("deliveries", columns)


def _name_subscriptions(found: Matched, fates: Grid, delivered: DeliveredColumns) -> None:
    """Find the subscription of what was delivered with several subscription identifiers."""
    if not delivered.several:
        return
    for fate in fates[(fates[:, Fate.DELIVERED] != NONE) & (fates[:, Fate.EXPECTED] != NONE)]:
        each = int(fate[Fate.DELIVERED])
        place = int(found.delivered_order[each])
        first, count = found.expected[fate[Fate.EXPECTED], [Expected.FIRST, Expected.SUBSCRIPTIONS]]
        for one in found.expected_subs[first : first + count].tolist():
            mine = found.grid[one, Subscription.NAME] == found.taken[each, Delivered.NAME]
            by_it = found.subs[one].identifier in delivered.several.get(place, ())
            if by_it and (mine or found.subs[one].group is None):
                fate[Fate.SUBSCRIPTION] = one
                break


def _message_keys(of: Numbered, sent: SentColumns, found: Matched, message: Ints) -> pa.Array:
    """Return how messages are called, of rows that are about them."""
    numbers = sent.sent[found.message_order]
    stream, offset = (of.positions.column(numbers, name)[0] for name in ("stream", "offset"))
    names = _pick(stream, text_array([stream.name for stream in of.streams]))
    return _pick(message, packet_keys(names, pa.array(offset)))


def _pick(numbers: Ints, texts: pa.Array) -> pa.DictionaryArray:
    """Return texts by number; null where that is -1.

    Each stands in the dictionary once: one that has a text twice is written row by row.
    """
    return texts.dictionary_encode().take(pa.array(numbers, mask=numbers < 0))


def _integers(values: Ints, missing: Bools) -> pa.Array:
    return pa.array(values, mask=missing)
