"""Tasks that run a stage of a layer in Spark, one key after another.

A task writes facts and keyed records to files as they come. The files of an attempt that dies are
in no list of results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, Final, get_args
from uuid import uuid4

import pyarrow as pa

from wireyard.formats.base import Row
from wireyard.lake.parts import PartFile
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.stages import Chain, Fact, Found, KeyedRecord, Order, Stage
from wireyard.layers.tables import fact_table, with_times
from wireyard.pipeline.exchange import load_frame_files
from wireyard.pipeline.typed_json import first_parameter, from_json, to_json

__all__ = [
    "BATCH_ROWS",
    "RECORD",
    "RECORDS",
    "RESULTS",
    "order_bytes",
    "run_stage",
    "values_of",
    "write_records",
]

RECORDS: Final = "records"
"""Folder for the keyed records of a run, beside its tables."""
RECORD: Final = pa.schema([("key", pa.string()), ("order", pa.binary()), ("record", pa.string())])
"""A keyed record; keys are equal where their texts are, orders compare as their bytes do, and the
record is JSON of the type of its stage (`typed_json`)."""
RESULTS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("file", pa.string()),
        ("count", pa.int64()),
        ("sources", pa.list_(pa.string())),
    ]
)
"""Results of a task, by kind:

- ``fact``: a file of the table `name`, with its number of rows and the sources of these;
- ``intermediate``: a file for the later stage `name`, with its number of records;
- ``dropped``: how many records a task dropped because of the cap `name`.
"""
BATCH_ROWS: Final = 1 << 13
_BATCH_BYTES: Final = 32 << 20
"""Two of the longest messages of RMP."""
_BIAS: Final = 1 << 63
"""Added to a signed number of 64 bits, so that its bytes compare as the number does."""


def run_stage(
    batches: Iterator[pa.RecordBatch], name: str, stages: Chain, packed: bool, staging: str
) -> Iterator[pa.RecordBatch]:
    """Run a stage over the records of some keys; yield rows of `RESULTS`. For `mapInArrow`.

    Parameters
    ----------
    batches
        Sorted by key, and by order within a key: columns of `RECORD`, or rows that have a `key`.
    name, stages
        The name of the stage, and it and those that it passes records on to.
    packed
        Whether they have the columns of `RECORD`.
    staging
        The folder of the run's staged tables.
    """
    stage = stages[name]
    read = partial(_records, kind=_record_type(stage)) if packed else _rows
    records = chain.from_iterable(map(read, batches))
    files = _Files(staging, stages)
    for _, of_key in groupby(records, key=itemgetter(0)):
        for output in stage(map(itemgetter(1), of_key)):
            files.add(output)
    yield pa.RecordBatch.from_pylist(files.close(), RESULTS)


def _record_type(stage: Stage) -> Any:
    """Return the type of the records of a stage: its parameter is an iterator of them."""
    (kind,) = get_args(first_parameter(stage))
    return kind


def _records(batch: pa.RecordBatch, kind: Any) -> Iterator[tuple[str, Any]]:
    records = (from_json(text, kind) for text in values_of(batch["record"]))
    return zip(values_of(batch["key"]), records, strict=True)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, Row]]:
    names = batch.schema.names
    rows = (
        dict(zip(names, values, strict=True))
        for values in zip(*map(values_of, batch.columns), strict=False)
    )
    return zip(values_of(batch["key"]), rows, strict=True)


def values_of(column: pa.Array) -> Iterable[Any]:
    """Return the values of a column, ten times as fast as `pa.Array.to_pylist`."""
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


def write_records(records: Iterable[KeyedRecord], stages: Chain, staging: str) -> Iterator[Row]:
    """Write keyed records for later stages; yield rows of `RESULTS`."""
    files = _Files(staging, stages)
    for record in records:
        files.add(record)
    yield from files.close()


# --- output files ---------------------------------------------------------------------------


class _Files:
    """The output files of a task: one for each table, and one for each later stage."""

    def __init__(self, staging: str, stages: Chain) -> None:
        self._staging = staging
        self._stages = stages
        self._facts: dict[str, _File] = {}
        self._records: dict[str, _File] = {}
        self._dropped: Counter[str] = Counter()

    def add(self, output: Found) -> None:
        """Write an output of a stage."""
        if isinstance(output, KeyedRecord):
            file = self._records.get(output.stage)
            if file is None:
                folder = f"{self._staging}/{RECORDS}"
                batch = partial(_record_batch, _record_type(self._stages[output.stage]))
                file = self._records[output.stage] = _File(folder, batch)
            file.add(output)
        elif isinstance(output, Fact):
            table, row = output
            file = self._facts.get(table)
            if file is None:
                located = table == "messages"
                files = load_frame_files(self._staging) if located else FrameFiles()
                batch = partial(_fact_batch, table, files)
                file = self._facts[table] = _File(f"{self._staging}/{table}", batch)
            file.add(row)
        else:
            self._dropped[output.cap] += output.things

    def close(self) -> list[Row]:
        """Write the buffered rows; return rows of `RESULTS`."""
        kinds = {"fact": self._facts, "intermediate": self._records}
        written = [
            {
                "kind": kind,
                "name": name,
                "file": file.close(),
                "count": file.count,
                "sources": sorted(file.sources),
            }
            for kind, files in kinds.items()
            for name, file in files.items()
        ]
        dropped = [
            {"kind": "dropped", "name": cap, "count": count} for cap, count in self._dropped.items()
        ]
        return written + dropped


class _File:
    """A file of facts or of keyed records.

    Parameters
    ----------
    folder
        Its folder; its name is unique.
    batch
        Converts rows or records to a batch.
    """

    def __init__(self, folder: str, batch: Callable[[list[Any]], pa.RecordBatch]) -> None:
        self._name = f"part-{uuid4().hex}.parquet"
        self._batch = batch
        self._file = PartFile(f"{folder}/{self._name}", batch([]).schema)
        self._held: list[Any] = []
        self._held_bytes = 0
        self.count = 0
        self.sources: set[str] = set()
        """The sources of its rows."""

    def add(self, item: Row | KeyedRecord) -> None:
        self.count += 1
        self._held.append(item)
        if not isinstance(item, KeyedRecord):
            self.sources.add(item["source"])
            self._held_bytes += len(item.get("body") or b"")
        if len(self._held) == BATCH_ROWS or self._held_bytes > _BATCH_BYTES:
            self._write()

    def close(self) -> str:
        """Write the buffered rows; return the file's name."""
        self._write()
        self._file.close()
        return self._name

    def _write(self) -> None:
        self._file.write(self._batch(self._held))
        self._held, self._held_bytes = [], 0


def _fact_batch(table: str, files: FrameFiles, rows: list[Row]) -> pa.RecordBatch:
    facts = fact_table(table, rows)
    whole = with_times(table, files.locate(facts) if table == "messages" else facts)
    (batch,) = whole.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]
    return batch


def _record_batch(kind: Any, records: list[KeyedRecord]) -> pa.RecordBatch:
    keys = [repr(each.key) for each in records]
    orders = [order_bytes(each.order) for each in records]
    texts = [to_json(each.record, kind) for each in records]
    columns = map(pa.array, (keys, orders, texts), RECORD.types)
    return pa.RecordBatch.from_arrays(list(columns), schema=RECORD)


def order_bytes(order: Order) -> bytes:
    """Encode an order so that encoded orders of the same types compare as the orders do."""
    return b"".join(
        (part + _BIAS).to_bytes(8, "big")
        if isinstance(part, int)
        # The end mark, two zero bytes, is in no text: zero bytes of a text are escaped.
        else part.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\0"
        for part in order
    )
