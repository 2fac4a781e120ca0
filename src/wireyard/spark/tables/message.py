"""The shape of a message, which the messages of every format have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.spark.tables.rows import captured_at

__all__ = ["as_message"]

_KINDS: Final = {
    "message_key": "string",
    "protocol": "string",
    "sent_ms": "long",
    "sent_at": "timestamp",
    "captured_ns": "long",
    "captured_at": "timestamp",
    "producer": "string",
    "client_id": "string",
    "destination": "string",
    "destination_kind": "string",
    "persistent": "boolean",
    "qos": "int",
    "priority": "int",
    "retained": "boolean",
    "expiration_ms": "long",
    "expiration_at": "timestamp",
    "delivery_time_ms": "long",
    "delivery_time_at": "timestamp",
    "correlation_id": "string",
    "reply_to": "string",
    "message_type": "string",
    "transaction_id": "long",
    "body_kind": "string",
    "body_size": "long",
    "body": "binary",
    "properties": "map<string, struct<type: string, value: string>>",
    "compressed": "boolean",
    "producer_id": "long",
    "first_seen": "string",
    "source": "string",
    "stream": "string",
    "offset": "long",
    "length": "long",
}
_OF_ITS_ROW: Final = ("captured_ns", "source", "stream", "offset", "length")


def as_message(known: Mapping[str, Column]) -> list[Column]:
    """Return the columns of a message, of which a format knows some; the others are null.

    Where it comes from, and when it was captured, is what its row says.
    """
    columns = {name: F.lit(None).cast(kind) for name, kind in _KINDS.items()}
    columns |= {name: F.col(name) for name in _OF_ITS_ROW}
    columns |= {"captured_at": captured_at(), **known}
    return [column.alias(name) for name, column in columns.items()]
