"""Arrays made from buffers are those that Arrow makes of the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard.layout import Column
from wireyard.schema import (
    Repeated,
    array_of,
    arrow_type,
    as_array,
    as_numbers,
    empty_batch,
    scalar_of,
    schema_of,
)

KINDS = (
    "bool",
    "int32",
    "int64",
    "string",
    "binary",
    "error",
    "items",
    "int32s",
    "filters",
    "name_values",
    "properties",
)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, null now and then."""
    if pa.types.is_boolean(kind):
        own: st.SearchStrategy[Any] = st.booleans()
    elif pa.types.is_integer(kind):
        half = 1 << kind.bit_width - 1
        own = st.integers(-half, half - 1)
    elif pa.types.is_string(kind):
        own = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    elif pa.types.is_binary(kind):
        own = st.binary(max_size=5)
    elif pa.types.is_map(kind):
        keys = st.text("ab", max_size=2)
        own = st.lists(st.tuples(keys, values_of(kind.item_type)), max_size=3)
    elif pa.types.is_list(kind):
        own = st.lists(values_of(kind.value_type), max_size=3)
    else:
        own = st.fixed_dictionaries({}, optional={one.name: values_of(one.type) for one in kind})
    return st.none() | own


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_values_are_those_that_arrow_takes(name: str, data: st.DataObject) -> None:
    kind = arrow_type(name)
    values = data.draw(st.lists(values_of(kind), max_size=12))
    made = array_of(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))
    assert made.null_count == sum(value is None for value in values)
    if values:
        assert scalar_of(values[0], kind).equals(pa.array(values, kind)[0])


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), max_size=20), st.integers(0, 9))
def test_numbers_come_back(pairs: list[tuple[int, bool]], start: int) -> None:
    numbers = np.array([number for number, _ in pairs], np.int64)
    flags = np.array([flag for _, flag in pairs], np.bool_)
    for values in (numbers, numbers.astype(np.int32), flags):
        made = as_array(values)
        assert made.equals(pa.array(values))
        assert np.array_equal(as_numbers(made.slice(start)), values[start:])
        assert as_array(values, flags).equals(pa.array(values, mask=flags))


def test_no_rows() -> None:
    columns = [Column(name, name, "") for name in KINDS]
    batch = empty_batch(schema_of(columns))
    assert batch.num_rows == 0
    assert batch.schema == schema_of(columns)


@pytest.mark.parametrize(("kind", "value"), [("int32", 7), ("int64", None), ("string", "x")])
def test_one_value_again_and_again(kind: str, value: int | str | None) -> None:
    made = Repeated().column(kind, value, 3)
    assert made.equals(pa.array([value] * 3, arrow_type(kind)))
