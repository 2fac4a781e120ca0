"""The rules of JMS for rows of the newest messages, with their deliveries and hops.

See `wireyard.layers.newest`. The SysMessageID identifies the message of a delivery or an
acknowledgement, whatever a gap hides. A message that was sent again, or whose sending was not
captured, may also be in the gap. It is not if its id is greater than all ids of its producer in the
gap; else its rows are left to the next run over all packets, and so are transactions that began
before.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Bools
from wireyard.formats.jmq.layout import MESSAGE_TYPES, PACKET_TYPES
from wireyard.layers.gaps import source_keys, stream_keys, torn_streams
from wireyard.layers.jmq.columns import NEEDED as PACKET_NEEDED
from wireyard.layers.jmq.connection_columns import RESENT
from wireyard.layers.jmq.facts import FACTS
from wireyard.layers.jmq.files import MESSAGE_NEEDED
from wireyard.layers.jmq.packet_columns import GPACKET, JMQ
from wireyard.layers.jmq.record_columns import KEY_PATTERN
from wireyard.layers.newest import LastIds, NewestRules, Packets, SureRows
from wireyard.layers.tables import packet_keys

_NEEDED: Final = tuple(dict.fromkeys((*PACKET_NEEDED, *MESSAGE_NEEDED)))
_RARE_WORDS: Final = (
    "HELLO", "AUTHENTICATE", "CLIENTID", "CONSUMER", "BROWSE", "SESSION", "GOODBYE",
)  # fmt: skip
_RARE: Final = [
    code for code, name in PACKET_TYPES.items() if any(word in name for word in _RARE_WORDS)
]
"""Types of the packets that show clients, sessions and consumers."""
_PRODUCER: Final = ("source_ip_text", "source_port")
_ID: Final = (*_PRODUCER, "timestamp", "sequence", "packet_type")
_SEPARATOR: Final = "-"
"""Between the address and the port of a producer in message keys."""


def _is_rare(format: str, packets: pa.Table) -> Bools:
    """Return which rows are packets of the types `_RARE`, no packets, or the first of a stream.

    The first packet of a stream is kept to show that all its rare packets are.
    """
    types = _RARE if format == JMQ else ()
    is_rare = np.isin(packets["packet_type"].fill_null(0).to_numpy(), types)
    is_first = packets["offset"].to_numpy() == 0
    is_packet = pc.equal(packets["status"].cast(pa.string()), "ok").to_numpy()
    rare: Bools = is_rare | is_first | ~is_packet
    return rare


def _is_counted(format: str, packets: pa.Table) -> Bools:
    """Return which rows are packets between clients and brokers."""
    is_packet: Bools = pc.equal(packets["status"].cast(pa.string()), "ok").to_numpy()
    return is_packet & (format == JMQ)


def _last_ids(format: str, packets: pa.Table) -> LastIds | None:
    """Return the greatest message id of each producer; None for GPackets, which are not read."""
    if format != JMQ:
        return None
    is_message = pc.is_in(packets["packet_type"], pa.array(MESSAGE_TYPES, pa.int32()))
    messages = packets.select(_ID).filter(is_message).unify_dictionaries()
    ordered = messages.sort_by([("timestamp", "ascending"), ("sequence", "ascending")])
    last = ordered.group_by(list(_PRODUCER), use_threads=False).aggregate(
        [("timestamp", "last"), ("sequence", "last")]
    )
    return {
        _SEPARATOR.join((row["source_ip_text"], str(row["source_port"]))): (
            row["timestamp_last"],
            row["sequence_last"],
        )
        for row in last.to_pylist()
    }


def _is_after(keys: pa.Array, last_ids: LastIds) -> pa.Array:
    """Return which messages have an id greater than the last one of their producer."""
    parts = pc.extract_regex(keys.cast(pa.string()), KEY_PATTERN)
    producer, *numbers = (pc.struct_field(parts, name) for name in ("producer", "ms", "sequence"))
    ms, sequence = (each.cast(pa.int64()) for each in numbers)
    place = pc.index_in(producer, value_set=pa.array(last_ids, pa.string()))
    last = np.array([*last_ids.values()], np.int64).reshape(-1, 2)
    last_ms, last_sequence = (pa.array(column).take(place) for column in last.T)
    is_later = pc.greater(sequence, last_sequence)
    is_after = pc.or_(pc.greater(ms, last_ms), pc.and_(pc.equal(ms, last_ms), is_later))
    return pc.if_else(place.is_valid(), is_after, parts.is_valid())


def _sure_rows(packets: Packets, last_ids: LastIds | None) -> SureRows:
    """Return a function that selects rows of connections with all their rare packets.

    Of these it selects the messages whose first sending was captured, and those that were only
    delivered and have a greater id than all of their producer in the gap.
    """
    jmq = packets.get(JMQ)
    if jmq is None:
        return lambda table, rows: pa.array(np.zeros(rows.num_rows, np.bool_))
    torn = torn_streams(jmq)
    flags = pc.fill_null(pc.bit_wise_and(jmq["bit_flags"], RESENT), 0)
    resent = jmq.filter(pc.not_equal(flags, 0))
    resends = source_keys(resent, packet_keys(resent["stream"], resent["offset"]))

    def is_sure(table: str, rows: pa.Table) -> pa.Array:
        is_whole = pc.invert(pc.is_in(stream_keys(rows), torn))
        if table != "messages":
            return is_whole
        keys = source_keys(rows, packet_keys(rows["stream"], rows["offset"]))
        is_resend = pc.is_in(keys, resends)
        first_seen = rows["first_seen"].cast(pa.string())
        is_sure = pc.and_not(pc.equal(first_seen, "sent"), is_resend)
        if last_ids is not None:
            is_new = pc.and_(
                pc.equal(first_seen, "delivered"), _is_after(rows["message_key"], last_ids)
            )
            is_sure = pc.or_(is_sure, is_new)
        return pc.and_(is_whole, is_sure)

    return is_sure


JMS: Final = NewestRules(
    facts=FACTS,
    few=1 << 17,
    needed={JMQ: _NEEDED, GPACKET: _NEEDED},
    tables=("messages", "deliveries", "hops"),
    is_rare=_is_rare,
    is_counted=_is_counted,
    last_ids=_last_ids,
    sure_rows=_sure_rows,
)
