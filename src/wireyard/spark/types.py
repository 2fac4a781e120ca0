"""Spark schemas of our columns, and the check of a schema that a caller declares."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from wireyard.errors import UsageError

__all__ = ["arrow_schema", "check_schema", "spark_schema"]


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema of ours as a Spark schema."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of the first batch of every task."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(declared: StructType, offered: pa.Schema) -> None:
    """Check the types of declared columns against those of the available columns.

    A column may be declared ``NOT NULL``; values inside a nested one may always be null.

    Raises
    ------
    UsageError
        A column has another type.
    """
    for field, ours in zip(declared.fields, spark_schema(offered).fields, strict=True):
        if field.dataType != ours.dataType:
            kind, wanted = ours.dataType.simpleString(), field.dataType.simpleString()
            why = f"not {wanted}" if kind != wanted else "and may have nulls inside"
            raise UsageError(f"column '{field.name}' is {kind}, {why}")
