"""The newest messages of an input that grows, and what became of them.

The tables of an input follow from all of its packets. Here those about messages follow from the
newest packets, and from the rare ones before: who is connected, who has subscribed or consumes.
What is between is taken as a gap, as if it were lost, and nothing is concluded from what a gap may
hide. What goes back to it comes with the whole. What is rare, how rows follow from packets and
which of them a gap may have changed is the protocol's: see `MessageProtocol`.

Rare packets say all of a session but how much was sent on its connection, which is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.layers.endpoints import connection_of
from wireyard.layers.grouping import Int32s, text_codes
from wireyard.layers.tables import join_tables

__all__ = [
    "MAX_NEWEST",
    "LastIds",
    "MessageProtocol",
    "NewestPackets",
    "NewestRows",
    "Packets",
    "SureRows",
    "torn_streams",
]

MAX_NEWEST: Final = 1 << 16
"""Packets that are looked at once more with those that are new."""
MAX_NEWEST_BYTES: Final = 64 << 20
"""Of them, in memory."""
MAX_RARE: Final = 1 << 17
"""Rare packets of a format that are remembered, and producers; of more packets than that half
becomes part of the gap."""
_GAP: Final = "gap"
_MESSAGES: Final = "messages"
_SESSIONS: Final = "sessions"
_TIMES: Final[Mapping[str, tuple[str, str | None]]] = MappingProxyType(
    {
        "violations": ("captured_ns", None),
        "conversations": ("replied_ns", "requested_ns"),
        "transactions": ("ended_ns", "begun_ns"),
        _SESSIONS: ("closed_ns", None),
    }
)
"""Tables whose rows are not of one message: when a row is complete, and when what it is about
began. Only a session has a row before it is complete."""
_OF_GAPS: Final = ("in_flight_sent", "in_flight_received", "pauses", "paused_ns")
"""Columns of sessions that packets in a gap may have changed."""
_DIRECTION: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
_PLACE: Final = (*_DIRECTION, "offset", "length")

Bools = Annotated[npt.NDArray[np.bool_], "bool"]
Packets = Mapping[str, pa.Table]
"""Packets by the name of their format, in any order."""
LastIds = Mapping[str, tuple[int, int]]
"""By producer, the greatest time and number that ids of its messages have."""
SureRows = Callable[[str, pa.Table], pa.Array]
"""A table, rows of it -> which of them are sure."""


class MessageProtocol(NamedTuple):
    """What the newest messages of a protocol follow from."""

    name: str
    """As in the column `protocol`."""
    needed: Mapping[str, Sequence[str]]
    """Columns of packets that are looked at, by format."""
    tables: Sequence[str]
    """The tables whose rows are of a message, `messages` the first; all have a column
    `message_key`."""
    is_rare: Callable[[str, pa.Table], Bools]
    """Returns which packets of a format are remembered when others are not."""
    derive: Callable[[Packets, Sequence[Row], str], Iterable[tuple[str, pa.Table]]]
    """Packets with gaps, what captures show of their streams, the input -> parts of tables."""
    is_counted: Callable[[str, pa.Table], Bools]
    """Returns which packets of a format are in the sums that sessions have."""
    last_ids: Callable[[str, pa.Table], LastIds | None]
    """Returns which message of each producer among packets of a format has the greatest id; None if
    there may be messages of which that is not known."""
    sure_rows: Callable[[Packets, LastIds | None], SureRows]
    """Returns for packets without gaps, and the greatest ids in the gap, what finds the rows that
    no packet in the gap can change, of what was sent or began after it. Of sessions those of which
    all rare packets are there."""


class NewestRows(NamedTuple):
    """Rows of a table: those that the next packets may change, and those before.

    Those of sessions take the place of rows with the same stream and offset that were open.
    """

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
        self._made_ns = since_ns
        """When all facts were made, as far as that is known."""
        self._rare: dict[str, list[pa.Table]] = {name: [] for name in protocol.needed}
        self._newest: dict[str, list[pa.Table]] = {name: [] for name in protocol.needed}
        self._last_ids: dict[str, tuple[int, int]] | None = {}
        """Of the messages in the gap."""
        self._connections: dict[str, tuple[str, ...]] = {}
        """Of each stream its connection."""
        self._sums: dict[tuple[str, ...], tuple[int, int]] = {}
        """How many packets of each connection there were, and their bytes."""

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
        self._count(packets.filter(pa.array(self._protocol.is_counted(format, packets))))
        self._add(format, packets, old=old)

    def _add(self, format: str, packets: pa.Table, *, old: bool) -> None:
        if old:
            # By the clock of packets: several files of them may have become one.
            is_old = _times(packets) <= self._since_ns
            rare = is_old & self._protocol.is_rare(format, packets)
            _put(self._rare[format], packets.filter(pa.array(rare)))
            self._let_ids_go(format, packets.filter(pa.array(is_old & ~rare)))
            packets = packets.filter(pa.array(~is_old))
        _put(self._newest[format], packets)

    def _let_ids_go(self, format: str, packets: pa.Table) -> None:
        """Remember the greatest ids of messages that become part of the gap."""
        if self._last_ids is None or not packets.num_rows:
            return
        found = self._protocol.last_ids(format, packets)
        if found is None or len(self._last_ids) > MAX_RARE:
            self._last_ids = None
            return
        for producer, last in found.items():
            self._last_ids[producer] = max(last, self._last_ids.get(producer, last))

    def _count(self, packets: pa.Table) -> None:
        """Add packets to the sums of their connections."""
        some = packets.select([*_DIRECTION, "length"]).unify_dictionaries()
        sums = some.group_by(list(_DIRECTION), use_threads=False).aggregate(
            [([], "count_all"), ("length", "sum")]
        )
        for row in sums.to_pylist():
            connection = self._connections.setdefault(row["stream"], connection_of(row))
            count, size = self._sums.get(connection, (0, 0))
            self._sums[connection] = count + row["count_all"], size + row["length_sum"]

    @property
    def streams(self) -> pa.Array:
        """The names of the streams of which there are packets."""
        return _names([part for parts in self._parts().values() for part in parts])

    def go_on(self, since_ns: int) -> None:
        """Take note that facts of all packets are made up to a time."""
        self._since_ns = self._made_ns = max(self._since_ns, since_ns)

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
        found: dict[str, list[pa.Table]] = {}
        for name, part in self._protocol.derive(with_gaps, shown, self._source):
            found.setdefault(name, []).append(part)
        tables = {name: join_tables(parts) for name, parts in found.items()}
        is_sure = self._protocol.sure_rows(packets, self._last_ids)
        chosen = self._of_messages(tables, is_sure) | self._complete(tables, is_sure)
        if _SESSIONS in chosen:
            has_gap = any(with_gaps[one].num_rows > some.num_rows for one, some in packets.items())
            sessions, times = chosen[_SESSIONS]
            chosen[_SESSIONS] = self._with_sums(sessions, has_gap=has_gap), times
        self._let_go()
        return [self._divide(name, *part) for name, part in chosen.items()]

    def _parts(self) -> dict[str, list[pa.Table]]:
        return {name: [*rare, *self._newest[name]] for name, rare in self._rare.items()}

    def _of_messages(
        self, tables: Mapping[str, pa.Table], is_sure: SureRows
    ) -> dict[str, tuple[pa.Table, pa.Array]]:
        """Return the rows of messages that were sent since, and when each one's was."""
        if _MESSAGES not in tables:
            return {}
        messages = tables[_MESSAGES]
        is_new = pc.greater(messages["captured_ns"], self._since_ns)
        messages = messages.filter(is_new)
        messages = messages.filter(is_sure(_MESSAGES, messages))
        keys = messages["message_key"].cast(pa.string()).combine_chunks()
        times = messages["captured_ns"].combine_chunks()
        chosen = {_MESSAGES: (messages, times)}
        for name in self._protocol.tables:
            if name != _MESSAGES and (rows := tables.get(name)) is not None:
                place = pc.index_in(rows["message_key"].cast(pa.string()), value_set=keys)
                rows = rows.append_column(_AT, place).filter(place.is_valid())
                rows = rows.filter(is_sure(name, rows))
                chosen[name] = rows.drop_columns([_AT]), times.take(rows[_AT])
        return chosen

    def _complete(
        self, tables: Mapping[str, pa.Table], is_sure: SureRows
    ) -> dict[str, tuple[pa.Table, pa.Array]]:
        """Return the rows of other tables that were complete since, and when each one was.

        Rows of sessions that are open are among them; their time is null.
        """
        chosen = {}
        for name, (complete, begun) in _TIMES.items():
            if (rows := tables.get(name)) is not None:
                is_new = pc.greater(rows[complete], self._since_ns)
                if begun is not None:
                    is_new = pc.and_(is_new, pc.greater(rows[begun], self._made_ns))
                rows = rows.filter(pc.fill_null(is_new, name == _SESSIONS))
                rows = rows.filter(is_sure(name, rows))
                chosen[name] = rows, rows[complete]
        return chosen

    def _with_sums(self, sessions: pa.Table, *, has_gap: bool) -> pa.Table:
        """Return rows of sessions with what was counted, and without what a gap may change."""
        streams = sessions["stream"].cast(pa.string()).to_pylist()
        sums = [self._sums.get(self._connections.get(name, ()), (0, 0)) for name in streams]
        for place, name in enumerate(("packets", "bytes")):
            values = pa.array([each[place] for each in sums], pa.int64())
            sessions = _with_column(sessions, name, values)
        for name in _OF_GAPS if has_gap else ():
            sessions = _with_column(sessions, name, pa.nulls(len(sums), pa.int64()))
        return sessions

    def _divide(self, name: str, rows: pa.Table, times: pa.Array) -> NewestRows:
        is_closed = pc.fill_null(pc.less_equal(times, self._since_ns), False)
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
            self._add(name, packets.filter(pa.array(is_old)), old=True)
            if self._rare[name]:
                self._rare[name] = [self._remembered(name).combine_chunks()]
        if len(self._connections) > 2 * (MAX_RARE + MAX_NEWEST):
            there = {*self.streams.to_pylist()}
            self._connections = {
                name: one for name, one in self._connections.items() if name in there
            }
            left = {*self._connections.values()}
            self._sums = {one: sums for one, sums in self._sums.items() if one in left}

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
        self._let_ids_go(format, rare.take(lost))
        rare, losers = rare.take(order.slice(len(lost))), pc.unique(streams.take(lost))
        has_lost = pc.is_in(rare["stream"].cast(pa.string()), losers)
        return rare.filter(pc.invert(pc.and_(has_lost, pc.equal(rare["offset"], 0))))


_AT: Final = "at"
"""Column of rows by which the time of their message is found."""


def torn_streams(packets: pa.Table) -> pa.Array:
    """Return the streams of the connections of which a stream has no first packet."""
    names = packets.select(_DIRECTION)
    starts = names.append_column("offset", packets["offset"]).group_by(
        list(_DIRECTION), use_threads=False
    )
    streams = starts.aggregate([("offset", "min")]).to_pylist()
    torn = {connection_of(row) for row in streams if row["offset_min"] > 0}
    found = [row["stream"] for row in streams if connection_of(row) in torn]
    return pa.array(found, pa.string())


def _with_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), values.cast(rows.schema.types[place]))


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
