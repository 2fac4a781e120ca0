"""The tables that follow from files of JMQ packets and GPackets, each read twice, batch by batch.

Memory holds the columns of all packets that ``columns`` needs, and the bodies of messages of one
batch at a time.

`stand_for_messages` selects the packet of each row of ``messages``. Packets with the same
SysMessageID (timestamp, address, port, sequence) are the same message, so resends, flagged I or R,
and deliveries are no further messages. A message that was captured only when it was delivered or
relayed between brokers has a row too; `first_seen` is the kind of its packet. The row of a message
that only GPackets show has no fields of the JMQ packet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.formats.jmq.message import BODY_KINDS
from wireyard.layers.facts import DerivedFiles, PacketFile
from wireyard.layers.grouping import decode_texts, text_codes
from wireyard.layers.jmq.columns import NEEDED, derive_columns
from wireyard.layers.jmq.facts import FORMATS
from wireyard.layers.jmq.packet_columns import JMQ, ROW_NUMBER
from wireyard.layers.jmq.rules import DEAD_REASON, TEMPORARY
from wireyard.layers.jmq.tracking import Ends
from wireyard.layers.tables import as_fact_table

_ROW: Final = ("source", "stream", "offset", "length", "captured_ns", "frame")
MESSAGE_NEEDED: Final = (
    *_ROW, "src_addr", "packet_type", "timestamp", "source_ip_text", "source_port", "bit_flags",
    "destination", "priority", "expiration", "delivery_time", "correlation_id", "reply_to",
    "message_type", "transaction_id", "body_size", "body", "properties", "producer_id",
)  # fmt: skip
"""The columns of JMQ packets that are read; GPackets have only the first ones."""
_PACKET_COLUMNS: Final = {
    "sent_ms": "timestamp",
    "expiration_ms": "expiration",
    "delivery_time_ms": "delivery_time",
    **{
        name: name
        for name in (
            "priority", "correlation_id", "reply_to", "message_type", "transaction_id", "body_size",
            "body", "properties", "producer_id", "destination",
        )
    },
}  # fmt: skip
"""The columns of a message that are columns of its packet."""
_MARK_COLUMNS: Final = ("message_key", "first_seen", "producer_client_id", "user")
_KINDS: Final = ("topic", "queue", "temporary_topic", "temporary_queue")
_END: Final = ("source", "stream", "ended_ns", "ended_frame")
_FILE_BITS: Final = 40
"""The low bits of a row number are the row's index in its file, the high bits the file's number."""


def derive_files(
    files: Sequence[PacketFile],
    sources: Collection[str],
    ended: Ends,
    sliced: Collection[str] = (),
) -> DerivedFiles:
    """Return the tables that follow from the packets of the inputs `sources`.

    Packets of other inputs in the files are skipped. `ended` are the streams whose end is in the
    captures, `sliced` the inputs that are slices of captures.
    """
    parts: dict[str, list[pa.Table]] = {}
    for file in files:
        parts.setdefault(file.format, []).extend(packets_of(file, sources))
    packets = {name: pa.concat_tables(tables) for name, tables in parts.items() if tables}
    del parts
    derived = derive_columns(packets, ended, sliced)
    del packets
    numbers = file_numbers(derived.messages)
    messages = (
        ("messages", table)
        for file in files
        for table in messages_of(file, derived.messages.filter(pa.array(numbers == file.number)))
    )
    tables = chain(derived.tables.items(), [("producers", derived.producers)], messages)
    return DerivedFiles(tables, derived.dropped)


def ends_of(streams: Iterable[pa.Table]) -> dict[tuple[str, str], tuple[int | None, int | None]]:
    """Return the ends of streams of JMQ packets and GPackets, from the table of streams."""
    ends = {}
    for table in streams:
        of_format = pc.is_in(table["format"], pa.array(FORMATS))
        rows = table.filter(pc.and_(of_format, table["ended"].is_valid())).select(_END).to_pylist()
        ends.update(
            {(row["source"], row["stream"]): (row["ended_ns"], row["ended_frame"]) for row in rows}
        )
    return ends


def slices_of(streams: Iterable[pa.Table]) -> set[str]:
    """Return the inputs that are slices of captures, from the table of streams."""
    return {
        source
        for table in streams
        for source in pc.unique(table.filter(table["sliced"])["source"]).to_pylist()
    }


def packets_of(file: PacketFile, sources: Collection[str]) -> Iterator[pa.Table]:
    """Yield the columns `NEEDED` of the packets of some inputs, with their row numbers.

    The bodies of messages are null, and so are their properties unless they have the reason why
    the message is dead.
    """
    first = file.number << _FILE_BITS
    wanted = pa.array(sorted(sources), pa.string())
    for table in file.batches(NEEDED):
        numbers = np.arange(first, first + table.num_rows)
        first += table.num_rows
        table = table.append_column(ROW_NUMBER, pa.array(numbers))
        table = table.filter(pc.is_in(table["source"].cast(pa.string()), wanted))
        if file.format == JMQ:
            is_message = pc.is_in(table["packet_type"], pa.array(MESSAGE_TYPES, pa.int32()))
            table = _set_null(table, "body", is_message)
            is_dead = _has_key(table["properties"], DEAD_REASON)
            table = _set_null(table, "properties", pc.and_not(is_message, is_dead))
        yield table


def _set_null(table: pa.Table, name: str, rows: pa.ChunkedArray) -> pa.Table:
    """Return a table with a column set to null in the rows that `rows` selects."""
    blank = rows.fill_null(False).to_numpy()
    places = pa.array(np.arange(table.num_rows), mask=blank)
    at = table.schema.get_field_index(name)
    return table.set_column(at, name, table[name].combine_chunks().take(places))


def _has_key(maps: pa.ChunkedArray, key: str) -> pa.Array:
    """Return which maps have a key."""
    has_key = np.zeros(len(maps), np.bool_)
    first = 0
    for chunk in maps.chunks:
        ends = chunk.offsets.to_numpy()
        keys = chunk.keys.slice(ends[0], ends[-1] - ends[0])
        entries = np.flatnonzero(pc.equal(keys, key).to_numpy(zero_copy_only=False)) + ends[0]
        has_key[first + np.searchsorted(ends, entries, side="right") - 1] = True
        first += len(chunk)
    return pa.array(has_key)


def file_numbers(marks: pa.Table) -> Any:
    """Return the number of the file with the packet of each mark."""
    return marks[ROW_NUMBER].to_numpy() >> _FILE_BITS


def messages_of(file: PacketFile, marks: pa.Table) -> Iterator[pa.Table]:
    """Yield the messages whose packets are in a file.

    `marks` is the result of `stand_for_messages`, for this file.
    """
    numbers = marks[ROW_NUMBER].to_numpy()
    marks = marks.take(pa.array(np.argsort(numbers)))
    rows = np.sort(numbers) & ((1 << _FILE_BITS) - 1)
    first = 0
    for table in file.batches(MESSAGE_NEEDED) if len(rows) else ():
        start, stop = np.searchsorted(rows, [first, first + table.num_rows]).tolist()
        if stop > start:
            packets = table.take(pa.array(rows[start:stop] - first))
            yield message_table(packets, marks.slice(start, stop - start))
        first += table.num_rows


# --- rows of messages -----------------------------------------------------------------------


def message_table(packets: pa.Table, marks: pa.Table) -> pa.Table:
    """Return messages as a part of the table ``messages``.

    `packets` are all of one format, with the columns of `MESSAGE_NEEDED` that the format has;
    `marks` has the row of each packet in the result of `stand_for_messages`.
    """
    is_sent = pc.equal(marks["first_seen"].cast(pa.string()), "sent")
    columns: dict[str, Any] = {
        **{name: packets[name] for name in _ROW},
        **{name: marks[name] for name in _MARK_COLUMNS},
        "protocol": decode_texts(np.zeros(packets.num_rows), pa.array(["jms"])),
        "sent_ns": pc.if_else(is_sent, packets["captured_ns"], None),
        "client": pc.if_else(packets["src_addr"].is_valid(), marks["client"], None),
    }
    if "source_ip_text" in packets.column_names:
        columns |= _packet_fields(packets)
    return as_fact_table("messages", columns)


def _packet_fields(packets: pa.Table) -> dict[str, Any]:
    """Return the columns of messages that follow from fields of JMQ packets."""
    flags = packets["bit_flags"].to_numpy()

    def flag(letter: str) -> Any:
        return pa.array(flags & FLAGS[letter] != 0)

    kinds = {code: at for at, code in enumerate(BODY_KINDS)}
    of_kind = np.full(max(kinds) + 1, -1)
    of_kind[list(kinds)] = list(kinds.values())
    return {
        **{name: packets[column] for name, column in _PACKET_COLUMNS.items()},
        "producer": _producers(packets["source_ip_text"], packets["source_port"]),
        "destination_kind": _destination_kinds(packets["destination"], flags),
        "persistent": flag("P"),
        "compressed": flag("Z"),
        "body_kind": decode_texts(
            of_kind[packets["packet_type"].to_numpy()], pa.array(list(BODY_KINDS.values()))
        ),
    }


def _producers(hosts: pa.ChunkedArray, ports: pa.ChunkedArray) -> pa.Array:
    """Return ``address:port`` without the MAC address in parentheses that stock clients add."""
    codes, texts = text_codes(hosts)
    plain = pc.replace_substring_regex(texts, r"\(.*", "")
    bracketed = pc.binary_join_element_wise("[", plain, "]", "")
    shown = pc.if_else(pc.match_substring(plain, ":"), bracketed, plain)
    return pc.binary_join_element_wise(
        decode_texts(codes, shown).cast(pa.string()), ports.cast(pa.string()).combine_chunks(), ":"
    )


def _destination_kinds(destinations: pa.ChunkedArray, flags: Any) -> pa.Array:
    codes, texts = text_codes(destinations)
    temporary = pc.starts_with(texts, TEMPORARY).to_numpy(zero_copy_only=False)
    is_temporary = np.append(temporary, False)[codes]
    kinds = is_temporary * 2 + (flags & FLAGS["Q"] != 0)
    return decode_texts(np.where(codes < 0, -1, kinds), pa.array(_KINDS))
