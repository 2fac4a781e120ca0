"""Columns of records, as the phases behind the first share them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.grouping import Int64s, decode_texts, text_codes
from wireyard.layers.jmq.packet_columns import rank_of

__all__ = [
    "Positions",
    "join_codes",
    "never_empty",
    "nullable",
    "positions_of",
    "take_rows",
    "texts_of",
    "whole",
]


def join_codes(*columns: pa.ChunkedArray) -> tuple[list[Any], pa.Array]:
    """Return the codes of several columns of text, with the same texts for all."""
    coded = []
    for column in columns:
        codes, texts = text_codes(column)
        coded.append(decode_texts(codes, texts))
    first = coded[0].dictionary
    if any(not one.dictionary.equals(first) for one in coded[1:]):
        whole = pa.chunked_array(coded).unify_dictionaries()
        coded, first = whole.chunks, whole.chunk(0).dictionary
    return [one.indices.fill_null(-1).to_numpy(zero_copy_only=False) for one in coded], first


def nullable(column: pa.ChunkedArray) -> tuple[Int64s, Any]:
    """Return numbers, 0 for null, and which are not null."""
    there = column.is_valid().to_numpy() if column.null_count else np.ones(len(column), bool)
    filled = column.fill_null(0) if column.null_count else column
    return np.require(filled.to_numpy(), np.int64, ["C", "W"]), there


class Positions(NamedTuple):
    """Positions of records; axis: record. They sort as `Position.order` does."""

    ns: Int64s
    frame: Int64s
    stream: Int64s
    """Rank of the name of the stream."""
    offset: Int64s


def positions_of(*tables: pa.Table) -> list[Positions]:
    """Return the positions of records; ranks of streams are those of all tables together."""
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


def take_rows(column: pa.ChunkedArray, rows: Any, there: Any | None = None) -> pa.Array:
    """Return values of some rows; null where `there` is not."""
    if there is not None and not there.any():
        return pa.nulls(len(rows), column.type)
    at = pa.array(rows) if there is None else pa.array(rows, mask=~there)
    found = column.take(at).combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def texts_of(values: list[str], codes: Any) -> pa.Array:
    """Return texts by their codes, null for -1."""
    return decode_texts(codes, pa.array(values, pa.string()))


def whole(column: Any) -> pa.Array:
    """Return a column as one array."""
    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def never_empty(texts: pa.Array) -> pa.Array:
    """Return texts, null for empty ones."""
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
