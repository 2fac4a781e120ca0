"""Intermediate files between the tasks of two stages."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from wireyard.errors import LakeDamaged
from wireyard.pipeline.exchange import EXCHANGE, narrowed, read_part, remove, write_parts

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
    remove(str(tmp_path), paths)
    assert not list((tmp_path / EXCHANGE).iterdir())


@pytest.mark.parametrize("name", ["../mine", f"{EXCHANGE}/../mine", "mine", f"{EXCHANGE}/x/mine"])
def test_nothing_but_intermediate_files_is_deleted(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    (folder / EXCHANGE / "x").mkdir(parents=True)
    mine = Path(os.path.normpath(folder / name))
    mine.write_text("mine")
    with pytest.raises(LakeDamaged, match="mine: is no intermediate file of this run"):
        remove(str(folder), [f"{folder}/{name}"])
    assert mine.exists()


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


@pytest.mark.parametrize(
    "change", [(-1, 1 << 40), (-2, 1 << 40), (-2, -8), (-3, 1 << 40), (-4, -8)]
)
def test_sizes_in_a_file_are_not_believed(tmp_path: Path, change: tuple[int, int]) -> None:
    """The last numbers: where tables begin and end, the size of these numbers, and of parts."""
    (tmp_path / EXCHANGE).mkdir()
    path = Path(write_parts(str(tmp_path), [[pa.table({"x": [1]})]]))
    content = path.read_bytes()
    numbers = np.frombuffer(content[-32:], np.int64).copy()
    numbers[change[0]] = change[1]
    path.write_bytes(content[:-32] + numbers.tobytes())
    with pytest.raises(LakeDamaged, match=r"\.arrow: is damaged"):
        list(read_part([str(path)], 0))
