"""The phases after transactions: messages and conversations.

Each is a function of tables of records, with the key of its phase (``columns.py``). Any partition
by that key gives the same rows.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import kernel
from wireyard.arrays import Int8s, Ints
from wireyard.layers.grouping import (
    decode_texts,
    dense_ids,
    first_of_groups,
    order_groups,
    text_codes,
)
from wireyard.layers.jmq import rules
from wireyard.layers.jmq.record_columns import (
    empty_to_null,
    join_codes,
    nullable,
    positions_of,
    take_or_null,
    texts_of,
    whole,
)
from wireyard.layers.jmq.rules import DONE_BEFORE, OK, TEMPORARY
from wireyard.layers.jmq.states import OUTCOMES
from wireyard.layers.tables import as_fact_table

_long: Final[Any] = np.int64
_NS_PER_MS: Final = 1_000_000

# --- messages -------------------------------------------------------------------------------


class MessageResult(NamedTuple):
    """The result of `join_messages`: rows of the table ``deliveries``, and messages.

    The messages are requests or may be replies, to be partitioned by source and `at`.
    """

    deliveries: pa.Table
    messages: pa.Table


def join_messages(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> MessageResult:
    """Add to deliveries the sender of their message, and the broker that relayed it.

    Key: source and message. If several packets show a message sent or relayed, the first counts.
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

    relay = np.full(deliveries.num_rows, -1, np.int64)
    if relayed.num_rows:
        consumers = [nullable(table["consumer_id"])[0] for table in (deliveries, relayed)]
        both, many = dense_ids(np.concatenate([of_delivery, of_relay]), np.concatenate(consumers))
        first = first_of_groups(both[len(of_delivery) :], many, *positions[2])
        relay = first[both[: len(of_delivery)]]
    rows = _delivery_rows(sendings, deliveries, relayed, sent[of_delivery], relay)
    alone = np.where(sent < 0, delivered, -1)
    messages = _conversation_messages(sendings, deliveries, sent[sent >= 0], alone[alone >= 0])
    return MessageResult(rows, messages)


def _delivery_rows(
    sendings: pa.Table, deliveries: pa.Table, relays: pa.Table, sent: Any, relay: Any
) -> pa.Table:
    def of(table: pa.Table, name: str, rows: Any) -> pa.Array:
        return take_or_null(table[name], np.maximum(rows, 0), rows >= 0)

    own = {name: whole(deliveries[name]) for name in deliveries.column_names}
    state, states = text_codes(deliveries["state"])
    names = states.to_pylist()
    outcomes = [outcome for outcome in dict.fromkeys(OUTCOMES.values()) if outcome]
    codes: dict[str | None, int] = {name: code for code, name in enumerate(outcomes)}
    outcome = np.array([*(codes.get(OUTCOMES[name], -1) for name in names), -1])[state]
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
            "via_broker": of(relays, "broker", relay),
            "relayed_frame": of(relays, "frame", relay),
        },
    )  # fmt: skip


_MESSAGE: Final = (
    "message_key", "producer", "destination", "reply_to", "correlation_id", "message_id",
    "is_whole", "source", "stream", "offset", "frame", "ns",
)  # fmt: skip


def _conversation_messages(
    sendings: pa.Table, deliveries: pa.Table, sent: Any, alone: Any
) -> pa.Table:
    """Return a row for each message that is a request, and one for each that may be a reply.

    `sent` has a row of `sendings` for each message; `alone` has a row of `deliveries` for each
    message whose sending was not captured.
    """
    status, has_status = nullable(sendings["status"])
    rolled_back = sendings["rolled_back"].to_numpy()
    counts = ~rolled_back & (~has_status | np.isin(status, (OK, DONE_BEFORE)))
    parts = []
    for table, rows in ((sendings, sent[counts[sent]]), (deliveries, alone)):
        is_request = table["reply_to"].is_valid().to_numpy()[rows]
        may_answer = _may_answer(table)[rows]
        for chosen, at, as_request in (
            (is_request, "reply_to", True),
            (may_answer, "destination", False),
        ):
            part = table.select(_MESSAGE).take(pa.array(rows[chosen]))
            part = pa.table({name: part[name].cast(_plain(part[name])) for name in _MESSAGE})
            part = part.append_column("at", part[at])
            parts.append(part.append_column("is_request", pa.array(np.full(len(part), as_request))))
    return pa.concat_tables(parts)


def _plain(column: pa.ChunkedArray) -> pa.DataType:
    kind = column.type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _may_answer(table: pa.Table) -> Any:
    """Return which messages can be the reply to another: only these are correlated."""
    codes, names = text_codes(table["destination"])
    temporary = [name.startswith(TEMPORARY) for name in names.to_pylist()]
    correlates = table["correlation_id"].is_valid().to_numpy()
    return (codes >= 0) & (correlates | np.array([*temporary, False], bool)[codes])


# --- conversations --------------------------------------------------------------------------


def join_requests(requests: pa.Table) -> pa.Table:
    """Return the conversations of requests, those sent again joined with the first sending.

    Key: source and message. A request with flag I and the SysMessageID of another is the same
    request, on another connection: its reply is that to the first one.
    """
    facts = requests.drop_columns(["message_key", "packet_type", "resent"])
    resent = requests["resent"].to_numpy()
    if not resent.any():
        return facts
    sources, _ = text_codes(requests["source"])
    keys, _ = text_codes(requests["message_key"])
    of, count = dense_ids(sources, keys, requests["packet_type"].to_numpy())
    (positions,) = positions_of(requests.rename_columns(
        {"requested_ns": "ns", "requested_frame": "frame"}
    ))  # fmt: skip
    first = first_of_groups(of, count, *positions)
    is_first = first[of] == np.arange(len(of))
    has_reply = requests["reply_key"].is_valid().to_numpy()
    again = np.flatnonzero(resent & ~is_first)
    answered = again[has_reply[again]]
    replied_by = first_of_groups(of[answered], count, *(part[answered] for part in positions))
    chosen = np.flatnonzero(~resent | is_first)
    reply = np.where(
        is_first & ~has_reply & (replied_by[of] >= 0), answered[replied_by[of]], np.arange(len(of))
    )[chosen] if len(answered) else chosen  # fmt: skip
    rows, replies = facts.take(pa.array(chosen)), facts.take(pa.array(reply))
    for name in ("responder", "reply_key", "status", "replied_ns", "replied_frame"):
        rows = rows.set_column(rows.column_names.index(name), name, replies[name])
    requested, timed = nullable(rows["requested_ns"])
    replied, reply_timed = nullable(rows["replied_ns"])
    latency = pa.array((replied - requested) // _NS_PER_MS, mask=~(timed & reply_timed))
    return rows.set_column(rows.column_names.index("latency_ms"), "latency_ms", latency)


def match_replies(messages: pa.Table) -> tuple[pa.Table, Counter[str]]:
    """Return a row for each reply to a request, and one for each request without any.

    Key: source and `at`, the destination of the replies. A reply is sent to the request's
    JMSReplyTo, and its JMSCorrelationID is the request's JMSMessageID or JMSCorrelationID;
    applications choose which. If several requests have the same id, the reply is to the latest. A
    message to a temporary destination without a JMSCorrelationID is the reply to the oldest request
    there that has none yet, as in the broker's administration and in JMS' own requestors; if a
    packet is missing of the connection of any request there, it may be the reply to another. Above
    `MAX_REMEMBERED` messages the oldest requests are evicted; those without a reply are counted.
    """
    sources, _ = text_codes(messages["source"])
    places, names = text_codes(messages["at"])
    of, count = dense_ids(sources, places)
    (positions,) = positions_of(messages)
    is_request = messages["is_request"].to_numpy().astype(np.int8)
    order, starts = order_groups(of, count, *positions, is_request)
    is_temporary = np.array([*(name.startswith(TEMPORARY) for name in names.to_pylist()), False])
    key, chosen, own = _correlations(messages, of)
    slots = int(max(key.max(initial=-1), chosen.max(initial=-1), own.max(initial=-1))) + 1
    request_of = np.full(len(of), -1, np.int64)
    replied = np.zeros(len(of), np.int64)
    dropped = _match(
        order, starts, is_request, is_temporary[places].astype(np.int8),
        messages["is_whole"].to_numpy().astype(np.int8), key, chosen, own,
        np.full(slots, -1, np.int64), request_of, replied, np.zeros(len(of), np.int64),
        rules.MAX_REMEMBERED,
    )  # fmt: skip
    replies = np.flatnonzero(request_of >= 0)
    alone = np.flatnonzero((is_request != 0) & (replied == 0))
    requests = np.concatenate([request_of[replies], alone])
    replies = np.concatenate([replies, np.full(len(alone), -1)])
    return _conversation_rows(messages, requests, replies), Counter(
        {"MAX_REMEMBERED": dropped} if dropped else {}
    )


def _correlations(messages: pa.Table, of: Any) -> tuple[Any, Any, Any]:
    """Return the correlation ids of messages as numbers, numbered within their destination.

    The first result is the JMSCorrelationID of each message, -1 for none. The other two are the ids
    that a reply may name, of requests only: the JMSMessageID, and the JMSCorrelationID.
    """
    ids = pc.coalesce(messages["message_id"], messages["message_key"])
    named = pc.binary_join_element_wise(pa.scalar("ID:"), ids, "")
    (correlation, name), _ = join_codes(messages["correlation_id"], named)
    is_request = messages["is_request"].to_numpy()
    name = np.where(is_request, name, -1)
    both = np.concatenate([correlation, name])
    numbers, _ = dense_ids(np.concatenate([of, of]), both)
    numbers = np.where(both >= 0, numbers, -1).astype(np.int64)
    key, chosen = numbers[: len(of)].copy(), numbers[len(of) :].copy()
    return key, chosen, np.where(is_request, key, -1)


@kernel
def _match(
    order: Ints, starts: Ints, is_request: Int8s, temporary: Int8s, whole: Int8s, key: Ints,
    chosen: Ints, own: Ints, latest: Ints, request_of: Ints, replied: Ints, requests: Ints,
    most: int,
) -> int:  # fmt: skip
    """Find the request of each reply.

    `latest` has the latest request of each correlation id, `requests` those of a destination in
    order.
    """
    dropped = 0
    for group in range(len(starts) - 1):
        count, oldest, waiting, held, is_ordered = 0, 0, 0, 0, True
        for at in range(starts[group], starts[group + 1]):
            row = order[at]
            if is_request[row]:
                requests[count] = row
                count += 1
                held += 1
                is_ordered = is_ordered and whole[row] != 0
                latest[chosen[row]] = row
                if own[row] >= 0:
                    latest[own[row]] = row
            else:
                request = _long(-1)
                if key[row] >= 0:
                    request = latest[key[row]]
                elif temporary[row] and is_ordered:
                    while waiting < count and request < 0:
                        if replied[requests[waiting]] == 0:
                            request = requests[waiting]
                        waiting += 1
                if request >= 0:
                    request_of[row] = request
                    replied[request] += 1
                    held += 1
            while held > most:
                gone = requests[oldest]
                oldest += 1
                waiting = max(waiting, oldest)
                held -= 1 + replied[gone]
                dropped += replied[gone] == 0
                if latest[chosen[gone]] == gone:
                    latest[chosen[gone]] = -1
                if own[gone] >= 0 and latest[own[gone]] == gone:
                    latest[own[gone]] = -1
    return dropped


def _conversation_rows(messages: pa.Table, requests: Any, replies: Any) -> pa.Table:
    is_replied = replies >= 0

    def of_reply(name: str) -> pa.Array:
        return take_or_null(messages[name], np.maximum(replies, 0), is_replied)

    requested_rows = messages.take(pa.array(requests))
    requested, timed = nullable(requested_rows["ns"])
    replied, reply_timed = nullable(messages["ns"])
    at = np.maximum(replies, 0)
    latency = requested
    if len(requests):
        timed = timed & is_replied & reply_timed[at]
        latency = (replied[at] - requested) // _NS_PER_MS
    return as_fact_table(
        "conversations",
        {
            "kind": texts_of(["jms"], np.zeros(len(requests))),
            "request_key": whole(requested_rows["message_key"]),
            "reply_key": of_reply("message_key"),
            "requester": empty_to_null(whole(requested_rows["producer"])),
            "responder": empty_to_null(of_reply("producer")),
            "requested_ns": whole(requested_rows["ns"]),
            "replied_ns": of_reply("ns"),
            "latency_ms": pa.array(latency, mask=~timed),
            "request": pc.fill_null(whole(requested_rows["destination"]), ""),
            "requested_frame": whole(requested_rows["frame"]),
            "replied_frame": of_reply("frame"),
            **{name: whole(requested_rows[name]) for name in ("source", "stream", "offset")},
        },
    )
