"""The rows of the newest messages of an input that grows, before all its packets are read anew.

The tables of an input follow from all of its packets. Here the rows about messages follow from the
newest packets and from the rare ones before them, such as logins, subscriptions and consumers. The
packets between are treated as a gap, as if they were lost, and nothing is concluded from what a gap
may hide. Rows that depend on the gap are left to the next run over all packets. Each protocol
defines which packets are rare, how rows follow from packets, and which rows a gap may have changed:
see `MessageProtocol`.

The rare packets are enough for the row of a session, but for its sums of packets and bytes, which
are counted as packets arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Bools, Int32s, Ints
from wireyard.formats.base import Row
from wireyard.layers.endpoints import connection_of
from wireyard.layers.grouping import split_rows, text_codes
from wireyard.layers.records import GAP
from wireyard.layers.tables import join_tables

__all__ = [
    "MAX_NEWEST",
    "LastIds",
    "MessageProtocol",
    "NewestPackets",
    "NewestRows",
    "Packets",
    "SureRows",
    "by_source",
    "rows_together",
    "torn_streams",
]

MAX_NEWEST: Final = 1 << 16
"""The most packets that are kept and read again together with new ones, of all inputs."""
MAX_NEWEST_BYTES: Final = 64 << 20
"""The most memory of these packets, in bytes."""
MAX_RARE: Final = 1 << 17
"""The most rare packets of a format that are kept, and the most producers with a last id. Above it
the rare packets are reduced to half of it: the others become part of the gap."""
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
"""Tables whose rows are not about one message: the columns with the time when a row is complete,
and when its subject began. Only a session has a row before it is complete."""
_CHANGED_IN_GAPS: Final = ("in_flight_sent", "in_flight_received", "pauses", "paused_ns")
"""Columns of sessions that packets in a gap may have changed."""
_DIRECTION: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
_PLACE: Final = (*_DIRECTION, "offset", "length", "captured_ns")

Packets = Mapping[str, pa.Table]
"""Packets by the name of their format, in any order."""
LastIds = Mapping[str, tuple[int, int]]
"""The greatest message id of each producer: its time and its sequence number."""
SureRows = Callable[[str, pa.Table], pa.Array]
"""The name of a table, rows of it -> which of the rows no packet in the gap can change."""


class MessageProtocol(NamedTuple):
    """The rules of a protocol by which rows follow from its newest packets."""

    name: str
    """The value of the column `protocol`."""
    needed: Mapping[str, Sequence[str]]
    """The columns of packets that are read, by format."""
    tables: Sequence[str]
    """The tables whose rows are about one message, `messages` first; all have a column
    `message_key`."""
    is_rare: Callable[[str, pa.Table], Bools]
    """Returns which packets of a format are rare: these are kept when others become a gap."""
    derive: Callable[[Packets, Sequence[Row], Sequence[str]], Iterable[tuple[str, pa.Table]]]
    """Derives parts of tables from packets with gaps, rows about their streams, and the inputs."""
    is_counted: Callable[[str, pa.Table], Bools]
    """Returns which packets of a format count in the sums of their session."""
    last_ids: Callable[[str, pa.Table], LastIds | None]
    """Returns the greatest message id of each producer in packets of a format; None if there may be
    messages with unknown ids."""
    sure_rows: Callable[[Packets, LastIds | None], SureRows]
    """Takes packets without gaps and the greatest ids in the gap. Returns a function that selects
    the rows of what was sent or began after the gap and that no packet in the gap can change. Rows
    of sessions are selected if all rare packets of the session are there."""


class NewestRows(NamedTuple):
    """Rows of a table: final ones (`closed`), and ones that later packets may change (`open`).

    A row of a session replaces an open one with the same stream and offset.
    """

    table: str
    closed: pa.Table
    open: pa.Table


class NewestPackets:
    """The newest packets of an input, and the rare ones before them.

    Parameters
    ----------
    source
        The input.
    since_ns
        Only messages that were sent after this time get rows.
    most
        The most packets that are kept besides the rare ones; `MAX_NEWEST` if None.
    """

    def __init__(
        self, protocol: MessageProtocol, source: str, since_ns: int, most: int | None = None
    ) -> None:
        self.protocol, self._since_ns = protocol, since_ns
        self.source: Final = source
        self._most = MAX_NEWEST if most is None else most
        self._made_ns = since_ns
        """The time up to which facts of all packets are known to be made."""
        self._rare: dict[str, list[pa.Table]] = {name: [] for name in protocol.needed}
        self._newest: dict[str, list[pa.Table]] = {name: [] for name in protocol.needed}
        self._gap_ns = 0
        """The time of the last packet in a gap."""
        self._last_ids: dict[str, tuple[int, int]] | None = {}
        """The greatest message id of each producer in the gap; None if not known."""
        self._connections: dict[str, tuple[str, ...]] = {}
        """The connection of each stream."""
        self._sums: dict[tuple[str, ...], tuple[int, int]] = {}
        """The number of packets of each connection, and their bytes."""

    @property
    def since_ns(self) -> int:
        """The rows of messages that were sent up to this time are final."""
        return self._since_ns

    def add(self, format: str, packets: pa.Table, *, old: bool = False) -> None:
        """Add packets with the columns that are needed.

        Parameters
        ----------
        old
            Whether to keep only the rare ones of the packets up to `since_ns`.
        """
        self._add_to_sums(packets.filter(pa.array(self.protocol.is_counted(format, packets))))
        self._add(format, packets, old=old)

    def _add(self, format: str, packets: pa.Table, *, old: bool) -> None:
        if old:
            # Packets are old by their own times: several files of packets may have become one.
            is_old = _times(packets) <= self._since_ns
            rare = is_old & self.protocol.is_rare(format, packets)
            _append(self._rare[format], packets.filter(pa.array(rare)))
            self._add_ids_of_gap(format, packets.filter(pa.array(is_old & ~rare)))
            packets = packets.filter(pa.array(~is_old))
        _append(self._newest[format], packets)

    def _add_ids_of_gap(self, format: str, packets: pa.Table) -> None:
        """Keep the greatest message ids of packets that become part of the gap, and their time."""
        if not packets.num_rows:
            return
        self._gap_ns = max(self._gap_ns, int(_times(packets).max()))
        if self._last_ids is None:
            return
        ids = self.protocol.last_ids(format, packets)
        if ids is None or len(self._last_ids) > MAX_RARE:
            self._last_ids = None
            return
        for producer, last in ids.items():
            self._last_ids[producer] = max(last, self._last_ids.get(producer, last))

    def _add_to_sums(self, packets: pa.Table) -> None:
        """Add packets to the sums of their connections."""
        lengths = packets.select([*_DIRECTION, "length"]).unify_dictionaries()
        sums = lengths.group_by(list(_DIRECTION), use_threads=False).aggregate(
            [([], "count_all"), ("length", "sum")]
        )
        for row in sums.to_pylist():
            connection = self._connections.setdefault(row["stream"], connection_of(row))
            count, size = self._sums.get(connection, (0, 0))
            self._sums[connection] = count + row["count_all"], size + row["length_sum"]

    @property
    def streams(self) -> pa.Array:
        """The names of the streams that have packets here."""
        return _stream_names([part for parts in self._parts().values() for part in parts])

    def advance(self, since_ns: int) -> None:
        """Set the time up to which facts of all packets are made."""
        self._since_ns = self._made_ns = max(self._since_ns, since_ns)

    def state(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Return the state from which another object continues: JSON, and tables by name."""
        tables = {
            f"{kind} {name}": pa.concat_tables(parts).unify_dictionaries().combine_chunks()
            for kind, packets in (("rare", self._rare), ("newest", self._newest))
            for name, parts in packets.items()
            if parts
        }
        values = {
            "since_ns": self._since_ns,
            "made_ns": self._made_ns,
            "gap_ns": self._gap_ns,
            "last_ids": self._last_ids,
            "connections": self._connections,
            "sums": [[*connection, *sums] for connection, sums in self._sums.items()],
        }
        return values, tables

    def restore(self, values: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
        """Continue from a state.

        Raises
        ------
        KeyError, TypeError, ValueError, AttributeError
            The state is malformed.
        """
        self._since_ns, self._made_ns = int(values["since_ns"]), int(values["made_ns"])
        self._gap_ns = int(values["gap_ns"])
        self._last_ids = None
        if (ids := values["last_ids"]) is not None:
            self._last_ids = {str(name): (int(ms), int(at)) for name, (ms, at) in ids.items()}
        self._connections = {
            str(name): tuple(map(str, each)) for name, each in values["connections"].items()
        }
        self._sums = {
            tuple(map(str, each)): (int(count), int(size)) for *each, count, size in values["sums"]
        }
        for name, table in tables.items():
            kind, _, format = name.partition(" ")
            if not {*self.protocol.needed[format]} >= {*table.column_names} >= {*_PLACE}:
                raise ValueError(f"a table of {format} with other columns")
            {"rare": self._rare, "newest": self._newest}[kind][format] = [table]

    def rows(self, shown: Sequence[Row]) -> list[NewestRows]:
        """Return the rows that follow from the packets here, table by table; evict old packets.

        Parameters
        ----------
        shown
            Rows that describe the streams, for `MessageProtocol.derive`.
        """
        return rows_together([(self, shown)])[0]

    def packets(self) -> dict[str, pa.Table]:
        """Return the packets by format, without empty tables."""
        return {
            name: pa.concat_tables(parts).unify_dictionaries()
            for name, parts in self._parts().items()
            if parts
        }

    def with_gaps(self, packets: Packets) -> dict[str, pa.Table]:
        """Return the packets with a row for each gap, sorted by stream and offset."""
        return {name: with_gaps(table, self._gap_ns) for name, table in packets.items()}

    def choose(
        self, packets: Packets, derived: Mapping[str, pa.Table], *, has_gap: bool
    ) -> list[NewestRows]:
        """Return the rows that count, of all that follow from the packets; evict old packets."""
        is_sure = self.protocol.sure_rows(packets, self._last_ids)
        chosen = self._message_rows(derived, is_sure) | self._other_rows(derived, is_sure)
        if _SESSIONS in chosen:
            sessions, times = chosen[_SESSIONS]
            chosen[_SESSIONS] = self._with_sums(sessions, has_gap=has_gap), times
        self.evict()
        return [self._split_closed(name, *part) for name, part in chosen.items()]

    def _parts(self) -> dict[str, list[pa.Table]]:
        return {name: [*rare, *self._newest[name]] for name, rare in self._rare.items()}

    def _message_rows(
        self, tables: Mapping[str, pa.Table], is_sure: SureRows
    ) -> dict[str, tuple[pa.Table, pa.Array]]:
        """Return the rows about messages sent after `since_ns`, with the time of their messages."""
        if _MESSAGES not in tables:
            return {}
        messages = tables[_MESSAGES]
        is_new = pc.greater(messages["captured_ns"], self._since_ns)
        messages = messages.filter(is_new)
        messages = messages.filter(is_sure(_MESSAGES, messages))
        keys = messages["message_key"].cast(pa.string()).combine_chunks()
        times = messages["captured_ns"].combine_chunks()
        chosen = {_MESSAGES: (messages, times)}
        for name in self.protocol.tables:
            if name != _MESSAGES and (rows := tables.get(name)) is not None:
                place = pc.index_in(rows["message_key"].cast(pa.string()), value_set=keys)
                rows = rows.append_column(_AT, place).filter(place.is_valid())
                rows = rows.filter(is_sure(name, rows))
                chosen[name] = rows.drop_columns([_AT]), times.take(rows[_AT])
        return chosen

    def _other_rows(
        self, tables: Mapping[str, pa.Table], is_sure: SureRows
    ) -> dict[str, tuple[pa.Table, pa.Array]]:
        """Return the rows of other tables completed after `since_ns`, with the time of completion.

        Open sessions are included; their time is null.
        """
        chosen = {}
        for name, (completed, began) in _TIMES.items():
            if (rows := tables.get(name)) is not None:
                is_new = pc.greater(rows[completed], self._since_ns)
                if began is not None:
                    is_new = pc.and_(is_new, pc.greater(rows[began], self._made_ns))
                rows = rows.filter(pc.fill_null(is_new, name == _SESSIONS))
                rows = rows.filter(is_sure(name, rows))
                chosen[name] = rows, rows[completed]
        return chosen

    def _with_sums(self, sessions: pa.Table, *, has_gap: bool) -> pa.Table:
        """Fill the sums of rows of sessions; set columns that a gap may have changed to null."""
        streams = sessions["stream"].cast(pa.string()).to_pylist()
        sums = [self._sums.get(self._connections.get(name, ()), (0, 0)) for name in streams]
        for index, name in enumerate(("packets", "bytes")):
            values = pa.array([pair[index] for pair in sums], pa.int64())
            sessions = _with_column(sessions, name, values)
        for name in _CHANGED_IN_GAPS if has_gap else ():
            sessions = _with_column(sessions, name, pa.nulls(len(sums), pa.int64()))
        return sessions

    def _split_closed(self, name: str, rows: pa.Table, times: pa.Array) -> NewestRows:
        is_closed = pc.fill_null(pc.less_equal(times, self._since_ns), False)
        return NewestRows(name, rows.filter(is_closed), rows.filter(pc.invert(is_closed)))

    def evict(self) -> None:
        """Evict the oldest packets above the limits, except for the rare ones."""
        newest = {name: pa.concat_tables(parts) for name, parts in self._newest.items() if parts}
        count = sum(packets.num_rows for packets in newest.values())
        size = sum(packets.nbytes for packets in newest.values())
        most = min(self._most, MAX_NEWEST_BYTES * count // max(size, 1))
        if count <= most:
            return
        times = np.concatenate([_times(packets) for packets in newest.values()])
        half, first = count - most // 2 - 1, count - most - 1
        in_part = np.partition(times, (first, half))
        self._since_ns = max(self._since_ns, int(in_part[half]))
        for name, packets in newest.items():
            is_old = _times(packets) <= in_part[first]
            self._newest[name] = []
            _append(self._newest[name], packets.filter(pa.array(~is_old)).combine_chunks())
            self._add(name, packets.filter(pa.array(is_old)), old=True)
            self._drop_rare(name)
        if len(self._connections) > 2 * (MAX_RARE + MAX_NEWEST):
            streams = {*self.streams.to_pylist()}
            self._connections = {
                stream: connection
                for stream, connection in self._connections.items()
                if stream in streams
            }
            connections = {*self._connections.values()}
            self._sums = {key: sums for key, sums in self._sums.items() if key in connections}

    def _drop_rare(self, format: str) -> None:
        """Drop rare packets above the limit.

        Packets of streams without any among the newest are dropped first. A connection that loses
        rare packets also loses the first packet of each stream, which marks it as incomplete
        (`torn_streams`): the packets of one side alone would give another row of its session.
        """
        if not self._rare[format]:
            return
        rare = pa.concat_tables(self._rare[format])
        if rare.num_rows > MAX_RARE:
            rare = rare.unify_dictionaries()
            streams = rare["stream"].cast(pa.string())
            is_live = pc.is_in(streams, _stream_names(self._newest[format]))
            order = pc.array_sort_indices(is_live.cast(pa.int8()))
            dropped = order.slice(0, rare.num_rows - MAX_RARE // 2)
            self._add_ids_of_gap(format, rare.take(dropped))
            rare, names = rare.take(order.slice(len(dropped))), pc.unique(streams.take(dropped))
            lost = {self._connections.get(name, (name,)) for name in names.to_pylist()}
            both = [name for name, each in self._connections.items() if each in lost]
            incomplete = pa.array({*both, *names.to_pylist()}, pa.string())
            rare = _without_first(rare, incomplete)
            self._newest[format] = [
                _without_first(part, incomplete) for part in self._newest[format]
            ]
        self._rare[format] = [rare.combine_chunks()]


def rows_together(members: Sequence[tuple[NewestPackets, Sequence[Row]]]) -> list[list[NewestRows]]:
    """Return the rows of several inputs, each as its `NewestPackets.rows` would.

    All are derived in one call: for few packets it takes about as long as for one input.

    Parameters
    ----------
    members
        The packets of each input, and the rows that describe its streams; of one protocol, of which
        no two inputs show the same message.
    """
    held = [(newest, shown, newest.packets()) for newest, shown in members]
    held = [each for each in held if each[2]]
    if not held:
        return [[] for _ in members]
    gapped = [newest.with_gaps(packets) for newest, _, packets in held]
    together = {
        name: pa.concat_tables(one[name] for one in gapped if name in one).unify_dictionaries()
        for name in {name: None for one in gapped for name in one}
    }
    numbers = {newest.source: number for number, (newest, _, _) in enumerate(held)}
    shown = [row for _, rows, _ in held for row in rows]
    derived: dict[str, list[pa.Table]] = {}
    for name, part in held[0][0].protocol.derive(together, shown, [*numbers]):
        derived.setdefault(name, []).append(part)
    joined = {name: join_tables(parts) for name, parts in derived.items()}
    alone = len(held) == 1
    tables = {name: [rows] if alone else by_source(rows, numbers) for name, rows in joined.items()}
    found = {
        newest.source: newest.choose(
            packets,
            {name: parts[number] for name, parts in tables.items()},
            has_gap=any(gapped[number][name].num_rows > packets[name].num_rows for name in packets),
        )
        for number, (newest, _, packets) in enumerate(held)
    }
    return [found.get(newest.source, []) for newest, _ in members]


def by_source(rows: pa.Table, numbers: Mapping[str, int]) -> list[pa.Table]:
    """Return the rows of each of some inputs, which are numbered from 0 on; others have none."""
    codes, texts = text_codes(rows["source"])
    count = len(numbers)
    of_text = np.array([numbers.get(text, count) for text in texts.to_pylist()] + [count])
    of_row = of_text[codes]
    if len(of_row) and of_row[0] < count and (of_row == of_row[0]).all():
        return [rows if number == of_row[0] else rows.slice(0, 0) for number in range(count)]
    return split_rows(rows, of_row, count + 1)[:count]


_AT: Final = "at"
"""A column for the index of a row's message."""


def torn_streams(packets: pa.Table) -> pa.Array:
    """Return the streams of connections with a stream whose first packet is missing."""
    names = packets.select(_DIRECTION)
    starts = names.append_column("offset", packets["offset"]).group_by(
        list(_DIRECTION), use_threads=False
    )
    streams = starts.aggregate([("offset", "min")]).to_pylist()
    torn = {connection_of(row) for row in streams if row["offset_min"] > 0}
    return pa.array([row["stream"] for row in streams if connection_of(row) in torn], pa.string())


def _without_first(packets: pa.Table, streams: pa.Array) -> pa.Table:
    """Return packets without the first ones of some streams."""
    is_of_them = pc.is_in(packets["stream"].cast(pa.string()), streams)
    return packets.filter(pc.invert(pc.and_(is_of_them, pc.equal(packets["offset"], 0))))


def _with_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), values.cast(rows.schema.types[place]))


def _append(parts: list[pa.Table], packets: pa.Table) -> None:
    if packets.num_rows:
        parts.append(packets)


def _times(packets: pa.Table) -> Ints:
    times: Ints = packets["captured_ns"].fill_null(0).to_numpy()
    return times


def _stream_names(parts: Sequence[pa.Table]) -> pa.Array:
    """Return the distinct streams of packets."""
    chunks = [chunk for part in parts for chunk in part["stream"].cast(pa.string()).chunks]
    return pc.unique(pa.chunked_array(chunks, pa.string()))


def with_gaps(packets: pa.Table, gap_ns: int) -> pa.Table:
    """Sort packets by stream and offset, with a row for each gap.

    Unlike that of a capture, such a gap has a time: that of the next packet of its stream, or the
    time of the last packet in any gap, `gap_ns`, if that is earlier.
    """
    gaps = _gaps(_in_order(packets.select(_PLACE)), packets.schema, gap_ns)
    return _in_order(pa.concat_tables([packets, gaps]))


def _stream_codes(packets: pa.Table) -> Int32s:
    return text_codes(packets["stream"])[0]


def _in_order(packets: pa.Table) -> pa.Table:
    """Sort packets by stream and offset."""
    order = np.lexsort([packets["offset"].to_numpy(), _stream_codes(packets)])
    return packets.take(pa.array(order))


def _gaps(packets: pa.Table, schema: pa.Schema, gap_ns: int) -> pa.Table:
    """Return a row for each gap between sorted packets, or before the first of a stream."""
    stream = _stream_codes(packets)
    starts, lengths = (packets[name].to_numpy() for name in ("offset", "length"))
    previous_ends = np.append(0, (starts + lengths)[:-1])
    previous_ends[np.append(True, stream[1:] != stream[:-1])] = 0
    after_gap = np.flatnonzero(starts > previous_ends)
    rows, count = packets.take(pa.array(after_gap)), len(after_gap)
    columns = {
        **{name: rows[name] for name in _DIRECTION},
        "offset": pa.array(previous_ends[after_gap]),
        "length": pa.array((starts - previous_ends)[after_gap]),
        "status": pa.array([GAP] * count, pa.string()),
        "captured_ns": pa.array(np.minimum(_times(rows), gap_ns)),
        "frame": pa.array(np.zeros(count, np.int64)),
    }
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
