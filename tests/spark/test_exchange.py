"""Intermediate files between the tasks of two stages."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from wireyard.spark.exchange import EXCHANGE, narrowed, read_part, remove, write_parts

BOUNDS = [
    ([0, 127, -128], pa.int8()),
    ([128], pa.int16()),
    ([-32769, None], pa.int32()),
    ([1 << 31], pa.int64()),
    ([-(1 << 63), (1 << 63) - 1], pa.int64()),
    ([None], pa.int64()),
    ([], pa.int64()),
]


@pytest.mark.parametrize(("values", "kind"), BOUNDS)
def test_integers_are_as_narrow_as_their_values(
    values: list[int | None], kind: pa.DataType
) -> None:
    table = pa.table({"number": pa.array(values, pa.int64()), "text": pa.nulls(len(values))})
    found = narrowed(table)
    assert found.schema.field("number").type == kind
    assert found.cast(table.schema).equals(table)


def test_each_task_reads_its_part_of_every_file(tmp_path: Path) -> None:
    (tmp_path / EXCHANGE).mkdir()
    tables = [pa.table({"number": [part]}) for part in range(3)]
    paths = [write_parts(str(tmp_path), ([table] for table in tables)) for _ in range(2)]
    for part, table in enumerate(tables):
        assert [found.equals(table) for (found,) in read_part(paths, part)] == [True, True]
    remove(paths)
    assert not list((tmp_path / EXCHANGE).iterdir())


def test_a_part_brings_the_texts_of_its_own_rows(tmp_path: Path) -> None:
    (tmp_path / EXCHANGE).mkdir()
    texts = pa.array([f"t{row % 16}" for row in range(64)]).dictionary_encode()
    both = pa.table({"text": pa.chunked_array([texts, texts]), "number": range(128)})
    few, many = both.slice(62, 4), both.slice(0, 100)
    path = write_parts(str(tmp_path), [[few], [many]])
    for part, (table, count) in enumerate(((few, 4), (many, 16))):
        [[found]] = read_part([path], part)
        assert found["text"].cast(pa.string()).equals(table["text"].cast(pa.string()))
        assert {len(chunk.dictionary) for chunk in found["text"].chunks} == {count}
