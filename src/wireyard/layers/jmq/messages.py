"""JMS messages as rows of the table of messages: what the packet that stands for each says.

Which packets those are is what `stand_for_messages` finds. A message is what its SysMessageID says
(timestamp, address, port, sequence), so a resend, flagged I or R, is the same message, and so is
what a broker delivers of it. One that is seen in deliveries or between brokers only was sent all
the same, where nobody listened: it counts, and `first_seen` says so. Of what only GPackets show
there is no more than that.
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
"""Columns of JMQ packets that a message is made of; of GPackets the first few."""
_SAME: Final = {
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
"""By the column of a message, the column of its packet."""
_MARKED: Final = ("message_key", "first_seen", "producer_client_id", "user")
_TEMPORARY: Final = "temporary_destination://"
_KINDS: Final = ("topic", "queue", "temporary_topic", "temporary_queue")


def message_table(packets: pa.Table, marks: pa.Table) -> pa.Table:
    """Return messages as a part of the table.

    Parameters
    ----------
    packets
        The rows that stand for them, all of one format, with the columns of `NEEDED` that it has.
    marks
        What is known of each from other packets, as `stand_for_messages` returns it.
    """
    is_sent = pc.equal(marks["first_seen"].cast(pa.string()), "sent")
    known: dict[str, Any] = {
        **{name: packets[name] for name in _ROW},
        **{name: marks[name] for name in _MARKED},
        "protocol": decode_texts(np.zeros(packets.num_rows), pa.array(["jms"])),
        "sent_ns": pc.if_else(is_sent, packets["captured_ns"], None),
        "client": pc.if_else(packets["src_addr"].is_valid(), marks["client"], None),
    }
    if "source_ip_text" in packets.column_names:
        known |= _said(packets)
    return as_fact_table("messages", known)


def _said(packets: pa.Table) -> dict[str, Any]:
    """Return what a JMQ packet says of its message."""
    flags = packets["bit_flags"].to_numpy()

    def flag(letter: str) -> Any:
        return pa.array(flags & FLAGS[letter] != 0)

    kinds = {code: at for at, code in enumerate(BODY_KINDS)}
    of_kind = np.full(max(kinds) + 1, -1)
    of_kind[list(kinds)] = list(kinds.values())
    return {
        **{name: packets[column] for name, column in _SAME.items()},
        "producer": _producers(packets["source_ip_text"], packets["source_port"]),
        "destination_kind": _destination_kinds(packets["destination"], flags),
        "persistent": flag("P"),
        "compressed": flag("Z"),
        "body_kind": decode_texts(
            of_kind[packets["packet_type"].to_numpy()], pa.array(list(BODY_KINDS.values()))
        ),
    }


def _producers(hosts: pa.ChunkedArray, ports: pa.ChunkedArray) -> pa.Array:
    """Return ``address:port``; stock clients send a MAC address too, in parentheses."""
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
