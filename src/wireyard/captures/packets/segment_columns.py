"""The columns of the table `tcp_segments`; no logic, and no imports at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wireyard.layout import Column

if TYPE_CHECKING:
    import pyarrow as pa

TABLE: Final = "tcp_segments"
SEGMENTS: Final = (
    Column("source", "string", "the capture as it was given"),
    Column("frame", "int64", "number of the captured frame, from 1; of fragments the last one's"),
    Column("captured_ns", "int64", "capture time", unit="ns"),
    Column("transport", "string", "tcp or udp"),
    Column("src_addr", "string", "source address"),
    Column("src_port", "int32", "source port"),
    Column("dst_addr", "string", "destination address"),
    Column("dst_port", "int32", "destination port"),
    Column("flow", "string", "source:port>target:port: a stream's name without #n"),
    Column("seq", "int64", "sequence number; null of UDP", "RFC 9293, 3.1"),
    Column("ack", "int64", "acknowledgment number; null of UDP and without ACK", "RFC 9293, 3.1"),
    Column("bit_flags", "int32", "the control bits; null of UDP", "RFC 9293, 3.1"),
    Column("flags", "string", "their letters in bit order, from FIN: FSRPAUEC", "RFC 9293, 3.1"),
    Column("window", "int32", "window field, not scaled; null of UDP", "RFC 9293, 3.1"),
    Column("payload_length", "int64", "payload on the wire", unit="bytes"),
    Column("cut_bytes", "int64", "payload that was not captured", unit="bytes"),
    Column("payload", "binary", "captured bytes of the payload"),
)
"""The columns of the table, in order."""


def segment_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of the table, or those called `columns`, in that order.

    `UsageError` is raised for a name that is no column of the table, or one given twice.
    """
    from wireyard.schema import choose_columns, schema_of

    return schema_of(choose_columns(TABLE, SEGMENTS, columns))
