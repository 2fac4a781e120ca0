"""The newest messages of an input that grows, and their deliveries.

The tables of an input follow from all of its packets. Here two of them follow from the newest
packets, and from the rare ones before: who is connected, who has subscribed. What is between is
taken as a gap, as if it were lost, and nothing is concluded from what a gap may hide. What goes
back to it comes with the whole: topics that an alias stands for, values that were retained,
messages that waited for their client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.layers.grouping import Int32s, text_codes
from wireyard.layers.mqtt.files import derive_files
from wireyard.layers.mqtt.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.mqtt.packets import NEEDED as PACKET_NEEDED
from wireyard.layers.mqtt.packets import TRACKED, Bools
from wireyard.layers.tables import packet_keys

__all__ = ["MAX_NEWEST", "NEEDED", "NewestPackets", "NewestRows"]

MAX_NEWEST: Final = 1 << 16
"""Packets that are looked at once more with those that are new."""
MAX_NEWEST_BYTES: Final = 64 << 20
"""Of them, in memory."""
MAX_RARE: Final = 1 << 17
"""Rare packets that are remembered; of more than that the older half becomes part of the gap."""
NEEDED: Final = tuple(dict.fromkeys((*PACKET_NEEDED, *MESSAGE_NEEDED)))
"""Columns of packets that are looked at."""
_TIMES: Final[Mapping[str, str]] = {"messages": "captured_ns", "deliveries": "sent_ns"}
"""The tables that get rows, and when what a row is about was sent."""
_GAP: Final = "gap"
_DIRECTION: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
_PLACE: Final = (*_DIRECTION, "offset", "length")


class NewestRows(NamedTuple):
    """Rows of a table: those that the next packets may change, and those before."""

    table: str
    closed: pa.Table
    open: pa.Table


class NewestPackets:
    """The newest packets of an input, and the rare ones before.

    Parameters
    ----------
    source
        The input.
    since_ns
        What was sent later than this gets rows.
    """

    def __init__(self, source: str, since_ns: int) -> None:
        self._source, self._since_ns = source, since_ns
        self._rare: list[pa.Table] = []
        self._newest: list[pa.Table] = []

    def add(self, packets: pa.Table, *, old: bool = False) -> None:
        """Add packets with the columns of `NEEDED`; of old ones those that are rare."""
        if old:
            self._rare.append(packets.filter(pa.array(_is_rare(packets))))
        else:
            self._newest.append(packets)

    @property
    def streams(self) -> pa.Array:
        """The names of the streams of which there are packets."""
        parts = [*self._rare, *self._newest]
        return pc.unique(
            pa.chunked_array(
                [chunk for part in parts for chunk in part["stream"].cast(pa.string()).chunks],
                pa.string(),
            )
        )

    def go_on(self, since_ns: int) -> None:
        """Give rows only to what was sent later than a time."""
        self._since_ns = max(self._since_ns, since_ns)

    def rows(self, shown: Sequence[Row]) -> list[NewestRows]:
        """Return the rows of what there is, part by part, and let go of what is old.

        Parameters
        ----------
        shown
            As of `derive_files`.
        """
        packets = self._packets()
        resent = packets.filter(pc.fill_null(packets["dup"], False))
        resends = packet_keys(resent["stream"], resent["offset"])
        found = derive_files([lambda columns: [packets.select(columns)]], shown, [self._source])
        parts = [
            (name, self._new(name, table, resends))
            for name, table in found.tables
            if name in _TIMES
        ]
        self._let_go()
        return [self._divide(*part) for part in parts]

    def _new(self, name: str, rows: pa.Table, resends: pa.Array) -> pa.Table:
        """Return the rows of what was sent since; the message of a resend may be in the gap."""
        is_new = pc.greater(rows[_TIMES[name]], self._since_ns)
        of_resend = pc.is_in(rows["message_key"].cast(pa.string()), resends)
        return rows.filter(pc.and_not(is_new, of_resend))

    def _divide(self, name: str, rows: pa.Table) -> NewestRows:
        is_closed = pc.less_equal(rows[_TIMES[name]], self._since_ns)
        return NewestRows(name, rows.filter(is_closed), rows.filter(pc.invert(is_closed)))

    def _packets(self) -> pa.Table:
        """Return what there is in the order of streams, with a gap wherever packets are missing."""
        packets = pa.concat_tables([*self._rare, *self._newest]).unify_dictionaries()
        gaps = _gaps(_in_order(packets.select(_PLACE)), packets.schema)
        return _in_order(pa.concat_tables([packets, gaps]))

    def _let_go(self) -> None:
        """Let go of old packets but for the rare ones."""
        packets = pa.concat_tables(self._newest)
        count = packets.num_rows
        most = min(MAX_NEWEST, MAX_NEWEST_BYTES * count // max(packets.nbytes, 1))
        if count <= most:
            return
        times = packets["captured_ns"].fill_null(0).to_numpy()
        half, first = count - most // 2 - 1, count - most - 1
        in_part = np.partition(times, (first, half))
        self._since_ns = max(self._since_ns, int(in_part[half]))
        is_old = times <= in_part[first]
        self._newest = [packets.filter(pa.array(~is_old)).combine_chunks()]
        self.add(packets.filter(pa.array(is_old)), old=True)
        rare = pa.concat_tables(self._rare)
        if rare.num_rows > MAX_RARE:
            rare = rare.slice(rare.num_rows - MAX_RARE // 2)
        self._rare = [rare.combine_chunks()]


def _is_rare(packets: pa.Table) -> Bools:
    """Return which packets do not deliver messages, and which rows are no packets."""
    rare: Bools = ~np.isin(packets["packet_type"].fill_null(-1).to_numpy(), TRACKED)
    return rare


def _stream_codes(packets: pa.Table) -> Int32s:
    return text_codes(packets["stream"])[0]


def _in_order(packets: pa.Table) -> pa.Table:
    """Return packets stream by stream in the order of their offsets."""
    order = np.lexsort([packets["offset"].to_numpy(), _stream_codes(packets)])
    return packets.take(pa.array(order))


def _gaps(packets: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a row for each gap between packets in their order, and before those of a stream."""
    stream = _stream_codes(packets)
    starts, lengths = (packets[name].to_numpy() for name in ("offset", "length"))
    behind = np.append(0, (starts + lengths)[:-1])
    behind[np.append(True, stream[1:] != stream[:-1])] = 0
    places = np.flatnonzero(starts > behind)
    rows = packets.take(pa.array(places))
    stated = {
        **{name: rows[name] for name in _DIRECTION},
        "offset": pa.array(behind[places]),
        "length": pa.array((starts - behind)[places]),
        "status": pa.array([_GAP] * len(places), pa.string()),
    }
    arrays = [
        stated[one.name].cast(one.type) if one.name in stated else pa.nulls(len(places), one.type)
        for one in schema
    ]
    return pa.table(arrays, schema=schema)
