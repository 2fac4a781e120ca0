"""Facts of the newest packets of a growing input, until facts of all its packets are made.

For MQTT and JMS; see ``wireyard.layers.newest``. The packets that they follow from are part of the
state of the input, or are read from the lake if its state has none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.live.state import StateError
from wireyard.captures.stream_table import STREAMS
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.lake.ledgers import captured_streams
from wireyard.lake.parts import measure, read_batches
from wireyard.layers.facts import facts_of
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.jmq.newest import JMS
from wireyard.layers.latencies import delayed, with_latencies
from wireyard.layers.mqtt.newest import MQTT
from wireyard.layers.newest import (
    MAX_NEWEST,
    MessageProtocol,
    NewestPackets,
    NewestRows,
    by_source,
    rows_together,
)
from wireyard.layers.tables import fact_table, join_tables
from wireyard.pipeline.decoding.task import FILES_TABLE, packets_table
from wireyard.pipeline.facts.mqtt import rows_of_streams
from wireyard.pipeline.facts.tasks import STREAM_COLUMNS
from wireyard.pipeline.growing.input import StateRow
from wireyard.pipeline.growing.sessions import (
    SESSIONS,
    read_each,
    read_sessions,
    session_keys,
    without_sessions,
)
from wireyard.streams.plan import make_plan

__all__ = [
    "JMS",
    "HeldFiles",
    "MadeRows",
    "NewestFacts",
    "add_newest",
    "by_protocol",
    "make_rows",
    "packet_tables",
    "read_newest",
    "take_long",
]

HeldFiles = Mapping[str, Sequence[str]]
"""Paths of the files of an input, by table."""

_KIND: Final = "newest"
"""First word of the kinds of rows of a state that are read here."""
_FEW: Final = ((MQTT, 1 << 18), (JMS, 1 << 17))
"""The most packets whose facts are made in about a second, while parts wait for them."""
_CLOSED: Final = "closed"
_SESSION_KEY: Final = ("stream", "offset")
_SPANS: Final = ("source", "file", "first_frame", "frames")
_STREAM_ROWS: Final = pa.schema(
    [STREAMS.field(name) for name in STREAM_COLUMNS if name != "format"]
)


def by_protocol(time_ns: int | None) -> dict[str, int]:
    """Return a time under the name of each protocol; empty if there is no time."""
    return {} if time_ns is None else {protocol.name: time_ns for protocol, _ in _FEW}


def take_long(packets: Mapping[str, int]) -> bool:
    """Return whether the facts of so many packets, counted by format, take over a second."""
    return any(sum(packets.get(name, 0) for name in one.needed) > few for one, few in _FEW)


def packet_tables() -> list[str]:
    """Return the tables from which `NewestFacts.read` reads packets and their streams."""
    formats = (packets_table(name) for protocol, _ in _FEW for name in protocol.needed)
    return [*formats, "streams", FILES_TABLE]


class MadeRows(NamedTuple):
    """The facts of the newest packets of some inputs."""

    tables: list[tuple[str, pa.Table, pa.Table]]
    """Name of a table, its final rows, and those that the next part replaces."""
    producers: dict[str, set[str]]
    """By input, the producers of its JMS messages."""


class _ProtocolPackets:
    """The newest packets of a protocol, and the rows of their streams."""

    def __init__(self, protocol: MessageProtocol, source: str, since_ns: int, most: int) -> None:
        self.protocol = protocol
        self.packets = NewestPackets(protocol, source, since_ns, most)
        self._streams: dict[str, Row] = {}

    def add_streams(self, streams: pa.Table) -> None:
        """Add rows of the table `streams`, as far as packets are of them."""
        wanted = streams.filter(pc.is_in(streams["stream"], self.packets.streams))
        for format in self.protocol.needed:
            self._streams |= {row["stream"]: row for row in rows_of_streams(wanted, format)}

    def given(self) -> tuple[NewestPackets, list[Row]]:
        """Return the packets, and the rows of their streams."""
        return self.packets, [*self._streams.values()]

    def state(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Return the state: JSON, and tables by name."""
        values, tables = self.packets.state()
        there = {*self.packets.streams.to_pylist()}
        rows = [row for name, row in self._streams.items() if name in there]
        return {**values, "streams": rows}, tables

    def restore(self, values: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
        """Continue from a state."""
        for name, table in tables.items():
            _check_packets(name.rpartition(" ")[2], table)
        self.packets.restore(values, tables)
        rows = pa.Table.from_pylist(values["streams"], _STREAM_ROWS)
        self._streams = {row["stream"]: row for row in rows.to_pylist()}


class NewestFacts:
    """The newest packets of an input, and the facts that follow from them.

    Parameters
    ----------
    until_ns
        By protocol: the rows of messages sent up to this time stay as they are. Other protocols get
        no rows.
    most
        The most packets of a protocol that are kept besides the rare ones.
    """

    def __init__(self, source: str, until_ns: Mapping[str, int], most: int) -> None:
        self._source, self._wanted = source, {*until_ns}
        self._protocols = {
            protocol.name: _ProtocolPackets(protocol, source, until_ns.get(protocol.name, 0), most)
            for protocol, _ in _FEW
        }
        self._closed = fact_table(SESSIONS, ()).select(_SESSION_KEY)
        """The keys of sessions that are closed in the lake."""
        self._spans: list[Row] = []

    # --- packets ------------------------------------------------------------------------------

    def add_packets(self, format: str, packets: pa.Table, *, old: bool = False) -> None:
        """Add packets; only the rare ones of old ones that are before those that count."""
        for one in self._protocols.values():
            if (columns := one.protocol.needed.get(format)) is not None:
                own = [name for name in packets.column_names if name in columns]
                one.packets.add(format, packets.select(own), old=old)

    def add_streams(self, streams: pa.Table) -> None:
        """Add rows of the table `streams`, as far as packets are of them."""
        for one in self._protocols.values():
            one.add_streams(streams)

    def add_spans(self, spans: Iterable[Row]) -> None:
        """Add rows of the table `files`."""
        self._spans += spans

    def advance(self, until_ns: Mapping[str, int]) -> None:
        """Record that facts of all packets are made up to these times."""
        self._wanted = {*until_ns}
        for name, time_ns in until_ns.items():
            if time_ns > self._protocols[name].packets.since_ns:
                self._protocols[name].packets.advance(time_ns)

    def evict(self) -> None:
        """Evict the oldest packets above the limits."""
        for one in self._protocols.values():
            one.packets.evict()

    @property
    def until_ns(self) -> dict[str, int]:
        """By protocol that gives rows: the rows of messages sent up to this time are final."""
        return {name: self._protocols[name].packets.since_ns for name in sorted(self._wanted)}

    # --- rows ---------------------------------------------------------------------------------

    def set_closed(self, sessions: pa.Table) -> None:
        """Set which sessions are closed in the lake."""
        self._closed = sessions.select(_SESSION_KEY)

    @property
    def spans(self) -> list[Row]:
        """Rows of the table `files`."""
        return self._spans

    def given(self, protocol: MessageProtocol) -> tuple[NewestPackets, list[Row]] | None:
        """Return the packets of a protocol, and rows of their streams; None if it gets no rows."""
        return self._protocols[protocol.name].given() if protocol.name in self._wanted else None

    def with_open(self, sessions: Sequence[NewestRows], before: pa.Table) -> NewestRows:
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

    # --- the state ----------------------------------------------------------------------------

    def state(self) -> list[StateRow]:
        """Return the rows of the state: kind, shape and data of each."""
        values: dict[str, Any] = {"spans": self._spans}
        streams = [one.packets.streams for one in self._protocols.values()]
        names = pa.concat_arrays(streams).cast(self._closed.schema.field("stream").type)
        tables = {_CLOSED: self._closed.filter(pc.is_in(self._closed["stream"], names))}
        for name, one in self._protocols.items():
            values[name], parts = one.state()
            tables |= {f"{name} {part}": table for part, table in parts.items()}
        text = json.dumps(values).encode()
        rows = [(_KIND, [len(text)], text)]
        for name, table in tables.items():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            rows.append((f"{_KIND} {name}", [table.num_rows], sink.getvalue().to_pybytes()))
        return rows

    def restore(self, others: Mapping[str, bytes]) -> bool:
        """Continue from rows of a state, by kind; return whether it has newest packets.

        Raises
        ------
        StateError
            The state is damaged.
        """
        rows = {kind: data for kind, data in others.items() if kind.startswith(_KIND)}
        if not rows:
            return False
        try:
            self._restore(rows)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise StateError(f"its state is damaged ({error})") from None
        return True

    def _restore(self, rows: Mapping[str, bytes]) -> None:
        until_ns = {name: self._protocols[name].packets.since_ns for name in self._wanted}
        values = json.loads(rows[_KIND])
        tables = {
            kind.partition(" ")[2]: pa.ipc.open_stream(data).read_all()
            for kind, data in rows.items()
            if kind != _KIND
        }
        for table in tables.values():
            table.validate(full=True)
        closed = tables.pop(_CLOSED)
        if not closed.schema.equals(self._closed.schema):
            raise ValueError("keys of sessions that are none")
        self._closed = closed
        self._spans = [{name: row[name] for name in _SPANS} for row in values["spans"]]
        for name, one in self._protocols.items():
            parts = {
                part.partition(" ")[2]: table
                for part, table in tables.items()
                if part.partition(" ")[0] == name
            }
            one.restore(values[name], parts)
        self.advance(until_ns)


# --- several inputs -------------------------------------------------------------------------


def read_newest(newest: Mapping[str, NewestFacts], held: Mapping[str, HeldFiles]) -> None:
    """Read the packets of inputs that the lake has.

    Parameters
    ----------
    newest
        The inputs, by source.
    held
        Paths of the final files of each, by table.
    """
    for format in dict.fromkeys(name for protocol, _ in _FEW for name in protocol.needed):
        listed = {source: files.get(packets_table(format), ()) for source, files in held.items()}
        # Oldest first; only rare ones of those before the newest.
        is_old = {}
        for source, paths in listed.items():
            behind = [0, *accumulate(measure(path)[0] for path in reversed(paths))]
            for path, rows in zip(paths, reversed(behind[:-1]), strict=True):
                is_old[source, path] = rows >= MAX_NEWEST
        for path, source, rows in read_each(listed, _columns_of(format)):
            newest[source].add_packets(format, rows, old=is_old[source, path])
    for source, files in held.items():
        for rows in captured_streams(files.get("streams", ()), [source], STREAM_COLUMNS):
            newest[source].add_streams(rows)
        for path in files.get(FILES_TABLE, ()):
            of_file = (row for table in read_batches(path, _SPANS) for row in table.to_pylist())
            newest[source].add_spans(row for row in of_file if row["source"] == source)


def add_newest(
    newest: Mapping[str, NewestFacts], packets: Mapping[str, Sequence[str]], streams: pa.Table
) -> None:
    """Add the packets of the next parts of inputs.

    Parameters
    ----------
    packets
        Paths of files of packets, by table.
    streams
        Rows of the table `streams` about streams of the inputs.
    """
    for format in dict.fromkeys(name for protocol, _ in _FEW for name in protocol.needed):
        paths = packets.get(packets_table(format), ())
        for _, source, rows in read_each(dict.fromkeys(newest, paths), _columns_of(format)):
            newest[source].add_packets(format, rows)
    numbers = {source: number for number, source in enumerate(newest)}
    for one, rows in zip(newest.values(), by_source(streams, numbers), strict=True):
        one.add_streams(rows)


def _columns_of(format: str) -> list[str]:
    """Return the columns of packets that any protocol needs."""
    needed = (protocol.needed.get(format, ()) for protocol, _ in _FEW)
    return [*dict.fromkeys(name for columns in needed for name in columns)]


def make_rows(
    newest: Mapping[str, NewestFacts],
    still_open: Mapping[str, Sequence[str]],
    open_spans: Iterable[Row],
) -> MadeRows:
    """Return the facts of the newest packets of inputs.

    Parameters
    ----------
    newest
        The inputs, by source.
    still_open
        Paths of files with the sessions that were open before, by input.
    open_spans
        Rows of the table `files` about files of captures that may continue.
    """
    found: dict[str, list[NewestRows]] = {source: [] for source in newest}
    for protocol, _ in _FEW:
        given = {source: one.given(protocol) for source, one in newest.items()}
        members = {source: each for source, each in given.items() if each is not None}
        facts = facts_of(protocol.name)
        # Inputs that may show the same messages would give each message one row.
        alone = facts is None or facts.shares_messages
        for group in [[source] for source in members] if alone else [[*members]]:
            for source, rows in zip(
                group, rows_together([members[source] for source in group]), strict=True
            ):
                found[source] += rows
    before = read_sessions(still_open)
    parts = list[NewestRows]()
    for source, rows in found.items():
        of_sessions = [each for each in rows if each.table == SESSIONS]
        parts += (each for each in rows if each.table != SESSIONS)
        parts.append(newest[source].with_open(of_sessions, before[source]))
    return _made(parts, [*open_spans, *(row for one in newest.values() for row in one.spans)])


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
