"""The table ``store_records``: the records of a store's files as rows, which cover every byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.record import StoredPacket
from wireyard.formats.base import Row
from wireyard.schema import COMMON, schema_of

SCHEMA: Final = pa.schema(
    [
        *schema_of(COMMON),
        ("state", pa.string()),
        ("destination", pa.string()),
        ("kind", pa.string()),
        ("timestamp", pa.int64()),
        ("sequence", pa.int64()),
        ("checkpoint_sequence", pa.int64()),
        ("transaction_id", pa.int64()),
        ("transaction_state", pa.string()),
        (
            "packets",
            pa.list_(
                pa.struct(
                    [
                        ("offset", pa.int64()),
                        ("length", pa.int64()),
                        ("sys_message_id", pa.string()),
                        (
                            "consumers",
                            pa.list_(
                                pa.struct([("consumer_id", pa.int64()), ("state", pa.string())])
                            ),
                        ),
                    ]
                )
            ),
        ),
        (
            "acknowledgments",
            pa.list_(
                pa.struct(
                    [
                        ("destination", pa.string()),
                        ("sys_message_id", pa.string()),
                        ("consumer_id", pa.int64()),
                    ]
                )
            ),
        ),
        ("key", pa.string()),
        ("value", pa.string()),
    ]
)
"""Columns of the table: the common ones, then those of records.

A packet's `offset` is that of its own row in the same `source` and `stream`.
"""


def record_rows(file: StoreFile) -> Iterator[Row]:
    """Yield the records of a file as rows, which cover all of its bytes."""
    for record in file.records:
        contents = record.contents
        transaction, entry = contents.transaction, contents.entry
        yield {
            "source": file.source,
            "stream": file.name,
            "offset": record.start,
            "length": record.stop - record.start,
            "format": file.kind.value.format,
            "status": record.status,
            "error": record.error.row() if record.error else None,
            "state": record.state.value,
            "destination": file.destination,
            "kind": contents.kind,
            "timestamp": contents.timestamp_ms,
            "sequence": contents.sequence,
            "checkpoint_sequence": contents.checkpoint_sequence,
            "transaction_id": transaction.transaction_id if transaction else None,
            "transaction_state": transaction.state if transaction else None,
            "packets": [_packet(file, packet) for packet in contents.packets],
            "acknowledgments": [each._asdict() for each in contents.acknowledgments],
            "key": entry.key if entry else None,
            "value": entry.value if entry else None,
        }


def _packet(file: StoreFile, packet: StoredPacket) -> dict[str, Any]:
    assert file.format is not None
    format = file.format
    row, _ = format.read_row(memoryview(file.data)[packet.start : packet.stop], format.context)
    return {
        "offset": packet.start,
        "length": packet.stop - packet.start,
        "sys_message_id": row.get("sys_message_id"),
        "consumers": [each._asdict() for each in packet.consumers],
    }
