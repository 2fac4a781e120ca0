"""How much was sent where."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.spark.tables.rows import time_at

__all__ = ["destinations"]

_MINUTE_MS = 60_000


def destinations(messages: DataFrame) -> DataFrame:
    """Return, for every destination and minute, how many messages were sent to it.

    `bytes` are those of the packets on the wire; `producers` are the distinct ones of the messages.
    The minute is null where neither the wire nor a capture tells the time.
    """
    sent = F.coalesce("sent_ms", F.expr("captured_ns div 1000000")).alias("time_ms")
    minute = F.expr(f"try_subtract(time_ms, pmod(time_ms, {_MINUTE_MS}))")
    return (
        messages.withColumn("time_ms", sent)
        .groupBy("destination", "destination_kind", minute.alias("minute_ms"))
        .agg(
            F.count("*").alias("messages"),
            F.sum("length").alias("bytes"),
            F.countDistinct(F.coalesce("producer", "stream")).alias("producers"),
        )
        .select(
            "destination",
            "destination_kind",
            "minute_ms",
            time_at("minute_ms").alias("minute_at"),
            "messages",
            "bytes",
            "producers",
        )
    )
