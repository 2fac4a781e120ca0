"""Files between the tasks of two stages: each holds some tables for every task of the next one.

Spark's own shuffle would turn the rows of Python's tasks to Java's and back. What a task leaves for
others here is Arrow as it lies in memory, compressed: a task writes one file, and each task of the
next stage reads its part of every file.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from wireyard.spark.lake import writing
from wireyard.streams.source import filesystem

__all__ = ["EXCHANGE", "dump", "load", "read_part", "write_parts"]

EXCHANGE: Final = "exchange"
"""Where the files of a run are staged, beside its tables."""
_FOOTER_BYTES: Final = 8
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)


def write_parts(folder: str, parts: Iterable[Sequence[pa.Table]]) -> str:
    """Write the tables for each task of the next stage, in their order; return the file's path."""
    path = f"{folder}/{EXCHANGE}/{uuid4().hex}.arrow"
    system, inner = filesystem(path)
    places: list[list[int]] = []
    with writing(path), system.open_output_stream(inner) as file:
        for tables in parts:
            places.append([])
            for table in tables:
                places[-1].append(file.tell())
                with pa.ipc.new_stream(file, table.schema, options=_OPTIONS) as stream:
                    stream.write_table(table)
        footer = json.dumps(places).encode()
        file.write(footer)
        file.write(len(footer).to_bytes(_FOOTER_BYTES, "big"))
    return path


def read_part(paths: Iterable[str], part: int) -> Iterator[list[pa.Table]]:
    """Yield the tables that each file has for a task."""
    for path in paths:
        system, inner = filesystem(path)
        with system.open_input_file(inner) as file:
            end = file.size() - _FOOTER_BYTES
            size = int.from_bytes(file.read_at(_FOOTER_BYTES, end), "big")
            places = json.loads(file.read_at(size, end - size))
            tables = []
            for place in places[part]:
                file.seek(place)
                tables.append(pa.ipc.open_stream(file).read_all())
        yield tables


def dump(folder: str, thing: Any) -> str:
    """Write what is rare and no table; return the file's path."""
    path = f"{folder}/{EXCHANGE}/{uuid4().hex}.pickle"
    system, inner = filesystem(path)
    with writing(path), system.open_output_stream(inner) as file:
        file.write(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))
    return path


def load(path: str) -> Any:
    """Return what a task of this run has written."""
    system, inner = filesystem(path)
    with system.open_input_stream(inner) as file:
        return pickle.loads(file.read())
