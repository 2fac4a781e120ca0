"""Facts of the newest packets of inputs that grow, until facts of all their packets are made.

Of MQTT and JMS: see ``wireyard.layers.newest``. What they follow from is in memory; another process
reads it from the packets of the lake.
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
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.jmq.newest import JMS
from wireyard.layers.mqtt.newest import MQTT
from wireyard.layers.newest import MAX_NEWEST, MessageProtocol, NewestPackets, NewestRows
from wireyard.layers.tables import fact_table, join_tables
from wireyard.spark.bronze import FILES_TABLE, packets_table
from wireyard.spark.facts import producers_of_inputs, related_to
from wireyard.spark.grown import (
    SESSIONS,
    GrownPart,
    read_open_sessions,
    read_sessions,
    session_keys,
    without_sessions,
)
from wireyard.spark.jmq_facts import FEW as FEW_JMQ
from wireyard.spark.lake import Lake
from wireyard.spark.mqtt_facts import FEW as FEW_MQTT
from wireyard.spark.mqtt_facts import SHOWN, shown_rows
from wireyard.spark.parts import measure, read_batches
from wireyard.spark.replacing import is_of_open

__all__ = ["NewestFacts", "need_spark", "until"]

_FEW: Final = ((MQTT, FEW_MQTT), (JMS, FEW_JMQ))


def until(ns: int | None) -> dict[str, int]:
    """Return a time for each protocol; none where there is no time."""
    return {} if ns is None else {one.name: ns for one, _ in _FEW}


def need_spark(rows: Mapping[str, int]) -> bool:
    """Return whether so many packets, by format, have facts that Spark has to make."""
    return any(sum(rows.get(name, 0) for name in one.needed) > few for one, few in _FEW)


class _Followed:
    """The newest packets of a protocol, and what captures show of their streams."""

    def __init__(self, protocol: MessageProtocol, source: str, until_ns: int) -> None:
        self.protocol = protocol
        self.packets = NewestPackets(protocol, source, until_ns)
        self._shown: dict[str, Row] = {}

    def show(self, streams: pa.Table) -> None:
        """Take what a capture shows of its streams, rows of the table `streams`."""
        wanted = streams.filter(pc.is_in(streams["stream"], self.packets.streams))
        for format in self.protocol.needed:
            self._shown |= {row["stream"]: row for row in shown_rows(wanted, format)}

    def rows(self) -> list[NewestRows]:
        """Return the rows of what there is."""
        rows = self.packets.rows([*self._shown.values()])
        there = {*self.packets.streams.to_pylist()}
        self._shown = {name: row for name, row in self._shown.items() if name in there}
        return rows


class NewestFacts:
    """What the newest facts of an input follow from.

    Parameters
    ----------
    lake
        Has the input, and is read once.
    until_ns
        By protocol: messages that were sent up to this time have the rows that they keep.
    claims
        Producers of JMS messages, and the inputs that give rows of theirs: of all inputs.
    """

    def __init__(
        self, lake: Lake, source: str, until_ns: Mapping[str, int], claims: dict[str, str]
    ) -> None:
        self._lake, self._source, self._claims = lake, source, claims
        self._followed = [
            _Followed(one, source, until_ns[one.name]) for one, _ in _FEW if one.name in until_ns
        ]
        self._shares_messages: bool | None = None
        self._closed: dict[str, pa.Array] = {}
        """Of each file the keys of the sessions that it has as closed."""
        for one in self._followed:
            for format in one.protocol.needed:
                self._read(one, format)
        for rows in captured_streams(self._paths("streams"), [source], (*SHOWN, "format")):
            self._show(rows)
        self._files = [row for path in self._paths(FILES_TABLE) for row in self._files_of(path)]

    def _paths(self, table: str) -> list[str]:
        files = self._lake.inputs[self._source].files.get(table, ())
        return [self._lake.path(table, name) for name in files if not is_of_open(name)]

    def _read(self, one: _Followed, format: str) -> None:
        """Read packets of the lake, the oldest first; of those before the newest the rare ones."""
        paths = self._paths(packets_table(format))
        behind = [0, *accumulate(measure(path)[0] for path in reversed(paths))]
        for path, rows in zip(paths, reversed(behind[:-1]), strict=True):
            self._add_file(one, format, path, old=rows >= MAX_NEWEST)

    def _add_file(self, one: _Followed, format: str, path: str, *, old: bool = False) -> None:
        """Add the packets of a file."""
        for table in read_batches(path, one.protocol.needed[format]):
            of_source = table.filter(pc.equal(table["source"].cast(pa.string()), self._source))
            one.packets.add(format, of_source, old=old)

    def _files_of(self, path: str) -> list[Row]:
        rows = (row for table in read_batches(path, _SPANS) for row in table.to_pylist())
        return [row for row in rows if row["source"] == self._source]

    def _rows_of(self, spans: Sequence[FrameSpan]) -> list[Row]:
        return [{"source": self._source, **span._asdict()} for span in spans]

    def _show(self, streams: pa.Table) -> None:
        for one in self._followed:
            one.show(streams)

    @property
    def until_ns(self) -> dict[str, int]:
        """As the argument, for what there is now; none of a protocol that gives no rows."""
        return {
            one.protocol.name: one.packets.since_ns
            for one in self._followed
            if one.protocol is not JMS or not self._shares_messages
        }

    def add(self, part: GrownPart) -> None:
        """Add what is new of the input."""
        for one in self._followed:
            for format in one.protocol.needed:
                table = packets_table(format)
                for name in part.files.get(table, ()):
                    if not is_of_open(name):
                        self._add_file(one, format, self._lake.staged(table, name))
        self._show(streams_table(part.ledgers))
        self._files += self._rows_of(part.closed_spans)

    def write(self, part: GrownPart) -> None:
        """Stage the facts of the newest packets, those of the part among them."""
        rows = list[NewestRows]()
        for one in self._followed:
            found = one.rows()
            if one.protocol is not JMS or not self._shares(found):
                rows += found
        sessions = self._with_open([some for some in rows if some.table == SESSIONS])
        rows = [*(some for some in rows if some.table != SESSIONS), sessions]
        part.write_newest(rows, FrameFiles([*self._files, *self._rows_of(part.open_spans)]))

    def _with_open(self, sessions: Sequence[NewestRows]) -> NewestRows:
        """Return rows of sessions, with those that were open before and are not among them.

        One that the lake has as closed keeps its row: packets that came later may say that it was
        closed later.
        """
        none = fact_table(SESSIONS, ())
        closed = join_tables([none, *(some.closed for some in sessions)])
        still_open = join_tables([none, *(some.open for some in sessions)])
        are_closed = self._closed_sessions()
        closed, still_open = (without_sessions(rows, are_closed) for rows in (closed, still_open))
        before = read_open_sessions(self._lake, self._source)
        before = without_sessions(before, session_keys(join_tables([closed, still_open])))
        return NewestRows(SESSIONS, closed, join_tables([still_open, before]))

    def _closed_sessions(self) -> pa.Array:
        """Return the keys of sessions that the lake has as closed; of a file they are read once."""
        read, self._closed = self._closed, {}
        for path in self._paths(SESSIONS):
            if path in read:
                self._closed[path] = read[path]
            else:
                self._closed[path] = session_keys(read_sessions([path], self._source))
        return pa.concat_arrays([pa.array([], pa.string()), *self._closed.values()])

    def _shares(self, rows: Sequence[NewestRows]) -> bool:
        """Return whether other inputs show the same JMS messages, each of which has one row.

        The lake has the producers of all packets that facts were made of. Of those that came since,
        the input has them that gives rows of their messages first.
        """
        if self._shares_messages is None:
            shown = producers_of_inputs(self._lake, [self._source])
            self._shares_messages = bool(related_to(self._lake, shown, [self._source]))
        if not self._shares_messages:
            messages = [part for name, *both in rows if name == "messages" for part in both]
            producers = {name for part in messages for name in _texts(part["producer"])}
            self._shares_messages = any(
                self._claims.setdefault(name, self._source) != self._source for name in producers
            )
        return self._shares_messages

    def go_on(self, until_ns: int) -> None:
        """Take note that facts of all packets are made up to a time."""
        self._shares_messages = None
        for one in self._followed:
            one.packets.go_on(until_ns)


def _texts(column: pa.ChunkedArray) -> list[str]:
    texts: list[str] = pc.unique(column.cast(pa.string()).drop_null()).to_pylist()
    return texts


_SPANS: Final = ("source", "file", "first_frame", "frames")
