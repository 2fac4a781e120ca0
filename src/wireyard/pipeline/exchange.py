"""Intermediate files: the exchange of Arrow tables between the tasks of two stages.

Spark's own shuffle would convert rows between Python and Java twice. Here a task writes one file of
uncompressed Arrow data, with a part for each task of the next stage; each of these reads its part
of every file in one piece. Compression (LZ4) took twice as long to write and four times as long to
read, for two fifths of the bytes. Integers of the narrowest type (`narrowed`) take two thirds of
the bytes, but a task that joins hundreds of small parts has to cast each, which took as long as to
read it. A file is deleted after the stage that reads it, often before the system has written it to
a disk.

Values that are no tables, such as the inputs of tasks, are a part each: one cell with JSON of a
declared type (`typed_json`). The files are in the folder of the lake, where others may write, so
nothing in them is code, and no size in them is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from wireyard.errors import LakeDamaged
from wireyard.lake.staging import writing
from wireyard.layers.frame_files import FrameFiles, Spans
from wireyard.pipeline.typed_json import from_json, to_json
from wireyard.streams.source import filesystem

__all__ = [
    "EXCHANGE",
    "Parts",
    "PartsWriter",
    "dump",
    "dump_each",
    "dump_frame_files",
    "load",
    "load_frame_files",
    "load_one",
    "narrowed",
    "read_part",
    "remove",
    "with_own_texts",
    "write_parts",
]

EXCHANGE: Final = "exchange"
"""Folder for the intermediate files of a run, beside its tables."""
_FRAME_FILES: Final = f"{EXCHANGE}/frame_files.arrow"
_TEXT: Final = "json"
_OFFSET_BYTES: Final = 8
_BUFFER_BYTES: Final = 1 << 18
"""Gathers small writes: a part may be a few kilobytes in a hundred columns, one write each."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(unify_dictionaries=True)


class PartsWriter:
    """Writer of a file of parts; a part is a list of tables, the same number in each.

    Raises
    ------
    LakeError
        From any method: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._places: list[list[int]] = []
        self._dictionaries: list[tuple[pa.Schema, list[int]]] = []
        system, inner = filesystem(path)
        with writing(path):
            self._file = system.open_output_stream(inner, buffer_size=_BUFFER_BYTES)

    def write(self, tables: Sequence[pa.Table]) -> None:
        """Write the next part, with dictionaries reduced to the texts of its own rows."""
        places: list[int] = []
        with writing(self.path):
            for whole in tables:
                table = with_own_texts(whole, self._dictionaries_of(whole.schema))
                places.append(self._file.tell())
                with pa.ipc.new_stream(self._file, table.schema, options=_OPTIONS) as stream:
                    stream.write_table(table)
            places.append(self._file.tell())
        self._places.append(places)

    def _dictionaries_of(self, schema: pa.Schema) -> list[int]:
        """Return the columns with dictionaries; cached, as this costs as much as a few rows."""
        for known, places in self._dictionaries:
            if known.equals(schema):
                return places
        self._dictionaries.append((schema, _dictionaries(schema)))
        return self._dictionaries[-1][1]

    def close(self) -> None:
        """Finish the file."""
        footer = np.array(self._places, np.int64)
        with writing(self.path), self._file as file:
            file.write(footer.tobytes())
            file.write(np.array([footer.nbytes, len(self._places)]).tobytes())


class Parts:
    """The parts of a file that `PartsWriter` has written; a local file is memory-mapped."""

    def __init__(self, path: str) -> None:
        system, inner = filesystem(path)
        is_local = isinstance(system, fs.LocalFileSystem)
        self._file = pa.memory_map(inner) if is_local else system.open_input_file(inner)
        end = self._file.size() - 2 * _OFFSET_BYTES
        last = self._file.read_at(2 * _OFFSET_BYTES, end)
        size, parts = np.frombuffer(last, np.int64).tolist()
        if not (0 <= size <= end and 0 <= parts <= size // _OFFSET_BYTES):
            raise LakeDamaged(f"{path}: is damaged")
        self._path = path
        self._parts: int = parts
        self._row_bytes = size // max(parts, 1)
        self._footer_at = end - size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._parts

    def read(self, part: int) -> list[pa.Table]:
        """Return the tables of a part, read in one piece."""
        row = self._file.read_at(self._row_bytes, self._footer_at + part * self._row_bytes)
        places = np.frombuffer(row, np.int64).tolist()
        if not (
            places and places[0] >= 0 and places == sorted(places) and places[-1] <= self._footer_at
        ):
            raise LakeDamaged(f"{self._path}: is damaged")
        self._file.seek(places[0])
        whole = self._file.read_buffer(places[-1] - places[0])
        ends = (place - places[0] for place in places)
        return [
            pa.ipc.open_stream(whole.slice(start, stop - start)).read_all()
            for start, stop in pairwise(ends)
        ]


def write_parts(folder: str, parts: Iterable[Sequence[pa.Table]]) -> str:
    """Write a part for each task of the next stage, in order; return the file's path."""
    writer = PartsWriter(f"{folder}/{EXCHANGE}/{uuid4().hex}.arrow")
    for tables in parts:
        writer.write(tables)
    writer.close()
    return writer.path


def read_part(paths: Iterable[str], part: int) -> Iterator[list[pa.Table]]:
    """Yield the tables of one part from each file."""
    for path in paths:
        with Parts(path) as parts:
            yield parts.read(part)


def remove(folder: str, paths: Iterable[str]) -> None:
    """Delete files of a run that no later stage reads.

    Raises
    ------
    LakeError
        A path, which may have been read from a file, is not one of them.
    """
    for path in paths:
        if path.rpartition("/")[0] != f"{folder}/{EXCHANGE}":
            raise LakeDamaged(f"{path}: is no intermediate file of this run")
        system, inner = filesystem(path)
        with writing(path):
            system.delete_file(inner)


def narrowed(table: pa.Table) -> pa.Table:
    """Cast integer columns to the narrowest type that fits; `pa.Table.cast` reverses it."""
    return pa.Table.from_arrays(list(map(_narrowed, table.columns)), table.column_names)


_WIDTHS: Final = (pa.int8(), pa.int16(), pa.int32())


def _narrowed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_integer(column.type) or column.null_count == len(column):
        return column
    bounds = pc.min_max(column).as_py()
    for kind in _WIDTHS:
        most = 1 << (kind.bit_width - 1)
        if -most <= bounds["min"] <= bounds["max"] < most:
            return column.cast(kind)
    return column


def with_own_texts(table: pa.Table, places: Sequence[int] | None = None) -> pa.Table:
    """Return a table whose dictionaries have at most as many texts as it has rows.

    Parameters
    ----------
    places
        Numbers of the columns that have dictionaries; found in the schema if None.
    """
    for place in _dictionaries(table.schema) if places is None else places:
        column = table.column(place)
        if sum(len(chunk.dictionary) for chunk in column.chunks) > len(column):
            own = column.cast(column.type.value_type).dictionary_encode()
            table = table.set_column(place, table.field(place).name, own)
    return table


def _dictionaries(schema: pa.Schema) -> list[int]:
    return [place for place, kind in enumerate(schema.types) if pa.types.is_dictionary(kind)]


def dump(folder: str, value: Any, kind: Any) -> str:
    """Write a small value of a type (`typed_json`) to a new file; return the file's path."""
    return dump_each(folder, [value], kind)


def load(path: str, kind: Any) -> Any:
    """Return the value of a type that `dump` has written."""
    return load_one(path, 0, kind)


def dump_each(folder: str, values: Iterable[Any], kind: Any) -> str:
    """Write values to a new file from which `load_one` reads single ones; return its path."""
    return write_parts(folder, ([_as_table(value, kind)] for value in values))


def load_one(path: str, number: int, kind: Any) -> Any:
    """Return one of the values that `dump_each` has written; read no other."""
    with Parts(path) as parts:
        (table,) = parts.read(number)
        return from_json(table[_TEXT][0].as_py(), kind)


def _as_table(value: Any, kind: Any) -> pa.Table:
    return pa.table({_TEXT: pa.array([to_json(value, kind)], pa.large_string())})


def dump_frame_files(folder: str, files: FrameFiles) -> None:
    """Write the run's `FrameFiles`, for `load_frame_files`."""
    writer = PartsWriter(f"{folder}/{_FRAME_FILES}")
    writer.write([_as_table(files.spans, Spans)])
    writer.close()


def load_frame_files(folder: str) -> FrameFiles:
    """Return the frame numbers of the capture files whose facts this run makes."""
    return FrameFiles.of(load(f"{folder}/{_FRAME_FILES}", Spans))
