"""The JMS messages in JMQ packets."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.formats.jmq.layout import BROKER_TYPES, CLIENT_TYPES, FLAGS, MESSAGE_TYPES
from wireyard.formats.jmq.message import BODY_KINDS
from wireyard.spark.tables.message import as_message
from wireyard.spark.tables.rows import (
    ROW,
    STREAM,
    directions,
    endpoint,
    time_at,
    with_latest,
)
from wireyard.streams.framer import OK

__all__ = ["messages"]

_IDENTITY = ["timestamp", "source_ip", "source_port", "sequence"]
_SET_CLIENTID = 50


def messages(packets: DataFrame) -> DataFrame:
    """Return the JMS messages in JMQ packets: one row a message that a producer sent.

    A message is what its SysMessageID says (timestamp, address, port, sequence), so a resend,
    flagged I or R, is the same message, and so is what a broker hands out of it: a delivery, not a
    message. The row is that of the packet in which the producer sent it, the first one that is no
    resend if there are several.

    Which packets those are follows from the stream. A stream with packets that only clients send is
    a client's, and its messages are sent; one with packets that only brokers send is a broker's,
    and its messages are delivered. Where a stream says neither, or both, a message with a delivery
    count (item 11), which clients never write, is a delivery.

    A message that is seen on brokers' streams only was sent all the same, where nobody listened. It
    counts: `first_seen` is ``delivered`` instead of ``sent``, and the row is that of the first
    packet in the order of source, stream and offset.

    Malformed packets are in the quarantine and not here. Bodies are as on the wire: `compressed`
    tells that one is deflated (flag Z). `client_id` is the one that the connection had set when it
    sent the message, if its SET_CLIENTID was recorded.
    """
    well_formed = packets.where(F.col("status") == OK)
    carriers = well_formed.where(F.col("packet_type").isin(*MESSAGE_TYPES)).join(
        F.broadcast(directions(well_formed, CLIENT_TYPES, BROKER_TYPES)), STREAM
    )
    first_of = Window.partitionBy(*_IDENTITY).orderBy(F.desc("is_sent"), "is_resent", *ROW)
    seen_again = (
        carriers.select(*ROW, *_IDENTITY, _is_sent(), _flag("I", "R").alias("is_resent"))
        .withColumn("sighting", F.row_number().over(first_of))
        .where("sighting > 1")
        .select(ROW)
    )
    sent = carriers.join(seen_again, ROW, "left_anti")
    return with_latest(sent, _client_ids(well_formed)).select(*_message_columns())


def _client_ids(packets: DataFrame) -> DataFrame:
    """Return where which client id was set."""
    client_id = F.expr("properties['JMQClientID'].value").alias("client_id")
    return packets.where(F.col("packet_type") == _SET_CLIENTID).select(*ROW, client_id)


def _message_columns() -> list[Column]:
    kinds = [part for code, kind in BODY_KINDS.items() for part in (F.lit(code), F.lit(kind))]
    queue_or_topic = F.when(_flag("Q"), "queue").otherwise("topic")
    temporary = F.col("destination").startswith("temporary_destination://")
    # Stock clients send a MAC address too, in parentheses.
    host = F.regexp_replace("source_ip_text", r"\(.*", "")
    known = {
        "message_key": F.col("sys_message_id"),
        "protocol": F.lit("jms"),
        "sent_ms": F.col("timestamp"),
        "sent_at": time_at("timestamp"),
        "producer": endpoint(host, F.col("source_port")),
        "client_id": F.col("client_id"),
        "destination": F.col("destination"),
        "destination_kind": F.when(temporary, F.concat(F.lit("temporary_"), queue_or_topic)).when(
            F.col("destination").isNotNull(), queue_or_topic
        ),
        "persistent": _flag("P"),
        "priority": F.col("priority"),
        "expiration_ms": F.col("expiration"),
        "expiration_at": time_at("expiration", never=0),
        "delivery_time_ms": F.col("delivery_time"),
        "delivery_time_at": time_at("delivery_time", never=0),
        "correlation_id": F.col("correlation_id"),
        "reply_to": F.col("reply_to"),
        "message_type": F.col("message_type"),
        "transaction_id": F.col("transaction_id"),
        "body_kind": F.create_map(*kinds)[F.col("packet_type")],
        "body_size": F.col("body_size"),
        "body": F.col("body"),
        "properties": F.col("properties"),
        "compressed": _flag("Z"),
        "producer_id": F.col("producer_id"),
        "first_seen": F.when(_is_sent(), "sent").otherwise("delivered"),
    }
    return as_message(known)


def _is_sent() -> Column:
    return F.coalesce(F.col("by_client"), F.col("delivery_count").isNull()).alias("is_sent")


def _flag(*letters: str) -> Column:
    """Tell whether one of the flags is set."""
    return F.col("bit_flags").bitwiseAND(sum(FLAGS[letter] for letter in letters)) != 0
