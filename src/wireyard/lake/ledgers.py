"""The ledgers of the streams that a lake holds, read from its tables `streams` and `ledger`.

The lake keeps ledgers nowhere else. A file of each table has the streams of the same inputs in the
same order, so the ledgers of an input are rows of the two, read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final, overload

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.captures import stream_table
from wireyard.captures.stream_table import CAPTURED_FACTS, LEDGER, LEDGER_TABLE, STREAMS
from wireyard.lake.commits import Input, StreamLedger
from wireyard.streams.source import filesystem

__all__ = ["HeldLedgers", "captured_streams", "ledger_table", "streams_table"]

_FACTS: Final = (*CAPTURED_FACTS, "bytes_gap")


def streams_table(inputs: Iterable[Input]) -> pa.Table:
    """Return a row for every stream of the inputs; what only captures tell is null of others."""
    return stream_table.streams_table(
        {
            "source": each.source,
            "stream": one.stream,
            "format": one.format,
            **one.facts,
            "bytes_read": one.counts["bytes_read"],
        }
        for each in sorted(inputs, key=lambda each: each.source)
        for one in each.streams
    )


def captured_streams(inputs: Iterable[Input]) -> pa.Table:
    """Return the rows of `streams_table` that captures tell something of."""
    streams = streams_table(inputs)
    return streams.filter(streams["transport"].is_valid())


def ledger_table(inputs: Iterable[Input]) -> pa.Table:
    """Return a row for every stream of the inputs, in the order of `streams_table`."""
    rows = [
        {"source": each.source, "stream": one.stream, **one.counts}
        for each in sorted(inputs, key=lambda each: each.source)
        for one in each.streams
    ]
    return pa.Table.from_pylist(rows, LEDGER_TABLE)


class HeldLedgers:
    """The ledgers of all inputs of a lake.

    Parameters
    ----------
    paths
        The files of a table, by its name.
    """

    def __init__(self, paths: Callable[[str], Sequence[str]]) -> None:
        self._paths = paths

    def of(self, source: str) -> Sequence[StreamLedger]:
        """Return the ledgers of an input; nothing is read yet."""
        return _Ledgers(self, source)

    def load(self, source: str) -> list[StreamLedger]:
        """Read the ledgers of an input."""
        first, count = self._places.get(source, (0, 0))
        rows = self._rows.slice(first, count).to_pylist()
        return [
            StreamLedger(
                row["stream"],
                row["format"],
                {name: row[name] for name in LEDGER},
                {name: row[name] for name in _FACTS},
            )
            for row in rows
        ]

    @cached_property
    def _rows(self) -> pa.Table:
        streams = _read_sorted(self._paths("streams"), STREAMS)
        counts = _read_sorted(self._paths("ledger"), LEDGER_TABLE)
        for name in LEDGER[1:]:
            streams = streams.append_column(name, counts[name])
        return streams

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Where the rows of each input begin, and how many they are."""
        found = self._rows["source"].combine_chunks().value_counts()
        counts = found.field("counts").to_pylist()  # as an array of numpy it would load pandas
        starts = accumulate(counts, initial=0)
        places = zip(starts, counts, strict=False)
        return dict(zip(found.field("values").to_pylist(), places, strict=True))


class _Ledgers(Sequence[StreamLedger]):
    """The ledgers of one input, read when they are looked at."""

    def __init__(self, held: HeldLedgers, source: str) -> None:
        self._held = held
        self._source = source

    @cached_property
    def _all(self) -> list[StreamLedger]:
        return self._held.load(self._source)

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, place: int) -> StreamLedger: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StreamLedger]: ...
    def __getitem__(self, place: int | slice) -> StreamLedger | Sequence[StreamLedger]:
        return self._all[place]


def _read_sorted(paths: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return all rows by source, those of one in the order in which they stand."""
    tables = [pa.Table.from_batches([], schema)]
    for path in paths:
        system, inner = filesystem(path)
        with system.open_input_file(inner) as file:
            tables.append(pq.ParquetFile(file).read())
    rows = pa.concat_tables(tables)
    # Arrow's sort keeps the order of what is equal.
    return rows.take(pc.sort_indices(rows["source"]))
