"""Columns of records that the phases after the first share, and what stands for a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.layers.grouping import decode_texts, first_of_groups, text_codes
from wireyard.layers.jmq.packet_columns import ROW_NUMBER, rank_of
from wireyard.layers.tables import as_fact_table


def join_codes(*columns: pa.ChunkedArray) -> tuple[list[Any], pa.Array]:
    """Return the dictionary codes of several columns of text, and their common dictionary."""
    coded = []
    for column in columns:
        codes, texts = text_codes(column)
        coded.append(decode_texts(codes, texts))
    first = coded[0].dictionary
    if any(not column.dictionary.equals(first) for column in coded[1:]):
        unified = pa.chunked_array(coded).unify_dictionaries()
        coded, first = unified.chunks, unified.chunk(0).dictionary
    return [codes.indices.fill_null(-1).to_numpy(zero_copy_only=False) for codes in coded], first


def nullable(column: pa.ChunkedArray) -> tuple[Ints, Any]:
    """Return the numbers of a column, 0 for null, and which are not null."""
    is_valid = column.is_valid().to_numpy() if column.null_count else np.ones(len(column), bool)
    filled = column.fill_null(0) if column.null_count else column
    return np.require(filled.to_numpy(), np.int64, ["C", "W"]), is_valid


class Positions(NamedTuple):
    """Positions of records as columns that sort like `Position.order`; axis: record."""

    ns: Ints
    frame: Ints
    stream: Ints
    """Rank of the name of the stream."""
    offset: Ints


def positions_of(*tables: pa.Table) -> list[Positions]:
    """Return the positions of the records of each table, with ranks of streams over all tables."""
    codes, names = join_codes(*(table["stream"] for table in tables))
    rank = np.append(rank_of(names.to_pylist()), 0)
    return [
        Positions(
            nullable(table["ns"])[0],
            nullable(table["frame"])[0],
            rank[code],
            nullable(table["offset"])[0],
        )
        for table, code in zip(tables, codes, strict=True)
    ]


def take_or_null(column: pa.ChunkedArray, rows: Any, is_valid: Any) -> pa.Array:
    """Return the values of some rows of a column, null where `is_valid` is false."""
    if not is_valid.any():
        return pa.nulls(len(rows), column.type)
    return whole(column.take(pa.array(rows, mask=~is_valid)))


def texts_of(values: list[str], codes: Any) -> pa.Array:
    """Return a dictionary column of texts by their codes, null for -1."""
    return decode_texts(codes, pa.array(values, pa.string()))


def whole(column: Any) -> pa.Array:
    """Return a column as one array."""
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(combined, pa.ChunkedArray):  # of more than 2 GB
        return pa.concat_arrays(combined.chunks)
    return combined


def empty_to_null(texts: pa.Array) -> pa.Array:
    """Replace empty texts by null."""
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def violation_rows(rules: pa.Array, where: Mapping[str, Any], **columns: Any) -> pa.Table:
    """Return rows of the table ``violations``; `where` has the positions of their packets."""
    at = {name: where[name] for name in ("frame", "source", "stream", "offset")}
    protocol = texts_of(["jms"], np.zeros(len(rules)))
    at |= {"protocol": protocol, "rule": rules, "captured_ns": where["ns"]}
    return as_fact_table("violations", at | columns)


# --- what stands for a message --------------------------------------------------------------

FIRST_SEEN: Final = ("sent", "delivered", "relayed", "relay_acknowledged")
"""The kinds of a message's packet: sent by the producer, delivered by the broker, or only relayed
in a GPacket."""


def stand_for_messages(sendings: pa.Table, deliveries: pa.Table, relays: pa.Table) -> pa.Table:
    """Return the packet that represents each message, one for all sources.

    It is a sending rather than a delivery, one without flag I or R rather than one with it, then
    the first by source and time. Client, client id and user are those of its connection at the
    time. The columns are `message_key`, `first_seen` (one of `FIRST_SEEN`), `client`,
    `producer_client_id`, `user` and `ROW_NUMBER`.
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
