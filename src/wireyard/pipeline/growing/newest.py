"""Facts of the newest packets of growing inputs, until facts of all their packets are made.

See ``wireyard.layers.newest``. The packets that they follow from are part of the
state of an input.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.live.state import StateError
from wireyard.captures.stream_table import FILES
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.lake.parts import measure, read_batches
from wireyard.layers import newest
from wireyard.layers.facts import registered
from wireyard.layers.frame_files import FrameFiles, ends_of_captures
from wireyard.layers.gaps import by_source, of_sources, stream_keys
from wireyard.layers.jmq.newest import JMS
from wireyard.layers.latencies import delayed, with_latencies
from wireyard.layers.newest import NewestPackets, NewestRows, NewestRules
from wireyard.layers.tables import fact_table, join_tables
from wireyard.pipeline.decoding.task import packets_table
from wireyard.pipeline.facts.tasks import STREAM_ROWS, ends_of_sources
from wireyard.pipeline.growing.input import StateRow
from wireyard.pipeline.growing.sessions import (
    SESSIONS,
    read_sessions,
    session_keys,
    without_sessions,
)
from wireyard.streams.plan import make_plan

__all__ = [
    "JMS",
    "MadeRows",
    "NewestFacts",
    "by_protocol",
    "take_long",
]

_KIND: Final = "newest"
"""First word of the kinds of rows of a state that are read here."""
_CLOSED: Final = "closed"
_STREAMS: Final = "streams"
_SESSION_KEY: Final = ("source", "stream", "offset")
_SPANS: Final = ("source", "file", "first_frame", "frames", "last_ns")
_SPAN_ROWS: Final = pa.schema([FILES.field(name) for name in _SPANS])


def _all_rules() -> list[NewestRules]:
    """Return the rules of the protocols whose newest packets give rows."""
    return [facts.newest() for facts in registered() if facts.newest is not None]


def by_protocol(time_ns: int | None) -> dict[str, int]:
    """Return a time under the name of each protocol; empty if there is no time."""
    return {} if time_ns is None else {rules.name: time_ns for rules in _all_rules()}


def take_long(packets: Mapping[str, int]) -> bool:
    """Return whether the facts of so many packets, counted by format, take over a second."""
    return any(
        sum(packets.get(name, 0) for name in rules.needed) > rules.few for rules in _all_rules()
    )


class MadeRows(NamedTuple):
    """The facts of the newest packets of some inputs."""

    tables: list[tuple[str, pa.Table, pa.Table]]
    """Name of a table, its final rows, and those that the next part replaces."""
    producers: dict[str, set[str]]
    """By input, the producers of its JMS messages."""


class _Group:
    """The newest packets of inputs whose facts are derived together, and rows of their streams."""

    def __init__(self, rules: NewestRules, most: int) -> None:
        self.rules = rules
        self.packets = NewestPackets(rules, most)
        self.sources = list[str]()
        self._streams = STREAM_ROWS.empty_table()

    def add_streams(self, streams: pa.Table) -> None:
        """Add rows of the table `streams`, as far as packets are of them."""
        wanted = self._with_packets(streams.select(STREAM_ROWS.names))
        is_old = pc.is_in(stream_keys(self._streams), stream_keys(wanted).combine_chunks())
        self._streams = pa.concat_tables([self._streams.filter(pc.invert(is_old)), wanted])

    def _with_packets(self, streams: pa.Table) -> pa.Table:
        return streams.filter(pc.is_in(stream_keys(streams), self.packets.streams))

    def rows(self, sources: Sequence[str], ends_ns: Mapping[str, int]) -> list[NewestRows]:
        """Return the rows of some of the inputs, whose captures end at these times so far."""
        if not sources:
            return []
        shown = self._streams.filter(of_sources(self._streams, sources))
        ends = ends_of_sources(ends_ns, sources)
        return self.packets.rows(pa.concat_tables([shown, ends]), sources)

    def states(self) -> Iterator[tuple[str, dict[str, Any], dict[str, pa.Table]]]:
        """Yield the state of each input: JSON, and tables by name."""
        numbers = {source: number for number, source in enumerate(self.sources)}
        shown = by_source(self._with_packets(self._streams), numbers)
        for source, (values, tables) in self.packets.states().items():
            yield source, values, {**tables, _STREAMS: shown[numbers[source]]}

    def restore(self, packets: NewestPackets, streams: pa.Table) -> None:
        """Add the packets of an input, and the rows of their streams."""
        self.packets.join(packets)
        self.add_streams(streams)


class NewestFacts:
    """The newest packets of inputs, and the facts that follow from them.

    Of each protocol and input at most `most` packets are kept besides the rare ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._wanted: dict[str, set[str]] = {}
        """By input: the protocols that give rows."""
        self._groups: dict[tuple[str, str | None], _Group] = {}
        """By protocol, and by input if inputs may show the same messages: each has one row."""
        self._closed = fact_table(SESSIONS, ()).select(_SESSION_KEY)
        """The keys of sessions that are closed in the lake."""
        self._spans: list[Row] = []

    def open(
        self, source: str, until_ns: Mapping[str, int], state: Mapping[str, bytes] | None = None
    ) -> None:
        """Add an input, with the packets in its state if it has one.

        `until_ns` is by protocol: the rows of messages sent up to this time stay as they are. Other
        protocols get no rows. `state` is the data of rows of the input's state, by kind. If it is
        damaged, a `StateError` is raised, and the input is not added.
        """
        try:
            if state is not None:
                self._restore(source, state)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, OSError) as error:
            raise StateError(f"its state is damaged ({error})") from None
        self._wanted[source] = {*until_ns}
        for rules in _all_rules():
            group = self._group(rules, source)
            group.sources.append(source)
            group.packets.advance(source, until_ns.get(rules.name, 0))

    def _group(self, rules: NewestRules, source: str) -> _Group:
        key = rules.name, source if rules.facts.shares_messages else None
        if key not in self._groups:
            self._groups[key] = _Group(rules, self._most)
        return self._groups[key]

    @property
    def sources(self) -> Collection[str]:
        """The inputs."""
        return self._wanted

    # --- packets ------------------------------------------------------------------------------

    def add_packets(self, format: str, packets: pa.Table, *, old: bool = False) -> None:
        """Add packets; only the rare ones of old ones that are before those that count."""
        groups = [one for one in self._groups.values() if format in one.rules.needed]
        numbers = {source: each for each, one in enumerate(groups) for source in one.sources}
        for group, own in zip(groups, by_source(packets, numbers), strict=True):
            columns = group.rules.needed[format]
            names = [name for name in own.column_names if name in columns]
            group.packets.add(format, own.select(names), old=old)

    def add_parts(
        self, packets: Mapping[str, Sequence[str]], streams: pa.Table, made: Collection[str]
    ) -> None:
        """Add the packets of the next parts of inputs.

        `packets` are paths of files of packets, by table; `streams` are rows of the table `streams`
        about streams of the inputs. `made` are the inputs whose facts are made with these packets,
        to which `advance` has led: of all but the last packets only the rare ones count.
        """
        for format in _formats():
            for path in packets.get(packets_table(format), ()):
                behind = measure(path)[0]
                for rows in read_batches(path, _columns_of(format)):
                    behind -= rows.num_rows
                    if behind >= newest.MAX_NEWEST:
                        is_old = of_sources(rows, made)
                        self.add_packets(format, rows.filter(is_old), old=True)
                        rows = rows.filter(pc.invert(is_old))
                    self.add_packets(format, rows)
        self.add_streams(streams)

    def add_streams(self, streams: pa.Table) -> None:
        """Add rows of the table `streams`, as far as packets are of them."""
        for group in self._groups.values():
            group.add_streams(streams)

    def add_spans(self, spans: Iterable[Row]) -> None:
        """Add rows of the table `files`."""
        self._spans += spans

    def set_closed(self, sources: Iterable[str], sessions: pa.Table) -> None:
        """Set which sessions of some inputs are closed in the lake."""
        left = self._closed.filter(pc.invert(of_sources(self._closed, sources)))
        self._closed = join_tables([left, sessions.select(_SESSION_KEY)])

    def advance(self, source: str, until_ns: Mapping[str, int]) -> None:
        """Record that facts of all packets of an input are made up to these times."""
        self._wanted[source] = {*until_ns}
        for rules in _all_rules():
            if (time_ns := until_ns.get(rules.name, 0)) > 0:
                packets = self._group(rules, source).packets
                if time_ns > packets.since_ns(source):
                    packets.advance(source, time_ns)

    def evict(self) -> None:
        """Evict the oldest packets above the limits."""
        for group in self._groups.values():
            group.packets.evict()

    def until_ns(self, source: str) -> dict[str, int]:
        """Return up to when rows of messages of an input are final, by protocol that gives rows."""
        return {
            rules.name: self._group(rules, source).packets.since_ns(source)
            for rules in _all_rules()
            if rules.name in self._wanted[source]
        }

    # --- rows ---------------------------------------------------------------------------------

    def rows(self, still_open: Mapping[str, Sequence[str]], open_spans: Iterable[Row]) -> MadeRows:
        """Return the facts of the newest packets of inputs.

        `still_open` has the inputs, each with the paths of files with the sessions that were open
        before; `open_spans` are rows of the table `files` about files of captures that may
        continue.
        """
        parts = list[NewestRows]()
        spans = [*open_spans, *self._spans]
        ends_ns = ends_of_captures(spans)
        for group in self._groups.values():
            name = group.rules.name
            wanted = [
                one for one in group.sources if one in still_open and name in self._wanted[one]
            ]
            parts += group.rows(wanted, ends_ns)
        sessions = [part for part in parts if part.table == SESSIONS]
        others = [part for part in parts if part.table != SESSIONS]
        if still_open:
            others.append(self._with_open(sessions, read_sessions(still_open)))
        return _made(others, spans)

    def _with_open(self, sessions: Sequence[NewestRows], before: pa.Table) -> NewestRows:
        """Return rows of sessions, and the open sessions of before that are not among them.

        A session that is closed in the lake keeps its row: from later packets it might seem to have
        been closed later.
        """
        none = fact_table(SESSIONS, ())
        closed = join_tables([none, *(rows.closed for rows in sessions)])
        still_open = join_tables([none, *(rows.open for rows in sessions)])
        are_closed = session_keys(self._closed)
        closed, still_open = (without_sessions(rows, are_closed) for rows in (closed, still_open))
        before = without_sessions(before, session_keys(join_tables([closed, still_open])))
        self._closed = join_tables([self._closed, closed.select(_SESSION_KEY)])
        return NewestRows(SESSIONS, closed, join_tables([still_open, before]))

    # --- states -------------------------------------------------------------------------------

    def states(self) -> dict[str, list[StateRow]]:
        """Return the rows of the state of each input: kind, shape and data."""
        if not self._wanted:
            return {}
        values: dict[str, dict[str, Any]] = {source: {"spans": []} for source in self._wanted}
        for row in self._spans:
            values[row["source"]]["spans"].append(row)
        streams = pa.concat_arrays([group.packets.streams for group in self._groups.values()])
        closed = self._closed.filter(pc.is_in(stream_keys(self._closed), streams))
        numbers = {source: number for number, source in enumerate(self._wanted)}
        tables = {
            source: {_CLOSED: own}
            for source, own in zip(numbers, by_source(closed, numbers), strict=True)
        }
        for group in self._groups.values():
            name = group.rules.name
            for source, of_group, parts in group.states():
                values[source][name] = of_group
                tables[source] |= {f"{name} {part}": table for part, table in parts.items()}
        return {source: [*_state_rows(values[source], tables[source])] for source in self._wanted}

    def _restore(self, source: str, rows: Mapping[str, bytes]) -> None:
        values = json.loads(rows[_KIND])
        tables = {
            kind.partition(" ")[2]: pa.ipc.open_stream(data).read_all()
            for kind, data in rows.items()
            if kind.startswith(f"{_KIND} ")
        }
        for table in tables.values():
            table.validate(full=True)
        closed = tables.pop(_CLOSED)
        if not closed.schema.equals(self._closed.schema):
            raise ValueError("keys of sessions that are none")
        spans = pa.Table.from_pylist(values["spans"], _SPAN_ROWS).to_pylist()
        restored = list[tuple[NewestRules, NewestPackets, pa.Table]]()
        for rules in _all_rules():
            parts = {
                part.partition(" ")[2]: table
                for part, table in tables.items()
                if part.partition(" ")[0] == rules.name
            }
            streams = parts.pop(_STREAMS).cast(STREAM_ROWS)
            for name, table in parts.items():
                _check_packets(name.rpartition(" ")[2], table)
            packets = NewestPackets.restored(rules, source, values[rules.name], parts)
            restored.append((rules, packets, streams.filter(of_sources(streams, [source]))))
        # Nothing is changed before all of it is known to be whole.
        for rules, packets, own in restored:
            self._group(rules, source).restore(packets, own)
        self._closed = join_tables([self._closed, closed.filter(of_sources(closed, [source]))])
        self._spans += (span for span in spans if span["source"] == source)


def _state_rows(values: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Iterator[StateRow]:
    text = json.dumps(values).encode()
    yield _KIND, [len(text)], text
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        yield f"{_KIND} {name}", [table.num_rows], sink.getvalue().to_pybytes()


def _formats() -> list[str]:
    """Return the formats whose packets any protocol needs."""
    return [*dict.fromkeys(name for rules in _all_rules() for name in rules.needed)]


def _columns_of(format: str) -> list[str]:
    """Return the columns of packets that any protocol needs."""
    needed = (rules.needed.get(format, ()) for rules in _all_rules())
    return [*dict.fromkeys(name for columns in needed for name in columns)]


def _made(found: Iterable[NewestRows], spans: Iterable[Row]) -> MadeRows:
    """Return joined rows, with the files of messages and with latencies."""
    by_table: dict[str, tuple[list[pa.Table], list[pa.Table]]] = {}
    for name, closed, still_open in found:
        final, provisional = by_table.setdefault(name, ([], []))
        final.append(closed)
        provisional.append(still_open)
    joined = {name: tuple(map(join_tables, both)) for name, both in by_table.items()}
    messages = joined.get("messages", ())
    delays = join_tables(map(delayed, [fact_table("messages", ()), *messages]))
    frames = FrameFiles(spans)
    tables = list[tuple[str, pa.Table, pa.Table]]()
    for name, both in joined.items():
        located = [frames.locate(part) if name == "messages" else part for part in both]
        with_more = [[*with_latencies((name, part), delays)] for part in located]
        for (fact, final), (_, provisional) in zip(*with_more, strict=True):
            tables.append((fact, final, provisional))
    producers = defaultdict[str, set[str]](set)
    for part in messages:
        of_jms = part.filter(pc.equal(part["protocol"], JMS.name)).select(["source", "producer"])
        for row in of_jms.group_by(of_jms.column_names).aggregate([]).to_pylist():
            if row["producer"] is not None:
                producers[row["source"]].add(row["producer"])
    return MadeRows(tables, dict(producers))


def _check_packets(format: str, packets: pa.Table) -> None:
    """Check the types of columns that were read from a state."""
    schema = make_plan(get_format(format), captured=True).schema
    for column in packets.schema:
        kind = column.type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        expected = schema.field(column.name).type
        expected = expected.value_type if pa.types.is_dictionary(expected) else expected
        if kind != expected:
            raise ValueError(f"a column {column.name} of {kind}")
