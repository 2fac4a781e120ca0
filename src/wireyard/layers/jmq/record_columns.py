"""Functions on columns of records that the phases after the first share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.layers.grouping import decode_texts, text_codes
from wireyard.layers.jmq.packet_columns import rank_of

__all__ = [
    "Positions",
    "empty_to_null",
    "join_codes",
    "nullable",
    "positions_of",
    "take_or_null",
    "texts_of",
    "whole",
]


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
