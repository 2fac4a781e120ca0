"""The layers as the facts stage runs them: which packets each takes, and what belongs together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.formats.mqtt.layout import CONNECT
from wireyard.layers.jmq.chain import CHAIN as JMS
from wireyard.layers.jmq.receiver import DEAD_REASON
from wireyard.layers.jmq.walk import NEEDED as JMS_NEEDED
from wireyard.layers.mqtt.derive import CHAIN as MQTT
from wireyard.layers.mqtt.directions import TELLING, sides_of
from wireyard.layers.mqtt.observer import NEEDED as MQTT_NEEDED
from wireyard.layers.rmp.chain import CHAIN as RMP
from wireyard.layers.rmp.observer import NEEDED as RMP_NEEDED
from wireyard.spark.facts import Layer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["LAYERS", "connection_key"]

_JMS = ("jmq", "gpacket")
_STREAM = ("source", "stream")
_ENDPOINTS = ("src_addr", "src_port", "dst_addr", "dst_port")
_BETWEEN = "\0"
"""Between the parts of a key: it is in no path, address or id."""


# --- jms ------------------------------------------------------------------------------------


def _jms_rows(packets: Mapping[str, DataFrame], streams: DataFrame) -> DataFrame | None:
    """Return JMQ packets and GPackets with what says something, and the streams that ended.

    The body of a message says nothing, and of its properties only why it is dead.
    """
    found = [
        frame.select(*(name for name in JMS_NEEDED if name in frame.columns))
        for name in _JMS
        if (frame := packets.get(name)) is not None
    ]
    if not found:
        return None
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), found)
    of_client = (_format() == "jmq") & F.col("packet_type").isin(*MESSAGE_TYPES)
    is_message = F.coalesce(of_client, F.lit(False))
    says_why = F.coalesce(F.map_contains_key("properties", DEAD_REASON), F.lit(False))
    rows = rows.withColumns(
        {
            "body": F.when(~is_message, F.col("body")),
            "properties": F.when(~is_message | says_why, F.col("properties")),
        }
    )
    ended = streams.where(_format().isin(*_JMS) & F.col("ended").isNotNull())
    ended = ended.select(*_STREAM, *_ENDPOINTS, "ended")
    return rows.unionByName(ended, allowMissingColumns=True).withColumn("key", connection_key())


def _format() -> Column:
    """Return the format of a row or a stream without its dialect."""
    return F.substring_index("format", "/", 1)


def connection_key() -> Column:
    """Return what the two streams of a connection have in common, as `connection_of` does.

    Of a captured stream the name has the endpoints, and an ordinal.
    """
    name = F.split("stream", "#", 2)
    ends = F.concat_ws(">", F.array_sort(F.split(name[0], ">")))
    ordinal = F.try_element_at(name, F.lit(2))
    captured = F.concat_ws("#", ends, ordinal)
    return F.concat_ws(
        _BETWEEN, "source", F.when(F.col("src_addr").isNull(), F.col("stream")).otherwise(captured)
    )


# --- mqtt -----------------------------------------------------------------------------------


def _mqtt_rows(packets: Mapping[str, DataFrame], streams: DataFrame) -> DataFrame | None:
    """Return MQTT packets with what says something, and what is known of each stream."""
    found = packets.get("mqtt")
    if found is None:
        return None
    rows = found.select(*MQTT_NEEDED)
    sides = _sides(rows)
    told = streams.select(*_STREAM, "begun", "ended", "ended_frame", "ended_ns")
    known = sides.join(told, list(_STREAM), "left")
    keyed = rows.join(sides.select(*_STREAM, "key"), list(_STREAM))
    return keyed.unionByName(known, allowMissingColumns=True)


def _sides(rows: DataFrame) -> DataFrame:
    """Tell which side of its connection each stream is, and whose."""
    kind = F.col("packet_type")
    moment = F.struct(kind != CONNECT, "captured_ns", "frame", "offset")
    told = F.struct(kind, "client_id", "return_code", "properties")
    by_stream = rows.groupBy(*_STREAM).agg(
        F.min_by(told, F.when(kind.isin(*TELLING), moment)).alias("told"),
        *(F.any_value(end, True).alias(end) for end in _ENDPOINTS),
    )
    sides = sides_of(by_stream.select(*_STREAM, *_ENDPOINTS, "told.*").toArrow().to_pylist())
    found = pa.Table.from_pylist(
        [
            {
                "source": source,
                "stream": stream,
                "key": _BETWEEN.join(side.key),
                "by_client": side.by_client,
                "alone": side.alone,
            }
            for (source, stream), side in sides.items()
        ],
        _SIDES,
    )
    return rows.sparkSession.createDataFrame(found)


_SIDES = pa.schema(
    [
        *((name, pa.string()) for name in (*_STREAM, "key")),
        *((name, pa.bool_()) for name in ("by_client", "alone")),
    ]
)


# --- rmp ------------------------------------------------------------------------------------


def _rmp_rows(packets: Mapping[str, DataFrame], _streams: DataFrame) -> DataFrame | None:
    """Return RMP packets; a sender and its group are one stream."""
    found = packets.get("rmp")
    if found is None:
        return None
    return found.select(*RMP_NEEDED, F.concat_ws(_BETWEEN, *_STREAM).alias("key"))


LAYERS = (Layer(JMS, _jms_rows), Layer(MQTT, _mqtt_rows), Layer(RMP, _rmp_rows))
"""What makes facts, one for each protocol."""
