"""Lakes by day: each file has rows of one day, and readers leave out the others."""

from __future__ import annotations

import datetime
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.lake_sizes import PCAP_HEADER, mqtt, record, segment
from tests.spark import lakes
from tests.spark.lakes import HELLO, message
from wireyard.answers import open_tables
from wireyard.errors import LakeError
from wireyard.lake import read_lake
from wireyard.lake.writer import Lake
from wireyard.pipeline import replacing
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake

DAYS = [datetime.date(2025, 11, 13), datetime.date(2025, 11, 14), datetime.date(2025, 11, 15)]
DAY_MS = 86_400_000
NONE = "__HIVE_DEFAULT_PARTITION__"


def capture(path: Path, step_ms: int, count: int) -> Path:
    """Write a capture of a client that publishes at steps, from 2025-11-13T02:13:20Z on."""
    frames, sequence = [], 0
    for number, payload in enumerate(mqtt(0, count, path.stem)):
        frames.append(record(number * step_ms, segment(2000, sequence, payload)))
        sequence += len(payload)
    path.write_bytes(PCAP_HEADER + b"".join(frames))
    return path


def fill(url: str, *paths: Path, partition_by: str | None = "day") -> None:
    with Lake.open(url, partition_by=partition_by) as lake:
        fill_lake(lake, list_inputs(list(map(str, paths))).inputs, None, lakes.Silent())


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    bare = tmp_path / "bare.jmq"
    bare.write_bytes(HELLO + b"".join(message(number) for number in range(5)))
    return [capture(tmp_path / "long.pcap", DAY_MS // 4, 9), bare]


def test_files_are_those_of_a_day(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "_DAYS_AT_ONCE", 2)
    for name, how in (("by-day", "day"), ("plain", None)):
        fill(str(tmp_path / name), *paths, partition_by=how)
    held, plain = read_lake(str(tmp_path / "by-day")), read_lake(str(tmp_path / "plain"))
    assert held.record.partition_by == "day"
    for table in plain.files:
        found, expected = held.read(table), plain.read(table)
        rows = (sorted(map(str, each.to_pylist())) for each in (found.drop(["day"]), expected))
        assert next(rows) == next(rows), table
        assert all(name.startswith("day=") for name in held.files[table]), table
    packets = held.read("packets_mqtt")
    assert pc.unique(packets["day"]).sort().to_pylist() == DAYS
    of_time = pc.cast(packets["captured_ns"], pa.timestamp("ns")).cast(pa.date32())
    assert packets["day"].to_pylist() == of_time.to_pylist()
    # Rows without a time have a partition of their own.
    assert {name.partition("/")[0] for name in held.files["packets_jmq"]} == {f"day={NONE}"}
    assert held.read("packets_jmq")["day"].null_count == 6


def test_readers_leave_files_of_other_days_out(tmp_path: Path, paths: list[Path]) -> None:
    url = str(tmp_path / "lake")
    fill(url, *paths)
    dataset = read_lake(url).dataset("packets_mqtt")
    (fragment,) = dataset.get_fragments(pc.field("day") == pa.scalar(DAYS[1]))
    assert "/day=2025-11-14/" in fragment.path
    # By the folders too, which other engines read.
    found = duckdb.execute(f"""SELECT day, count(*) FROM
        read_parquet('{url}/packets_mqtt/**/*.parquet', hive_partitioning = true)
        GROUP BY 1 ORDER BY 1""").fetchall()
    assert [day for day, _ in found] == DAYS and sum(count for _, count in found) == 10
    with open_tables([url]) as tables:
        rows = tables.sql("SELECT count(*) n FROM packets_mqtt WHERE day = '2025-11-15'")
        expected = pc.equal(dataset.to_table()["day"], pa.scalar(DAYS[2]))
        assert rows["n"].to_pylist() == [pc.sum(expected).as_py()]


def test_what_changes_and_gathers_stays_in_its_day(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "_MERGED", 3)
    grown, whole = str(tmp_path / "grown"), str(tmp_path / "whole")
    fill(grown, *paths)
    for number in range(7):
        paths.append(capture(tmp_path / f"more-{number}.pcap", DAY_MS // 3, 5))
        fill(grown, paths[-1])
    names = read_lake(grown).files["packets_mqtt"]
    assert any("/part-merged-" in name for name in names)
    capture(paths[0], DAY_MS // 4, 8)
    fill(grown, paths[0])
    fill(whole, *paths)
    ours, theirs = read_lake(grown), read_lake(whole)
    assert any("/part-copy-" in name for names in ours.files.values() for name in names)
    for table in theirs.files:
        rows = (sorted(map(str, each.read(table).to_pylist())) for each in (ours, theirs))
        assert next(rows) == next(rows), table
        for name in ours.files[table]:
            assert name.startswith("day=")
    lakes.nothing_left(Path(grown))


def test_a_lake_stays_as_it_was_made(tmp_path: Path, paths: list[Path]) -> None:
    fill(str(tmp_path / "lake"), *paths[:1], partition_by=None)
    with pytest.raises(LakeError, match="its tables are not partitioned by day; name a new"):
        fill(str(tmp_path / "lake"), paths[1])


def test_in_a_store(s3: Path, paths: list[Path]) -> None:
    url = f"s3://bucket/{uuid4().hex}"
    fill(url, *paths)
    found = read_lake(url)
    assert pc.unique(found.read("messages")["day"]).drop_null().sort().to_pylist()[-3:] == DAYS
    assert not found.damage(checksums=True)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_open_tables_by_day(kind: str, tmp_path: Path, paths: list[Path]) -> None:
    from tests.spark.test_open_tables import opened, read

    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    url = str(tmp_path / "lake")
    with Lake.open(url, partition_by="day", table_format=kind) as lake:
        found = list_inputs(list(map(str, paths))).inputs
        fill_lake(lake, found, None, lakes.Silent())
    path = f"{url}/packets_mqtt"
    rows = read(kind, path)
    assert rows.num_rows == 10
    if kind == "delta":
        assert sorted(set(rows["day"].to_pylist())) == DAYS
        assert opened(kind, path).metadata().partition_columns == ["day"]
    else:
        assert len(list(opened(kind, path).plan_files())) == len(DAYS)
