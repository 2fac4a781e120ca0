"""The newest messages of an input that grows, and what became of them.

The tables of an input follow from all of its packets. Here those about messages follow from the
newest packets, and from the rare ones before: who is connected, who has subscribed or consumes.
What is between is taken as a gap, as if it were lost, and nothing is concluded from what a gap may
hide. What goes back to it comes with the whole. What is rare, how rows follow from packets and
which of them a gap may have changed is the protocol's: see `MessageProtocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.layers.grouping import Int32s, text_codes
from wireyard.layers.tables import join_tables

__all__ = ["MAX_NEWEST", "MessageProtocol", "NewestPackets", "NewestRows", "Packets", "SureRows"]

MAX_NEWEST: Final = 1 << 16
"""Packets that are looked at once more with those that are new."""
MAX_NEWEST_BYTES: Final = 64 << 20
"""Of them, in memory."""
MAX_RARE: Final = 1 << 17
"""Rare packets of a format that are remembered; of more than that half becomes part of the gap."""
_GAP: Final = "gap"
_MESSAGES: Final = "messages"
_DIRECTION: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
_PLACE: Final = (*_DIRECTION, "offset", "length")

Bools = Annotated[npt.NDArray[np.bool_], "bool"]
Packets = Mapping[str, pa.Table]
"""Packets by the name of their format, in any order."""
SureRows = Callable[[str, pa.Table], pa.Array]
"""A table, rows of it -> which of them are sure."""


class MessageProtocol(NamedTuple):
    """What the newest messages of a protocol follow from."""

    name: str
    """As in the column `protocol`."""
    needed: Mapping[str, Sequence[str]]
    """Columns of packets that are looked at, by format."""
    tables: Sequence[str]
    """The tables that get rows, `messages` among them; all have a column `message_key`."""
    is_rare: Callable[[str, pa.Table], Bools]
    """Returns which packets of a format are remembered when others are not."""
    derive: Callable[[Packets, Sequence[Row], str], Iterable[tuple[str, pa.Table]]]
    """Packets with gaps, what captures show of their streams, the input -> parts of tables."""
    sure_rows: Callable[[Packets], SureRows]
    """Returns for packets without gaps what finds the rows that no packet in a gap can change, of
    messages that were sent after it."""


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
        Messages that were sent later than this get rows.
    """

    def __init__(self, protocol: MessageProtocol, source: str, since_ns: int) -> None:
        self._protocol, self._source, self._since_ns = protocol, source, since_ns
        self._rare: dict[str, list[pa.Table]] = {name: [] for name in protocol.needed}
        self._newest: dict[str, list[pa.Table]] = {name: [] for name in protocol.needed}

    @property
    def since_ns(self) -> int:
        """Messages that were sent up to this time have the rows that they keep."""
        return self._since_ns

    def add(self, format: str, packets: pa.Table, *, old: bool = False) -> None:
        """Add packets with the columns that are needed.

        Parameters
        ----------
        old
            Whether of those of before `since_ns` only the rare ones are wanted.
        """
        if old:
            # By the clock of packets: several files of them may have become one.
            is_old = _times(packets) <= self._since_ns
            rare = is_old & self._protocol.is_rare(format, packets)
            _put(self._rare[format], packets.filter(pa.array(rare)))
            packets = packets.filter(pa.array(~is_old))
        _put(self._newest[format], packets)

    @property
    def streams(self) -> pa.Array:
        """The names of the streams of which there are packets."""
        return _names([part for parts in self._parts().values() for part in parts])

    def go_on(self, since_ns: int) -> None:
        """Give rows only to messages that were sent later than a time."""
        self._since_ns = max(self._since_ns, since_ns)

    def rows(self, shown: Sequence[Row]) -> list[NewestRows]:
        """Return the rows of what there is, part by part, and let go of what is old.

        Parameters
        ----------
        shown
            What captures show of the streams, as `MessageProtocol.derive` takes it.
        """
        packets = {
            name: pa.concat_tables(parts).unify_dictionaries()
            for name, parts in self._parts().items()
            if parts
        }
        if not packets:
            return []
        with_gaps = {name: _with_gaps(table) for name, table in packets.items()}
        found: dict[str, list[pa.Table]] = {name: [] for name in self._protocol.tables}
        for name, part in self._protocol.derive(with_gaps, shown, self._source):
            if name in found:
                found[name].append(part)
        tables = {name: join_tables(parts) for name, parts in found.items() if parts}
        chosen = self._chosen(tables, packets)
        self._let_go()
        return [self._divide(name, *part) for name, part in chosen.items()]

    def _parts(self) -> dict[str, list[pa.Table]]:
        return {name: [*rare, *self._newest[name]] for name, rare in self._rare.items()}

    def _chosen(
        self, tables: Mapping[str, pa.Table], packets: Packets
    ) -> dict[str, tuple[pa.Table, pa.Array]]:
        """Return the rows of messages that were sent since, and when each one's was."""
        if _MESSAGES not in tables:
            return {}
        is_sure = self._protocol.sure_rows(packets)
        messages = tables[_MESSAGES]
        is_new = pc.greater(messages["captured_ns"], self._since_ns)
        messages = messages.filter(is_new)
        messages = messages.filter(is_sure(_MESSAGES, messages))
        keys = messages["message_key"].cast(pa.string()).combine_chunks()
        times = messages["captured_ns"].combine_chunks()
        chosen = {_MESSAGES: (messages, times)}
        for name, rows in tables.items():
            if name != _MESSAGES:
                place = pc.index_in(rows["message_key"].cast(pa.string()), value_set=keys)
                rows = rows.append_column(_AT, place).filter(place.is_valid())
                rows = rows.filter(is_sure(name, rows))
                chosen[name] = rows.drop_columns([_AT]), times.take(rows[_AT])
        return chosen

    def _divide(self, name: str, rows: pa.Table, times: pa.Array) -> NewestRows:
        is_closed = pc.less_equal(times, self._since_ns)
        return NewestRows(name, rows.filter(is_closed), rows.filter(pc.invert(is_closed)))

    def _let_go(self) -> None:
        """Let go of old packets but for the rare ones."""
        newest = {name: pa.concat_tables(parts) for name, parts in self._newest.items() if parts}
        count = sum(packets.num_rows for packets in newest.values())
        size = sum(packets.nbytes for packets in newest.values())
        most = min(MAX_NEWEST, MAX_NEWEST_BYTES * count // max(size, 1))
        if count <= most:
            return
        times = np.concatenate([_times(packets) for packets in newest.values()])
        half, first = count - most // 2 - 1, count - most - 1
        in_part = np.partition(times, (first, half))
        self._since_ns = max(self._since_ns, int(in_part[half]))
        for name, packets in newest.items():
            is_old = _times(packets) <= in_part[first]
            self._newest[name] = []
            _put(self._newest[name], packets.filter(pa.array(~is_old)).combine_chunks())
            self.add(name, packets.filter(pa.array(is_old)), old=True)
            if self._rare[name]:
                self._rare[name] = [self._remembered(name).combine_chunks()]

    def _remembered(self, format: str) -> pa.Table:
        """Return the rare packets that are remembered.

        Those of streams that have nothing among the newest go first. A stream that loses some also
        loses its first packet, so that what it has shows whether it is whole.
        """
        rare = pa.concat_tables(self._rare[format])
        if rare.num_rows <= MAX_RARE:
            return rare
        rare = rare.unify_dictionaries()
        streams = rare["stream"].cast(pa.string())
        is_live = pc.is_in(streams, _names(self._newest[format]))
        order = pc.array_sort_indices(is_live.cast(pa.int8()))
        lost = order.slice(0, rare.num_rows - MAX_RARE // 2)
        rare, losers = rare.take(order.slice(len(lost))), pc.unique(streams.take(lost))
        has_lost = pc.is_in(rare["stream"].cast(pa.string()), losers)
        return rare.filter(pc.invert(pc.and_(has_lost, pc.equal(rare["offset"], 0))))


_AT: Final = "at"
"""Column of rows by which the time of their message is found."""


def _put(parts: list[pa.Table], packets: pa.Table) -> None:
    if packets.num_rows:
        parts.append(packets)


def _times(packets: pa.Table) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = packets["captured_ns"].fill_null(0).to_numpy()
    return found


def _names(parts: Sequence[pa.Table]) -> pa.Array:
    """Return the names of the streams of packets."""
    chunks = [chunk for part in parts for chunk in part["stream"].cast(pa.string()).chunks]
    return pc.unique(pa.chunked_array(chunks, pa.string()))


def _with_gaps(packets: pa.Table) -> pa.Table:
    """Return packets in the order of streams, with a gap wherever packets are missing."""
    gaps = _gaps(_in_order(packets.select(_PLACE)), packets.schema)
    return _in_order(pa.concat_tables([packets, gaps]))


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
