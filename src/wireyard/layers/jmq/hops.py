"""The hops of a message: every packet that shows it, in order, with the time since the hop before.

Packets have no field for timestamps of hops (open issue 2 of the specification, errata 37);
captures have them. The key of `order_hops` is the message, across all sources: messages with times
of one source become rows here, and the sightings of others get their order in ``points``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import kernel
from wireyard.arrays import Grid, Int8s, Int32s, IntGrid8, Ints
from wireyard.layers.grouping import decode_texts, dense_ids, order_groups, text_codes
from wireyard.layers.jmq.clocks import CONTRADICTION, ONE_WAY
from wireyard.layers.jmq.packet_columns import rank_of
from wireyard.layers.jmq.record_columns import join_codes, nullable, positions_of
from wireyard.layers.tables import as_fact_table

HOPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sent": "from the producer to its broker",
        "accepted": "SEND_REPLY with status 200, from that broker to the producer",
        "relayed": "G_MESSAGE_DATA from broker to broker, for a consumer there",
        "delivered": "from a broker to a consumer",
        "acknowledged": "ACKNOWLEDGE from the consumer to its broker",
        "relay_acknowledged": "G_MESSAGE_ACK from broker to broker: consumed, or to be consumed"
        " with a transaction",
    }
)
"""Each kind of hop, in the order in which they happen."""

FOLLOWS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sent": ("sent",),
        "accepted": ("accepted", "sent"),
        "relayed": ("relayed", "sent"),
        "delivered": ("delivered", "relayed", "sent"),
        "acknowledged": ("acknowledged", "delivered"),
        "relay_acknowledged": ("relay_acknowledged", "acknowledged", "delivered", "relayed"),
    }
)
"""The kinds of hops that a hop may follow from: it follows the latest one of its consumer."""

UNKNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "first": "nothing was seen that it follows from",
        "untimed": "its stream has no times",
        ONE_WAY: "what it follows from has another clock, and packets between both capture points"
        " were seen in one direction only, or none",
        CONTRADICTION: "the same, and the times of packets in both directions contradict each"
        " other: a clock was set, or a timestamp is wrong",
    }
)
"""The reasons why the time of a hop is unknown."""

MAX_SIGHTINGS: Final = 1 << 16
"""The most sightings of one message: enough for a topic with ten thousand consumers."""
MAX_POINTS: Final = 8
"""The most capture points of one message whose clocks are compared: the first ones by name."""
MAX_WINDOWS: Final = 1 << 17
"""The most windows of a set of capture points that get clocks: three days without a pause at one
point, some 100 MB for two points."""
MAX_SPANS: Final = 1 << 18
"""The most spans of a set of capture points that are used, some 50 MB."""

OF_MESSAGE: Final = ("sent", "accepted")
"""Kinds of hops that belong to no consumer."""
_long: Final[Any] = np.int64
KINDS: Final = tuple(HOPS)
_SENT, _ACCEPTED, _RELAYED, _DELIVERED, _ACKNOWLEDGED, _RELAY_ACKNOWLEDGED = (
    KINDS.index(kind)
    for kind in ("sent", "accepted", "relayed", "delivered", "acknowledged", "relay_acknowledged")
)
_FOLLOWED: Final = np.array(
    [[other in FOLLOWS[kind] for other in KINDS] for kind in KINDS], np.int8
)
_WHOLE: Final = np.array([kind in OF_MESSAGE for kind in KINDS], np.int8)

_UNKNOWN: Final = tuple(UNKNOWN)
_FIRST, _UNTIMED = map(_UNKNOWN.index, ("first", "untimed"))


class HopResult(NamedTuple):
    """The result of `order_hops`.

    `hops` are rows of the table ``hops`` for messages with times of one source, `several` the
    sightings of all other messages; `dropped` counts the sightings above `MAX_SIGHTINGS`.
    """

    hops: pa.Table
    several: pa.Table
    dropped: Counter[str]


class Sightings(NamedTuple):
    """Sightings of messages, one packet each, as columns."""

    message: Any
    kind: Any
    consumer: Ints
    has_consumer: Any
    copy: Any
    """Delivery count, -1 if there is none."""
    source: Any
    stream: Any
    offset: Ints
    frame: Ints
    has_frame: Any
    ns: Ints
    timed: Any
    sender: Any
    receiver: Any
    record: Any
    """Number of the record that a sighting comes from."""
    second: Any
    """Whether it is the second one of its record."""

    def take(self, rows: Any) -> Sightings:
        """Return some sightings."""
        return Sightings(*(column[rows] for column in self))


class Names(NamedTuple):
    """The texts of codes in `Sightings`."""

    keys: pa.Array
    sources: pa.Array
    streams: pa.Array
    ends: pa.Array


class Clocked(NamedTuple):
    """Sightings of messages with times of several clocks, by these; axis: sighting."""

    reference: Ints
    """The point whose clock it is compared with, -1 without a time."""
    point: Ints
    ns: Ints
    """Its time by the clock of the reference."""
    window: Ints
    """Index into `most_ns`."""
    reason: Ints
    """The code of the reason in `UNKNOWN` why nothing was seen that it follows from."""
    most_ns: Any
    """``[window, p, q]``: upper bound of the offset of q's clock from that of p."""

    def take(self, rows: Any) -> Clocked:
        """Return some sightings."""
        return Clocked._make([*(column[rows] for column in self[:-1]), self.most_ns])

    def error_ns(self, point: Any, ahead: Any) -> Any:
        """Return the largest error of the estimate that its clock is `ahead` of that of `point`."""
        most = self.most_ns[self.window, point, self.point]
        least = self.most_ns[self.window, self.point, point]
        return np.maximum(most - ahead, least + ahead)


def order_hops(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> HopResult:
    """Order the sightings of each message."""
    tables = sendings, deliveries, relays
    sightings, names = _sightings(tables)
    dropped: Counter[str] = Counter()
    counts = np.bincount(sightings.message, minlength=len(names.keys))
    if counts.max(initial=0) > MAX_SIGHTINGS:
        kept, dropped["MAX_SIGHTINGS"] = _within_cap(
            tables, sightings, counts > MAX_SIGHTINGS, names.sources
        )
        sightings = sightings.take(kept)
    several = _of_several_sources(sightings, len(names.keys))[sightings.message]
    others = sightings.take(np.flatnonzero(several))
    sightings = sightings.take(np.flatnonzero(~several))
    return HopResult(hop_rows(sightings, names), _as_table(others, names), dropped)


def _sightings(tables: tuple[pa.Table, pa.Table, pa.Table]) -> tuple[Sightings, Names]:
    sendings, deliveries, relays = tables
    codes, keys = join_codes(*(table["message_key"] for table in tables))
    source_codes, sources = join_codes(*(table["source"] for table in tables))
    message, source = np.concatenate(codes), np.concatenate(source_codes)
    sizes = [table.num_rows for table in tables]
    first = np.cumsum([0, *sizes])
    sent, delivered, relayed = (np.arange(a, b) for a, b in pairwise(first))
    accepted = np.flatnonzero(sendings["accepted_offset"].is_valid().to_numpy())
    acknowledged = np.flatnonzero(deliveries["acknowledged_offset"].is_valid().to_numpy())
    record = np.concatenate([sent, accepted, relayed, delivered, first[1] + acknowledged])
    ends, names = join_codes(
        sendings["producer"], sendings["server"], deliveries["consumer"], deliveries["server"],
        relays["sender"], relays["receiver"],
    )  # fmt: skip
    streams, stream_names = join_codes(
        sendings["stream"], sendings["accepted_stream"], relays["stream"], deliveries["stream"],
        deliveries["acknowledged_stream"],
    )  # fmt: skip
    relay_kinds, kind_names = text_codes(relays["kind"])
    of_name = np.array([*map(KINDS.index, kind_names.to_pylist()), 0])
    kinds = [
        np.full(len(sent), _SENT), np.full(len(accepted), _ACCEPTED), of_name[relay_kinds],
        np.full(len(delivered), _DELIVERED), np.full(len(acknowledged), _ACKNOWLEDGED),
    ]  # fmt: skip
    at_relay, at_delivery = (nullable(t["consumer_id"])[0] for t in (relays, deliveries))
    no_consumer = np.zeros(len(sent) + len(accepted), np.int64)
    at_copy, is_counted = nullable(deliveries["delivery_count"])
    copy = np.where(is_counted, at_copy, -1)
    copies = np.concatenate(
        [np.full(len(no_consumer) + len(relayed), -1), copy, copy[acknowledged]]
    )

    def numbers(name: str) -> tuple[Ints, Any]:
        parts = [
            nullable(sendings[name]), _nullable_rows(sendings[f"accepted_{name}"], accepted),
            nullable(relays[name]), nullable(deliveries[name]),
            _nullable_rows(deliveries[f"acknowledged_{name}"], acknowledged),
        ]  # fmt: skip
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    (offset, _), (frame, has_frame), (ns, timed) = map(numbers, ("offset", "frame", "ns"))
    sightings = Sightings(
        message[record], np.concatenate(kinds).astype(np.int8),
        np.concatenate([no_consumer, at_relay, at_delivery, at_delivery[acknowledged]]),
        np.arange(len(record)) >= len(no_consumer), copies, source[record],
        np.concatenate([streams[0], streams[1][accepted], streams[2], streams[3],
                        streams[4][acknowledged]]),
        offset, frame, has_frame, ns, timed,
        np.concatenate([ends[0], ends[1][accepted], ends[4], ends[3], ends[2][acknowledged]]),
        np.concatenate([ends[1], ends[0][accepted], ends[5], ends[2], ends[3][acknowledged]]),
        record,
        np.concatenate([np.full(len(part), second) for part, second in zip(
            (sent, accepted, relayed, delivered, acknowledged), (0, 1, 0, 0, 1), strict=True)]),
    )  # fmt: skip
    return sightings, Names(keys, sources, stream_names, names)


def _nullable_rows(column: pa.ChunkedArray, rows: Any) -> tuple[Ints, Any]:
    values, is_valid = nullable(column)
    return values[rows], is_valid[rows]


def _of_several_sources(sightings: Sightings, messages: int) -> Any:
    """Return which messages have times of several sources."""
    timed = np.flatnonzero(sightings.timed)
    message, source = sightings.message[timed], sightings.source[timed]
    last_source = np.full(messages, -1, np.int64)
    last_source[message] = source
    several = np.zeros(messages, bool)
    several[message[last_source[message] != source]] = True
    return several


def _within_cap(
    tables: tuple[pa.Table, ...], sightings: Sightings, above: Any, sources: pa.Array
) -> tuple[Any, int]:
    """Return the sightings within `MAX_SIGHTINGS` for each message, and the number of others."""
    many = np.flatnonzero(above[sightings.message])
    positions = [np.concatenate(parts) for parts in zip(*positions_of(*tables), strict=True)]
    consumers = np.concatenate(
        [np.zeros(tables[0].num_rows, np.int64)]
        + [nullable(table["consumer_id"])[0] for table in tables[1:]]
    )
    of = sightings.record[many]
    rank = rank_of(sources.to_pylist())[sightings.source[many]]
    order = np.lexsort(
        (sightings.second[many], of, consumers[of], *(part[of] for part in positions[::-1]), rank,
         sightings.message[many])
    )  # fmt: skip
    in_order = many[order]
    message = sightings.message[in_order]
    begins = np.flatnonzero(np.diff(message, prepend=-1))
    place = np.arange(len(message)) - np.repeat(begins, np.diff(begins, append=len(message)))
    # Both sightings of a record are kept, or none.
    keep = place - sightings.second[in_order] < MAX_SIGHTINGS
    rest = np.flatnonzero(~above[sightings.message])
    return np.concatenate([rest, in_order[keep]]), int((~keep).sum())


def _as_table(sightings: Sightings, names: Names) -> pa.Table:
    """Return sightings as records."""
    return pa.table(
        {
            "message_key": decode_texts(sightings.message, names.keys),
            "kind": decode_texts(sightings.kind, pa.array(KINDS)),
            "consumer_id": pa.array(sightings.consumer, mask=~sightings.has_consumer),
            "copy": sightings.copy,
            "sender": decode_texts(sightings.sender, names.ends),
            "receiver": decode_texts(sightings.receiver, names.ends),
            "source": decode_texts(sightings.source, names.sources),
            "stream": decode_texts(sightings.stream, names.streams),
            "offset": sightings.offset,
            "frame": pa.array(sightings.frame, mask=~sightings.has_frame),
            "ns": pa.array(sightings.ns, mask=~sightings.timed),
        }
    )


def sightings_of(records: pa.Table) -> tuple[Sightings, Names]:
    """Return the sightings of records of `_as_table`."""
    message, keys = text_codes(records["message_key"])
    kinds, kind_names = text_codes(records["kind"])
    of_kind = np.array([*map(KINDS.index, kind_names.to_pylist()), 0], np.int8)
    (sender, receiver), ends = join_codes(records["sender"], records["receiver"])
    source, sources = text_codes(records["source"])
    stream, streams = text_codes(records["stream"])
    count = records.num_rows
    sightings = Sightings(
        message, of_kind[kinds], *nullable(records["consumer_id"]), records["copy"].to_numpy(),
        source, stream, nullable(records["offset"])[0], *nullable(records["frame"]),
        *nullable(records["ns"]), sender, receiver, np.arange(count), np.zeros(count, bool),
    )  # fmt: skip
    return sightings, Names(keys, sources, streams, ends)


def hop_rows(sightings: Sightings, names: Names, clocked: Clocked | None = None) -> pa.Table:
    """Return the rows of messages, whose times are all by one clock without `clocked`."""
    rank = np.append(rank_of(names.streams.to_pylist()), 0)
    timed, clock = sightings.timed, sightings.timed.astype(np.int8)
    times: tuple[Any, ...] = (sightings.ns,)
    points: tuple[Any, ...] = ()
    if clocked is not None:
        times = clocked.reference, clocked.ns, sightings.ns
        clock, points = clocked.reference.astype(np.int8), (clocked.point,)
    order, starts = order_groups(
        sightings.message, len(names.keys), ~timed, *times, sightings.kind, *points,
        sightings.frame, rank[sightings.stream], sightings.offset, sightings.consumer,
    )  # fmt: skip
    sightings, clock = sightings.take(order), clock[order]
    consumer, consumers = dense_ids(
        sightings.message, clock, sightings.consumer, sightings.has_consumer
    )
    count = len(order)
    ordinal, follows = np.empty(count, np.int32), np.full(count, -1, np.int64)
    _follow_hops(
        starts, sightings.kind, clock, consumer, _FOLLOWED, _WHOLE,
        np.full((len(KINDS), consumers), -1, np.int64), ordinal, follows,
    )  # fmt: skip
    before, timed = np.maximum(follows, 0), sightings.timed
    took = sightings.ns - sightings.ns[before] if count else sightings.ns
    error = ahead = ahead_error = np.zeros(count, np.int64)
    reason: Any = _FIRST
    if clocked is not None:
        clocked = clocked.take(order)
        ahead = sightings.ns - clocked.ns
        elsewhere = clocked.point != clocked.point[before]
        took = np.where(elsewhere, clocked.ns - clocked.ns[before], took)
        between = clocked.error_ns(clocked.point[before], ahead - ahead[before])
        error = np.where(elsewhere, between, 0)
        ahead_error, reason = clocked.error_ns(clocked.reference, ahead), clocked.reason
    known = (follows >= 0) & timed
    unknown = np.where(timed, np.where(follows < 0, reason, -1), _UNTIMED)
    no_endpoint = pc.index(names.ends, "").as_py()
    sender, receiver = (
        decode_texts(np.where(end == no_endpoint, -1, end), names.ends)
        for end in (sightings.sender, sightings.receiver)
    )
    return as_fact_table(
        "hops",
        {
            "message_key": decode_texts(sightings.message, names.keys),
            "hop": ordinal,
            "kind": decode_texts(sightings.kind, pa.array(KINDS)),
            "sender": sender,
            "receiver": receiver,
            "consumer_id": pa.array(sightings.consumer, mask=~sightings.has_consumer),
            "captured_ns": pa.array(sightings.ns, mask=~timed),
            "frame": pa.array(sightings.frame, mask=~sightings.has_frame),
            "follows": pa.array(ordinal[before] if count else ordinal, mask=follows < 0),
            "took_ns": pa.array(took, mask=~known),
            "took_error_ns": pa.array(error, mask=~known),
            "unknown": decode_texts(unknown, pa.array(_UNKNOWN)),
            "clock_ahead_ns": pa.array(ahead, mask=~timed),
            "clock_error_ns": pa.array(ahead_error, mask=~timed),
            "source": decode_texts(sightings.source, names.sources),
            "stream": decode_texts(sightings.stream, names.streams),
            "offset": sightings.offset,
        },
    )


@kernel
def _follow_hops(
    starts: Ints, kind: Int8s, timed: Int8s, consumer: Int32s, followed: IntGrid8, whole: Int8s,
    latest: Grid, ordinal: Int32s, follows: Ints,
) -> None:  # fmt: skip
    """Assign numbers to the hops of each message, and find the one that each follows from."""
    kinds = len(whole)
    for group in range(len(starts) - 1):
        # The latest "sent" and "accepted" of the message, separately for untimed and timed ones.
        sent = _long(-1)
        accepted = _long(-1)
        was_timed = _long(-1)
        for row in range(starts[group], starts[group + 1]):
            if timed[row] != was_timed:
                sent, accepted, was_timed = _long(-1), _long(-1), _long(timed[row])
            ordinal[row] = row - starts[group] + 1
            before = _long(-1)
            for other in range(kinds):
                if followed[kind[row], other]:
                    if other == _SENT:
                        before = max(before, sent)
                    elif other == _ACCEPTED:
                        before = max(before, accepted)
                    else:
                        before = max(before, latest[other, consumer[row]])
            follows[row] = before
            if kind[row] == _SENT:
                sent = row
            elif kind[row] == _ACCEPTED:
                accepted = row
            else:
                latest[kind[row], consumer[row]] = row
