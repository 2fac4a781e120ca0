"""Files between the tasks of two stages: each holds some tables for every task of the next one.

Spark's own shuffle would turn the rows of Python's tasks to Java's and back. What a task leaves for
others here is Arrow as it lies in memory: a task writes one file, and each task of the next stage
reads its part of every file in one piece. To compress it (LZ4) took twice as long to write and four
times as long to read, for two fifths of the bytes. Integers as narrow as their values (`narrowed`)
leave two thirds of them, but who joins hundreds of small parts has to cast each, which took as long
as to read it. A file is deleted after the stage that reads it, often before the system has written
it to a disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from wireyard.layers.frame_files import FrameFiles
from wireyard.spark.lake import writing
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
"""Where the files of a run are staged, beside its tables."""
_FRAME_FILES: Final = f"{EXCHANGE}/frame_files.pickle"
_FOOTER_BYTES: Final = 8
_OFFSET_BYTES: Final = 8
_BUFFER_BYTES: Final = 1 << 18
"""A part may be a few kilobytes in a hundred columns, each of which would be written by itself."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(unify_dictionaries=True)


class PartsWriter:
    """A file of parts that is being written: each some tables, as many as the others have.

    Raises
    ------
    LakeError
        From any method: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._places: list[list[int]] = []
        self._dictionaries: list[tuple[pa.Schema, list[int]]] = []
        system, inner = filesystem(path)
        with writing(path):
            self._file = system.open_output_stream(inner, buffer_size=_BUFFER_BYTES)

    def write(self, tables: Sequence[pa.Table]) -> None:
        """Write the next part, with the texts of its own rows and not those of many others."""
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
        """Return where a table has dictionaries; to look takes as long as to write a few rows."""
        for one, places in self._dictionaries:
            if one.equals(schema):
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
    """The parts of a file that `PartsWriter` has written; those of a local file stay in it."""

    def __init__(self, path: str) -> None:
        system, inner = filesystem(path)
        is_local = isinstance(system, fs.LocalFileSystem)
        self._file = pa.memory_map(inner) if is_local else system.open_input_file(inner)
        end = self._file.size() - 2 * _OFFSET_BYTES
        last = self._file.read_at(2 * _OFFSET_BYTES, end)
        size, parts = np.frombuffer(last, np.int64).tolist()
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
        """Return the tables of a part, which are read in one piece."""
        row = self._file.read_at(self._row_bytes, self._footer_at + part * self._row_bytes)
        places = np.frombuffer(row, np.int64).tolist()
        self._file.seek(places[0])
        whole = self._file.read_buffer(places[-1] - places[0])
        ends = (place - places[0] for place in places)
        return [
            pa.ipc.open_stream(whole.slice(start, stop - start)).read_all()
            for start, stop in pairwise(ends)
        ]


def write_parts(folder: str, parts: Iterable[Sequence[pa.Table]]) -> str:
    """Write the tables for each task of the next stage, in their order; return the file's path."""
    writer = PartsWriter(f"{folder}/{EXCHANGE}/{uuid4().hex}.arrow")
    for tables in parts:
        writer.write(tables)
    writer.close()
    return writer.path


def read_part(paths: Iterable[str], part: int) -> Iterator[list[pa.Table]]:
    """Yield the tables that each file has for a task."""
    for path in paths:
        with Parts(path) as parts:
            yield parts.read(part)


def remove(paths: Iterable[str]) -> None:
    """Delete files that no later stage reads."""
    for path in paths:
        system, inner = filesystem(path)
        with writing(path):
            system.delete_file(inner)


def narrowed(table: pa.Table) -> pa.Table:
    """Return a table whose integers are as narrow as their values; `pa.Table.cast` undoes it."""
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
    """Return a table whose dictionaries have no more texts than it has rows.

    Parameters
    ----------
    places
        Those of its columns that have dictionaries; they are looked for if it is None.
    """
    for place in _dictionaries(table.schema) if places is None else places:
        column = table.column(place)
        if sum(len(chunk.dictionary) for chunk in column.chunks) > len(column):
            own = column.cast(column.type.value_type).dictionary_encode()
            table = table.set_column(place, table.field(place).name, own)
    return table


def _dictionaries(schema: pa.Schema) -> list[int]:
    return [place for place, kind in enumerate(schema.types) if pa.types.is_dictionary(kind)]


def dump(folder: str, thing: Any) -> str:
    """Write what is rare and no table; return the file's path."""
    path = f"{folder}/{EXCHANGE}/{uuid4().hex}.pickle"
    system, inner = filesystem(path)
    with writing(path), system.open_output_stream(inner) as file:
        file.write(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))
    return path


def dump_frame_files(folder: str, files: FrameFiles) -> None:
    """Write the files of captures where tasks look for them."""
    path = f"{folder}/{_FRAME_FILES}"
    system, inner = filesystem(path)
    with writing(path), system.open_output_stream(inner) as file:
        file.write(pickle.dumps(files, pickle.HIGHEST_PROTOCOL))


def load_frame_files(folder: str) -> FrameFiles:
    """Return the files of the captures whose facts this run makes."""
    found: FrameFiles = load(f"{folder}/{_FRAME_FILES}")
    return found


def load(path: str) -> Any:
    """Return what a task of this run has written."""
    system, inner = filesystem(path)
    with system.open_input_stream(inner) as file:
        return pickle.loads(file.read())


def dump_each(folder: str, things: Iterable[Any]) -> str:
    """Write things that are read one by one; return the file's path."""
    path = f"{folder}/{EXCHANGE}/{uuid4().hex}.pickles"
    system, inner = filesystem(path)
    with writing(path), system.open_output_stream(inner) as file:
        offsets = [0]
        for thing in things:
            file.write(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))
            offsets.append(file.tell())
        for offset in offsets:
            file.write(offset.to_bytes(_OFFSET_BYTES, "big"))
        file.write(offsets[-1].to_bytes(_FOOTER_BYTES, "big"))
    return path


def load_one(path: str, number: int) -> Any:
    """Return one of the things that `dump_each` has written, and read no other."""
    system, inner = filesystem(path)
    with system.open_input_file(inner) as file:
        index = int.from_bytes(file.read_at(_FOOTER_BYTES, file.size() - _FOOTER_BYTES), "big")
        found = file.read_at(2 * _OFFSET_BYTES, index + number * _OFFSET_BYTES)
        start = int.from_bytes(found[:_OFFSET_BYTES], "big")
        stop = int.from_bytes(found[_OFFSET_BYTES:], "big")
        return pickle.loads(file.read_at(stop - start, start))
