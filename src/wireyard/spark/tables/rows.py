"""What the tables above bronze have in common."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

__all__ = ["ROW", "STREAM", "captured_at", "directions", "endpoint", "time_at", "with_latest"]

STREAM = ["source", "stream"]
ROW = [*STREAM, "offset"]
"""The columns that lead from a row back to its bytes."""

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def directions(
    packets: DataFrame, client_types: Sequence[int], broker_types: Sequence[int]
) -> DataFrame:
    """Return for each stream whether a client sent it (`by_client`).

    Parameters
    ----------
    client_types, broker_types
        Packet types that only clients send, and only brokers: a stream with some of one and none
        of the other is theirs. It is null where that is not certain.
    """
    by_client = F.bool_or(F.col("packet_type").isin(*client_types))
    by_broker = F.bool_or(F.col("packet_type").isin(*broker_types))
    return packets.groupBy(*STREAM).agg(
        F.when(by_client & ~by_broker, True).when(by_broker & ~by_client, False).alias("by_client")
    )


def with_latest(rows: DataFrame, events: DataFrame) -> DataFrame:
    """Put beside every row the latest event before it on its stream, nulls where there is none.

    Parameters
    ----------
    events
        Few enough for every task to have them all: `ROW`, and columns that the rows do not have.
        Those are added, and `begins`, the offset of the event.
    """
    following = F.lead("offset").over(Window.partitionBy(*STREAM).orderBy("offset"))
    bounded = events.select(
        F.col("source").alias("at_source"),
        F.col("stream").alias("at_stream"),
        F.col("offset").alias("begins"),
        following.alias("ends"),
        *(name for name in events.columns if name not in ROW),
    )
    holds = (
        (F.col("source") == F.col("at_source"))
        & (F.col("stream") == F.col("at_stream"))
        & (F.col("offset") > F.col("begins"))
        & (F.col("ends").isNull() | (F.col("offset") < F.col("ends")))
    )
    return rows.join(F.broadcast(bounded), holds, "left")


def captured_at() -> Column:
    """Return when a row was captured as a timestamp, whose unit is a microsecond."""
    return F.timestamp_micros(F.expr("captured_ns div 1000"))


def endpoint(host: Column, port: Column) -> Column:
    """Return ``address:port``, an IPv6 address in brackets; null without an address."""
    bracketed = F.when(host.contains(":"), F.concat(F.lit("["), host, F.lit("]"))).otherwise(host)
    return F.concat(bracketed, F.lit(":"), port.cast("string"))


def time_at(name: str, never: int | None = None) -> Column:
    """Return the timestamp of a time in ms; null where the number is no time."""
    time = F.col(name)
    known = time.between(_FIRST_MS, _LAST_MS)
    if never is not None:
        known &= time != never
    return F.when(known, F.timestamp_millis(time))
