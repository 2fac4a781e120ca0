"""Facts of the newest packets of growing inputs, until facts of all their packets are made.

For MQTT and JMS; see ``wireyard.layers.newest``. The packets that they follow from are held in
memory; a new process reads them from the lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.read import FrameSpan
from wireyard.formats.base import Row
from wireyard.lake.ledgers import captured_streams, streams_table
from wireyard.lake.parts import measure, read_batches
from wireyard.lake.writer import Lake
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.jmq.newest import JMS
from wireyard.layers.mqtt.newest import MQTT
from wireyard.layers.newest import MAX_NEWEST, MessageProtocol, NewestPackets, NewestRows
from wireyard.layers.tables import fact_table, join_tables
from wireyard.pipeline.decoding.task import FILES_TABLE, packets_table
from wireyard.pipeline.facts.mqtt import rows_of_streams
from wireyard.pipeline.facts.stage import related_to
from wireyard.pipeline.facts.tasks import STREAM_COLUMNS
from wireyard.pipeline.growing.grown import (
    SESSIONS,
    GrownPart,
    read_open_sessions,
    read_sessions,
    session_keys,
    without_sessions,
)
from wireyard.pipeline.replacing import is_provisional

__all__ = ["NewestFacts", "by_protocol", "take_long"]

_FEW: Final = ((MQTT, 1 << 18), (JMS, 1 << 17))
"""The most packets whose facts are made in about a second, while parts wait for them."""


def by_protocol(time_ns: int | None) -> dict[str, int]:
    """Return a time under the name of each protocol; empty if there is no time."""
    return {} if time_ns is None else {protocol.name: time_ns for protocol, _ in _FEW}


def take_long(rows: Mapping[str, int]) -> bool:
    """Return whether the facts of so many packets, counted by format, take over a second."""
    return any(sum(rows.get(name, 0) for name in one.needed) > few for one, few in _FEW)


class _ProtocolPackets:
    """The newest packets of a protocol, and the rows of their streams."""

    def __init__(self, protocol: MessageProtocol, source: str, until_ns: int) -> None:
        self.protocol = protocol
        self.packets = NewestPackets(protocol, source, until_ns)
        self._streams: dict[str, Row] = {}

    def add_streams(self, streams: pa.Table) -> None:
        """Add rows of the table `streams`, as far as packets are of them."""
        wanted = streams.filter(pc.is_in(streams["stream"], self.packets.streams))
        for format in self.protocol.needed:
            self._streams |= {row["stream"]: row for row in rows_of_streams(wanted, format)}

    def rows(self) -> list[NewestRows]:
        """Return the facts of the packets."""
        rows = self.packets.rows([*self._streams.values()])
        there = {*self.packets.streams.to_pylist()}
        self._streams = {name: row for name, row in self._streams.items() if name in there}
        return rows


class NewestFacts:
    """The newest packets of an input, and the facts that follow from them.

    Parameters
    ----------
    lake
        Holds the packets that were read before; read once.
    until_ns
        By protocol: the rows of messages sent up to this time stay as they are.
    claims
        Producers of JMS messages, and the input whose parts have rows of their messages; shared by
        all inputs.
    """

    def __init__(
        self, lake: Lake, source: str, until_ns: Mapping[str, int], claims: dict[str, str]
    ) -> None:
        self._lake, self._source, self._claims = lake, source, claims
        self._protocols = [
            _ProtocolPackets(protocol, source, until_ns[protocol.name])
            for protocol, _ in _FEW
            if protocol.name in until_ns
        ]
        self._shares_messages: bool | None = None
        self._closed: dict[str, pa.Array] = {}
        """By file: the keys of its closed sessions."""
        for one in self._protocols:
            for format in one.protocol.needed:
                self._read(one, format)
        for rows in captured_streams(self._paths("streams"), [source], STREAM_COLUMNS):
            self._add_streams(rows)
        self._files = [row for path in self._paths(FILES_TABLE) for row in self._files_of(path)]

    def _paths(self, table: str) -> list[str]:
        files = self._lake.inputs[self._source].files.get(table, ())
        return [self._lake.path(table, name) for name in files if not is_provisional(name)]

    def _read(self, one: _ProtocolPackets, format: str) -> None:
        """Read packets of the lake, oldest first; only rare ones of those before the newest."""
        paths = self._paths(packets_table(format))
        behind = [0, *accumulate(measure(path)[0] for path in reversed(paths))]
        for path, rows in zip(paths, reversed(behind[:-1]), strict=True):
            self._add_file(one, format, path, old=rows >= MAX_NEWEST)

    def _add_file(
        self, one: _ProtocolPackets, format: str, path: str, *, old: bool = False
    ) -> None:
        """Add the packets of a file."""
        for table in read_batches(path, one.protocol.needed[format]):
            of_source = table.filter(pc.equal(table["source"].cast(pa.string()), self._source))
            one.packets.add(format, of_source, old=old)

    def _files_of(self, path: str) -> list[Row]:
        rows = (row for table in read_batches(path, _SPANS) for row in table.to_pylist())
        return [row for row in rows if row["source"] == self._source]

    def _rows_of(self, spans: Sequence[FrameSpan]) -> list[Row]:
        return [{"source": self._source, **span._asdict()} for span in spans]

    def _add_streams(self, streams: pa.Table) -> None:
        for one in self._protocols:
            one.add_streams(streams)

    @property
    def until_ns(self) -> dict[str, int]:
        """The argument's present value, without protocols that give no rows."""
        return {
            one.protocol.name: one.packets.since_ns
            for one in self._protocols
            if one.protocol is not JMS or not self._shares_messages
        }

    def add(self, part: GrownPart) -> None:
        """Add the packets of the input's next part."""
        for one in self._protocols:
            for format in one.protocol.needed:
                table = packets_table(format)
                for name in part.files.get(table, ()):
                    if not is_provisional(name):
                        self._add_file(one, format, self._lake.staged(table, name))
        self._add_streams(streams_table(part.ledgers))
        self._files += self._rows_of(part.closed_spans)

    def write(self, part: GrownPart) -> None:
        """Stage the facts of the newest packets, which include those of the part."""
        tables = list[NewestRows]()
        for one in self._protocols:
            rows = one.rows()
            if one.protocol is not JMS or not self._shares(rows):
                tables += rows
        sessions = self._with_open([rows for rows in tables if rows.table == SESSIONS])
        tables = [*(rows for rows in tables if rows.table != SESSIONS), sessions]
        part.write_newest(tables, FrameFiles([*self._files, *self._rows_of(part.open_spans)]))

    def _with_open(self, sessions: Sequence[NewestRows]) -> NewestRows:
        """Return rows of sessions, and the open sessions of before that are not among them.

        A session that is closed in the lake keeps its row: from later packets it might seem to have
        been closed later.
        """
        none = fact_table(SESSIONS, ())
        closed = join_tables([none, *(rows.closed for rows in sessions)])
        still_open = join_tables([none, *(rows.open for rows in sessions)])
        are_closed = self._closed_sessions()
        closed, still_open = (without_sessions(rows, are_closed) for rows in (closed, still_open))
        before = read_open_sessions(self._lake, self._source)
        before = without_sessions(before, session_keys(join_tables([closed, still_open])))
        return NewestRows(SESSIONS, closed, join_tables([still_open, before]))

    def _closed_sessions(self) -> pa.Array:
        """Return the keys of sessions that are closed in the lake; each file is read once."""
        read, self._closed = self._closed, {}
        for path in self._paths(SESSIONS):
            if path in read:
                self._closed[path] = read[path]
            else:
                self._closed[path] = session_keys(read_sessions([path], self._source))
        return pa.concat_arrays([pa.array([], pa.string()), *self._closed.values()])

    def _shares(self, rows: Sequence[NewestRows]) -> bool:
        """Return whether other inputs show the same JMS messages; each message has one row.

        The lake has the producers of all packets whose facts are made. A producer that appeared
        since belongs to the input that first has rows of its messages.
        """
        if self._shares_messages is None:
            none = fact_table("producers", ())
            self._shares_messages = bool(related_to(self._lake, none, [self._source]))
        if not self._shares_messages:
            messages = [part for name, *both in rows if name == "messages" for part in both]
            producers = {name for part in messages for name in _texts(part["producer"])}
            self._shares_messages = any(
                self._claims.setdefault(name, self._source) != self._source for name in producers
            )
        return self._shares_messages

    def advance(self, until_ns: int) -> None:
        """Record that facts of all packets are made up to a time."""
        self._shares_messages = None
        for one in self._protocols:
            one.packets.advance(until_ns)


def _texts(column: pa.ChunkedArray) -> list[str]:
    texts: list[str] = pc.unique(column.cast(pa.string()).drop_null()).to_pylist()
    return texts


_SPANS: Final = ("source", "file", "first_frame", "frames")
