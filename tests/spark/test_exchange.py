"""What tasks pass on to those of later stages, in this process and on Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from wireyard.lake.staging import Staging
from wireyard.pipeline import exchange
from wireyard.pipeline.exchange import (
    Blob,
    PartInput,
    Spill,
    Stage,
    pass_on,
    pass_value,
    read_tables,
    values_of,
)
from wireyard.pipeline.running import Runner
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = 3
Outputs = Iterator[str | Blob]


def deal(task: int) -> Outputs:
    """Pass numbers on to two later stages; say so."""
    for first in (10 * task, 10 * task + 5):
        yield from pass_on("numbers", ([pa.table({"x": [first + part]})] for part in range(PARTS)))
    yield from pass_value("later", PARTS, [task], list[int])
    yield f"dealt {task}"


def gather(given: PartInput) -> Outputs:
    numbers = [passed.tables[0]["x"][0].as_py() for passed in given.inbox["numbers"]]
    yield from pass_value("later", PARTS, numbers, list[int])
    yield f"part {given.part} of {sorted(given.inbox)}: {numbers}"


def end(given: PartInput) -> Outputs:
    origins = [passed.origin for passed in given.inbox["later"]]
    yield f"end {given.part}: {values_of(given.inbox, 'later', list[int])} of {origins}"


def nobody(given: PartInput) -> Outputs:
    raise AssertionError("nothing was passed on to it")


STAGES = [
    Stage(["numbers"], PARTS, gather),
    Stage(["other"], 2, nobody),
    Stage(["later"], PARTS + 1, end),
]
NUMBERS = [ten + five for ten in (0, 10, 20, 30) for five in (0, 5)]
GATHERED = [[number + part for number in NUMBERS] for part in range(PARTS)]
SAID = [
    *(f"dealt {task}" for task in range(4)),
    # In the order of tasks; a later stage reads what any before it has passed on.
    *(f"part {part} of ['numbers']: {GATHERED[part]}" for part in range(PARTS)),
    f"end {PARTS}: {[[0], [1], [2], [3], *GATHERED]} of [0, 1, 2, 3, 0, 1, 2]",
]


def test_each_part_gets_what_was_passed_on_in_the_order_of_tasks(tmp_path: Path) -> None:
    runner = Runner(None, Staging(str(tmp_path)))
    assert runner.run_stages(range(4), deal, STAGES, str) == SAID
    assert not list(tmp_path.iterdir())


@pytest.mark.spark
@pytest.mark.parametrize("together", [1, 4])
def test_spark_passes_on_the_same_in_one_job(
    tmp_path: Path, spark: SparkSession, together: int
) -> None:
    engine = SparkEngine(lambda: spark)
    runner = Runner(engine, Staging(str(tmp_path)))
    found = runner.run_stages(range(4), deal, STAGES, str, together=together)
    assert sorted(found) == sorted(SAID)
    assert engine.use is not None
    assert engine.use.stages == 1 + len(STAGES)  # each task ran once
    assert not list(tmp_path.iterdir())


@pytest.mark.spark
def test_spark_computes_again_what_was_lost_on_the_way(tmp_path: Path, spark: SparkSession) -> None:
    """A task that fails between two shuffles reads the first again."""
    once = str(tmp_path / "once")

    def stumble(given: PartInput) -> Outputs:
        if given.part == 1 and not Path(once).exists():
            Path(once).touch()
            raise OSError("lost")
        return gather(given)

    stages = [Stage(["numbers"], PARTS, stumble), *STAGES[1:]]
    runner = Runner(SparkEngine(lambda: spark), Staging(str(tmp_path)))
    assert sorted(runner.run_stages(range(4), deal, stages, str)) == sorted(SAID)
    assert Path(once).exists()


def test_a_blob_is_no_larger_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_BYTES", 4096)
    whole, small = pa.table({"x": range(3000)}), pa.table({"y": ["a"]})
    blobs = list(pass_on("some", [[whole, small], [whole.slice(0, 0), small]]))
    assert [(blob.name, blob.part) for blob in blobs] == [("some", 0)] * 6 + [("some", 1)]
    assert max(blob.data.size for blob in blobs) < 2 * 4096
    read = [read_tables(blob.data) for blob in blobs]
    assert pa.concat_tables(tables[0] for tables in read[:6]).equals(whole)
    assert pa.concat_tables(tables[1] for tables in read[:6]).equals(small)
    assert read[6][0].schema == whole.schema and read[6][1].equals(small)


def test_a_part_brings_the_texts_of_its_own_rows() -> None:
    texts = pa.array([f"t{row % 16}" for row in range(64)]).dictionary_encode()
    both = pa.table({"text": pa.chunked_array([texts, texts]), "number": range(128)})
    few, many = both.slice(62, 4), both.slice(0, 100)
    for blob, (table, count) in zip(
        pass_on("some", [[few], [many]]), ((few, 4), (many, 16)), strict=True
    ):
        [found] = read_tables(blob.data)
        assert found["text"].cast(pa.string()).equals(table["text"].cast(pa.string()))
        assert {len(chunk.dictionary) for chunk in found["text"].chunks} == {count}


def test_memory_does_not_hold_what_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill, held = Spill(), pa.total_allocated_bytes()
    for number in range(64):
        (blob,) = pass_on("some", [[pa.table({"x": pa.array(range(1 << 14))})]])
        spill.add(blob, 0, number, 0)
    del blob
    (given,) = spill.inputs(["some"])
    spill.close()
    assert sum(passed.tables[0]["x"][-1].as_py() for passed in given.inbox["some"]) == 64 * 16383
    assert pa.total_allocated_bytes() - held < 1 << 20
    assert not list(tmp_path.iterdir())
