"""The table of messages: rows of the messages that clients published.

`tracking` finds their packets: each PUBLISH of a client that is no resend, and each published will.
This module reads the content of these packets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.formats.mqtt.layout import CONNECT
from wireyard.layers.mqtt.records import Client, Will
from wireyard.layers.tables import as_fact_table, packet_keys

NEEDED: Final = (
    "source", "stream", "offset", "length", "captured_ns", "frame", "src_addr", "packet_type",
    "qos", "retain", "payload", "payload_size", "properties", "will_payload", "will_qos",
    "will_retain", "will_properties",
)  # fmt: skip
"""Columns of MQTT packets from which rows of messages are made."""
MARKS: Final = pa.schema(
    [
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("topic", pa.string()),
        ("client", pa.string()),
        ("client_id", pa.string()),
        ("user", pa.string()),
        ("is_sent", pa.bool_()),
    ]
)
"""A packet that is a message: its file and row, its topic, its client, and whether it is known that
a client sent it."""
_ROW: Final = ("source", "stream", "offset", "length", "captured_ns", "frame")
_ONCE: Final = {
    "correlation_data": "correlation_id",
    "response_topic": "reply_to",
    "content_type": "message_type",
}
"""Properties that a packet has once at most -> their columns."""
_TEXT: Final = "1"
"""Payload Format Indicator of text."""
_PROPERTIES: Final = pa.map_(
    pa.string(), pa.struct([("type", pa.string()), ("value", pa.string())])
)


def marks_of(
    sent: pa.Table,
    clients: Sequence[Client],
    wills: Sequence[Will],
    users: Mapping[Client, str],
) -> pa.Table:
    """Return marks of the packets that are messages.

    `sent` are columns of `SENT`, `clients` are by number, and `wills` are the published ones.
    `users` has the user names of clients that have one.
    """
    client = sent["client"].to_numpy()
    columns = [sent["file"], sent["row"], sent["topic"].cast(pa.string())]
    for name in ("endpoint", "client_id"):
        # An empty client id that the broker did not assign either is null.
        texts = pa.array([getattr(one, name) or None for one in clients], pa.string())
        columns.append(texts.take(pa.array(client)))
    user = pa.array([users.get(one) for one in clients], pa.string())
    columns.append(user.take(pa.array(client)))
    columns.append(pa.array(np.ones(sent.num_rows, np.bool_)))
    rows = [
        (will.file, will.row, will.message.topic, *by[3:], users.get(by), True)
        for will in wills
        for by in (will.message.client,)
    ]
    more = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), MARKS.types)]  # noqa: B905
    marks = pa.Table.from_arrays(columns, schema=MARKS)
    return pa.concat_tables([marks, pa.Table.from_arrays(more, schema=MARKS)]) if rows else marks


def unknown_marks(topics: pa.ChunkedArray, places: Ints, first: int) -> pa.Table:
    """Return marks of messages on streams whose side is unknown.

    `topics` are those of consecutive rows of a file, from row `first` on; `places` has the indexes
    of those that are messages.
    """
    columns = {
        "row": pa.array(places + first),
        "topic": topics.take(pa.array(places)).cast(pa.string()),
        "is_sent": pa.array(np.zeros(len(places), np.bool_)),
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(places), field.type)
        for field in MARKS
    ]
    return pa.Table.from_arrays(arrays, schema=MARKS)


def message_table(packets: pa.Table, marks: pa.Table) -> pa.Table:
    """Return rows of the table `messages`.

    `packets` has the columns of `NEEDED`, and `marks` those of `MARKS`, for the same rows.
    """
    is_will = pc.equal(packets["packet_type"], int(CONNECT))
    has_wills = pc.any(is_will).as_py()

    def either(name: str, of_will: str) -> pa.ChunkedArray:
        if not has_wills:
            return packets[name]
        return pc.if_else(is_will, packets[of_will], packets[name])

    payload = either("payload", "will_payload")
    properties = either("properties", "will_properties")
    said = _read_properties(properties)
    is_text = pc.fill_null(pc.equal(said.pop("payload_format_indicator"), _TEXT), False)
    count = packets.num_rows
    client = pc.if_else(packets["src_addr"].is_valid(), marks["client"], None)
    known: dict[str, Any] = {
        "message_key": packet_keys(packets["stream"], packets["offset"]),
        "protocol": _repeated("mqtt", count),
        "sent_ns": pc.if_else(marks["is_sent"], packets["captured_ns"], None),
        "producer": client,
        "client": client,
        "producer_client_id": marks["client_id"],
        "user": marks["user"],
        "destination": marks["topic"],
        "destination_kind": _repeated("topic", count),
        "qos": either("qos", "will_qos"),
        "retained": either("retain", "will_retain"),
        **said,
        "body_kind": pc.if_else(is_text, "text", "bytes"),
        "body_size": pc.binary_length(payload),
        "body": payload,
        "first_seen": pc.if_else(marks["is_sent"], "sent", None),
        **{name: packets[name] for name in _ROW},
    }
    return as_fact_table("messages", known)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([text]))


def _read_properties(properties: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the values of properties, by the names of columns."""
    count = len(properties)
    found: dict[str, pa.Array] = {
        name: pa.nulls(count, pa.string()) for name in ("payload_format_indicator", *_ONCE.values())
    }
    found["properties"] = pa.nulls(count, _PROPERTIES)
    if properties.null_count == count:
        return found
    lists = properties.combine_chunks()
    rows = pc.list_parent_indices(lists).to_numpy()
    names, values = (pc.struct_field(pc.list_flatten(lists), place) for place in (0, 1))
    for name in ("payload_format_indicator", *_ONCE):
        named = pc.equal(names, name).to_numpy(zero_copy_only=False)
        if not named.any():
            continue
        texts = values.filter(pa.array(named))
        if name == "correlation_data":
            texts = pa.array([_text_or_hex(text) for text in texts.to_pylist()], pa.string())
        found[_ONCE.get(name, name)] = _scattered(rows[named], texts, count)
    named = pc.equal(names, "user_property").to_numpy(zero_copy_only=False)
    if named.any():
        pairs = values.filter(pa.array(named)).to_pylist()
        found["properties"] = _user_properties(rows[named], pairs, count)
    return found


def _scattered(rows: Ints, values: pa.Array, count: int) -> pa.Array:
    """Return values at their rows, null elsewhere; if a row has several, the first."""
    places = np.full(count, -1, np.int64)
    places[rows[::-1]] = np.arange(len(rows))[::-1]
    return values.take(pa.array(places, mask=places < 0))


def _text_or_hex(data: str | None) -> str | None:
    """Decode bytes in hexadecimal as UTF-8 text; return the hexadecimal if they are no text."""
    if data is None:
        return None
    try:
        return bytes.fromhex(data).decode()
    except UnicodeDecodeError:
        return data


def _user_properties(rows: Ints, pairs: Sequence[str | None], count: int) -> pa.Array:
    """Return user properties as maps; a repeated name has its last value."""
    maps: dict[int, dict[str, Any]] = {}
    for row, pair in zip(rows.tolist(), pairs, strict=True):
        if pair is None:  # it is no text
            continue
        name, value = json.loads(pair)
        of_row = maps.setdefault(row, {})
        of_row.pop(name, None)
        of_row[name] = {"type": "string", "value": value}
    return pa.array(
        [list(maps[row].items()) if row in maps else None for row in range(count)], _PROPERTIES
    )
