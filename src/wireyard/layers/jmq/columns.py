"""The columnar engine of JMQ packets and GPackets: bronze columns in, tables of facts out.

The phases, each with its key:

1. ``connections`` (`follow_connections`), key: source and connection.
2. ``transactions`` (`follow_transactions`), key: source, broker and transaction id.
3. ``messages`` (`join_messages`, `join_requests`), key: source and message.
4. ``conversations`` (`match_replies`), key: source and where replies go.
5. ``hops`` (`order_hops`, `compare_times`, `stand_for_messages`), key: message, of any source.
6. ``points`` (`compare_clocks`), key: capture points; then `order_several`, key: message.

The input of a phase is tables of records in any order, and its rows are the same for any partition
by its key. `partition_keys` returns a hash of the key of every record. Kernels handle what is
frequent; login names and GPacket payloads are handled row by row. Caps are for each key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.layers.endpoints import connection_of
from wireyard.layers.grouping import hash_keys, text_codes, text_hashes
from wireyard.layers.jmq.connection_columns import (
    NO_ENDS,
    ConnectionResult,
    follow_connections,
)
from wireyard.layers.jmq.hops import HopResult, order_hops
from wireyard.layers.jmq.message_columns import (
    MessageResult,
    join_messages,
    join_requests,
    match_replies,
)
from wireyard.layers.jmq.packet_row import NEEDED
from wireyard.layers.jmq.points import (
    compare_clocks,
    compare_times,
    hops_of_several,
    order_several,
)
from wireyard.layers.jmq.record_columns import (
    FIRST_SEEN,
    producers_of,
    producers_of_keys,
    stand_for_messages,
)
from wireyard.layers.jmq.tracking import Ends
from wireyard.layers.jmq.transaction_columns import TransactionResult, follow_transactions
from wireyard.layers.tables import fact_table

__all__ = [
    "FACTS",
    "FIRST_SEEN",
    "KEYS",
    "NEEDED",
    "ConnectionResult",
    "DerivedColumns",
    "HopResult",
    "MessageResult",
    "TransactionResult",
    "compare_clocks",
    "compare_times",
    "connection_keys",
    "derive_columns",
    "follow_connections",
    "follow_transactions",
    "hops_of_several",
    "join_messages",
    "join_requests",
    "match_replies",
    "order_hops",
    "order_several",
    "partition_keys",
    "producers_of",
    "producers_of_keys",
    "stand_for_messages",
]

FACTS: Final = (
    "deliveries", "transactions", "hops", "conversations", "sessions", "violations",
)  # fmt: skip
"""The tables that the engine makes."""
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "transactions": ("source", "server", "transaction_id"),
    "messages": ("source", "message_key"),
    "conversations": ("source", "at"),
    "hops": ("message_key",),
    "points": ("points",),
}
"""The key columns of each phase's records."""


class DerivedColumns(NamedTuple):
    """The tables that follow from packets, and the packet of each message.

    `tables` have the columns of ``wireyard.layers.tables``, `messages` are from
    `stand_for_messages`, and `producers` are rows of the table ``producers``. `dropped` is the
    number of items that caps dropped.
    """

    tables: dict[str, pa.Table]
    messages: pa.Table
    producers: pa.Table
    dropped: Counter[str]


def connection_keys(packets: pa.Table) -> Any:
    """Return a 64-bit hash of the source and connection of each row.

    Rows need `source` and `stream`, and the addresses and ports if they come from captures.
    """
    names = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
    columns = [name for name in names if name in packets.column_names]
    sources, streams = (text_codes(packets[name])[0] for name in ("source", "stream"))
    both = sources.astype(np.int64) << 32 | streams
    _, firsts, codes = np.unique(both, return_index=True, return_inverse=True)
    rows = packets.select(columns).take(pa.array(firsts)).to_pylist()
    keys = ["\0".join(connection_of(row)) for row in rows]
    return text_hashes(pa.array(keys, pa.string()))[codes]


def partition_keys(phase: str, records: pa.Table) -> Any:
    """Return a 64-bit hash of the key of each record, for any phase after the first."""
    words = []
    for name in KEYS[phase]:
        column = records[name]
        kind = column.type
        is_text = pa.types.is_string(kind) or pa.types.is_dictionary(kind)
        words.append(text_hashes(column) if is_text else _integers(column))
    return hash_keys(*words)


def _integers(column: pa.ChunkedArray) -> Any:
    return column.cast(pa.int64()).fill_null(0).to_numpy()


def derive_columns(
    packets: Mapping[str, pa.Table], ended: Ends = NO_ENDS, sliced: Collection[str] = ()
) -> DerivedColumns:
    """Run all phases in memory.

    `packets` has the columns `NEEDED` of each format (``jmq``, ``gpacket``), stream by stream.
    `ended` are the streams that end with a FIN or a reset, `sliced` the inputs that are slices of
    captures.
    """
    first = follow_connections(packets, ended, sliced)
    after = follow_transactions(first.uses, first.sendings, first.deliveries)
    records = after.sendings, after.deliveries, first.relays
    joined = join_messages(*records)
    conversations, evicted = match_replies(joined.messages)
    hops = order_hops(*records)
    parts = [
        first.facts,
        after.facts,
        {"deliveries": joined.deliveries, "conversations": conversations, "hops": hops.hops},
        {"conversations": join_requests(first.requests)},
    ]
    dropped = first.dropped + evicted + hops.dropped
    if hops.several.num_rows:
        of_several, left_out = hops_of_several(hops.several)
        parts.append({"hops": of_several})
        dropped += left_out
    tables = {table: _join_parts(table, [part[table] for part in parts if table in part])
              for table in FACTS}  # fmt: skip
    return DerivedColumns(tables, stand_for_messages(*records), producers_of(*records), dropped)


def _join_parts(table: str, parts: list[pa.Table]) -> pa.Table:
    """Concatenate parts of a table; a text column stays dictionary-encoded if it is in all."""
    filled = [part for part in parts if part.num_rows]
    if len(filled) < 2:
        return filled[0] if filled else parts[0] if parts else fact_table(table, [])
    columns = {}
    for name in filled[0].column_names:
        chunks = [part[name] for part in filled]
        if len({chunk.type for chunk in chunks}) > 1:
            plain = [
                c.type.value_type if pa.types.is_dictionary(c.type) else c.type for c in chunks
            ]
            chunks = [chunk.cast(kind) for chunk, kind in zip(chunks, plain, strict=True)]
        columns[name] = pa.chunked_array([piece for chunk in chunks for piece in chunk.chunks])
    return pa.table(columns)
