"""The table of deliveries, built from the grids of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Grid, Ints
from wireyard.layers.mqtt.delivery_grids import DeliveredColumns, SentColumns
from wireyard.layers.mqtt.delivery_kernels import VERDICT_NAMES, Delivered, DeliveryRow
from wireyard.layers.mqtt.expected_kernels import Expected, Subscription
from wireyard.layers.mqtt.grids import NONE, Status
from wireyard.layers.mqtt.numbering import Numbers, Positions, values_at
from wireyard.layers.mqtt.packets import NO_TIME, KnownStream
from wireyard.layers.mqtt.records import Client, Subscribed, TopicKey
from wireyard.layers.tables import as_fact_table, packet_keys, text_array

__all__ = ["DeliveryGrids", "Numbered", "delivery_table"]

_OUTCOMES: Final = pa.array(["no_ack_wanted", "acknowledged", "unacknowledged", "expired"])
_EXPIRED: Final = VERDICT_NAMES.index("expired")
_ORIGINS: Final = pa.array(["publish", "will", "broker"])


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
