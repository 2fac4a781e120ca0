"""What the newest JMS messages follow from, their deliveries and hops: `wireyard.layers.newest`.

A message is what its SysMessageID says, so it is certain which message a delivery or an
acknowledgement is about. What is not certain is whether one that nobody was seen to send, or that
was sent again, is in the gap: it comes with the whole. So do transactions that began before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS, PACKET_TYPES
from wireyard.layers.endpoints import connection_of
from wireyard.layers.jmq.columns import NEEDED as PACKET_NEEDED
from wireyard.layers.jmq.files import PacketFile, derive_files
from wireyard.layers.jmq.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.jmq.packet_columns import GPACKET, JMQ
from wireyard.layers.newest import Bools, MessageProtocol, Packets, SureRows
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
_RESENT: Final = FLAGS["I"] | FLAGS["R"]
_ENDS: Final = ["source", "stream", "src_addr", "src_port", "dst_addr", "dst_port"]


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


def _derive(packets: Packets, shown: Sequence[Row], source: str) -> Iterable[tuple[str, pa.Table]]:
    files = [
        PacketFile(number, format, partial(_batches, some))
        for number, (format, some) in enumerate(packets.items())
    ]
    ended = ((row["source"], row["stream"]) for row in shown if row["ended"] is not None)
    return derive_files(files, [source], ended).tables


def _batches(packets: pa.Table, columns: Sequence[str]) -> list[pa.Table]:
    return [packets.select([name for name in columns if name in packets.column_names])]


def _sure_rows(packets: Packets) -> SureRows:
    """Return what finds rows of connections whose rare packets are all there.

    Of messages, those besides that a client was seen to send, and not to send again.
    """
    some = packets.get(JMQ)
    if some is None:
        return lambda table, rows: pa.array(np.zeros(rows.num_rows, np.bool_))
    torn = _torn_streams(some)
    flags = pc.fill_null(pc.bit_wise_and(some["bit_flags"], _RESENT), 0)
    again = some.filter(pc.not_equal(flags, 0))
    resends = packet_keys(again["stream"], again["offset"])

    def is_sure(table: str, rows: pa.Table) -> pa.Array:
        is_whole = pc.invert(pc.is_in(rows["stream"].cast(pa.string()), torn))
        if table != "messages":
            return is_whole
        is_again = pc.is_in(packet_keys(rows["stream"], rows["offset"]), resends)
        is_sent = pc.equal(rows["first_seen"].cast(pa.string()), "sent")
        return pc.and_(is_whole, pc.and_not(is_sent, is_again))

    return is_sure


def _torn_streams(packets: pa.Table) -> pa.Array:
    """Return the streams of the connections of which a stream has no first packet."""
    names = packets.select(_ENDS)
    starts = names.append_column("offset", packets["offset"]).group_by(_ENDS, use_threads=False)
    streams = starts.aggregate([("offset", "min")]).to_pylist()
    torn = {connection_of(row) for row in streams if row["offset_min"] > 0}
    found = [row["stream"] for row in streams if connection_of(row) in torn]
    return pa.array(found, pa.string())


JMS: Final = MessageProtocol(
    name="jms",
    needed={JMQ: _NEEDED, GPACKET: _NEEDED},
    tables=("messages", "deliveries", "hops"),
    is_rare=_is_rare,
    derive=_derive,
    sure_rows=_sure_rows,
)
