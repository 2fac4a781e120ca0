"""Writing from Spark: whole streams or none, and what was there before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pytest

import wireyard
from tests.spark.rows import GOOD, MALFORMED, read
from wireyard.errors import EncodeError, SourceError, UsageError
from wireyard.spark.source import WireyardSource
from wireyard.spark.types import spark_schema
from wireyard.spark.writer import Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """Return a file of packets."""
    path = tmp_path / "stream.jmq"
    path.write_bytes(b"".join(GOOD))
    return path


def batches(path: Path) -> list[pa.RecordBatch]:
    made: list[pa.RecordBatch] = wireyard.read(path, format="jmq").to_batches()
    return made


def visible(folder: Path) -> list[Path]:
    """Return the files that a reader of the folder sees."""
    return sorted(path for path in folder.iterdir() if path.name[0] not in "._")


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in visible(folder))


# --- without Spark: attempts, commits, aborts -----------------------------------------------


def test_nothing_is_seen_before_the_commit(stream: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    writer = Writer("jmq", str(folder), overwrite=False)
    counts, repeated = (writer.write(iter(batches(stream))) for _ in range(2))
    empty = writer.write(iter(batch.slice(0, 0) for batch in batches(stream)))
    assert isinstance(counts, Written) and empty == Written(0, None)
    assert visible(folder) == []
    # Spark passes one message a task, none for a task that has nothing to say.
    writer.commit([counts, empty, None])
    (path,) = folder.iterdir()
    assert repeated.file and path.read_bytes() == stream.read_bytes()
    assert path.name.startswith("part-00000-") and path.suffix == ".jmq"


def test_an_abort_leaves_nothing(stream: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    writer = Writer("jmq", str(folder), overwrite=True)
    message = writer.write(iter(batches(stream)))
    writer.abort([message, None])
    assert list(folder.iterdir()) == []
    writer.abort([])  # twice, or after somebody else cleaned up


def test_overwriting_takes_the_place_of_files_only(stream: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "inner").mkdir(parents=True)
    for name in ("old.jmq", ".old.jmq.wyidx", "inner/kept"):
        (folder / name).write_bytes(b"old")
    writer = Writer("jmq", str(folder), overwrite=True)
    writer.commit([writer.write(iter(batches(stream)))])
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 2 and "inner" in names
    assert (folder / "inner" / "kept").exists()


def test_a_store_is_written(stream: Path) -> None:
    writer = Writer("jmq", "memory://writer/out", overwrite=True)
    writer.commit([writer.write(iter(batches(stream)))])
    memory = fsspec.filesystem("memory")
    (name,) = memory.ls("/writer/out", detail=False)
    assert memory.cat(name) == stream.read_bytes()


def test_what_cannot_be_written(stream: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"stream.jmq: cannot be written \(.+\)"):
        Writer("jmq", str(stream), overwrite=False)
    stream.write_bytes(GOOD[0] + MALFORMED)
    writer = Writer("jmq", str(tmp_path / "out"), overwrite=False)
    with pytest.raises(EncodeError, match="'status' cannot be 'malformed': only packets can be"):
        writer.write(iter(batches(stream)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "jmq"}, "no path was given"),
        ({"path": "/out"}, "option 'protocol' is needed to write; there are: jmq"),
        ({"path": "/out", "protocol": "smoke"}, "unknown format 'smoke'"),
        ({"path": "/out", "protocol": "jmq", "mode": "FAILFAST"}, "option 'mode' is for reading"),
    ],
)
def test_options_of_writing(options: dict[str, str], message: str) -> None:
    schema = spark_schema(pa.schema([("body", pa.binary())]))
    with pytest.raises(UsageError, match=message):
        WireyardSource(options).writer(schema, overwrite=False)


# --- in Spark -------------------------------------------------------------------------------


def frame(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("wireyard").options(protocol="jmq", **options).load(str(path))


def save(rows: DataFrame, folder: Path, mode: str) -> None:
    rows.write.format("wireyard").option("protocol", "jmq").mode(mode).save(str(folder))


@pytest.mark.spark
def test_streams_go_round(spark: SparkSession, stream: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    rows = frame(spark, stream, maxPartitionBytes=1000)
    tasks = rows.rdd.getNumPartitions()
    save(rows, folder, "append")
    assert len(list(folder.iterdir())) == len(visible(folder)) == tasks > 1
    assert content(folder) == stream.read_bytes()
    save(rows.where("sequence < 3"), folder, "append")
    assert len(visible(folder)) == tasks + 1  # tasks without rows leave no files
    assert frame(spark, folder).count() == len(GOOD) + 3
    save(rows.where("sequence < 2"), folder, "overwrite")
    assert content(folder) == GOOD[0] + GOOD[1]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.spark
def test_columns_that_are_not_there_get_their_defaults(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 4 AS packet_type, 'orders' AS destination, X'0102' AS body")
    save(rows, tmp_path / "out", "overwrite")
    (row,) = read(*visible(tmp_path / "out"))
    assert (row["packet_type"], row["destination"], row["body"]) == (4, "orders", b"\1\2")


@pytest.mark.spark
def test_a_job_that_fails_leaves_nothing(spark: SparkSession, stream: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    save(frame(spark, stream), folder, "append")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    stream.write_bytes(b"".join([*GOOD, MALFORMED]))
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception, match="only packets can be written, not faults") as caught:
            save(frame(spark, stream, maxPartitionBytes=1000), folder, mode)
        (line,) = {line for line in str(caught.value).splitlines() if "EncodeError: " in line}
        assert line.endswith("EncodeError: 'status' cannot be 'malformed': only packets can be "
                             "written, not faults")  # fmt: skip
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.spark
def test_spark_has_two_modes_for_us(spark: SparkSession, stream: Path, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    for mode in ("errorifexists", "ignore"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(frame(spark, stream), tmp_path / "out", mode)


@pytest.mark.spark
def test_writing_fails_with_the_reason(spark: SparkSession, stream: Path) -> None:
    rows = frame(spark, stream)
    with pytest.raises(Exception, match="option 'protocol' is needed to write") as caught:
        rows.write.format("wireyard").mode("append").save("/nowhere")
    assert "[PYTHON_DATA_SOURCE_ERROR]" in str(caught.value)
