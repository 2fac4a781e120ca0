"""The tables that the layers derive from packets; one set of column names for all protocols.

Rules of this file:

1. A column that a protocol does not have is null in its rows, never a made-up default.
2. Every row leads back to bytes: its ``source``, ``stream`` and ``offset`` are those of the packet
   that proves it. Frames count from 1 in the capture; a raw stream has neither frames nor times.
3. Endpoints are ``address:port`` text, an IPv6 address in brackets.
4. When a table is written, a timestamp ``x_at`` follows every time ``x_ns`` or ``x_ms``, one for
   both where a table has both (`with_times`); the layers count in whole nanoseconds.
5. A name means the same in every table: ``producer_client_id`` is the client id of the sender of a
   message, ``consumer_client_id`` that of its receiver, ``client_id`` that of a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.java import storable
from wireyard.layout import Column
from wireyard.schema import arrow_type

_PROTOCOL: Final = Column("protocol", "string", "jms, mqtt or rmp")
_ROW: Final = (
    Column("source", "string", "the source as it was given"),
    Column("stream", "string", "the directed stream of the packet that proves the row"),
    Column("offset", "int64", "where that packet begins in the stream", unit="bytes"),
)

_NS, _MS, _MS_OR_NEVER = "ns since 1970", "ms since 1970", "ms since 1970, 0 is never"

MESSAGES: Final = (
    Column("message_key", "string", "the message: its SysMessageID, or stream and offset"),
    _PROTOCOL,
    Column("sent_ms", "int64", "when it was sent, by the producer's clock; JMS only", unit=_MS),
    Column("sent_ns", "int64", "when the producer's packet was captured", unit=_NS),
    Column("captured_ns", "int64", "when the packet of this row was captured", unit=_NS),
    Column(
        "producer",
        "string",
        "endpoint that sent it, in JMS that of its SysMessageID; null where the sender of an MQTT"
        " stream is unknown",
    ),
    Column("client", "string", "endpoint of the producer's connection, as sessions have it"),
    Column(
        "producer_client_id",
        "string",
        "client id that the connection had when it sent the message; of RMP the client's number",
    ),
    Column("user", "string", "user name of the producer's login"),
    Column("destination", "string", "queue, topic or group that it was sent to"),
    Column("destination_kind", "string", "queue, topic, temporary_queue, temporary_topic or group"),
    Column("persistent", "bool", "whether the broker has to store it; JMS only"),
    Column("qos", "int32", "quality of service that it was published with; MQTT only"),
    Column("priority", "int32", "0 to 9; JMS only"),
    Column("retained", "bool", "whether it was published with RETAIN; MQTT only"),
    Column("expiration_ms", "int64", "when it expires; JMS only", unit=_MS_OR_NEVER),
    Column("delivery_time_ms", "int64", "no delivery before; JMS only", unit=_MS_OR_NEVER),
    Column("correlation_id", "string", "what ties a reply to its request"),
    Column("reply_to", "string", "where replies go"),
    Column("message_type", "string", "JMSType, content type of MQTT 5, or layer of RMP"),
    Column("transaction_id", "int64", "transaction that it was sent in; JMS only"),
    Column("body_kind", "string", "text, bytes, map, stream, object or message"),
    Column("body_size", "int64", "bytes of the body on the wire", unit="bytes"),
    Column("body", "binary", "the body as on the wire"),
    Column("properties", "properties", "properties of the message, user properties of MQTT 5"),
    Column("compressed", "bool", "whether the body is deflated (flag Z); JMS only"),
    Column("producer_id", "int64", "id of the JMQ producer"),
    Column(
        "first_seen",
        "string",
        "sent; in JMS also delivered, relayed or relay_acknowledged, if no packet before was"
        " captured; null where the sender of an MQTT stream is unknown",
    ),
    Column("frame", "int64", "frame of the packet; counts over all files of a rotated capture"),
    Column("file", "string", "file that the frame is in"),
    Column("file_frame", "int64", "the frame, counted in that file"),
    *_ROW,
    Column("length", "int64", "bytes of the packet, of RMP of all its packets", unit="bytes"),
)
"""A row for each message that a producer sent; the message on other streams is a delivery."""

DESTINATIONS: Final = (
    Column("destination", "string", "queue, topic or group"),
    Column("destination_kind", "string", "as of its messages"),
    Column(
        "minute_ms",
        "int64",
        "when the minute began in which they were sent; null where it is unknown",
        unit=_MS,
    ),
    Column("messages", "int64", "how many were sent"),
    Column("bytes", "int64", "bytes of their packets", unit="bytes"),
    Column("producers", "int64", "how many different ones sent them"),
    Column("source", "string", "the source as it was given"),
)
"""A row for each source, destination and minute."""

PRODUCERS: Final = (
    Column("producer", "string", "address and port, as SysMessageIDs have them"),
    Column("first_ms", "int64", "when the first of its messages was sent", unit=_MS),
    Column("last_ms", "int64", "when the last of them was sent", unit=_MS),
    Column("source", "string", "the source as it was given"),
)
"""A row for each source and producer of JMS messages in it."""

DELIVERIES: Final = (
    Column(
        "message_key",
        "string",
        "the message: its SysMessageID, or stream and offset; null if it was not seen sent",
    ),
    _PROTOCOL,
    Column("origin", "string", "publish, will, or broker where no producer was seen; MQTT only"),
    Column("producer", "string", "endpoint that sent the message"),
    Column("producer_client_id", "string", "client id of the producer"),
    Column("destination", "string", "queue, topic or group that the message was sent to"),
    Column("consumer", "string", "endpoint that the message was delivered to, or should have been"),
    Column("server", "string", "endpoint of the broker that delivered it; JMS only"),
    Column("consumer_id", "int64", "JMQ consumer id, or MQTT subscription identifier"),
    Column("consumer_client_id", "string", "client id of the consumer"),
    Column("subscription", "string", "topic filter that matches, or durable subscription"),
    Column("qos", "int32", "quality of service that it was delivered with; MQTT only"),
    Column(
        "retained",
        "bool",
        "delivered as the retained value; MQTT only; null where it depends on a subscription that"
        " was not captured",
    ),
    Column("sent_ns", "int64", "when the producer sent it", unit=_NS),
    Column("delivered_ns", "int64", "when it was delivered first", unit=_NS),
    Column("acknowledged_ns", "int64", "when its delivery was complete", unit=_NS),
    Column(
        "redelivered",
        "bool",
        "whether it was flagged or seen as delivered before; null where that may have been on a"
        " connection whose client id is unknown, or in bytes that were not captured",
    ),
    Column("delivery_count", "int32", "how often its delivery was seen"),
    Column(
        "outcome",
        "string",
        "acknowledged, unacknowledged, rolled_back, committed, expired, dead or no_ack_wanted;"
        " null if never delivered, or where the capture does not show it",
    ),
    Column("verdict", "string", "where the message went, in one word of the protocol's list"),
    Column("dead_reason", "string", "why it was in the dead message queue it came from; JMS only"),
    Column("transaction_id", "int64", "transaction that it was acknowledged in; JMS only"),
    Column("via_broker", "string", "endpoint of the broker it came from in the cluster; JMS only"),
    Column("sent_frame", "int64", "frame in which the producer sent it"),
    Column("accepted_frame", "int64", "frame in which the broker answered for it"),
    Column("subscribed_frame", "int64", "frame in which the subscription was granted"),
    Column("relayed_frame", "int64", "frame in which that broker relayed it; JMS only"),
    Column("delivered_frame", "int64", "frame in which it was delivered first"),
    Column("acknowledged_frame", "int64", "frame in which its delivery was complete"),
    *_ROW,
)
"""A row for each message and consumer; in MQTT at least one for every matching subscriber."""

_OF_DELIVERIES: Final = {column.name: column for column in DELIVERIES}
LATENCIES: Final = (
    *(
        _OF_DELIVERIES[name]
        for name in (
            "message_key", "protocol", "origin", "destination", "producer_client_id", "consumer",
            "consumer_client_id", "subscription", "qos", "verdict", "sent_ns", "delivered_ns",
            "acknowledged_ns",
        )
    ),
    Column(
        "queue_ns",
        "int64",
        "time in queue: from when it was sent, or was to be delivered at the earliest (JMS), to"
        " when it was delivered first; null of wills and retained values, and where a time is"
        " missing",
        unit="ns",
    ),
    Column(
        "acknowledge_ns",
        "int64",
        "from its first delivery to when that was complete",
        unit="ns",
    ),
    _OF_DELIVERIES["delivered_frame"],
    *_ROW,
)  # fmt: skip
"""A row for each delivery that has a time."""

TRANSACTIONS: Final = (
    Column("transaction_id", "int64", "id that the broker gave"),
    Column("server", "string", "endpoint of the broker"),
    Column("client", "string", "endpoint of the client"),
    Column("client_id", "string", "client id, if one was set"),
    Column("begun_ns", "int64", "when it was begun", unit=_NS),
    Column("ended_ns", "int64", "when it was ended", unit=_NS),
    Column("outcome", "string", "committed, rolled_back, prepared or open"),
    Column("sent", "int64", "messages sent in it"),
    Column("acknowledged", "int64", "messages acknowledged in it"),
    Column("begun_frame", "int64", "frame that began it"),
    Column("ended_frame", "int64", "frame that ended it"),
    *_ROW,
)
"""A row for each transaction."""

HOPS: Final = (
    Column("message_key", "string", "the message: its SysMessageID"),
    Column("hop", "int32", "from 1 on, in the order of time over all sources"),
    Column(
        "kind",
        "string",
        "sent, accepted, relayed, delivered, acknowledged or relay_acknowledged",
    ),
    Column("sender", "string", "endpoint that the packet came from"),
    Column("receiver", "string", "endpoint that it went to"),
    Column("consumer_id", "int64", "consumer that it was for or from"),
    Column("captured_ns", "int64", "when, by the clock of the source", unit=_NS),
    Column("frame", "int64", "frame of the packet"),
    Column("follows", "int32", "the hop that it follows from"),
    Column("took_ns", "int64", "time since then; null with the reason in unknown", unit="ns"),
    Column("took_error_ns", "int64", "largest error of that; 0 by one clock", unit="ns"),
    Column("unknown", "string", "why took_ns is null, in one word"),
    Column(
        "clock_ahead_ns",
        "int64",
        "how far the clock of the source is ahead of that of the first by name, as estimated",
        unit="ns",
    ),
    Column("clock_error_ns", "int64", "largest error of that", unit="ns"),
    *_ROW,
)
"""A row for each time that a packet shows a JMS message; for a packet about several consumers, a
row for each."""

CONVERSATIONS: Final = (
    Column("kind", "string", "control, jms, mqtt5 or rmp"),
    Column("request_key", "string", "the request: its message key, or stream and offset"),
    Column("reply_key", "string", "the reply, null if none was seen"),
    Column("requester", "string", "endpoint that asked"),
    Column("responder", "string", "endpoint that answered"),
    Column("requested_ns", "int64", "when it was asked", unit=_NS),
    Column("replied_ns", "int64", "when it was answered", unit=_NS),
    Column("latency_ms", "int64", "from the one to the other, whole milliseconds", unit="ms"),
    Column("status", "int64", "status of the answer; null if there is none"),
    Column("request", "string", "what was asked: type of the packet, or topic of the message"),
    Column("requested_frame", "int64", "frame of the request"),
    Column("replied_frame", "int64", "frame of the reply"),
    *_ROW,
)
"""A row for each request; several replies to one request are several rows."""

SESSIONS: Final = (
    _PROTOCOL,
    Column("client", "string", "endpoint of the client"),
    Column("server", "string", "endpoint of the broker"),
    Column("client_id", "string", "client id, also where the broker assigned it"),
    Column("user", "string", "user name of the login"),
    Column(
        "opened_ns",
        "int64",
        "when the login was sent; null if it was not captured, MQTT",
        unit=_NS,
    ),
    Column("closed_ns", "int64", "when the connection was over", unit=_NS),
    Column("status", "int64", "code of the login's answer"),
    Column(
        "ended_by",
        "string",
        "client, server, dropped, refused or open; null where the goodbye may not have been"
        " captured",
    ),
    Column("packets", "int64", "packets of both directions"),
    Column("bytes", "int64", "their bytes", unit="bytes"),
    Column("version", "int32", "protocol version of the login"),
    Column("resumed", "bool", "whether the broker still had a session of this client id"),
    Column(
        "keep_alive",
        "int32",
        "longest silence of the client, as it announced it or as the broker decided; 0 is no"
        " limit; MQTT only",
        unit="s",
    ),
    Column(
        "in_flight_sent",
        "int64",
        "messages of the client whose delivery was open at the end; like the next three null if"
        " bytes of the session were not captured, and of MQTT without the login",
    ),
    Column("in_flight_received", "int64", "messages to the client whose delivery was open then"),
    Column("pauses", "int64", "how often one side asked the other to wait; JMS only"),
    Column("paused_ns", "int64", "for how long, all pauses together; JMS only", unit="ns"),
    Column("opened_frame", "int64", "frame of the login; null if it was not captured, MQTT"),
    Column("closed_frame", "int64", "frame that ended the connection"),
    Column("end_code", "int64", "reason code of the broker's DISCONNECT; MQTT 5.0 only"),
    Column("end_reason", "string", "reason string of it; MQTT 5.0 only"),
    *_ROW,
)
"""A row for each connection on which a client logged in, or tried to."""

RETAINED: Final = (
    Column("topic", "string", "topic that the value stands for"),
    Column("from_ns", "int64", "from when on it was the value", unit=_NS),
    Column(
        "to_ns",
        "int64",
        "until when; null if it still is, or if a message that was not captured may have ended it",
        unit=_NS,
    ),
    Column("payload", "binary", "the value"),
    Column("qos", "int32", "quality of service it was published with"),
    Column("message_key", "string", "the message that set it"),
    Column("producer_client_id", "string", "client id of its publisher"),
    Column("ended_by", "string", "replaced, deleted, expired; null like `to_ns`"),
    Column("from_frame", "int64", "frame in which it was set"),
    *_ROW,
)
"""A row for each value that a topic had for a time."""

VIOLATIONS: Final = (
    _PROTOCOL,
    Column("rule", "string", "the rule that was broken: its number, or a name of ours"),
    Column("client", "string", "endpoint of the side that broke it, a client or a broker"),
    Column("message_key", "string", "the message it was about, if any"),
    Column("text", "string", "the violation in a sentence"),
    Column("client_id", "string", "client id of the connection"),
    Column("captured_ns", "int64", "when", unit=_NS),
    Column("frame", "int64", "frame of the packet that broke it"),
    *_ROW,
)
"""A row for each violation of the protocol."""

TABLES: Final[Mapping[str, tuple[Column, ...]]] = MappingProxyType(
    {
        "messages": MESSAGES,
        "destinations": DESTINATIONS,
        "producers": PRODUCERS,
        "deliveries": DELIVERIES,
        "latencies": LATENCIES,
        "transactions": TRANSACTIONS,
        "hops": HOPS,
        "conversations": CONVERSATIONS,
        "sessions": SESSIONS,
        "retained": RETAINED,
        "violations": VIOLATIONS,
    }
)
"""The columns of the tables that protocols share, by the table's name."""


def all_tables() -> Mapping[str, tuple[Column, ...]]:
    """Return the columns of every table: those that protocols share, and those of one alone."""
    from wireyard.layers.facts import registered

    return {**TABLES, **{name: own for facts in registered() for name, own in facts.tables.items()}}


def fact_table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a part of a table; columns that a row lacks are null."""
    columns = {}
    for column in all_tables()[name]:
        values, kind = [row.get(column.name) for row in rows], arrow_type(column.kind)
        columns[column.name] = text_array(values) if kind == pa.string() else pa.array(values, kind)
    return as_fact_table(name, columns)


def as_fact_table(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Return columns as a part of a table; missing columns are null.

    The columns are Arrow arrays, in which text may be dictionary-encoded, or other sequences of
    values.
    """
    rows = len(next(iter(columns.values())))
    arrays, fields = [], []
    for column in all_tables()[name]:
        kind = arrow_type(column.kind)
        array = columns.get(column.name)
        if array is None:
            array = pa.nulls(rows, kind)
        elif not isinstance(array, pa.Array | pa.ChunkedArray):
            array = pa.array(array, kind)
        elif not pa.types.is_dictionary(array.type):
            array = array.cast(kind)
        arrays.append(array)
        fields.append(pa.field(column.name, array.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def as_text(table: pa.Table) -> pa.Table:
    """Return a table with its dictionary-encoded text as plain text."""
    kinds = [
        (field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(kinds))


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Concatenate tables with the same columns; text stays dictionary-encoded if it is in all."""
    parts = list(tables)
    if any(part.schema != parts[0].schema for part in parts):
        parts = list(map(as_text, parts))
    return pa.concat_tables(parts)


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return texts as an Arrow array, lone surrogates spelled out (`storable`)."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([text and storable(text) for text in texts], pa.string())


def packet_keys(streams: Any, offsets: Any) -> Any:
    """Return the keys of the messages or requests in packets, like `Position.key`.

    The columns are Arrow arrays; `streams` may be dictionary-encoded.
    """
    from pyarrow import compute as pc  # slow to import

    return pc.binary_join_element_wise(streams.cast(pa.string()), offsets.cast(pa.string()), "@")


# --- timestamps -----------------------------------------------------------------------------

_AT: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_NS_PER_US, _US_PER_MS = 1000, 1000
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The range of timestamps: the years 1 to 9999."""


def with_times(name: str, table: pa.Table) -> pa.Table:
    """Add a timestamp ``x_at`` after every time ``x_ns`` or ``x_ms`` of a part of a table.

    Where a table has both, the timestamp is that of ``x_ns``, or of ``x_ms`` where ``x_ns`` is
    null. Text is dictionary-encoded in all parts.
    """
    from pyarrow import compute as pc

    schema = schema_with_times(name)
    columns: dict[str, Any] = {}
    for column in all_tables()[name]:
        values = table[column.name]
        if pa.types.is_string(values.type):
            values = values.dictionary_encode()
        elif not pa.types.is_dictionary(values.type):
            values = values.cast(arrow_type(column.kind))
        columns[column.name] = values
        if stem := _time_stem(column):
            at = _from_ns(values) if column.name.endswith("_ns") else _from_ms(values, column)
            known = columns.get(f"{stem}_at")
            columns[f"{stem}_at"] = at if known is None else pc.coalesce(at, known)
    return pa.Table.from_arrays([columns[field] for field in schema.names], schema=schema)


def schema_with_times(name: str) -> pa.Schema:
    """Return the schema of a table with its timestamps."""
    fields = []
    columns = all_tables()[name]
    for column, after in zip(columns, (*columns[1:], None), strict=True):
        kind = arrow_type(column.kind)
        fields.append((column.name, _TEXT if pa.types.is_string(kind) else kind))
        stem = _time_stem(column)
        if stem and (after is None or _time_stem(after) != stem):
            fields.append((f"{stem}_at", _AT))
    return pa.schema(fields)


def _time_stem(column: Column) -> str | None:
    """Return the name of a column of times without its unit; None for all other columns."""
    return column.name.rpartition("_")[0] if "since 1970" in (column.unit or "") else None


def _from_ns(values: pa.ChunkedArray) -> pa.Array:
    """Return nanoseconds as timestamps, rounded down to microseconds, before 1970 too."""
    from pyarrow import compute as pc

    missing = pc.is_null(values).to_numpy(zero_copy_only=False)
    us = values.fill_null(0).to_numpy() // _NS_PER_US
    return pa.array(us, mask=missing).cast(_AT)


def _from_ms(values: pa.ChunkedArray, column: Column) -> pa.Array:
    """Return milliseconds as timestamps; null where the number is no time."""
    ms = values.fill_null(_LAST_MS + 1).to_numpy()
    missing = (ms < _FIRST_MS) | (ms > _LAST_MS)
    if column.unit == _MS_OR_NEVER:
        missing |= ms == 0
    return pa.array(np.where(missing, 0, ms) * _US_PER_MS, mask=missing).cast(_AT)
