"""The shape of a message, which the messages of every format have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.pandas.types import from_arrow_type

from wireyard.spark.tables.rows import captured_at

__all__ = ["MESSAGES", "as_message", "message_table"]

_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(
    pa.string(), pa.struct([("type", pa.string()), ("value", pa.string())])
)
MESSAGES: Final = pa.schema(
    [
        ("message_key", pa.string()),
        ("protocol", pa.string()),
        ("sent_ms", pa.int64()),
        ("sent_at", _TIME),
        ("captured_ns", pa.int64()),
        ("captured_at", _TIME),
        ("producer", pa.string()),
        ("client_id", pa.string()),
        ("destination", pa.string()),
        ("destination_kind", pa.string()),
        ("persistent", pa.bool_()),
        ("qos", pa.int32()),
        ("priority", pa.int32()),
        ("retained", pa.bool_()),
        ("expiration_ms", pa.int64()),
        ("expiration_at", _TIME),
        ("delivery_time_ms", pa.int64()),
        ("delivery_time_at", _TIME),
        ("correlation_id", pa.string()),
        ("reply_to", pa.string()),
        ("message_type", pa.string()),
        ("transaction_id", pa.int64()),
        ("body_kind", pa.string()),
        ("body_size", pa.int64()),
        ("body", pa.binary()),
        ("properties", _PROPERTIES),
        ("compressed", pa.bool_()),
        ("producer_id", pa.int64()),
        ("first_seen", pa.string()),
        ("source", pa.string()),
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
    ]
)
"""The columns of the table."""
_NS_PER_US: Final = 1000
_OF_ITS_ROW: Final = ("captured_ns", "source", "stream", "offset", "length")


def as_message(known: Mapping[str, Column]) -> list[Column]:
    """Return the columns of a message, of which a format knows some; the others are null.

    Where it comes from, and when it was captured, is what its row says.
    """
    columns = {field.name: F.lit(None).cast(from_arrow_type(field.type)) for field in MESSAGES}
    columns |= {name: F.col(name) for name in _OF_ITS_ROW}
    columns |= {"captured_at": captured_at(), **known}
    return [column.alias(name) for name, column in columns.items()]


def message_table(known: Mapping[str, pa.Array], rows: int) -> pa.Table:
    """Return messages as a part of the table, of which some columns are known.

    Text is a dictionary and its indices, but for keys.
    """
    columns = dict(known)
    missing = pc.is_null(columns["captured_ns"]).to_numpy(zero_copy_only=False)
    us = pc.fill_null(columns["captured_ns"], 0).to_numpy(zero_copy_only=False) // _NS_PER_US
    columns["captured_at"] = pa.array(us, mask=missing)
    arrays, fields = [], []
    for field in MESSAGES:
        array = columns.get(field.name)
        array = pa.nulls(rows, field.type) if array is None else array
        if field.type == pa.string() and field.name != "message_key":
            if not pa.types.is_dictionary(array.type):
                array = array.dictionary_encode()
        elif array.type != field.type:
            array = array.cast(field.type)
        arrays.append(array)
        fields.append(pa.field(field.name, array.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
