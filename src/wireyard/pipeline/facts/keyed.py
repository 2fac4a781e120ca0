"""Stages of a layer, run as stages of the engine: tasks call them for one key after another.

A task writes facts to files as they come, and passes keyed records on. The files of an attempt that
dies are in no list of results.
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
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.lake.parts import PartFile
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.stages import Chain, Fact, Found, KeyedRecord, Order
from wireyard.layers.stages import Stage as LayerStage
from wireyard.layers.tables import fact_table, with_times
from wireyard.pipeline.exchange import Blob, PartInput, Stage, pass_by_text
from wireyard.pipeline.facts.tasks import FactFile, Output, Outputs, dropped_rows
from wireyard.pipeline.typed_json import first_parameter, from_json, to_json

RECORD: Final = pa.schema([("key", pa.string()), ("order", pa.binary()), ("record", pa.string())])
"""A keyed record; keys are equal where their texts are, orders compare as their bytes do, and the
record is JSON of the type of its stage (`typed_json`)."""
BATCH_ROWS: Final = 1 << 13
_BATCH_BYTES: Final = 32 << 20
"""Two of the longest messages of RMP."""
_BIAS: Final = 1 << 63
"""Added to a signed number of 64 bits, so that its bytes compare as the number does."""


def stages_of(stages: Chain, parts: int, output: Output) -> Iterator[Stage]:
    """Yield stages over the keyed records that were passed on to each."""
    for name in stages:
        work = partial(_run_part, name=name, stages=dict(stages), parts=parts, output=output)
        yield Stage([name], parts, work)


def _run_part(given: PartInput, name: str, stages: Chain, parts: int, output: Output) -> Outputs:
    """Run a stage over the records of a part."""
    together = pa.concat_tables(table for each in given.inbox[name] for table in each.tables)
    ordered = together.sort_by([("key", "ascending"), ("order", "ascending")])
    read = partial(_records, kind=_record_type(stages[name]))
    return run_stage(
        chain.from_iterable(map(read, ordered.to_batches())), name, stages, parts, output
    )


def run_rows(
    given: PartInput, passed: str, name: str, stages: Chain, parts: int, output: Output
) -> Outputs:
    """Run a stage over the rows of a part, by `key`, and by `offset` within a key."""
    together = pa.concat_tables(table for each in given.inbox[passed] for table in each.tables)
    order = pc.sort_indices(together, [("key", "ascending"), ("offset", "ascending")])
    # What was passed on is in a file: only some of it is in memory at once.
    some = (together.take(order.slice(at, BATCH_ROWS)) for at in range(0, len(order), BATCH_ROWS))
    batches = (batch for rows in some for batch in rows.combine_chunks().to_batches())
    return run_stage(chain.from_iterable(map(_rows, batches)), name, stages, parts, output)


def run_stage(
    records: Iterable[tuple[str, Any]], name: str, stages: Chain, parts: int, output: Output
) -> Outputs:
    """Run a stage over the records of some keys; yield its results, and what it passes on.

    `records` are pairs of a key and a record, key by key, and by order within a key. `stages` has
    the stage itself and those that it passes records on to; each of these has `parts` parts.
    """
    outputs = _Outputs(stages, parts, output)
    for _, of_key in groupby(records, key=itemgetter(0)):
        for found in stages[name](map(itemgetter(1), of_key)):
            yield from outputs.add(found)
    yield from outputs.close()


def _record_type(stage: LayerStage) -> Any:
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


def _pass_batch(records: list[KeyedRecord], stages: Chain, parts: int) -> Iterator[Blob]:
    """Yield records of one stage, partitioned by key."""
    name = records[0].stage
    batch = _record_batch(_record_type(stages[name]), records)
    yield from pass_by_text(name, pa.Table.from_batches([batch]), "key", parts)


# --- outputs of a task ----------------------------------------------------------------------


class _Outputs:
    """The outputs of a task: a file for each table of facts, and records for later stages."""

    def __init__(self, stages: Chain, parts: int, output: Output) -> None:
        self._stages, self._parts, self._output = stages, parts, output
        self._facts: dict[str, _File] = {}
        self._records: dict[str, list[KeyedRecord]] = {}
        self._dropped: Counter[str] = Counter()

    def add(self, found: Found) -> Iterator[Blob]:
        """Take an output of a stage; yield records once there are many."""
        if isinstance(found, KeyedRecord):
            held = self._records.setdefault(found.stage, [])
            held.append(found)
            if len(held) == BATCH_ROWS:
                yield from _pass_batch(self._records.pop(found.stage), self._stages, self._parts)
        elif isinstance(found, Fact):
            table, row = found
            file = self._facts.get(table)
            if file is None:
                files = FrameFiles.of(self._output.spans)
                batch = partial(_fact_batch, table, files)
                file = self._facts[table] = _File(f"{self._output.staging}/{table}", batch)
            file.add(row)
        else:
            self._dropped[found.cap] += found.things

    def close(self) -> Outputs:
        """Yield the rest of the records; write the rest of the facts, and yield the results."""
        for held in self._records.values():
            yield from _pass_batch(held, self._stages, self._parts)
        for name, file in self._facts.items():
            yield FactFile(name, file.close(), tuple(sorted(file.sources)))
        yield from dropped_rows(self._dropped)


class _File:
    """A file of facts with a unique name in `folder`; `batch` converts rows to a batch."""

    def __init__(self, folder: str, batch: Callable[[list[Row]], pa.RecordBatch]) -> None:
        self._name = f"part-{uuid4().hex}.parquet"
        self._batch = batch
        self._file = PartFile(f"{folder}/{self._name}", batch([]).schema)
        self._held: list[Row] = []
        self._held_bytes = 0
        self.sources: set[str] = set()
        """The sources of its rows."""

    def add(self, row: Row) -> None:
        self._held.append(row)
        self.sources.add(row["source"])
        self._held_bytes += len(row.get("body") or b"")
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
