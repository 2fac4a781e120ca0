"""What the tasks of a stage pass on to those of later stages: Arrow tables, partitioned by key.

A task yields `Blob`s, each with the rows for one part of a later stage. The engine holds them, and
calls a task of that stage for each part that has some (`wireyard.pipeline.running`). Spark holds
and moves them as rows with one binary column, so that their rows are never converted for Java; this
process writes them to an unnamed file. Nothing of this is in the folder of the lake.

Values that are no tables are cells with JSON of a declared type (`typed_json`).
"""

from __future__ import annotations

import mmap
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import pyarrow as pa

from wireyard.lake.staging import writing
from wireyard.layers.grouping import split_rows, text_hashes
from wireyard.pipeline.typed_json import from_json, to_json

MOST_BYTES: Final = 16 << 20
"""Bytes of a blob. Spark takes five times as long for a thousand of half a megabyte, and Java holds
several of them at once, each compressed to about a third."""
_TEXT: Final = "json"
_OPTIONS: Final = pa.ipc.IpcWriteOptions(unify_dictionaries=True)


class Blob(NamedTuple):
    """Rows of some tables for one part of a later stage."""

    name: str
    """The name of what they are."""
    part: int
    """Number of the part."""
    data: pa.Buffer
    """An Arrow stream for each table, one after the other."""


class Passed(NamedTuple):
    """The tables of a blob, as they are read."""

    origin: int
    """Number of the task that passed them on."""
    tables: list[pa.Table]


Inbox = Mapping[str, Sequence[Passed]]
"""What was passed on to a part, by name, in the order of origins; without anything it is empty."""


class PartInput(NamedTuple):
    """The input of a task of a later stage."""

    part: int
    inbox: Inbox


def pass_on(name: str, parts: Iterable[Sequence[pa.Table]], first: int = 0) -> Iterator[Blob]:
    """Yield the blobs for parts that follow each other, from number `first` on.

    Each part has the same number of tables. Empty ones are passed on too: they have a schema. Their
    dictionaries are reduced to the texts of their own rows.
    """
    for number, tables in enumerate(parts, first):
        pieces = -(-sum(table.nbytes for table in tables) // MOST_BYTES) or 1
        for piece in range(pieces):
            sink = pa.BufferOutputStream()
            for table in tables:
                rows = with_own_texts(_piece(table, piece, pieces))
                with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
                    stream.write_table(rows)
            yield Blob(name, number, sink.getvalue())


def pass_by_text(name: str, rows: pa.Table, keys: pa.ChunkedArray, parts: int) -> Iterator[Blob]:
    """Yield the blobs of rows that are partitioned by their texts `keys`; none for empty parts."""
    of_part = text_hashes(keys.combine_chunks()) % parts
    for number, own in enumerate(split_rows(rows, of_part, parts)):
        if own.num_rows:
            yield from pass_on(name, [[own]], number)


def _piece(table: pa.Table, piece: int, pieces: int) -> pa.Table:
    start, stop = (table.num_rows * each // pieces for each in (piece, piece + 1))
    return table.slice(start, stop - start)


def pass_value(name: str, part: int, value: Any, kind: Any) -> Iterator[Blob]:
    """Yield the blob with a value of a type (`typed_json`)."""
    table = pa.table({_TEXT: pa.array([to_json(value, kind)], pa.large_string())})
    return pass_on(name, [[table]], part)


def values_of(inbox: Inbox, name: str, kind: Any) -> list[Any]:
    """Return the values that `pass_value` has passed on under a name."""
    tables = (table for passed in inbox.get(name, ()) for table in passed.tables)
    return [from_json(table[_TEXT][0].as_py(), kind) for table in tables]


def read_tables(data: pa.Buffer) -> list[pa.Table]:
    """Return the tables of a blob, without a copy."""
    source, tables = pa.BufferReader(data), []
    while source.tell() < data.size:
        tables.append(pa.ipc.open_stream(source).read_all())
    return tables


def with_own_texts(table: pa.Table) -> pa.Table:
    """Return a table whose dictionaries have at most as many texts as it has rows."""
    for place, kind in enumerate(table.schema.types):
        if not pa.types.is_dictionary(kind):
            continue
        column = table.column(place)
        if sum(len(chunk.dictionary) for chunk in column.chunks) > len(column):
            own = column.cast(column.type.value_type).dictionary_encode()
            table = table.set_column(place, table.field(place).name, own)
    return table


# --- the stages -----------------------------------------------------------------------------

Work = Callable[[Any], Iterable[Any]]
"""The function of a task: its input -> its results, and what it passes on, `Blob`s."""


class Stage(NamedTuple):
    """A later stage, with a task for each part for which something was passed on."""

    names: Sequence[str]
    """The names of what it reads."""
    parts: int
    """Number of parts."""
    work: Work
    """The function of a task; its input is a `PartInput`."""


class _Place(NamedTuple):
    """Where a blob came from, and where it is in the file."""

    stage: int
    task: int
    number: int
    """Its number among all outputs of the task."""
    start: int
    size: int


class Spill:
    """Blobs in an unnamed file, so that memory need not hold them.

    Any method raises a `LakeError` if the file cannot be written.
    """

    def __init__(self) -> None:
        self._folder = tempfile.gettempdir()
        with writing(self._folder):
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `close` does
        self._end = 0
        self._places: dict[str, defaultdict[int, list[_Place]]] = {}
        """Of the blobs for each part, by name."""

    def add(self, blob: Blob, stage: int, task: int, number: int) -> None:
        """Write a blob of a task."""
        with writing(self._folder):
            self._file.write(blob.data)
        places = self._places.setdefault(blob.name, defaultdict(list))
        places[blob.part].append(_Place(stage, task, number, self._end, blob.data.size))
        self._end += blob.data.size

    def inputs(self, names: Iterable[str] | None = None) -> Iterator[PartInput]:
        """Yield the input of each part from the blobs of some names, or of all.

        The tables are views of the file. What is added meanwhile is not read.
        """
        if not self._end:
            return
        with writing(self._folder):
            self._file.flush()
        whole = pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        wanted = self._places if names is None else self._places.keys() & set(names)
        found = {name: {**self._places[name]} for name in wanted}
        for part in sorted({part for places in found.values() for part in places}):
            inbox = {
                name: [
                    Passed(place.task, read_tables(whole.slice(place.start, place.size)))
                    for place in sorted(places[part])
                ]
                for name, places in found.items()
                if part in places
            }
            yield PartInput(part, inbox)

    def close(self) -> None:
        """Delete the file; tables that were read stay."""
        self._file.close()


def run_here(first: Iterable[Any], work: Work, stages: Iterable[Stage]) -> Iterator[Any]:
    """Run the tasks of stages in this process, one after the other; yield their results.

    `first` are the inputs of the first stage, and `work` is its function.
    """
    with closing(Spill()) as passed:
        yield from _run_each(enumerate(first), work, passed, 0)
        for number, stage in enumerate(stages, 1):
            inputs = ((given.part, given) for given in passed.inputs(stage.names))
            yield from _run_each(inputs, stage.work, passed, number)


def _run_each(
    inputs: Iterable[tuple[int, Any]], work: Work, passed: Spill, stage: int
) -> Iterator[Any]:
    for task, given in inputs:
        for number, output in enumerate(work(given)):
            if isinstance(output, Blob):
                passed.add(output, stage, task, number)
            else:
                yield output
