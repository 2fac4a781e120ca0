"""Readers and their tasks, without Spark: plans, pieces, conditions and columns."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyspark.sql import datasource as ask
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

import wireyard
from tests.captures.connections import make_capture
from tests.spark.rows import BAD, GOOD, MALFORMED, STREAM, plain, read
from wireyard.captures.inputs import open_captures
from wireyard.captures.quarantine import MAX_CORRUPT_BYTES
from wireyard.errors import SourceError, UsageError, WireError
from wireyard.formats import get_format
from wireyard.pipeline.inputs.tasks import Piece
from wireyard.spark.reader import FilteringReader, Reader
from wireyard.spark.source import WireyardSource
from wireyard.spark.types import BAD_ROW_COLUMNS, arrow_schema
from wireyard.streams.blocks import StreamBundle

NARROW = StructType([StructField("offset", LongType()), StructField("sequence", IntegerType())])


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """Return the file of the stream with everything in it."""
    path = tmp_path / "stream.jmq"
    path.write_bytes(STREAM)
    return path


def reader_of(*paths: object, schema: StructType | None = None, **options: str) -> Reader:
    """Return the reader that Spark would be given."""
    texts = [str(path) for path in paths]
    given = {"paths": str(texts).replace("'", '"'), **options}
    source = WireyardSource(given)
    reader = source.reader(schema or source.schema())
    assert isinstance(reader, Reader)
    return reader


def pieces(reader: Reader) -> list[tuple[Piece, ...]]:
    return [task.value for task in reader.partitions()]


def table(reader: Reader) -> pa.Table:
    """Return all rows of a reader; every batch has exactly the schema that Spark was given."""
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    schema = arrow_schema(reader._schema)
    assert all(batch.schema.equals(schema) for batch in batches)
    return pa.Table.from_batches(batches, schema)


# --- tasks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("split_bytes", [1, 99, 1000, 4096, len(STREAM) - 1])
def test_a_file_cut_for_many_tasks_has_the_rows_of_one(stream: Path, split_bytes: int) -> None:
    reader = reader_of(stream, maxPartitionBytes=str(split_bytes))
    assert len(reader.partitions()) > 1
    assert plain(table(reader)) == read(stream)


def test_pieces_of_one_size(stream: Path) -> None:
    # Just beyond one task: two halves, not a whole and a crumb.
    sizes = [piece.size for (piece,) in pieces(reader_of(stream, maxPartitionBytes=str(20_000)))]
    assert sum(sizes) == len(STREAM)
    assert len(sizes) == -(-len(STREAM) // 20_000)
    assert max(sizes) < 1.5 * min(sizes)


def test_small_files_share_a_task(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.jmq").write_bytes(GOOD[0] * number)
    whole = reader_of(tmp_path, protocol="jmq")
    assert [len(task) for task in pieces(whole)] == [30]
    assert table(whole).num_rows == sum(range(30))
    # Opening a file counts too: 1 MiB of what a task may have.
    some = pieces(reader_of(tmp_path, protocol="jmq", maxPartitionBytes="10m"))
    assert [len(task) for task in some] == [10, 10, 10]


def test_a_part_of_a_capture_is_four_times_as_large() -> None:
    capture = Path(__file__).parents[2] / "examples" / "traffic.pcap"
    size = capture.stat().st_size
    for share, parts in ((size, 1), (size // 4 + 1, 1), (size // 8 + 1, 2), (size // 20 + 1, 5)):
        reader = reader_of(capture, protocol="mqtt", maxPartitionBytes=str(share))
        assert len(pieces(reader)) == parts
        assert table(reader).num_rows == wireyard.read(capture, format="mqtt").num_rows


def test_compressed_files_are_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "stream.jmq.gz"
    path.write_bytes(gzip.compress(STREAM))
    reader = reader_of(path, protocol="jmq", maxPartitionBytes="1k")
    assert len(reader.partitions()) == 1
    rows = read(path)
    assert plain(table(reader)) == rows
    assert len(rows) == len(GOOD) + len(BAD)


def test_nothing_to_read(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, protocol="jmq")
    assert reader.partitions() == []
    assert list(reader.read(ask.InputPartition(None))) == []
    (tmp_path / "empty.jmq").touch()
    assert table(reader).num_rows == 0


def test_a_store_is_read(stream: Path) -> None:
    fsspec.filesystem("memory").pipe("/reader/stream.jmq", STREAM)
    rows = plain(table(reader_of("memory://reader/*.jmq", maxPartitionBytes="10k")))
    local = read(stream)
    assert {row["source"] for row in rows} == {"memory://reader/stream.jmq"}
    for row in (*rows, *local):
        del row["source"], row["stream"]
    assert rows == local


# --- which format, which columns ------------------------------------------------------------


def test_the_first_bytes_tell_the_protocol(stream: Path, tmp_path: Path) -> None:
    (tmp_path / "a-empty.jmq").touch()
    assert table(reader_of(tmp_path)).column("format")[0].as_py() == "jmq"
    (tmp_path / "b-notes.txt").write_text("hello")
    with pytest.raises(UsageError, match=r"b-notes.txt: begins like no format; set option 'protoc"):
        reader_of(tmp_path)
    with pytest.raises(UsageError, match=r"no bytes show the protocol; set option 'protocol': jmq"):
        reader_of(tmp_path / "a-empty.jmq")
    with pytest.raises(UsageError, match="unknown format 'nope'"):
        reader_of(tmp_path, protocol="nope")


def test_no_path() -> None:
    with pytest.raises(UsageError, match="no path was given"):
        WireyardSource({"protocol": "jmq"}).schema()


def test_a_schema_chooses_columns_and_their_order(stream: Path) -> None:
    schema = StructType(
        [StructField("body", BinaryType()), StructField("offset", LongType(), nullable=False)]
    )
    found = table(reader_of(stream, schema=schema))
    assert found.column_names == ["body", "offset"]
    assert plain(found) == read(stream, columns=["body", "offset"])


def test_the_option_chooses_columns(stream: Path) -> None:
    found = table(reader_of(stream, columns="sequence, source"))
    assert found.column_names == ["sequence", "source"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("sequenze", LongType()), "jmq has no column 'sequenze'; it has source, "),
        (StructField("sequence", LongType()), "column 'sequence' is int, not bigint"),
        (
            StructField(
                "unknown_items",
                ArrayType(
                    StructType(
                        [StructField("type", IntegerType()), StructField("value", BinaryType())]
                    ),
                    containsNull=False,
                ),
            ),
            "column 'unknown_items' is array<.*>, and may have nulls inside",
        ),
        (StructField("_corrupt_record", LongType()), "column '_corrupt_record' takes bytes"),
    ],
)
def test_a_schema_that_cannot_be(stream: Path, field: StructField, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reader_of(stream, schema=StructType([field]))


def test_nulls_in_a_column_declared_without(stream: Path) -> None:
    schema = StructType([StructField("body", BinaryType(), nullable=False)])
    with pytest.raises(UsageError, match="column 'body' has nulls, so it cannot be NOT NULL"):
        table(reader_of(stream, schema=schema))


# --- bad rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("split_bytes", ["1000", "1g"])
def test_bad_rows_keep_their_bytes(tmp_path: Path, compress: bool, split_bytes: str) -> None:
    path = tmp_path / "stream.jmq"
    path.write_bytes(gzip.compress(STREAM) if compress else STREAM)
    binary, text = StructField("_corrupt_record", BinaryType()), StructField("x", StringType())
    options = {"protocol": "jmq", "maxPartitionBytes": split_bytes}
    for schema, name, expected in (
        (StructType([*NARROW.fields, binary]), "_corrupt_record", BAD),
        (StructType([text, *NARROW.fields]), "x", [bad.hex() for bad in BAD]),
        (StructType([text]), "x", [bad.hex() for bad in BAD]),
    ):
        given = {**options, "columnNameOfCorruptRecord": name} if name == "x" else options
        found = table(reader_of(path, schema=schema, **given))
        assert found.column_names == schema.names
        assert found.num_rows == len(GOOD) + len(BAD)
        assert found.column(name).drop_null().to_pylist() == expected


def test_bad_rows_of_streams_read_together_keep_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "traffic.pcap"
    path.write_bytes(make_capture(Random(12), 300))
    found = open_captures([path], get_format("mqtt"))
    assert any(isinstance(one, StreamBundle) for _, one in found.readables)
    streams = {each.captured.name: each.captured for _, each in found.streams}  # type: ignore[attr-defined]
    columns = ",".join(("stream", *BAD_ROW_COLUMNS))
    reader = reader_of(path, protocol="mqtt", columns=columns, columnNameOfCorruptRecord="bad")
    rows = table(reader).to_pylist()
    assert {row["status"] for row in rows if row["bad"]} >= {"malformed", "garbage", "tail"}
    for row in rows:
        expected = None
        if row["status"] != "ok":
            start, stop = row["offset"], row["offset"] + row["length"]
            held = row["status"] != "gap"
            expected = streams[row["stream"]].read(start, stop).tobytes() if held else b""
        assert row["bad"] == expected


def test_the_option_adds_the_column(stream: Path) -> None:
    found = table(reader_of(stream, columns="offset", columnNameOfCorruptRecord="bad"))
    assert found.column_names == ["offset", "bad"]
    assert found.schema.field("bad").type == pa.binary()
    assert found.column("bad").drop_null().to_pylist() == BAD


def test_long_garbage_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "stream.jmq"
    path.write_bytes(GOOD[0] + b"?" * (MAX_CORRUPT_BYTES + 1))
    found = table(reader_of(path, columns="length", columnNameOfCorruptRecord="bad")).to_pylist()
    assert found[1] == {
        "length": MAX_CORRUPT_BYTES + 1,
        "bad": b"?" * MAX_CORRUPT_BYTES,
    }


def test_bad_rows_left_out(stream: Path) -> None:
    found = table(reader_of(stream, schema=NARROW, mode="DROPMALFORMED"))
    assert found.num_rows == len(GOOD)


def test_the_first_bad_row_ends_the_read_in_one_line(stream: Path) -> None:
    offset = STREAM.index(MALFORMED)
    with pytest.raises(WireError, match=rf"jmq: .* in {stream}, offset {offset}$") as caught:
        table(reader_of(stream, mode="FailFast"))
    assert "\n" not in str(caught.value)
    assert not hasattr(caught.value, "__notes__")


def test_larger_packets_are_not_believed(stream: Path) -> None:
    small = reader_of(stream, columns="status", maxPacketBytes="1k", mode="permissive")
    assert table(small).column("status").to_pylist().count("garbage") > 1
    with pytest.raises(UsageError, match="unknown mode 'lenient'"):
        reader_of(stream, mode="lenient")


# --- files that cannot be read --------------------------------------------------------------


def test_a_file_that_went_away(stream: Path) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"ignoreMissingFiles": "true"},
        {"ignoreCorruptFiles": "true"},
    ]
    for options in ways:
        stream.write_bytes(STREAM)
        reader = reader_of(stream, **options)
        (task,) = reader.partitions()
        stream.unlink()
        if options:
            assert list(reader.read(task)) == []
        else:
            with pytest.raises(SourceError, match="there is no such file"):
                list(reader.read(task))


def test_a_file_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "stream.jmq.gz"
    path.write_bytes(gzip.compress(STREAM)[:-400])
    (tmp_path / "zz.jmq").write_bytes(GOOD[0])
    ways: list[dict[str, Any]] = [{}, {"ignoreMissingFiles": "true"}]
    for options in ways:
        with pytest.raises(SourceError, match=r"stream.jmq.gz: "):
            table(reader_of(tmp_path, protocol="jmq", **options))
    found = table(reader_of(tmp_path, protocol="jmq", columns="source", ignoreCorruptFiles="true"))
    assert str(tmp_path / "zz.jmq") in found.column("source").to_pylist()


def test_a_large_file_that_may_not_be_read(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> Any:
        raise SourceError("may not be read")

    monkeypatch.setattr("wireyard.pipeline.inputs.tasks.plan_segments", refuse)
    with pytest.raises(SourceError, match="may not be read"):
        reader_of(stream, maxPartitionBytes="1k").partitions()
    assert reader_of(stream, maxPartitionBytes="1k", ignoreCorruptFiles="true").partitions() == []
    with pytest.raises(SourceError, match="may not be read"):
        reader_of(stream, maxPartitionBytes="1k", ignoreMissingFiles="true").partitions()


# --- conditions -----------------------------------------------------------------------------

TAKEN: list[tuple[ask.Filter, Any]] = [
    (ask.EqualTo(("packet_type",), 2), lambda row: row["packet_type"] == 2),
    (ask.EqualNullSafe(("destination",), "orders.1"), lambda row: row["destination"] == "orders.1"),
    (ask.GreaterThan(("sequence",), 50), lambda row: row["sequence"] > 50),
    (ask.GreaterThanOrEqual(("sequence",), 50), lambda row: row["sequence"] >= 50),
    (ask.LessThan(("destination",), "orders.3"), lambda row: row["destination"] < "orders.3"),
    (ask.LessThanOrEqual(("offset",), 900), lambda row: row["offset"] <= 900),
    (ask.In(("packet_type",), (1, 3, None)), lambda row: row["packet_type"] in (1, 3)),
    (ask.Not(ask.EqualTo(("packet_type",), 2)), lambda row: row["packet_type"] != 2),
]
LEFT: list[ask.Filter] = [
    ask.EqualTo(("error", "code"), "malformed"),
    ask.EqualTo(("body",), b"body 1"),
    ask.EqualTo(("nowhere",), 1),
    ask.EqualTo(("packet_type",), 1.5),
    ask.EqualTo(("packet_type",), True),
    ask.EqualNullSafe(("packet_type",), None),
    ask.In(("packet_type",), (None,)),
    ask.Not(ask.In(("packet_type",), (1,))),
    ask.Not(ask.EqualNullSafe(("packet_type",), 1)),
    ask.IsNull(("packet_type",)),
    ask.IsNotNull(("packet_type",)),
    ask.StringStartsWith(("destination",), "orders"),
]


@pytest.mark.parametrize(("asked", "keeps"), TAKEN)
def test_conditions_that_are_taken(stream: Path, asked: ask.Filter, keeps: Any) -> None:
    reader = reader_of(stream, pushFilters="true")
    assert isinstance(reader, FilteringReader)
    assert list(reader.pushFilters([asked])) == []
    # What has no value is kept by no comparison, as in SQL.
    name = ".".join((asked.child if isinstance(asked, ask.Not) else asked).attribute)  # type: ignore[attr-defined]
    expected = [row for row in read(stream) if row[name] is not None and keeps(row)]
    assert 0 < len(expected) < len(GOOD)
    assert plain(table(reader)) == expected


def test_conditions_that_are_left_to_spark(stream: Path) -> None:
    reader = reader_of(stream, pushFilters="true")
    assert isinstance(reader, FilteringReader)
    left = list(reader.pushFilters([TAKEN[0][0], *LEFT, TAKEN[2][0]]))
    assert [id(one) for one in left] == [id(one) for one in LEFT]
    expected = [r for r in read(stream) if r["packet_type"] == 2 and r["sequence"] > 50]
    assert plain(table(reader)) == expected


def test_only_the_option_makes_a_reader_that_filters(stream: Path) -> None:
    # Spark refuses readers that could filter, unless it is set otherwise.
    assert type(reader_of(stream)) is Reader
    assert type(reader_of(stream, pushFilters="false")) is Reader
