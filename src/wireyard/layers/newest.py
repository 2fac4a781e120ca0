"""The rows of the newest messages of inputs that grow, before all their packets are read anew.

The tables of an input follow from all of its packets. Here the rows about messages follow from the
newest packets and from the rare ones before them, such as logins, subscriptions and consumers, by
the same `Facts.derive`. The packets between are treated as a gap, as if they were lost, and nothing
is concluded from what a gap may hide. Rows that depend on the gap are left to the next run over all
packets. Each protocol defines which packets are rare, and which rows a gap may have changed: see
`NewestRules`.

The rare packets are enough for the row of a session, but for its sums of packets and bytes, which
are counted as packets arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Bools
from wireyard.layers.endpoints import connection_of
from wireyard.layers.facts import Facts, PacketFile
from wireyard.layers.gaps import (
    BETWEEN,
    PLACE,
    by_source,
    each_stream,
    of_inputs,
    of_sources,
    source_keys,
    stream_keys,
    streams_of,
    times_of,
    with_gaps,
)
from wireyard.layers.tables import join_tables

MAX_NEWEST: Final = 1 << 16
"""The most packets that are kept and read again together with new ones, of all inputs."""
MAX_NEWEST_BYTES: Final = 64 << 20
"""The most memory of these packets, in bytes."""
MAX_RARE: Final = 1 << 17
"""The most rare packets of a format that are kept, of inputs that are read together, and the most
producers with a last id. Above it the rare packets are reduced to half of it: the others become
part of the gap."""
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
_Stream = tuple[str, str]
"""The input and the name of a stream."""

Packets = Mapping[str, pa.Table]
"""Packets by the name of their format, in any order."""
LastIds = Mapping[str, tuple[int, int]]
"""The greatest message id of each producer: its time and its sequence number."""
SureRows = Callable[[str, pa.Table], pa.Array]
"""The name of a table, rows of it -> which of the rows no packet in the gap can change."""


class NewestRules(NamedTuple):
    """The rules of a protocol for its newest packets."""

    facts: Facts
    few: int
    """The most packets whose facts are made in about a second, while parts wait for them."""
    needed: Mapping[str, Sequence[str]]
    """The columns of packets that are read, by format."""
    tables: Sequence[str]
    """The tables whose rows are about one message, `messages` first; all have a column
    `message_key`."""
    is_rare: Callable[[str, pa.Table], Bools]
    """Returns which packets of a format are rare: these are kept when others become a gap."""
    is_counted: Callable[[str, pa.Table], Bools]
    """Returns which packets of a format count in the sums of their session."""
    last_ids: Callable[[str, pa.Table], LastIds | None]
    """Returns the greatest message id of each producer in packets of a format; None if there may be
    messages with unknown ids."""
    sure_rows: Callable[[Packets, LastIds | None], SureRows]
    """Takes packets without gaps and the greatest ids in the gap. Returns a function that selects
    the rows of what was sent or began after the gap and that no packet in the gap can change. Rows
    of sessions are selected if all rare packets of the session are there."""

    @property
    def name(self) -> str:
        """The protocol."""
        return self.facts.protocol


class NewestRows(NamedTuple):
    """Rows of a table: final ones (`closed`), and ones that later packets may change (`open`).

    A row of a session replaces an open one with the same stream and offset.
    """

    table: str
    closed: pa.Table
    open: pa.Table


class NewestPackets:
    """The newest packets of some inputs, and the rare ones before them.

    No two of the inputs show the same message. At most `most` packets of an input are kept besides
    the rare ones, `MAX_NEWEST` if it is None.
    """

    def __init__(self, rules: NewestRules, most: int | None = None) -> None:
        self.rules = rules
        self._most = MAX_NEWEST if most is None else most
        self._since_ns: dict[str, int] = {}
        self._made_ns: dict[str, int] = {}
        """By input: the time up to which facts of all packets are known to be made."""
        self._rare: dict[str, list[pa.Table]] = {name: [] for name in rules.needed}
        self._newest: dict[str, list[pa.Table]] = {name: [] for name in rules.needed}
        self._gap_ns: dict[str, int] = {}
        """By input: the time of the last packet in a gap."""
        self._last_ids: dict[str, tuple[int, int]] | None = {}
        """The greatest message id of each producer in the gap; None if not known."""
        self._connections: dict[_Stream, tuple[str, ...]] = {}
        self._sums: dict[tuple[str, ...], tuple[int, int]] = {}
        """The number of packets of each connection, and their bytes."""

    def since_ns(self, source: str) -> int:
        """Return the time up to which the rows of sent messages of an input are final."""
        return self._since_ns[source]

    def advance(self, source: str, since_ns: int) -> None:
        """Set the time up to which facts of all packets of an input are made; it may be new."""
        since_ns = max(self._since_ns.get(source, 0), since_ns)
        self._since_ns[source] = self._made_ns[source] = since_ns
        self._gap_ns.setdefault(source, 0)

    def add(self, format: str, packets: pa.Table, *, old: bool = False) -> None:
        """Add packets of the inputs, with the columns that are needed.

        With `old`, only the rare ones of the packets up to `since_ns` are kept.
        """
        self._add_to_sums(packets.filter(pa.array(self.rules.is_counted(format, packets))))
        self._add(format, packets, old=old)

    def _add(self, format: str, packets: pa.Table, *, old: bool) -> None:
        if old:
            # Packets are old by their own times: several files of packets may have become one.
            is_old = times_of(packets) <= of_inputs(packets, self._since_ns)
            rare = is_old & self.rules.is_rare(format, packets)
            _append(self._rare[format], packets.filter(pa.array(rare)))
            self._add_ids_of_gap(format, packets.filter(pa.array(is_old & ~rare)))
            packets = packets.filter(pa.array(~is_old))
        _append(self._newest[format], packets)

    def _add_ids_of_gap(self, format: str, packets: pa.Table) -> None:
        """Keep the greatest message ids of packets that become part of the gap, and their time."""
        if not packets.num_rows:
            return
        latest = np.zeros(len(self._gap_ns), np.int64)
        numbers = {source: number for number, source in enumerate(self._gap_ns)}
        np.maximum.at(latest, of_inputs(packets, numbers), times_of(packets))
        for source, time_ns in zip(numbers, latest.tolist(), strict=True):
            self._gap_ns[source] = max(self._gap_ns[source], time_ns)
        if self._last_ids is None:
            return
        ids = self.rules.last_ids(format, packets)
        if ids is None or len(self._last_ids) > MAX_RARE:
            self._last_ids = None
            return
        for producer, last_id in ids.items():
            self._last_ids[producer] = max(last_id, self._last_ids.get(producer, last_id))

    def _add_to_sums(self, packets: pa.Table) -> None:
        """Add packets to the sums of their connections."""
        streams, of_row = each_stream(packets)
        sizes = np.zeros(streams.num_rows, np.int64)
        np.add.at(sizes, of_row, packets["length"].to_numpy())
        counts = np.bincount(of_row, minlength=streams.num_rows).tolist()
        for row, more, more_bytes in zip(streams.to_pylist(), counts, sizes.tolist(), strict=True):
            stream = row["source"], row["stream"]
            connection = self._connections.setdefault(stream, connection_of(row))
            count, size = self._sums.get(connection, (0, 0))
            self._sums[connection] = count + more, size + more_bytes

    @property
    def streams(self) -> pa.Array:
        """The `stream_keys` of the streams that have packets here."""
        return streams_of([part for parts in self._parts().values() for part in parts])

    # --- states -------------------------------------------------------------------------------

    def states(self) -> dict[str, tuple[dict[str, Any], dict[str, pa.Table]]]:
        """Return the state of each input, to continue from: JSON, and tables by name."""
        numbers = {source: number for number, source in enumerate(self._since_ns)}
        found = {source: (self._values(source), dict[str, pa.Table]()) for source in numbers}
        for connection, sums in self._sums.items():
            found[connection[0]][0]["sums"].append([*connection, *sums])
        for (source, stream), connection in self._connections.items():
            found[source][0]["connections"][stream] = connection
        for kind, packets in (("rare", self._rare), ("newest", self._newest)):
            for name, parts in packets.items():
                if parts:
                    whole = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
                    for (_, tables), own in zip(
                        found.values(), by_source(whole, numbers), strict=True
                    ):
                        if own.num_rows:
                            tables[f"{kind} {name}"] = own
        return found

    def _values(self, source: str) -> dict[str, Any]:
        return {
            "since_ns": self._since_ns[source],
            "made_ns": self._made_ns[source],
            "gap_ns": self._gap_ns[source],
            "last_ids": self._last_ids,
            "connections": {},
            "sums": [],
        }

    @classmethod
    def restored(
        cls,
        rules: NewestRules,
        source: str,
        values: Mapping[str, Any],
        tables: Mapping[str, pa.Table],
    ) -> NewestPackets:
        """Return the packets of an input from its state, to be joined with those of others.

        A malformed state raises a KeyError, TypeError, ValueError or AttributeError.
        """
        one = cls(rules)
        one.advance(source, int(values["since_ns"]))
        one._made_ns[source], one._gap_ns[source] = int(values["made_ns"]), int(values["gap_ns"])
        one._last_ids = None
        if (ids := values["last_ids"]) is not None:
            one._last_ids = {str(name): (int(ms), int(at)) for name, (ms, at) in ids.items()}
        one._connections = {
            (source, str(name)): tuple(map(str, each))
            for name, each in values["connections"].items()
        }
        one._sums = {
            tuple(map(str, each)): (int(count), int(size)) for *each, count, size in values["sums"]
        }
        for name, table in tables.items():
            kind, _, format = name.partition(" ")
            if not {*rules.needed[format]} >= {*table.column_names} >= {*PLACE}:
                raise ValueError(f"a table of {format} with other columns")
            if pc.unique(table["source"].cast(pa.string())).to_pylist() != [source]:
                raise ValueError("packets of another input")
            {"rare": one._rare, "newest": one._newest}[kind][format] = [table]
        return one

    def join(self, other: NewestPackets) -> None:
        """Take over the inputs of another object."""
        self._since_ns |= other._since_ns
        self._made_ns |= other._made_ns
        self._gap_ns |= other._gap_ns
        self._connections |= other._connections
        self._sums |= other._sums
        is_known = self._last_ids is not None and other._last_ids is not None
        self._last_ids = {**(self._last_ids or {}), **(other._last_ids or {})} if is_known else None
        for mine, theirs in ((self._rare, other._rare), (self._newest, other._newest)):
            for name, parts in theirs.items():
                mine[name] += parts

    # --- rows ---------------------------------------------------------------------------------

    def rows(self, shown: pa.Table, sources: Sequence[str]) -> list[NewestRows]:
        """Return the rows of some inputs that follow from the packets here; evict old packets.

        All are derived in one call: for few packets it takes about as long as for one input.
        `shown` are rows that describe the streams, for `Facts.derive`.
        """
        packets = self._packets_of(sources)
        if not packets:
            return []
        both = {name: with_gaps(table, self._gap_ns) for name, table in packets.items()}
        files = [
            PacketFile.in_memory(number, name, [table])
            for number, (name, (table, _)) in enumerate(both.items())
        ]
        derived: dict[str, list[pa.Table]] = {}
        for name, part in self.rules.facts.derive(files, shown, sources).tables:
            derived.setdefault(name, []).append(part)
        tables = {name: join_tables(parts) for name, parts in derived.items()}
        is_sure = self.rules.sure_rows(packets, self._last_ids)
        chosen = self._message_rows(tables, is_sure) | self._other_rows(tables, is_sure)
        if _SESSIONS in chosen:
            sessions, times = chosen[_SESSIONS]
            in_gaps = [
                gaps["source"].cast(pa.string()).combine_chunks() for _, gaps in both.values()
            ]
            chosen[_SESSIONS] = self._with_sums(sessions, pa.concat_arrays(in_gaps)), times
        self.evict()
        return [self._split_closed(name, *part) for name, part in chosen.items()]

    def _packets_of(self, sources: Sequence[str]) -> dict[str, pa.Table]:
        """Return the packets of inputs by format, without empty tables."""
        found = {}
        for name, parts in self._parts().items():
            if parts:
                rows = pa.concat_tables(parts).unify_dictionaries()
                if len(sources) < len(self._since_ns):
                    rows = rows.filter(of_sources(rows, sources))
                if rows.num_rows:
                    found[name] = rows
        return found

    def _parts(self) -> dict[str, list[pa.Table]]:
        return {name: [*rare, *self._newest[name]] for name, rare in self._rare.items()}

    def _message_rows(
        self, tables: Mapping[str, pa.Table], is_sure: SureRows
    ) -> dict[str, tuple[pa.Table, pa.Array]]:
        """Return the rows about messages sent after `since_ns`, with the time of their messages."""
        if _MESSAGES not in tables:
            return {}
        messages = tables[_MESSAGES]
        is_new = times_of(messages) > of_inputs(messages, self._since_ns)
        messages = messages.filter(pa.array(is_new))
        messages = messages.filter(is_sure(_MESSAGES, messages))
        keys = source_keys(messages, messages["message_key"]).combine_chunks()
        times = messages["captured_ns"].combine_chunks()
        chosen = {_MESSAGES: (messages, times)}
        for name in self.rules.tables:
            if name != _MESSAGES and (rows := tables.get(name)) is not None:
                place = pc.index_in(source_keys(rows, rows["message_key"]), value_set=keys)
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
                is_new = pc.greater(rows[completed], pa.array(of_inputs(rows, self._since_ns)))
                if began is not None:
                    made_ns = pa.array(of_inputs(rows, self._made_ns))
                    is_new = pc.and_(is_new, pc.greater(rows[began], made_ns))
                rows = rows.filter(pc.fill_null(is_new, name == _SESSIONS))
                rows = rows.filter(is_sure(name, rows))
                chosen[name] = rows, rows[completed]
        return chosen

    def _with_sums(self, sessions: pa.Table, in_gaps: pa.Array) -> pa.Table:
        """Fill the sums of rows of sessions; set columns that a gap may have changed to null.

        `in_gaps` are the inputs that have gaps.
        """
        names = (sessions[name].cast(pa.string()).to_pylist() for name in ("source", "stream"))
        streams = zip(*names, strict=True)
        sums = [self._sums.get(self._connections.get(each, ()), (0, 0)) for each in streams]
        for index, name in enumerate(("packets", "bytes")):
            values = pa.array([pair[index] for pair in sums], pa.int64())
            sessions = _with_column(sessions, name, values)
        has_gap = pc.is_in(sessions["source"].cast(pa.string()), in_gaps)
        for name in _CHANGED_IN_GAPS:
            null = pa.scalar(None, sessions[name].type)
            sessions = _with_column(sessions, name, pc.if_else(has_gap, null, sessions[name]))
        return sessions

    def _split_closed(self, name: str, rows: pa.Table, times: pa.Array) -> NewestRows:
        since_ns = pa.array(of_inputs(rows, self._since_ns))
        is_closed = pc.fill_null(pc.less_equal(times, since_ns), False)
        return NewestRows(name, rows.filter(is_closed), rows.filter(pc.invert(is_closed)))

    # --- limits -------------------------------------------------------------------------------

    def evict(self) -> None:
        """Evict the oldest packets above the limits, except for the rare ones."""
        newest = {name: pa.concat_tables(parts) for name, parts in self._newest.items() if parts}
        limits_ns = self._limits_ns([*newest.values()])
        if not limits_ns:
            return
        for name, packets in newest.items():
            is_old = times_of(packets) <= of_inputs(packets, limits_ns)
            self._newest[name] = []
            _append(self._newest[name], packets.filter(pa.array(~is_old)).combine_chunks())
            self._add(name, packets.filter(pa.array(is_old)), old=True)
            self._drop_rare(name)
        if len(self._connections) > 2 * (MAX_RARE + MAX_NEWEST):
            streams = {*self.streams.to_pylist()}
            self._connections = {
                stream: connection
                for stream, connection in self._connections.items()
                if BETWEEN.join(stream) in streams
            }
            connections = {*self._connections.values()}
            self._sums = {key: sums for key, sums in self._sums.items() if key in connections}

    def _limits_ns(self, newest: Sequence[pa.Table]) -> dict[str, int]:
        """Return the time up to which packets of inputs are above the limits, by input.

        What was sent in the older half of an input's other packets is final then.
        """
        count, size = (
            sum(getattr(each, name) for each in newest) for name in ("num_rows", "nbytes")
        )
        if not count:
            return {}
        numbers = {source: number for number, source in enumerate(self._since_ns)}
        times = np.concatenate([times_of(each) for each in newest])
        of_input = np.concatenate([of_inputs(each, numbers) for each in newest])
        ordered = times[np.lexsort([times, of_input])]
        counts = np.bincount(of_input, minlength=len(numbers))
        bytes_for = MAX_NEWEST_BYTES * count // max(size, 1) // np.count_nonzero(counts)
        most, limits_ns = min(self._most, int(bytes_for)), {}
        for source, stop, own in zip(numbers, np.cumsum(counts), counts, strict=True):
            if own > most:
                half_ns, limit_ns = ordered[stop - most // 2 - 1], ordered[stop - most - 1]
                self._since_ns[source] = max(self._since_ns[source], int(half_ns))
                limits_ns[source] = int(limit_ns)
        return limits_ns

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
            streams = stream_keys(rare)
            is_live = pc.is_in(streams, streams_of(self._newest[format]))
            order = pc.array_sort_indices(is_live.cast(pa.int8()))
            dropped = order.slice(0, rare.num_rows - MAX_RARE // 2)
            self._add_ids_of_gap(format, rare.take(dropped))
            rare, names = rare.take(order.slice(len(dropped))), pc.unique(streams.take(dropped))
            of_stream = {BETWEEN.join(name): each for name, each in self._connections.items()}
            lost = {of_stream.get(name, (name,)) for name in names.to_pylist()}
            both = [name for name, each in of_stream.items() if each in lost]
            incomplete = pa.array({*both, *names.to_pylist()}, pa.string())
            rare = _without_first(rare, incomplete)
            self._newest[format] = [
                _without_first(part, incomplete) for part in self._newest[format]
            ]
        self._rare[format] = [rare.combine_chunks()]


_AT: Final = "at"
"""A column for the index of a row's message."""


def _without_first(packets: pa.Table, streams: pa.Array) -> pa.Table:
    """Return packets without the first ones of some streams."""
    is_of_them = pc.is_in(stream_keys(packets), streams)
    return packets.filter(pc.invert(pc.and_(is_of_them, pc.equal(packets["offset"], 0))))


def _with_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), values.cast(rows.schema.types[place]))


def _append(parts: list[pa.Table], packets: pa.Table) -> None:
    if packets.num_rows:
        parts.append(packets)
