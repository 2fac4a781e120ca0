"""What the newest JMS messages follow from, their deliveries and hops: `wireyard.layers.newest`.

A message is what its SysMessageID says, so it is certain which message a delivery or an
acknowledgement is about. What is not certain is whether one that nobody was seen to send, or that
was sent again, is in the gap. It is not if its id is greater than those of its producer in the gap;
else it comes with the whole. So do transactions that began before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES, PACKET_TYPES
from wireyard.layers.jmq.columns import NEEDED as PACKET_NEEDED
from wireyard.layers.jmq.files import PacketFile, derive_files
from wireyard.layers.jmq.hop_columns import KEY_PATTERN
from wireyard.layers.jmq.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.jmq.packet_columns import GPACKET, JMQ
from wireyard.layers.newest import Bools, LastIds, MessageProtocol, Packets, SureRows, torn_streams
from wireyard.layers.tables import packet_keys

__all__ = ["JMS"]

_NEEDED: Final = tuple(dict.fromkeys((*PACKET_NEEDED, *MESSAGE_NEEDED)))
_RARE_WORDS: Final = (
    "HELLO",
    "AUTHENTICATE",
    "CLIENTID",
    "CONSUMER",
    "BROWSE",
    "SESSION",
    "GOODBYE",
)
_RARE: Final = [
    code for code, name in PACKET_TYPES.items() if any(word in name for word in _RARE_WORDS)
]
"""Types of the packets that show who is connected, and what consumers there are."""
_OF_NUMBERS: Final = "sequence_gap"
"""The rule that is broken where numbers of a sender are missing."""
_PRODUCER: Final = ("source_ip_text", "source_port")
_ID: Final = (*_PRODUCER, "timestamp", "sequence", "packet_type")
_BETWEEN: Final = "-"
_RESENT: Final = FLAGS["I"] | FLAGS["R"]


def _is_rare(format: str, packets: pa.Table) -> Bools:
    """Return which packets show who is connected and consumes, and which rows are no packets.

    The first packet of a stream is remembered to show that no rare one of it is gone.
    """
    types = _RARE if format == JMQ else ()
    is_rare = np.isin(packets["packet_type"].fill_null(0).to_numpy(), types)
    is_first = packets["offset"].to_numpy() == 0
    is_packet = pc.equal(packets["status"].cast(pa.string()), "ok").to_numpy()
    rare: Bools = is_rare | is_first | ~is_packet
    return rare


def _is_counted(format: str, packets: pa.Table) -> Bools:
    """Return which are packets of clients."""
    found: Bools = pc.equal(packets["status"].cast(pa.string()), "ok").to_numpy()
    return found & (format == JMQ)


def _derive(packets: Packets, shown: Sequence[Row], source: str) -> Iterable[tuple[str, pa.Table]]:
    files = [
        PacketFile(number, format, partial(_batches, some))
        for number, (format, some) in enumerate(packets.items())
    ]
    ended = ((row["source"], row["stream"]) for row in shown if row["ended"] is not None)
    return derive_files(files, [source], ended).tables


def _batches(packets: pa.Table, columns: Sequence[str]) -> list[pa.Table]:
    return [packets.select([name for name in columns if name in packets.column_names])]


def _last_ids(format: str, packets: pa.Table) -> LastIds | None:
    """Return the greatest id of each producer; what GPackets have inside is not looked at."""
    if format != JMQ:
        return None
    is_message = pc.is_in(packets["packet_type"], pa.array(MESSAGE_TYPES, pa.int32()))
    some = packets.select(_ID).filter(is_message).unify_dictionaries()
    ordered = some.sort_by([("timestamp", "ascending"), ("sequence", "ascending")])
    last = ordered.group_by(list(_PRODUCER), use_threads=False).aggregate(
        [("timestamp", "last"), ("sequence", "last")]
    )
    return {
        _BETWEEN.join((row["source_ip_text"], str(row["source_port"]))): (
            row["timestamp_last"],
            row["sequence_last"],
        )
        for row in last.to_pylist()
    }


def _is_after(keys: pa.Array, last_ids: LastIds) -> pa.Array:
    """Return which messages have an id that is greater than the last one of their producer."""
    parts = pc.extract_regex(keys.cast(pa.string()), KEY_PATTERN)
    producer, *numbers = (pc.struct_field(parts, name) for name in ("producer", "ms", "sequence"))
    ms, sequence = (each.cast(pa.int64()) for each in numbers)
    place = pc.index_in(producer, value_set=pa.array(last_ids, pa.string()))
    last = np.array([*last_ids.values()], np.int64).reshape(-1, 2)
    last_ms, last_sequence = (pa.array(column).take(place) for column in last.T)
    is_later = pc.greater(sequence, last_sequence)
    found = pc.or_(pc.greater(ms, last_ms), pc.and_(pc.equal(ms, last_ms), is_later))
    return pc.if_else(place.is_valid(), found, parts.is_valid())


def _sure_rows(packets: Packets, last_ids: LastIds | None) -> SureRows:
    """Return what finds rows of connections whose rare packets are all there.

    Of messages, those besides that a client was seen to send, and not to send again, and those that
    were delivered without that, and have later ids than any in the gap.
    """
    some = packets.get(JMQ)
    if some is None:
        return lambda table, rows: pa.array(np.zeros(rows.num_rows, np.bool_))
    torn = torn_streams(some)
    flags = pc.fill_null(pc.bit_wise_and(some["bit_flags"], _RESENT), 0)
    again = some.filter(pc.not_equal(flags, 0))
    resends = packet_keys(again["stream"], again["offset"])

    def is_sure(table: str, rows: pa.Table) -> pa.Array:
        is_whole = pc.invert(pc.is_in(rows["stream"].cast(pa.string()), torn))
        if table == "violations":
            # The numbers that are missing may be in the gap.
            return pc.and_(is_whole, pc.not_equal(rows["rule"].cast(pa.string()), _OF_NUMBERS))
        if table != "messages":
            return is_whole
        is_again = pc.is_in(packet_keys(rows["stream"], rows["offset"]), resends)
        first_seen = rows["first_seen"].cast(pa.string())
        is_sure = pc.and_not(pc.equal(first_seen, "sent"), is_again)
        if last_ids is not None:
            is_new = pc.and_(
                pc.equal(first_seen, "delivered"), _is_after(rows["message_key"], last_ids)
            )
            is_sure = pc.or_(is_sure, is_new)
        return pc.and_(is_whole, is_sure)

    return is_sure


JMS: Final = MessageProtocol(
    name="jms",
    needed={JMQ: _NEEDED, GPACKET: _NEEDED},
    tables=("messages", "deliveries", "hops"),
    is_rare=_is_rare,
    derive=_derive,
    is_counted=_is_counted,
    last_ids=_last_ids,
    sure_rows=_sure_rows,
)
