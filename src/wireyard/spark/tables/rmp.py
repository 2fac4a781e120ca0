"""The messages in RMP packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.formats.base import Row
from wireyard.formats.rmp.layout import LAYERS
from wireyard.layers.rmp.observer import NEEDED, Observer, Seen, observe
from wireyard.spark.tables.message import as_message
from wireyard.spark.tables.rows import ROW, STREAM, endpoint
from wireyard.spark.types import spark_schema

__all__ = ["messages"]

_ENDPOINTS: Final = ("src_addr", "src_port", "dst_addr", "dst_port")
_SAID: Final = (
    "layer", "message_number", "domain", "client", "reply_message_number", "reply_source",
    "reply_requested",
)  # fmt: skip
_PROPERTIES: Final = {
    "layer": "integer",
    "domain": "integer",
    "message_number": "integer",
    "reply_requested": "boolean",
    "packets": "integer",
    "frames": "string",
}
"""What a message says that has no column of its own, and the types that JMS properties have."""
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in STREAM),
        *((name, pa.int32() if "port" in name else pa.string()) for name in _ENDPOINTS),
        *((name, pa.int32()) for name in _SAID[:-2]),
        ("reply_source", pa.string()),
        ("reply_requested", pa.bool_()),
        *((name, pa.int64()) for name in ("offset", "length", "captured_ns")),
        ("packets", pa.int32()),
        ("frames", pa.string()),
        ("data", pa.binary()),
    ]
)
_said_in = attrgetter(*_SAID)
_BATCH_ROWS: Final = 1 << 13
_BATCH_BYTES: Final = 32 << 20
"""Two of the longest messages."""


def messages(packets: DataFrame) -> DataFrame:
    """Return the messages in RMP packets: one row a whole message.

    Packets are dealt by their stream, which is what one process sent to one group, and put together
    as a receiver on the same wire would (``wireyard.layers.rmp.observer``). The row is that of the
    message's first packet; `length` has the bytes of all of them, and the property `frames` their
    frames. A packet that came again is counted once. What is not whole is no message; the table of
    violations has it.

    `destination` is the group, `client_id` the number of the sending client, `message_type` the
    layer that it is for. A request and its replies have the same `correlation_id`: the process that
    asks, and the number of its message.
    """
    dealt = packets.select(*NEEDED).repartition(*STREAM).sortWithinPartitions(*ROW)
    return dealt.mapInArrow(_put_together, spark_schema(_SCHEMA)).select(*_message_columns())


def _put_together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of some senders, whose packets stand behind each other."""
    held: list[tuple[Any, ...]] = []
    held_bytes = 0
    rows = chain.from_iterable(batch.to_pylist() for batch in batches)
    for _, of_sender in groupby(rows, key=itemgetter(*STREAM)):
        for message in _messages(of_sender):
            held.append(message)
            held_bytes += len(message[-1])
            if len(held) == _BATCH_ROWS or held_bytes > _BATCH_BYTES:
                yield _batch(held)
                held, held_bytes = [], 0
    if held:
        yield _batch(held)


def _batch(messages: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = map(pa.array, zip(*messages, strict=True), _SCHEMA.types)
    return pa.RecordBatch.from_arrays(list(columns), schema=_SCHEMA)


def _messages(packets: Iterator[Row]) -> Iterator[tuple[Any, ...]]:
    """Yield the whole messages of a sender, with the columns of `_SCHEMA`."""
    first = next(packets)
    sender = tuple(first[name] for name in (*STREAM, *_ENDPOINTS))
    for seen in observe(chain([first], packets), Observer()):
        if isinstance(seen, Seen):
            fields, data, places = seen
            first_place = places[0]
            length = sum(place.length for place in places)
            frames = _ranges(place.frame for place in places if place.frame is not None)
            where = first_place.offset, length, first_place.ns, len(places), frames
            yield (*sender, *_said_in(fields), *where, data)


def _ranges(frames: Iterable[int]) -> str | None:
    """Return numbers as text, those that follow each other as the first and the last: 3-7, 9."""
    parts: list[list[int]] = []
    for frame in frames:
        if parts and frame == parts[-1][-1] + 1:
            parts[-1][1:] = [frame]
        else:
            parts.append([frame])
    return ", ".join("-".join(map(str, part)) for part in parts) or None


def _message_columns() -> list[Column]:
    producer = endpoint(F.col("src_addr"), F.col("src_port"))
    group = endpoint(F.col("dst_addr"), F.col("dst_port"))
    names = F.create_map(*(F.lit(part) for layer in LAYERS.items() for part in layer))
    named = F.concat_ws(" ", F.lit("layer"), F.col("layer"))
    layer = F.when(F.col("layer").isNull(), "foreign").otherwise(
        F.coalesce(F.try_element_at(names, F.col("layer")), named)
    )
    asked = F.when(F.col("reply_requested"), _called(producer, F.col("message_number")))
    known = {
        "message_key": F.concat("stream", F.lit("@"), F.col("offset").cast("string")),
        "protocol": F.lit("rmp"),
        "producer": producer,
        "client_id": F.col("client").cast("string"),
        "destination": group,
        "destination_kind": F.when(group.isNotNull(), "group"),
        "correlation_id": F.coalesce(
            _called(F.col("reply_source"), F.col("reply_message_number")), asked
        ),
        "message_type": layer,
        "body_kind": F.lit("bytes"),
        "body_size": F.length("data").cast("long"),
        "body": F.col("data"),
        "properties": _properties(),
        "first_seen": F.lit("sent"),
    }
    return as_message(known)


def _called(process: Column, number: Column) -> Column:
    """Return what a reply calls a message by; null if it has no number."""
    return F.concat(process, F.lit("/"), number.cast("string"))


def _properties() -> Column:
    entries = [
        F.struct(
            F.lit(name).alias("key"),
            F.struct(F.lit(kind).alias("type"), F.col(name).cast("string").alias("value")).alias(
                "value"
            ),
        )
        for name, kind in _PROPERTIES.items()
    ]
    known = F.filter(F.array(*entries), lambda one: one["value"]["value"].isNotNull())
    return F.map_from_entries(known)
