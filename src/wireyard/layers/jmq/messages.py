"""JMS messages as rows of the table ``messages``, from the packet that represents each message.

`stand_for_messages` selects that packet. Packets with the same SysMessageID (timestamp, address,
port, sequence) are the same message, so resends, flagged I or R, and deliveries are no further
messages. A message that was captured only when it was delivered or relayed between brokers has a
row too; `first_seen` is the kind of its packet. The row of a message that only GPackets show has no
fields of the JMQ packet.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.message import BODY_KINDS
from wireyard.layers.grouping import decode_texts, text_codes
from wireyard.layers.tables import as_fact_table

__all__ = ["NEEDED", "message_table"]

_ROW: Final = ("source", "stream", "offset", "length", "captured_ns", "frame")
NEEDED: Final = (
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
_TEMPORARY: Final = "temporary_destination://"
_KINDS: Final = ("topic", "queue", "temporary_topic", "temporary_queue")


def message_table(packets: pa.Table, marks: pa.Table) -> pa.Table:
    """Return messages as a part of the table ``messages``.

    Parameters
    ----------
    packets
        Their packets, all of one format, with the columns of `NEEDED` that the format has.
    marks
        The row of each packet in the result of `stand_for_messages`.
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
    temporary = pc.starts_with(texts, _TEMPORARY).to_numpy(zero_copy_only=False)
    is_temporary = np.append(temporary, False)[codes]
    kinds = is_temporary * 2 + (flags & FLAGS["Q"] != 0)
    return decode_texts(np.where(codes < 0, -1, kinds), pa.array(_KINDS))
