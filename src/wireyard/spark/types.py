"""Our tables as Spark expects them: schemas, and batches of exactly these."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from wireyard.captures.quarantine import BytesOfRows
from wireyard.errors import UsageError
from wireyard.payloads.columns import PayloadColumns
from wireyard.streams.framer import OK


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema of ours as a Spark schema."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of the first batch of every task."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(declared: StructType, offered: pa.Schema) -> None:
    """Check the types of declared columns against those of the available columns.

    A column may be declared ``NOT NULL``; values inside a nested one may always be null. A
    `UsageError` is raised if a column has another type.
    """
    for field, ours in zip(declared.fields, spark_schema(offered).fields, strict=True):
        if field.dataType != ours.dataType:
            kind, wanted = ours.dataType.simpleString(), field.dataType.simpleString()
            why = f"not {wanted}" if kind != wanted else "and may have nulls inside"
            raise UsageError(f"column '{field.name}' is {kind}, {why}")


BAD_ROW_COLUMNS = ("offset", "length", "status")
"""The columns needed to find the bytes of a bad row."""


class Shape:
    """The columns of a table in Spark.

    `schema` is the schema that Spark expects of batches; `corrupt` its column for the bytes of bad
    rows, None if it has none. `opener` is the decoder of payloads; None if no column of payloads is
    read.
    """

    def __init__(
        self, schema: pa.Schema, corrupt: str | None, opener: PayloadColumns | None = None
    ) -> None:
        self._schema = schema
        self._corrupt = corrupt
        self._opener = opener
        self._filled = [field.name for field in schema if not field.nullable]

    def fit(
        self, batch: pa.RecordBatch, bad_bytes: Callable[[int], BytesOfRows] | None = None
    ) -> pa.RecordBatch:
        """Return a batch of ours as one of the table.

        `bad_bytes` returns the reader of a bad row's bytes by row number; it is needed for a column
        of them. A `UsageError` is raised for a null in a column that was declared ``NOT NULL``:
        Spark would fail without a message.
        """
        if self._opener is not None:
            batch = self._opener.extend(batch)
        if self._schema.equals(batch.schema):
            return batch
        arrays = [
            self._bad_rows(batch, bad_bytes, field.type)
            if bad_bytes is not None and field.name == self._corrupt
            else batch.column(field.name)
            for field in self._schema
        ]
        fitted = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for name in self._filled:
            if fitted.column(name).null_count:
                raise UsageError(f"column '{name}' has nulls, so it cannot be NOT NULL")
        return fitted

    def _bad_rows(
        self, batch: pa.RecordBatch, bad_bytes: Callable[[int], BytesOfRows], kind: pa.DataType
    ) -> pa.Array:
        bad = pc.not_equal(batch.column("status"), OK)
        if not bad.true_count:
            return pa.nulls(batch.num_rows, kind)
        values: list[bytes | str | None] = [None] * batch.num_rows
        offsets, lengths = batch.column("offset"), batch.column("length")
        for row in pc.indices_nonzero(bad).to_pylist():
            data = bad_bytes(row).read(offsets[row].as_py(), lengths[row].as_py())
            values[row] = data.hex() if pa.types.is_string(kind) else data
        return pa.array(values, kind)
