"""The phases behind transactions: messages, conversations and missing numbers.

Each is a function of tables of records, and its key is that of the chain's stage of the same name.
Any partition by that key gives the same rows.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import I64, array, kernel
from wireyard.layers.grouping import (
    decode_texts,
    dense_ids,
    first_of_groups,
    order_groups,
    text_codes,
)
from wireyard.layers.jmq import conversations as scalar
from wireyard.layers.jmq.conversations import TEMPORARY
from wireyard.layers.jmq.delivery import OUTCOMES
from wireyard.layers.jmq.record_columns import (
    join_codes,
    never_empty,
    nullable,
    positions_of,
    take_rows,
    texts_of,
    whole,
)
from wireyard.layers.jmq.requests import OK
from wireyard.layers.tables import as_fact_table

__all__ = [
    "Joined",
    "find_gaps",
    "join_messages",
    "match_replies",
]

_long: Final[Any] = np.int64
_I32S, _I64S, _I8S = array("int32"), array("int64"), array("int8")
_I8S_2: Final = array("int8", 2)
_NS_PER_MS: Final = 1_000_000

# --- messages -------------------------------------------------------------------------------


class Joined(NamedTuple):
    """What a partition of messages says.

    Attributes
    ----------
    deliveries
        Rows of the table.
    messages
        Messages that ask for answers or may be one, to be partitioned by source and `at`.
    """

    deliveries: pa.Table
    messages: pa.Table


def join_messages(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> Joined:
    """Add to deliveries who sent their message, and what brought it.

    Key: source and message. Of several packets the first in the order of time counts.
    """
    relayed = relays.filter(pc.equal(relays["kind"].cast(pa.string()), "relayed"))
    tables = sendings, deliveries, relayed
    sources, _ = join_codes(*(table["source"] for table in tables))
    keys, _ = join_codes(*(table["message_key"] for table in tables))
    ends = np.cumsum([0, *(table.num_rows for table in tables)])
    of, count = dense_ids(np.concatenate(sources), np.concatenate(keys))
    of_sending, of_delivery, of_relay = (of[a:b] for a, b in pairwise(ends))
    positions = positions_of(*tables)
    sent = first_of_groups(of_sending, count, *positions[0])
    delivered = first_of_groups(of_delivery, count, *positions[1])

    brought = np.full(deliveries.num_rows, -1, np.int64)
    if relayed.num_rows:
        consumers = [nullable(table["consumer_id"])[0] for table in (deliveries, relayed)]
        both, many = dense_ids(np.concatenate([of_delivery, of_relay]), np.concatenate(consumers))
        first = first_of_groups(both[len(of_delivery) :], many, *positions[2])
        brought = first[both[: len(of_delivery)]]
    rows = _delivery_rows(sendings, deliveries, relayed, sent[of_delivery], brought)
    alone = np.where(sent < 0, delivered, -1)
    messages = _of_conversations(sendings, deliveries, sent[sent >= 0], alone[alone >= 0])
    return Joined(rows, messages)


def _delivery_rows(
    sendings: pa.Table, deliveries: pa.Table, relays: pa.Table, sent: Any, brought: Any
) -> pa.Table:
    def of(table: pa.Table, name: str, rows: Any) -> pa.Array:
        return take_rows(table[name], np.maximum(rows, 0), rows >= 0)

    own = {name: whole(deliveries[name]) for name in deliveries.column_names}
    state, states = text_codes(deliveries["state"])
    names = states.to_pylist()
    outcomes = list(dict.fromkeys(OUTCOMES.values()))
    outcome = np.array([*(outcomes.index(OUTCOMES[name]) for name in names), -1])[state]
    producer = own["producer"]
    if (sent >= 0).any():
        (of_sender, of_address), texts = join_codes(sendings["producer"], deliveries["producer"])
        chosen = np.where(sent >= 0, of_sender[np.maximum(sent, 0)], of_address)
        producer = decode_texts(chosen, texts)
    return as_fact_table(
        "deliveries",
        {
            **{
                name: own[name]
                for name in (
                    "message_key", "destination", "consumer", "server", "consumer_id",
                    "subscription", "redelivered", "delivery_count", "dead_reason",
                    "transaction_id", "acknowledged_ns", "acknowledged_frame", "source",
                    "stream", "offset",
                )
            },
            "consumer_client_id": own["client_id"],
            "protocol": texts_of(["jms"], np.zeros(len(state))),
            "producer": producer,
            "producer_client_id": of(sendings, "client_id", sent),
            "sent_ns": of(sendings, "ns", sent),
            "sent_frame": of(sendings, "frame", sent),
            "accepted_frame": of(sendings, "accepted_frame", sent),
            "delivered_ns": own["ns"],
            "delivered_frame": own["frame"],
            "outcome": texts_of(outcomes, outcome),
            "verdict": decode_texts(state, states),
            "via_broker": of(relays, "broker", brought),
            "relayed_frame": of(relays, "frame", brought),
        },
    )  # fmt: skip


_LETTER: Final = ("message_key", "producer", "destination", "reply_to", "correlation_id",
                  "message_id", "source", "stream", "offset", "frame", "ns")  # fmt: skip


def _of_conversations(sendings: pa.Table, deliveries: pa.Table, sent: Any, alone: Any) -> pa.Table:
    """Return the messages that ask for answers, and those that may be answers, one row each."""
    status, has_status = nullable(sendings["status"])
    rolled_back = sendings["rolled_back"].to_numpy()
    counts = ~rolled_back & (~has_status | (status == OK))
    parts = []
    for table, rows in ((sendings, sent[counts[sent]]), (deliveries, alone)):
        asks = table["reply_to"].is_valid().to_numpy()[rows]
        answers = _may_answer(table)[rows]
        for chosen, at, is_asking in ((asks, "reply_to", True), (answers, "destination", False)):
            found = table.select(_LETTER).take(pa.array(rows[chosen]))
            found = pa.table({name: found[name].cast(_plain(found[name])) for name in _LETTER})
            found = found.append_column("at", found[at])
            parts.append(found.append_column("asks", pa.array(np.full(len(found), is_asking))))
    return pa.concat_tables(parts)


def _plain(column: pa.ChunkedArray) -> pa.DataType:
    kind = column.type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _may_answer(table: pa.Table) -> Any:
    """Return which messages can be the reply to another: `may_answer`."""
    codes, names = text_codes(table["destination"])
    temporary = [name.startswith(TEMPORARY) for name in names.to_pylist()]
    correlates = table["correlation_id"].is_valid().to_numpy()
    return (codes >= 0) & (correlates | np.array([*temporary, False], bool)[codes])


# --- conversations --------------------------------------------------------------------------


def match_replies(messages: pa.Table) -> tuple[pa.Table, Counter[str]]:
    """Return requests with each of their replies; those without one alone: `conversations`.

    Key: source and `at`, where the replies go.
    """
    sources, _ = text_codes(messages["source"])
    places, names = text_codes(messages["at"])
    of, count = dense_ids(sources, places)
    (positions,) = positions_of(messages)
    asks = messages["asks"].to_numpy().astype(np.int8)
    order, starts = order_groups(of, count, *positions, asks)
    is_temporary = np.array([*(name.startswith(TEMPORARY) for name in names.to_pylist()), False])
    key, chosen, own = _correlations(messages, of)
    slots = int(max(key.max(initial=-1), chosen.max(initial=-1), own.max(initial=-1))) + 1
    answered = np.full(len(of), -1, np.int64)
    replied = np.zeros(len(of), np.int64)
    dropped = _match(
        order, starts, asks, is_temporary[places].astype(np.int8), key, chosen, own,
        np.full(slots, -1, np.int64), answered, replied, np.zeros(len(of), np.int64),
        scalar.MAX_REMEMBERED,
    )  # fmt: skip
    replies = np.flatnonzero(answered >= 0)
    alone = np.flatnonzero((asks != 0) & (replied == 0))
    requests = np.concatenate([answered[replies], alone])
    replies = np.concatenate([replies, np.full(len(alone), -1)])
    return _conversation_rows(messages, requests, replies), Counter(
        {"MAX_REMEMBERED": dropped} if dropped else {}
    )


def _correlations(messages: pa.Table, of: Any) -> tuple[Any, Any, Any]:
    """Return the correlation ids of messages as numbers, each within its destination.

    Returns
    -------
    key
        JMSCorrelationID of each, -1 of none.
    chosen, own
        Of requests, what a reply may name: the id, and the same as `key`.
    """
    ids = pc.coalesce(messages["message_id"], messages["message_key"])
    named = pc.binary_join_element_wise(pa.scalar("ID:"), ids, "")
    (correlation, name), _ = join_codes(messages["correlation_id"], named)
    asks = messages["asks"].to_numpy()
    name = np.where(asks, name, -1)
    both = np.concatenate([correlation, name])
    numbers, _ = dense_ids(np.concatenate([of, of]), both)
    numbers = np.where(both >= 0, numbers, -1).astype(np.int64)
    key, chosen = numbers[: len(of)].copy(), numbers[len(of) :].copy()
    return key, chosen, np.where(asks, key, -1)


@kernel(
    I64(_I64S, _I64S, _I8S, _I8S, _I64S, _I64S, _I64S, _I64S, _I64S, _I64S, _I64S, I64),
)  # fmt: skip
def _match(
    order: Any, starts: Any, asks: Any, temporary: Any, key: Any, chosen: Any, own: Any,
    latest: Any, answered: Any, replied: Any, requests: Any, most: int,
) -> int:  # fmt: skip
    """Give each reply its request: `_Requests`.

    `latest` is the latest request by correlation id, `requests` those of a destination in order.
    """
    dropped = 0
    for group in range(len(starts) - 1):
        count, oldest, waiting, remembered = 0, 0, 0, 0
        for at in range(starts[group], starts[group + 1]):
            row = order[at]
            if asks[row]:
                requests[count] = row
                count += 1
                remembered += 1
                latest[chosen[row]] = row
                if own[row] >= 0:
                    latest[own[row]] = row
            else:
                found = _long(-1)
                if key[row] >= 0:
                    found = latest[key[row]]
                elif temporary[row]:
                    while waiting < count and found < 0:
                        if replied[requests[waiting]] == 0:
                            found = requests[waiting]
                        waiting += 1
                if found >= 0:
                    answered[row] = found
                    replied[found] += 1
                    remembered += 1
            while remembered > most:
                gone = requests[oldest]
                oldest += 1
                waiting = max(waiting, oldest)
                remembered -= 1 + replied[gone]
                dropped += replied[gone] == 0
                if latest[chosen[gone]] == gone:
                    latest[chosen[gone]] = -1
                if own[gone] >= 0 and latest[own[gone]] == gone:
                    latest[own[gone]] = -1
    return dropped


def _conversation_rows(messages: pa.Table, requests: Any, replies: Any) -> pa.Table:
    there = replies >= 0

    def of_reply(name: str) -> pa.Array:
        return take_rows(messages[name], np.maximum(replies, 0), there)

    asked = messages.take(pa.array(requests))
    requested, timed = nullable(asked["ns"])
    replied, reply_timed = nullable(messages["ns"])
    at = np.maximum(replies, 0)
    latency = requested
    if len(requests):
        timed = timed & there & reply_timed[at]
        latency = (replied[at] - requested) // _NS_PER_MS
    return as_fact_table(
        "conversations",
        {
            "kind": texts_of(["jms"], np.zeros(len(requests))),
            "request_key": whole(asked["message_key"]),
            "reply_key": of_reply("message_key"),
            "requester": never_empty(whole(asked["producer"])),
            "responder": never_empty(of_reply("producer")),
            "requested_ns": whole(asked["ns"]),
            "replied_ns": of_reply("ns"),
            "latency_ms": pa.array(latency, mask=~timed),
            "request": pc.fill_null(whole(asked["destination"]), ""),
            "requested_frame": whole(asked["frame"]),
            "replied_frame": of_reply("frame"),
            **{name: whole(asked[name]) for name in ("source", "stream", "offset")},
        },
    )


# --- numbers --------------------------------------------------------------------------------


def find_gaps(runs: pa.Table) -> pa.Table:
    """Return violations for numbers that are missing: `gaps`.

    Key: source, host and `from_client`.
    """
    sources, _ = text_codes(runs["source"])
    hosts, _ = text_codes(runs["host"])
    of, count = dense_ids(sources, hosts, runs["from_client"].to_numpy())
    (positions,) = positions_of(runs)
    start, stop = nullable(runs["start"])[0].copy(), nullable(runs["stop"])[0].copy()
    kinds, names = text_codes(runs["kind"])
    span = np.array([*(name == "span" for name in names.to_pylist()), False])[kinds]
    span = span.astype(np.int8)
    order, starts = order_groups(of, count, start, span, *positions)
    missing = np.full(len(of), 0, np.int64)
    broken = np.zeros(len(of), np.int8)
    _find_gaps(order, starts, start, stop, span, missing, broken)
    at = np.flatnonzero(broken)
    found = runs.take(pa.array(at))
    texts = [
        f"numbers {f'{first} to {last - 1}' if last > first + 1 else first}"
        " of this sender are in no packet that was seen"
        for first, last in zip(missing[at].tolist(), start[at].tolist(), strict=True)
    ]
    return as_fact_table(
        "violations",
        {
            "protocol": texts_of(["jms"], np.zeros(len(at))),
            "rule": texts_of(["sequence_gap"], np.zeros(len(at))),
            "client": never_empty(whole(found["sender"].cast(pa.string()))),
            "text": pa.array(texts, pa.string()),
            "captured_ns": whole(found["ns"]),
            "frame": whole(found["frame"]),
            **{name: whole(found[name]) for name in ("source", "stream", "offset")},
        },
    )


@kernel((_I64S, _I64S, _I64S, _I64S, _I8S, _I64S, _I8S))
def _find_gaps(
    order: Any, starts: Any, start: Any, stop: Any, span: Any, missing: Any, broken: Any
) -> None:
    for group in range(len(starts) - 1):
        begun, seen, reach = False, _long(0), _long(0)
        for at in range(starts[group], starts[group + 1]):
            run = order[at]
            if span[run]:
                reach = max(reach, stop[run])
                continue
            if not begun:
                begun, seen, reach = True, start[run], start[run]
            if start[run] > seen and reach > start[run]:
                missing[run], broken[run] = seen, 1
            seen = max(seen, stop[run])
