"""Facts of the newest packets of inputs that grow, until facts of all their packets are made.

Of MQTT: see ``wireyard.layers.mqtt.newest``. What they follow from is in memory, so another process
makes facts of all packets first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.read import FrameSpan
from wireyard.formats.base import Row
from wireyard.lake.ledgers import captured_streams, streams_table
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.mqtt.newest import MAX_NEWEST, NEEDED, NewestPackets
from wireyard.spark.bronze import FILES_TABLE
from wireyard.spark.grown import GrownPart
from wireyard.spark.lake import Lake
from wireyard.spark.mqtt_facts import SHOWN, shown_rows
from wireyard.spark.parts import read_batches
from wireyard.spark.replacing import is_of_open

__all__ = ["NewestFacts"]

_PACKETS: Final = "packets_mqtt"


class NewestFacts:
    """What the newest facts of an input follow from.

    Parameters
    ----------
    lake
        Has the input, and is read once.
    until_ns
        Up to which time its facts are made.
    """

    def __init__(self, lake: Lake, source: str, until_ns: int) -> None:
        self._lake, self._source = lake, source
        self._packets = NewestPackets(source, until_ns)
        files = lake.inputs[source].files

        def paths(table: str) -> list[str]:
            names = (name for name in files.get(table, ()) if not is_of_open(name))
            return [lake.path(table, name) for name in names]

        room = MAX_NEWEST
        for path in reversed(paths(_PACKETS)):
            room -= self._add_file(path, old=room <= 0)
        self._shown: dict[str, Row] = {}
        for rows in captured_streams(paths("streams"), [source], (*SHOWN, "format")):
            self._show(rows)
        self._files = [row for path in paths(FILES_TABLE) for row in self._files_of(path)]

    def _add_file(self, path: str, *, old: bool = False) -> int:
        """Add the packets of a file; return how many there were."""
        count = 0
        for table in read_batches(path, NEEDED):
            of_source = table.filter(pc.equal(table["source"].cast(pa.string()), self._source))
            self._packets.add(of_source, old=old)
            count += of_source.num_rows
        return count

    def _files_of(self, path: str) -> list[Row]:
        rows = (row for table in read_batches(path, _SPANS) for row in table.to_pylist())
        return [row for row in rows if row["source"] == self._source]

    def _rows_of(self, spans: Sequence[FrameSpan]) -> list[Row]:
        return [{"source": self._source, **span._asdict()} for span in spans]

    def _show(self, streams: pa.Table) -> None:
        wanted = streams.filter(pc.is_in(streams["stream"], self._packets.streams))
        self._shown |= {row["stream"]: row for row in shown_rows(wanted)}

    def add(self, part: GrownPart) -> None:
        """Add what is new of the input."""
        for name in part.files.get(_PACKETS, ()):
            if not is_of_open(name):
                self._add_file(self._lake.staged(_PACKETS, name))
        self._show(streams_table(part.ledgers))
        self._files += self._rows_of(part.closed_spans)

    def write(self, part: GrownPart) -> None:
        """Stage the facts of the newest packets, those of the part among them."""
        rows = self._packets.rows([*self._shown.values()])
        part.write_newest(rows, FrameFiles([*self._files, *self._rows_of(part.open_spans)]))
        there = {*self._packets.streams.to_pylist()}
        self._shown = {name: row for name, row in self._shown.items() if name in there}

    def go_on(self, until_ns: int) -> None:
        """Take note that facts of all packets are made up to a time."""
        self._packets.go_on(until_ns)


_SPANS: Final = ("source", "file", "first_frame", "frames")
