"""The messages in MQTT packets."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.formats.mqtt.layout import BROKER_TYPES, CLIENT_TYPES, CONNECT, PUBLISH
from wireyard.spark.tables.message import as_message
from wireyard.spark.tables.rows import ROW, STREAM, directions, endpoint, with_latest
from wireyard.streams.framer import OK

__all__ = ["messages"]

_RESEND = ["sender", "packet_id", "topic", "payload_size"]
"""What a resend has in common with what was sent before it."""


def messages(packets: DataFrame) -> DataFrame:
    """Return the messages in MQTT packets: one row a PUBLISH that a producer sent.

    Which packets those are follows from the stream: one with packets that only clients send is a
    client's, one with packets that only brokers send is a broker's, and what a broker publishes
    are deliveries. Where a stream says neither, its messages count as sent.

    A PUBLISH flagged DUP is no other message, if what it repeats was recorded: the same client,
    packet identifier, topic and size. Without a client id it has to be on the same stream.

    `destination` is the topic, also where an alias stands for it. `client_id` is the one of the
    CONNECT before it on the stream. `properties` are the user properties; of several with one name
    the last. Malformed packets are in the quarantine and not here.
    """
    well_formed = packets.where(F.col("status") == OK)
    sides = directions(well_formed, CLIENT_TYPES, BROKER_TYPES)
    published = (
        well_formed.where(F.col("packet_type") == PUBLISH)
        .join(F.broadcast(sides), STREAM)
        .where(F.coalesce("by_client", F.lit(True)))
    )
    known = _with_topics(_with_client_ids(published, well_formed))
    return _without_resends(known).select(*_message_columns())


def _with_client_ids(published: DataFrame, packets: DataFrame) -> DataFrame:
    """Put the client id of the CONNECT before it on its stream beside every message."""
    given_id = F.nullif("client_id", F.lit("")).alias("given_id")
    connects = packets.where(F.col("packet_type") == CONNECT).select(*ROW, given_id)
    joined = with_latest(published, connects)
    return joined.withColumn("client_id", F.col("given_id"))


def _with_topics(published: DataFrame) -> DataFrame:
    """Put the topic that its alias stands for in the place of every empty one."""
    alias = _property("topic_alias")
    given = F.last(F.nullif("topic", F.lit("")), ignorenulls=True)
    # An alias lives as long as the connection, and is told by its number.
    earlier = Window.partitionBy(*STREAM, "begins", "alias").orderBy("offset")
    resolved = (
        published.withColumn("alias", alias)
        .where(F.col("alias").isNotNull())
        .select(*ROW, F.col("topic").alias("sent_topic"), given.over(earlier).alias("meant"))
        .where(F.col("sent_topic") == "")
        .drop("sent_topic")
    )
    joined = published.join(resolved, ROW, "left")
    return joined.withColumn("topic", F.coalesce(F.nullif("topic", F.lit("")), "meant", "topic"))


def _without_resends(published: DataFrame) -> DataFrame:
    """Leave out what was sent before and recorded then."""
    sender = F.coalesce("client_id", F.concat("source", F.lit("\0"), "stream"))
    keyed = published.withColumn("sender", sender)
    first = keyed.where(~F.col("dup")).select(_RESEND).distinct()
    repeated = keyed.where(F.col("dup")).select(*ROW, *_RESEND).join(first, _RESEND, "left_semi")
    return keyed.join(repeated.select(ROW), ROW, "left_anti")


def _message_columns() -> list[Column]:
    data = F.unhex(_property("correlation_data"))
    text_or_hex = F.when(F.is_valid_utf8(data.cast("string")), data.cast("string")).otherwise(
        _property("correlation_data")
    )
    is_text = _property("payload_format_indicator") == "1"
    known = {
        "message_key": F.concat("stream", F.lit("@"), F.col("offset").cast("string")),
        "protocol": F.lit("mqtt"),
        "producer": endpoint(F.col("src_addr"), F.col("src_port")),
        "client_id": F.col("client_id"),
        "destination": F.col("topic"),
        "destination_kind": F.lit("topic"),
        "qos": F.col("qos"),
        "retained": F.col("retain"),
        "correlation_id": text_or_hex,
        "reply_to": _property("response_topic"),
        "message_type": _property("content_type"),
        "body_kind": F.when(is_text, "text").otherwise("bytes"),
        "body_size": F.col("payload_size"),
        "body": F.col("payload"),
        "properties": _user_properties(),
        "first_seen": F.lit("sent"),
    }
    return as_message(known)


def _property(name: str) -> Column:
    """Return the value of a property that a packet has once."""
    return F.get(F.filter("properties", lambda each: each["name"] == name), F.lit(0))["value"]


def _user_properties() -> Column:
    """Return the user properties as a map; a name that comes again has the last value."""
    pairs = F.transform(
        F.filter("properties", lambda each: each["name"] == "user_property"),
        lambda each: F.from_json(each["value"], "array<string>"),
    )
    last = F.filter(
        F.transform(pairs, lambda pair, place: F.struct(pair.alias("pair"), place.alias("place"))),
        lambda one: (
            ~F.exists(
                F.slice(pairs, one["place"] + 2, F.size(pairs)),
                lambda later: later[0] == one["pair"][0],
            )
        ),
    )
    entries = F.transform(
        last,
        lambda one: F.struct(
            one["pair"][0].alias("key"),
            F.struct(F.lit("string").alias("type"), one["pair"][1].alias("value")).alias("value"),
        ),
    )
    return F.when(F.size(pairs) > 0, F.map_from_entries(entries))
