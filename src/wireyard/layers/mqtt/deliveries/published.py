"""The output of the first stage: messages of clients, and delivery attempts, as columns.

A table has one row for each message: positions in the capture, numbers of clients and streams, and
two hashes of the payload. A later stage that handles a topic needs the rows of all clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Grid, Ints
from wireyard.layers.mqtt.grids import NO_TIME, NONE, Flag, Packet, Record, Status
from wireyard.layers.mqtt.packets import Packets
from wireyard.layers.mqtt.tracked import Tracked, extra_of

_AT_ONCE: Final = 1 << 19
"""Messages in a batch: about 200 bytes each."""
_ORDER: Final = (
    ("reached_ns", pa.int64()), ("reached_frame", pa.int64()), ("stream", pa.int32()),
    ("offset", pa.int64()),
)  # fmt: skip
_OWN: Final = (("ns", pa.int64()), ("frame", pa.int64()))
_COMMON: Final = (
    ("topic", pa.dictionary(pa.int32(), pa.string())),
    ("content_0", pa.int64()),
    ("content_1", pa.int64()),
    ("client", pa.int32()),
    ("qos", pa.int8()),
    ("retain", pa.bool_()),
    ("copies", pa.int32()),
    ("refused", pa.int32()),
    ("payload", pa.binary()),
)


def _position(prefix: str, *parts: tuple[str, pa.DataType]) -> list[tuple[str, pa.DataType]]:
    return [(f"{prefix}_{name}", kind) for name, kind in parts]


SENT: Final = pa.schema(
    [
        *_position("sent", *_ORDER, *_OWN),
        *_position("accepted", *_ORDER, *_OWN),
        *_position("released", *_ORDER, *_OWN),
        *_COMMON,
        ("malformed", pa.bool_()),
        ("is_again", pa.bool_()),
        ("is_repeated", pa.bool_()),
        ("is_received", pa.bool_()),
        ("is_unseen", pa.bool_()),
        ("is_lasting", pa.bool_()),
        ("expires_s", pa.int64()),
        ("length", pa.int64()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("file", pa.int32()),
        ("row", pa.int64()),
    ]
)
"""A message that a client sent: the positions of its PUBLISH, of its acceptance and of PUBREL
(`NO_TIME` if there is none), the payload if it has RETAIN, its file and row. `is_received`: whether
the broker answered with PUBREC; `is_unseen`: whether its answers may not have been captured;
`is_lasting`: whether it is a retained value without payload too."""
DELIVERED: Final = pa.schema(
    [
        *_position("at", *_ORDER, *_OWN),
        *_position("acknowledged", *_OWN),
        ("is_acknowledged", pa.bool_()),
        *_COMMON,
        ("status", pa.int16()),
        ("expires_s", pa.int64()),
        ("identifiers", pa.list_(pa.int64())),
    ]
)
"""A delivery attempt: its position, the time and frame of its acknowledgement, the payload if it
has RETAIN, and the bits of `Record.STATUS`."""


def message_tables(tracked: Tracked) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield messages and delivery attempts in batches; one batch at least, which may be empty.

    The columns are those of `SENT` and `DELIVERED`.
    """
    extra, unsure = extra_of(tracked.packets), tracked.unsure_before
    for start in range(0, max(len(tracked.records), 1), _AT_ONCE):
        records = tracked.records[start : start + _AT_ONCE].astype(np.int64)
        to_broker = records[:, Record.TO_BROKER] == 1
        yield (
            _sent(tracked.packets, records[to_broker], extra, unsure),
            _delivered(tracked.packets, records[~to_broker], extra),
        )


def _is_unseen(records: Grid, unsure: Mapping[int, int]) -> Bools:
    """Return which messages are not accepted by a captured answer, and may be by a lost one."""
    before = np.full(int(records[:, Record.CLIENT].max(initial=0)) + 1, NONE, np.int64)
    for client, packet in unsure.items():
        if client < len(before):
            before[client] = packet
    is_open = records[:, Record.ACCEPTED] == NONE
    is_untraced = records[:, Record.STATUS] & Status.UNTRACED != 0
    is_before = records[:, Record.PACKET] < before[records[:, Record.CLIENT]]
    unseen: Bools = is_open & (is_before | is_untraced)
    return unseen


def _columns_of_positions(packets: Packets, prefix: str, numbers: Ints) -> dict[str, Ints]:
    """Return the positions of packets as columns; a packet of -1 has no time."""
    missing = numbers == NONE
    inside = np.maximum(numbers, 0)
    columns = {
        name: getattr(packets, name)[inside] if len(packets) else np.zeros(len(numbers), np.int64)
        for name, _ in (*_ORDER, *_OWN)
    }
    columns["reached_ns"] = np.where(missing, NO_TIME, columns["reached_ns"])
    columns["ns"] = np.where(missing, NO_TIME, columns["ns"])
    return {f"{prefix}_{name}": values for name, values in columns.items()}


def _common(packets: Packets, records: Grid) -> dict[str, Any]:
    numbers = records[:, Record.PACKET]
    contents: Grid = packets.contents[numbers]
    indices = pa.array(records[:, Record.TOPIC].astype(np.int32))
    retain = packets.grid[numbers, Packet.FLAGS] & Flag.RETAIN != 0
    kept = np.where(retain, packets.kept_row[numbers], NONE)
    places = pa.array(kept, mask=kept == NONE)
    return {
        "topic": pa.DictionaryArray.from_arrays(indices, packets.topics),
        "content_0": contents[:, 0],
        "content_1": contents[:, 1],
        "client": records[:, Record.CLIENT],
        "qos": packets.grid[numbers, Packet.QOS],
        "retain": retain,
        "copies": records[:, Record.COPIES],
        "refused": records[:, Record.REFUSED],
        "payload": packets.kept["payload"].take(places),
    }


def _sent(
    packets: Packets,
    records: Grid,
    extra: Mapping[int, Mapping[str, Any]],
    unsure: Mapping[int, int],
) -> pa.Table:
    numbers = records[:, Record.PACKET]
    properties = [extra.get(number, {}) for number in numbers.tolist()] if extra else None
    texts = {
        name: pa.nulls(len(numbers), kind)
        if properties is None
        else pa.array([each.get(name) for each in properties], kind)
        for name, kind in (("response_topic", pa.string()), ("correlation_data", pa.binary()))
    }
    return _as_table(
        SENT,
        {
            **_columns_of_positions(packets, "sent", numbers),
            **_columns_of_positions(packets, "accepted", records[:, Record.ACCEPTED]),
            **_columns_of_positions(packets, "released", records[:, Record.RELEASED]),
            **_common(packets, records),
            "malformed": packets.grid[numbers, Packet.FLAGS] & Flag.MALFORMED != 0,
            "is_again": records[:, Record.AGAIN] != NONE,
            "is_repeated": records[:, Record.STATUS] & Status.REPEATED != 0,
            "is_received": records[:, Record.STATUS] & Status.RECEIVED != 0,
            "is_unseen": _is_unseen(records, unsure),
            "is_lasting": records[:, Record.STATUS] & Status.LASTING != 0,
            "expires_s": packets.expires_s[numbers],
            "length": packets.length[numbers],
            "file": packets.file[numbers],
            "row": packets.row[numbers],
            **texts,
        },
    )


def _delivered(packets: Packets, records: Grid, extra: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    numbers, done = records[:, Record.PACKET], records[:, Record.ACCEPTED]
    identifiers = pa.nulls(len(numbers), pa.list_(pa.int64()))
    if extra:
        properties = [extra.get(number, {}) for number in numbers.tolist()]
        identifiers = pa.array(
            [each.get("subscription_identifier") for each in properties], pa.list_(pa.int64())
        )
    acknowledged = _columns_of_positions(packets, "acknowledged", done)
    return _as_table(
        DELIVERED,
        {
            **_columns_of_positions(packets, "at", numbers),
            **acknowledged,
            "is_acknowledged": done != NONE,
            **_common(packets, records),
            "status": records[:, Record.STATUS],
            "expires_s": packets.expires_s[numbers],
            "identifiers": identifiers,
        },
    )


def _as_table(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    arrays = []
    for field in schema:
        column = columns[field.name]
        array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
