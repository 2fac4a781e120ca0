"""The layers as the facts stage runs them: which packets each takes, and what belongs together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.jmq.chain import CHAIN as JMS
from wireyard.layers.jmq.receiver import DEAD_REASON
from wireyard.layers.jmq.walk import NEEDED as JMS_NEEDED
from wireyard.layers.rmp.chain import CHAIN as RMP
from wireyard.layers.rmp.observer import NEEDED as RMP_NEEDED
from wireyard.spark.facts import Layer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["LAYERS", "connection_key"]

_JMS = ("jmq", "gpacket")
_STREAM = ("source", "stream")
_BETWEEN = "\0"
"""Between the parts of a key: it is in no path, address or id."""
_ENDPOINTS = ("src_addr", "src_port", "dst_addr", "dst_port")


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


# --- rmp ------------------------------------------------------------------------------------


def _rmp_rows(packets: Mapping[str, DataFrame], _streams: DataFrame) -> DataFrame | None:
    """Return RMP packets; a sender and its group are one stream."""
    found = packets.get("rmp")
    if found is None:
        return None
    return found.select(*RMP_NEEDED, F.concat_ws(_BETWEEN, *_STREAM).alias("key"))


LAYERS = (Layer(JMS, _jms_rows), Layer(RMP, _rmp_rows))
"""What makes facts by steps over rows; MQTT has columns (``wireyard.spark.mqtt_facts``)."""
