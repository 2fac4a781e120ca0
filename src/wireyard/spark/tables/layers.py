"""The layers as the facts stage runs them: which packets each takes, and what it is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.formats.mqtt.layout import CONNECT
from wireyard.layers.jmq.receiver import DEAD_REASON
from wireyard.layers.jmq.tables import tables as jms_tables
from wireyard.layers.jmq.walk import NEEDED as JMS_NEEDED
from wireyard.layers.mqtt.derive import derive_tables as mqtt_tables
from wireyard.layers.mqtt.directions import TELLING, Side, sides_of
from wireyard.layers.mqtt.observer import NEEDED as MQTT_NEEDED
from wireyard.spark.facts import Derive, Layer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LAYERS"]

_ENDPOINTS = ("src_addr", "src_port", "dst_addr", "dst_port")


def _jms_packets(packets: Mapping[str, DataFrame]) -> DataFrame | None:
    """Return JMQ packets and GPackets with what says something.

    The body of a message does not, and of its properties only why it is dead.
    """
    found = [
        frame.select(*(name for name in JMS_NEEDED if name in frame.columns))
        for name in ("jmq", "gpacket")
        if (frame := packets.get(name)) is not None
    ]
    if not found:
        return None
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), found)
    of_client = (F.col("format") == "jmq") & F.col("packet_type").isin(*MESSAGE_TYPES)
    is_message = F.coalesce(of_client, F.lit(False))
    says_why = F.coalesce(F.map_contains_key("properties", DEAD_REASON), F.lit(False))
    return rows.withColumns(
        {
            "body": F.when(~is_message, F.col("body")),
            "properties": F.when(~is_message | says_why, F.col("properties")),
        }
    )


def _prepare_jms(_rows: DataFrame) -> Derive:
    return _derive_jms


def _derive_jms(
    packets: Iterator[Row], streams: Iterable[Row] | None
) -> Mapping[str, Iterable[Row]]:
    return jms_tables(packets, {(s["source"], s["stream"]) for s in streams or () if s["ended"]})


def _mqtt_packets(packets: Mapping[str, DataFrame]) -> DataFrame | None:
    found = packets.get("mqtt")
    return None if found is None else found.select(*MQTT_NEEDED)


def _prepare_mqtt(rows: DataFrame) -> Derive:
    """Tell which side of its connection each stream is, before anybody follows its packets."""
    kind = F.col("packet_type")
    telling = F.when(kind.isin(*TELLING), F.struct("captured_ns", "frame", "offset", kind))
    decides = F.when(F.bool_or(kind == CONNECT), CONNECT).otherwise(F.min(telling)["packet_type"])
    by_stream = rows.groupBy("source", "stream").agg(
        decides.alias("packet_type"), *(F.any_value(end, True).alias(end) for end in _ENDPOINTS)
    )
    sides = sides_of(row.asDict() for row in by_stream.toLocalIterator())
    return partial(_derive_mqtt, sides=sides)


def _derive_mqtt(
    packets: Iterator[Row],
    streams: Iterable[Row] | None,
    sides: Mapping[tuple[str, str], Side],
) -> Mapping[str, Iterable[Row]]:
    return mqtt_tables(packets, streams, sides).tables


LAYERS = (Layer(_jms_packets, _prepare_jms), Layer(_mqtt_packets, _prepare_mqtt))
"""What makes facts, one for each protocol."""
