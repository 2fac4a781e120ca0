"""The data source in Spark: found without a registration, and what every question is answered."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

import wireyard
from tests.spark.rows import BAD, GOOD, STREAM, plain, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Load = Callable[..., DataFrame]

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a stream of everything, a compressed one, a small one and notes."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "all.jmq").write_bytes(STREAM)
    (folder / "all.jmq.gz").write_bytes(gzip.compress(STREAM))
    (folder / "small.jmq").write_bytes(GOOD[0] + GOOD[1])
    (folder / "notes.txt").write_text("hello")
    (folder / "deep").mkdir()
    (folder / "deep" / "small.jmq").write_bytes(GOOD[2])
    return folder


@pytest.fixture
def load(spark: SparkSession, folder: Path) -> Load:
    """Return a function that loads a name in the folder."""

    def load(
        name: str = "all.jmq", schema: str | None = None, **options: str | bool | int
    ) -> DataFrame:
        asked = spark.read.format("wireyard").options(protocol="jmq", **options)
        return (asked.schema(schema) if schema else asked).load(str(folder / name))

    return load


# --- rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all.jmq", "all.jmq.gz"])
def test_rows_are_those_of_the_reader(load: Load, folder: Path, name: str) -> None:
    assert plain(load(name).toArrow()) == read(folder / name)


def test_recorded_traffic_is_read_alike(
    spark: SparkSession, examples: Path, traffic: list[Path]
) -> None:
    asked = spark.read.format("wireyard").option("pathGlobFilter", "*.jmq")
    frame = asked.load(str(examples / "traffic"))  # the protocol by the first bytes
    assert plain(frame.toArrow()) == read(*traffic)
    # Maps, lists and structs mean the same to the JVM.
    row = frame.where("properties is not null and status = 'ok'").first()
    assert row is not None
    name, entry = next(iter(row.properties.items()))
    found = frame.where(f"properties['{name}'].value = '{entry.value}'").count()
    assert found == sum(
        dict(r["properties"] or ()).get(name, {}).get("value") == entry.value
        for r in read(*traffic)
    )


@pytest.mark.parametrize("split_bytes", [300, 4000])
def test_a_stream_with_packets_in_packets_is_cut_right(
    load: Load, folder: Path, split_bytes: int
) -> None:
    frame = load(maxPartitionBytes=split_bytes)
    assert frame.rdd.getNumPartitions() > 3
    assert plain(frame.toArrow()) == read(folder / "all.jmq")


def test_a_schema_chooses_and_orders(load: Load, folder: Path) -> None:
    frame = load(schema="sequence int, offset bigint not null, error struct<code string,"
                 " field string, offset long, message string, spec string>")  # fmt: skip
    columns = ["sequence", "offset", "error"]
    assert frame.columns == columns
    assert plain(frame.toArrow()) == read(folder / "all.jmq", columns=columns)
    assert load(columns="offset,sequence").columns == ["offset", "sequence"]


def test_counts_and_limits_and_selections(load: Load) -> None:
    frame = load(maxPartitionBytes=1000)
    assert frame.count() == len(GOOD) + len(BAD)
    assert len(frame.limit(7).collect()) == 7
    assert frame.select("status").distinct().count() == 4
    assert frame.where("packet_type = 2").select("sequence").count() == 40


def test_modes(load: Load) -> None:
    assert load(mode="DROPMALFORMED").count() == len(GOOD)
    corrupt = load(schema="offset long, _corrupt_record binary").where(
        "_corrupt_record is not null"
    )
    assert [bytes(row[1]) for row in corrupt.orderBy("offset").collect()] == BAD
    hexed = load(schema="bad string", columnNameOfCorruptRecord="bad").where("bad is not null")
    assert sorted(row.bad for row in hexed.collect()) == sorted(bad.hex() for bad in BAD)


@pytest.mark.parametrize(
    ("name", "options", "rows"),
    [
        ("", {"pathGlobFilter": "small*"}, 2),
        ("", {"pathGlobFilter": "small*", "recursiveFileLookup": True}, 3),
        ("{small,none}.jmq", {}, 2),
        ("*/small.jmq", {}, 1),
        ("none.jmq", {"ignoreMissingFiles": True}, 0),
        ("", {"pathGlobFilter": "small*", "modifiedAfter": "2099-01-01T00:00:00"}, 0),
        ("", {"pathGlobFilter": "small*", "modifiedBefore": "2099-01-01T00:00:00"}, 2),
    ],
)
def test_files(load: Load, name: str, options: Mapping[str, Any], rows: int) -> None:
    assert load(name, schema="offset long", **options).count() == rows


def test_paths_and_urls(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spark.read.format("wireyard").option("protocol", "jmq").schema("source string")
    paths = [str(folder / "small.jmq"), f"file://{folder}/deep/small.jmq"]
    assert [row.source for row in asked.load(paths).collect()] == [
        f"{folder}/small.jmq",
        f"{folder}/small.jmq",
        f"{folder}/deep/small.jmq",
    ]


def test_sql_finds_it(spark: SparkSession, folder: Path) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW packets USING wireyard "
        f"OPTIONS (path '{folder}/small.jmq', protocol 'jmq')"
    )
    assert spark.sql("SELECT sequence FROM packets ORDER BY offset").collect() == [(0,), (1,)]
    spark.catalog.dropTempView("packets")


# --- conditions -----------------------------------------------------------------------------


def optimized(frame: DataFrame) -> str:
    """Return the plan that Spark carries out."""
    return str(frame._jdf.queryExecution().optimizedPlan())


def test_conditions_are_pushed_when_asked(load: Load, folder: Path) -> None:
    condition = "packet_type in (1, 2) and sequence > 30 and destination <> 'orders.1'"
    frame = load(pushFilters=True).where(condition)
    # What Spark keeps of the condition is that there are values to compare.
    assert "> 30" not in optimized(frame) and "isnotnull(sequence" in optimized(frame)
    assert "> 30" in optimized(load().where(condition))
    expected = [
        row
        for row in read(folder / "all.jmq")
        if row["packet_type"] in (1, 2) and (row["sequence"] or 0) > 30
        and row["destination"] not in (None, "orders.1")
    ]  # fmt: skip
    assert plain(frame.toArrow()) == expected
    assert plain(load().where(condition).toArrow()) == expected
    bodiless = [row for row in read(folder / "all.jmq") if row["body"] is None]
    assert load(pushFilters=True).where("body is null").count() == len(bodiless)


def test_spark_has_to_allow_it(spark: SparkSession, load: Load) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert load().where("sequence > 30").count() > 0
        with pytest.raises(Exception, match=r"DATA_SOURCE_PUSHDOWN_DISABLED"):
            load(pushFilters=True).where("sequence > 30").count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# --- what is said when it cannot be done ----------------------------------------------------

PYTHON_ERROR = "[PYTHON_DATA_SOURCE_ERROR]"


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("all.jmq", {"compression": "gzip"}, "no option 'compression'; it has protocol, "),
        ("all.jmq", {"maxPartitionBytes": "much"}, "option 'maxPartitionBytes' cannot be 'much'"),
        ("all.jmq", {"columns": "nope"}, "jmq has no column 'nope'; it has source, "),
        ("all.jmq", {"mode": "lenient"}, "unknown mode 'lenient'"),
        ("none.jmq", {}, "none.jmq: there is no such file or folder"),
        ("notes.txt", {"protocol": None}, "notes.txt: begins like no format; set option 'protoc"),
    ],
)
def test_loading_fails_with_the_reason(
    spark: SparkSession, folder: Path, name: str, given: Mapping[str, Any], text: str
) -> None:
    from pyspark.errors import AnalysisException

    options = {key: value for key, value in {"protocol": "jmq", **given}.items() if value}
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("wireyard").options(**options).load(str(folder / name))
    said = str(caught.value)
    assert said.startswith(f"{PYTHON_ERROR} Failed to create Python data source instance")
    assert text in said


def test_planning_fails_with_the_reason(load: Load) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"column 'sequence' is int, not bigint") as caught:
        load(schema="sequence bigint").count()
    assert PYTHON_ERROR in str(caught.value)
    with pytest.raises(AnalysisException, match=r"none.jmq: there is no such file or folder"):
        load("none.jmq", schema="sequence int").count()


@pytest.mark.parametrize(
    ("name", "schema", "options", "reason"),
    [
        ("all.jmq", None, {"mode": "FAILFAST"}, "wireyard.errors.WireError: jmq: 'destination' "),
        ("all.jmq", "body binary not null", {}, "column 'body' has nulls, so it cannot be NOT"),
        ("broken.jmq.gz", "offset long", {}, "broken.jmq.gz: "),
    ],
)
def test_tasks_fail_with_the_reason_in_one_line(
    load: Load,
    folder: Path,
    name: str,
    schema: str | None,
    options: Mapping[str, Any],
    reason: str,
) -> None:
    from pyspark.errors import PythonException

    (folder / "broken.jmq.gz").write_bytes(gzip.compress(STREAM)[:-400])
    with pytest.raises(PythonException) as caught:
        load(name, schema=schema, **options).count()
    last = str(caught.value).strip().splitlines()[-1]
    assert reason in last
    assert str(folder / name) in last or "column" in last


def test_a_file_that_breaks_off_ends_there_when_asked(spark: SparkSession, tmp_path: Path) -> None:
    whole, broken = tmp_path / "all.jmq", tmp_path / "broken.jmq.gz"
    whole.write_bytes(STREAM)
    broken.write_bytes(gzip.compress(STREAM)[:-400])
    asked = spark.read.format("wireyard").options(protocol="jmq", ignoreCorruptFiles=True)
    found = plain(asked.load(str(tmp_path)).toArrow())
    packets = [row for row in found if row["source"] == str(broken)]
    expected = read(whole)
    assert [row for row in found if row["source"] == str(whole)] == expected
    named = {"source": str(broken), "stream": str(broken)}
    assert packets == [{**row, **named} for row in expected[: len(packets)]]
    assert 0 < len(packets) < len(expected)


# --- workers --------------------------------------------------------------------------------


def test_a_worker_that_dies_loses_nothing(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    from wireyard.spark.source import WireyardSource

    class Dying(WireyardSource):
        """Kills the worker of its first attempt after the first batch."""

        @classmethod
        def name(cls) -> str:
            return "dying"

        def reader(self, schema: Any) -> Any:
            import os
            import signal

            from wireyard.spark.reader import Reader

            class DyingReader(Reader):
                def read(self, partition: Any) -> Any:
                    batches = super().read(partition)
                    yield next(batches)
                    try:
                        (tmp_path / "died").touch(exist_ok=False)
                    except FileExistsError:
                        yield from batches
                    else:
                        os.kill(os.getpid(), signal.SIGKILL)

            return DyingReader(self._options, schema)

    spark.dataSource.register(Dying)
    asked = spark.read.format("dying").options(protocol="jmq", maxPartitionBytes=4000)
    rows = plain(asked.load(str(folder / "all.jmq")).toArrow())
    assert (tmp_path / "died").exists()
    assert rows == read(folder / "all.jmq")


def test_registered_by_hand(spark: SparkSession, folder: Path) -> None:
    wireyard.register(spark)
    assert spark.read.format("WireYard").load(str(folder / "small.jmq")).count() == 2


def test_planning_loads_no_compiler() -> None:
    import subprocess
    import sys

    # What the processes import that find the source, ask its columns and plan its tasks.
    plan = (
        "import sys, pyspark_wireyard, pathlib\n"
        "assert 'pyarrow' not in sys.modules and 'wireyard.streams' not in sys.modules\n"
        "source = pyspark_wireyard.DefaultSource({'protocol': 'jmq', 'path': sys.argv[1]})\n"
        "assert source.reader(source.schema()).partitions()\n"
        "print(*sorted({'numba', 'pandas', 'llvmlite'} & set(sys.modules)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", plan, __file__], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("\n", "")


# --- mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protcol": "jmq"}, "the wireyard data source has no option 'protcol'"),
        ({"mode": "PERMISIVE"}, "unknown mode 'permisive'"),
        ({"columns": "nosuch"}, "jmq has no column 'nosuch'"),
    ],
)
def test_a_mistake_is_said_without_a_traceback(
    options: dict[str, str], said: str, spark: SparkSession, folder: Path
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("wireyard").options(**options).load(str(folder / "all.jmq"))
    (line,) = filter(None, re.sub(r"\s+SQLSTATE.*", "", str(caught.value)).splitlines())
    assert line.startswith("[PYTHON_DATA_SOURCE_ERROR] ") and said in line


PLAIN = """
import sys
from pyspark.sql import SparkSession
import wireyard
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
wireyard.register(spark)
print("rows", spark.read.format("wireyard").load(sys.argv[1]).count())
"""


@pytest.mark.slow
def test_a_session_of_spark_alone_runs_the_python_that_registers(folder: Path) -> None:
    """Without PYSPARK_PYTHON it would run the first one on the path, which has no wireyard."""
    environ = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(folder / "small.jmq")],
        env={**environ, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "rows 2\n", done.stderr
