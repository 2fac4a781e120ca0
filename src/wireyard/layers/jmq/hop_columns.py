"""The last phase of the columnar engine, key: message. The hops of each message.

Messages whose times are by one clock become rows here. A message in several captures needs clock
offsets (``clocks.py``): its records are returned for the stages of ``hops.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import array, kernel
from wireyard.arrays import Ints
from wireyard.formats.base import Row
from wireyard.layers.grouping import (
    decode_texts,
    dense_ids,
    first_of_groups,
    order_groups,
    text_codes,
)
from wireyard.layers.jmq import hops as stages
from wireyard.layers.jmq.hops import FOLLOWS, HOPS, OF_MESSAGE, Sighting, hop_record
from wireyard.layers.jmq.packet_columns import ROW_NUMBER, rank_of
from wireyard.layers.jmq.record_columns import join_codes, nullable, positions_of
from wireyard.layers.records import Position, position_of
from wireyard.layers.stages import KeyedRecord
from wireyard.layers.tables import as_fact_table

__all__ = [
    "FIRST_SEEN",
    "KEY_PATTERN",
    "HopResult",
    "order_hops",
    "records_of",
    "stand_for_messages",
]

_long: Final[Any] = np.int64
_I32S, _I64S, _I8S = array("int32"), array("int64"), array("int8")
_KINDS: Final = tuple(HOPS)
_SENT, _ACCEPTED, _RELAYED, _DELIVERED, _ACKNOWLEDGED, _RELAY_ACKNOWLEDGED = (
    _KINDS.index(kind)
    for kind in ("sent", "accepted", "relayed", "delivered", "acknowledged", "relay_acknowledged")
)
_FOLLOWED: Final = np.array(
    [[other in FOLLOWS[kind] for other in _KINDS] for kind in _KINDS], np.int8
)
_WHOLE: Final = np.array([kind in OF_MESSAGE for kind in _KINDS], np.int8)

FIRST_SEEN: Final = ("sent", "delivered", "relayed", "relay_acknowledged")
"""The kinds of a message's packet: sent by the producer, delivered by the broker, or only relayed
in a GPacket."""


class HopResult(NamedTuple):
    """The result of `order_hops`.

    Attributes
    ----------
    hops
        Rows of the table ``hops`` for messages with times of one source.
    records
        Sendings, deliveries and relays of all other messages.
    dropped
        The number of sightings above `MAX_SIGHTINGS`.
    """

    hops: pa.Table
    records: tuple[pa.Table, pa.Table, pa.Table]
    dropped: Counter[str]


class _Sightings(NamedTuple):
    """Sightings of messages, one packet each, as columns."""

    message: Any
    kind: Any
    consumer: Ints
    has_consumer: Any
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


def order_hops(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> HopResult:
    """Order the sightings of each message, like the stages of ``hops.py``."""
    tables = sendings, deliveries, relays
    codes, keys = join_codes(*(table["message_key"] for table in tables))
    message = np.concatenate(codes)
    sources, source_names = join_codes(*(table["source"] for table in tables))
    sightings, texts = _sightings(tables, message, np.concatenate(sources))
    several = _of_several_sources(sightings, len(keys))
    records = tuple(
        table.filter(pa.array(several[code])) for table, code in zip(tables, codes, strict=True)
    )
    chosen = ~several[sightings.message]
    dropped: Counter[str] = Counter()
    kept = np.flatnonzero(chosen)
    counts = np.bincount(sightings.message[kept], minlength=len(keys))
    if counts.max(initial=0) > stages.MAX_SIGHTINGS:
        kept, dropped["MAX_SIGHTINGS"] = _within_cap(
            tables, sightings, kept, counts > stages.MAX_SIGHTINGS, source_names
        )
    sightings = _Sightings(*(column[kept] for column in sightings))
    rows = _rows(sightings, len(keys), keys, source_names, texts)
    return HopResult(rows, (records[0], records[1], records[2]), dropped)


def _sightings(
    tables: tuple[pa.Table, pa.Table, pa.Table], message: Any, source: Any
) -> tuple[_Sightings, tuple[pa.Array, pa.Array]]:
    sendings, deliveries, relays = tables
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
    of_name = np.array([*map(_KINDS.index, kind_names.to_pylist()), 0])
    kinds = [
        np.full(len(sent), _SENT), np.full(len(accepted), _ACCEPTED), of_name[relay_kinds],
        np.full(len(delivered), _DELIVERED), np.full(len(acknowledged), _ACKNOWLEDGED),
    ]  # fmt: skip
    at_relay, at_delivery = (nullable(t["consumer_id"])[0] for t in (relays, deliveries))
    no_consumer = np.zeros(len(sent) + len(accepted), np.int64)

    def numbers(name: str) -> tuple[Ints, Any]:
        parts = [
            nullable(sendings[name]), _nullable_rows(sendings[f"accepted_{name}"], accepted),
            nullable(relays[name]), nullable(deliveries[name]),
            _nullable_rows(deliveries[f"acknowledged_{name}"], acknowledged),
        ]  # fmt: skip
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    (offset, _), (frame, has_frame), (ns, timed) = map(numbers, ("offset", "frame", "ns"))
    sightings = _Sightings(
        message[record], np.concatenate(kinds).astype(np.int8),
        np.concatenate([no_consumer, at_relay, at_delivery, at_delivery[acknowledged]]),
        np.arange(len(record)) >= len(no_consumer), source[record],
        np.concatenate([streams[0], streams[1][accepted], streams[2], streams[3],
                        streams[4][acknowledged]]),
        offset, frame, has_frame, ns, timed,
        np.concatenate([ends[0], ends[1][accepted], ends[4], ends[3], ends[2][acknowledged]]),
        np.concatenate([ends[1], ends[0][accepted], ends[5], ends[2], ends[3][acknowledged]]),
        record,
        np.concatenate([np.full(len(part), second) for part, second in zip(
            (sent, accepted, relayed, delivered, acknowledged), (0, 1, 0, 0, 1), strict=True)]),
    )  # fmt: skip
    return sightings, (stream_names, names)


def _nullable_rows(column: pa.ChunkedArray, rows: Any) -> tuple[Ints, Any]:
    values, is_valid = nullable(column)
    return values[rows], is_valid[rows]


def _of_several_sources(sightings: _Sightings, messages: int) -> Any:
    """Return which messages have times of several sources."""
    timed = np.flatnonzero(sightings.timed)
    message, source = sightings.message[timed], sightings.source[timed]
    last_source = np.full(messages, -1, np.int64)
    last_source[message] = source
    several = np.zeros(messages, bool)
    several[message[last_source[message] != source]] = True
    return several


def _within_cap(
    tables: tuple[pa.Table, ...], sightings: _Sightings, kept: Any, above: Any, sources: pa.Array
) -> tuple[Any, int]:
    """Return the sightings within `MAX_SIGHTINGS` for each message, and the number of others."""
    many = kept[above[sightings.message[kept]]]
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
    keep = place - sightings.second[in_order] < stages.MAX_SIGHTINGS
    rest = kept[~above[sightings.message[kept]]]
    return np.concatenate([rest, in_order[keep]]), int((~keep).sum())


def _rows(
    sightings: _Sightings, messages: int, keys: pa.Array, sources: pa.Array,
    texts: tuple[pa.Array, pa.Array],
) -> pa.Table:  # fmt: skip
    streams, ends = texts
    rank = rank_of(streams.to_pylist())
    order, starts = order_groups(
        sightings.message, messages, ~sightings.timed, sightings.ns, sightings.kind,
        sightings.frame, rank[sightings.stream] if len(rank) else sightings.stream,
        sightings.offset, sightings.consumer,
    )  # fmt: skip
    sightings = _Sightings(*(column[order] for column in sightings))
    timed = sightings.timed.astype(np.int8)
    consumer, consumers = dense_ids(
        sightings.message, timed, sightings.consumer, sightings.has_consumer
    )
    count = len(order)
    ordinal, follows = np.empty(count, np.int32), np.full(count, -1, np.int64)
    _follow_hops(
        starts, sightings.kind, timed, consumer, _FOLLOWED, _WHOLE,
        np.full((len(_KINDS), consumers), -1, np.int64), ordinal, follows,
    )  # fmt: skip
    before = np.maximum(follows, 0)
    known = (follows >= 0) & sightings.timed
    took = sightings.ns - sightings.ns[before] if count else sightings.ns
    unknown = np.where(sightings.timed, np.where(follows < 0, 0, -1), 1)
    no_endpoint = pc.index(ends, "").as_py()
    zeros, untimed = np.zeros(count, np.int64), ~sightings.timed
    return as_fact_table(
        "hops",
        {
            "message_key": decode_texts(sightings.message, keys),
            "hop": ordinal,
            "kind": decode_texts(sightings.kind, pa.array(_KINDS)),
            "sender": decode_texts(
                np.where(sightings.sender == no_endpoint, -1, sightings.sender), ends
            ),
            "receiver": decode_texts(
                np.where(sightings.receiver == no_endpoint, -1, sightings.receiver), ends
            ),
            "consumer_id": pa.array(sightings.consumer, mask=~sightings.has_consumer),
            "captured_ns": pa.array(sightings.ns, mask=untimed),
            "frame": pa.array(sightings.frame, mask=~sightings.has_frame),
            "follows": pa.array(ordinal[before] if count else ordinal, mask=follows < 0),
            "took_ns": pa.array(took, mask=~known),
            "took_error_ns": pa.array(zeros, mask=~known),
            "unknown": decode_texts(unknown, pa.array(["first", "untimed"])),
            "clock_ahead_ns": pa.array(zeros, mask=untimed),
            "clock_error_ns": pa.array(zeros, mask=untimed),
            "source": decode_texts(sightings.source, sources),
            "stream": decode_texts(sightings.stream, streams),
            "offset": sightings.offset,
        },
    )


@kernel(
    (_I64S, _I8S, _I8S, _I32S, array("int8", 2), _I8S, array("int64", 2), _I32S, _I64S),
)
def _follow_hops(
    starts: Any, kind: Any, timed: Any, consumer: Any, followed: Any, whole: Any, latest: Any,
    ordinal: Any, follows: Any,
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


# --- messages -------------------------------------------------------------------------------


def stand_for_messages(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> pa.Table:
    """Return the packet that represents each message, one for all sources.

    It is a sending rather than a delivery, one without flag I or R rather than one with it, then
    the first by source and time. Client, client id and user are those of its connection at the
    time.

    Returns
    -------
    messages
        `message_key`, `first_seen` (one of `FIRST_SEEN`), `client`, `producer_client_id`, `user`,
        `ROW_NUMBER`.
    """
    tables = sendings, deliveries, relays
    codes, keys = join_codes(*(table["message_key"] for table in tables))
    sources, names = join_codes(*(table["source"] for table in tables))
    rank = np.append(rank_of(names.to_pylist()), 0)
    positions = [np.concatenate(parts) for parts in zip(*positions_of(*tables), strict=True)]
    kinds, kind_names = text_codes(relays["kind"])
    of_kind = np.array([*map(FIRST_SEEN.index, kind_names.to_pylist()), 0], np.int8)
    seen = np.concatenate(
        [np.zeros(len(codes[0]), np.int8), np.ones(len(codes[1]), np.int8), of_kind[kinds]]
    )
    resent = np.concatenate(
        [table["resent"].to_numpy() for table in tables[:2]] + [np.zeros(len(codes[2]), bool)]
    )
    first = first_of_groups(
        np.concatenate(codes), len(keys), seen, resent, rank[np.concatenate(sources)], *positions
    )
    chosen = np.flatnonzero(first >= 0)
    rows = first[chosen]
    is_sent = rows < sendings.num_rows
    sent = pa.array(np.where(is_sent, rows, 0), mask=~is_sent)
    numbers = np.concatenate([table[ROW_NUMBER].to_numpy() for table in tables])
    return pa.table(
        {
            "message_key": keys.take(pa.array(chosen)),
            "first_seen": decode_texts(seen[rows], pa.array(FIRST_SEEN)),
            **{
                name: sendings[column].take(sent).cast(pa.string())
                for name, column in _OF_SENDER.items()
            },
            ROW_NUMBER: numbers[rows],
        }
    )


_OF_SENDER: Final = {"client": "producer", "producer_client_id": "client_id", "user": "user"}


def producers_of(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> pa.Table:
    """Return the producers of messages by source, with the times of their first and last one."""
    keys = pa.concat_tables(
        [
            pa.table({name: table[name].cast(pa.string()) for name in ("source", "message_key")})
            for table in (sendings, deliveries, relays)
        ]
    )
    return producers_of_keys(keys)


def producers_of_keys(keys: pa.Table) -> pa.Table:
    """Return the producers of messages from the columns `source` and `message_key` alone."""
    parts = pc.extract_regex(keys["message_key"], KEY_PATTERN)
    rows = pa.table(
        {
            "source": keys["source"],
            "producer": pc.struct_field(parts, "producer"),
            "ms": pc.struct_field(parts, "ms").cast(pa.int64()),
        }
    )
    spans = rows.group_by(["source", "producer"], use_threads=False).aggregate(
        [("ms", "min"), ("ms", "max")]
    )
    columns = {
        "source": spans["source"],
        "producer": spans["producer"],
        "first_ms": spans["ms_min"],
        "last_ms": spans["ms_max"],
    }
    return as_fact_table("producers", {name: column.combine_chunks() for name, column in
                                    columns.items()})  # fmt: skip


KEY_PATTERN: Final = r"^(?P<sequence>-?\d+)-(?P<producer>[^-]*--?\d+)-(?P<ms>-?\d+)$"
"""The text form of a SysMessageID: sequence, address, port, time."""


_POSITION: Final = ("stream", "offset", "frame", "ns")

# --- messages of several sources ------------------------------------------------------------


def records_of(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> Iterator[KeyedRecord]:
    """Yield records for the stages of ``hops.py``, few at a time in memory."""
    for table, seen in ((sendings, _sent), (deliveries, _delivered), (relays, _relayed)):
        for batch in table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                yield hop_record(row["message_key"], list(seen(row)))


def _position(row: Row, prefix: str = "") -> Position:
    stream, offset, frame, ns = (row[f"{prefix}{name}"] for name in _POSITION)
    return position_of((ns or 0, frame or 0, stream, offset, ns, frame, row["source"]))


def _sent(row: Row) -> Iterator[Sighting]:
    client, server = row["producer"], row["server"]
    yield Sighting("sent", None, None, client, server, _position(row))
    if row["accepted_offset"] is not None:
        yield Sighting("accepted", None, None, server, client, _position(row, "accepted_"))


def _delivered(row: Row) -> Iterator[Sighting]:
    client, server = row["consumer"], row["server"]
    copy = row["consumer_id"], row["delivery_count"]
    yield Sighting("delivered", *copy, server, client, _position(row))
    if row["acknowledged_offset"] is not None:
        yield Sighting("acknowledged", *copy, client, server, _position(row, "acknowledged_"))


def _relayed(row: Row) -> Iterator[Sighting]:
    yield Sighting(
        row["kind"], row["consumer_id"], None, row["sender"], row["receiver"], _position(row)
    )
