"""What a task of the facts stage does: a step of a layer over one key after another.

Facts and notes go to files as they come. An attempt that dies leaves files that are in no list.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from wireyard.formats.base import Row
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.stages import Fact, Found, KeyedRecord, Order, Stage
from wireyard.layers.tables import fact_table, with_times
from wireyard.spark.exchange import load_frame_files
from wireyard.spark.parts import PartFile

__all__ = [
    "BATCH_ROWS",
    "FOUND",
    "NOTE",
    "NOTES",
    "order_bytes",
    "run_step",
    "values_of",
    "write_notes",
]

NOTES: Final = "notes"
"""Where the notes of a run are staged, beside its tables."""
NOTE: Final = pa.schema([("key", pa.string()), ("order", pa.binary()), ("record", pa.binary())])
"""A note of a step; keys are equal where their texts are, and orders compare as their bytes do."""
FOUND: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("file", pa.string()),
        ("things", pa.int64()),
        ("sources", pa.list_(pa.string())),
    ]
)
"""What a task returns: a file by its table, with the sources of its rows, or by the step that takes
its notes, and how many things are in it; or how many a cap made it forget."""
BATCH_ROWS: Final = 1 << 13
_BATCH_BYTES: Final = 32 << 20
"""Two of the longest messages of RMP."""
_LOWEST: Final = 1 << 63
"""Added to a number of 64 bits, so that its bytes compare as it does."""


def run_step(
    batches: Iterator[pa.RecordBatch], step: Stage, packed: bool, staging: str
) -> Iterator[pa.RecordBatch]:
    """Write what follows from the records of some keys; yield what was written. For `mapInArrow`.

    Parameters
    ----------
    batches
        Key by key, each in its order: columns of `NOTE`, or rows that have a `key`.
    packed
        Whether they are notes.
    staging
        The folder of the run's staged tables.
    """
    records = chain.from_iterable(map(_records if packed else _rows, batches))
    files = _Files(staging)
    for _, of_key in groupby(records, key=itemgetter(0)):
        for found in step(map(itemgetter(1), of_key)):
            files.add(found)
    yield pa.RecordBatch.from_pylist(files.close(), FOUND)


def _records(batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    return zip(values_of(batch["key"]), map(pickle.loads, values_of(batch["record"])), strict=True)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, Row]]:
    names = batch.schema.names
    rows = (
        dict(zip(names, values, strict=True))
        for values in zip(*map(values_of, batch.columns), strict=False)
    )
    return zip(values_of(batch["key"]), rows, strict=True)


def values_of(column: pa.Array) -> Iterable[Any]:
    """Return the values of a column, ten times as fast as Arrow makes them one by one."""
    if column.null_count == len(column):
        return repeat(None, len(column))
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _objects(column)
    if not pa.types.is_primitive(kind):
        return _as_dicts(column)
    values = _objects(column.fill_null(False if pa.types.is_boolean(kind) else 0))
    if column.null_count == 0:
        return values
    there = _objects(column.is_valid())
    return [value if valid else None for value, valid in zip(values, there, strict=True)]


def _objects(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _as_dicts(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    return values


def write_notes(notes: Iterable[KeyedRecord], staging: str) -> Iterator[Row]:
    """Write notes for later steps; yield what was written."""
    files = _Files(staging)
    for note in notes:
        files.add(note)
    yield from files.close()


# --- what is written ------------------------------------------------------------------------


class _Files:
    """The files of a task: one for each table, and one for each step that it leaves notes for."""

    def __init__(self, staging: str) -> None:
        self._staging = staging
        self._facts: dict[str, _File] = {}
        self._notes: dict[str, _File] = {}
        self._dropped: Counter[str] = Counter()

    def add(self, found: Found) -> None:
        """Take what a step yields."""
        if isinstance(found, KeyedRecord):
            file = self._notes.get(found.stage)
            if file is None:
                file = self._notes[found.stage] = _File(f"{self._staging}/{NOTES}", _note_batch)
            file.add(found)
        elif isinstance(found, Fact):
            table, row = found
            file = self._facts.get(table)
            if file is None:
                located = table == "messages"
                files = load_frame_files(self._staging) if located else FrameFiles()
                batch = partial(_fact_batch, table, files)
                file = self._facts[table] = _File(f"{self._staging}/{table}", batch)
            file.add(row)
        else:
            self._dropped[found.cap] += found.things

    def close(self) -> list[Row]:
        """Write what is held; return rows of `FOUND`."""
        kinds = {"fact": self._facts, "note": self._notes}
        written = [
            {
                "kind": kind,
                "name": name,
                "file": file.close(),
                "things": file.things,
                "sources": sorted(file.sources),
            }
            for kind, files in kinds.items()
            for name, file in files.items()
        ]
        dropped = [
            {"kind": "dropped", "name": cap, "things": things}
            for cap, things in self._dropped.items()
        ]
        return written + dropped


class _File:
    """A file of facts or of notes.

    Parameters
    ----------
    folder
        Where it stands; its name is its own.
    batch
        Makes rows of what it is given.
    """

    def __init__(self, folder: str, batch: Callable[[list[Any]], pa.RecordBatch]) -> None:
        self._name = f"part-{uuid4().hex}.parquet"
        self._batch = batch
        self._file = PartFile(f"{folder}/{self._name}", batch([]).schema)
        self._held: list[Any] = []
        self._held_bytes = 0
        self.things = 0
        self.sources: set[str] = set()
        """Those of its rows."""

    def add(self, one: Row | KeyedRecord) -> None:
        self.things += 1
        self._held.append(one)
        if not isinstance(one, KeyedRecord):
            self.sources.add(one["source"])
            self._held_bytes += len(one.get("body") or b"")
        if len(self._held) == BATCH_ROWS or self._held_bytes > _BATCH_BYTES:
            self._write()

    def close(self) -> str:
        """Write what is held, and return the name."""
        self._write()
        self._file.close()
        return self._name

    def _write(self) -> None:
        self._file.write(self._batch(self._held))
        self._held, self._held_bytes = [], 0


def _fact_batch(table: str, files: FrameFiles, rows: list[Row]) -> pa.RecordBatch:
    found = fact_table(table, rows)
    whole = with_times(table, files.locate(found) if table == "messages" else found)
    (batch,) = whole.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]
    return batch


def _note_batch(notes: list[KeyedRecord]) -> pa.RecordBatch:
    keys = [repr(note.key) for note in notes]
    orders = [order_bytes(note.order) for note in notes]
    records = [pickle.dumps(note.record, pickle.HIGHEST_PROTOCOL) for note in notes]
    columns = map(pa.array, (keys, orders, records), NOTE.types)
    return pa.RecordBatch.from_arrays(list(columns), schema=NOTE)


def order_bytes(order: Order) -> bytes:
    """Return bytes that compare as an order does with others of the same kinds."""
    return b"".join(
        (one + _LOWEST).to_bytes(8, "big")
        if isinstance(one, int)
        # No text goes on with what ends another.
        else one.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\0"
        for one in order
    )
