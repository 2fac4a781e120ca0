"""Open tables follow the commits of a lake, whenever a run is killed, on disks and on S3."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.spark.lakes import HELLO, Silent, message
from tests.spark.test_lake import AFTER, BEFORE, first_commit, second_commit
from wireyard.errors import LakeError
from wireyard.lake import read_lake
from wireyard.lake.writer import Lake
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake

FORMATS = ("delta", "iceberg")


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    return str(request.param)


@pytest.fixture(params=["disk", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "lake")
    request.getfixturevalue("s3")
    return f"s3://bucket/{uuid4().hex}"


def opened(kind: str, path: str, version: int | None = None) -> Any:
    """Open a table as its own package does that has heard nothing of a lake."""
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(path, version, {"AWS_ALLOW_HTTP": "true"})
    from pyiceberg.table import StaticTable

    settings = {}
    if "://" in path:
        settings = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": "us-east-1"}
    table = StaticTable.from_metadata(path, settings)
    at = None if version is None else table.metadata.snapshots[version].snapshot_id
    return table.scan(snapshot_id=at)


def read(kind: str, path: str, version: int | None = None) -> pa.Table:
    found = opened(kind, path, version)
    rows: pa.Table = found.to_pyarrow_table() if kind == "delta" else found.to_arrow()
    return rows


def names(kind: str, url: str, version: int | None = None) -> dict[str, list[str]]:
    """Return the rows of tables."""
    return {
        table: sorted(read(kind, f"{url}/{table}", version)["name"].to_pylist()) for table in AFTER
    }


def commits(kind: str, path: str) -> Sequence[str]:
    """Return the commits of the lake that the versions of a table are of, in their order."""
    if kind == "delta":
        return [each["wireyard_commit"] for each in reversed(opened(kind, path).history())]
    snapshots = opened(kind, path).table_metadata.snapshots
    return [each.summary["wireyard_commit"] for each in snapshots]


def test_tables_follow_commits(kind: str, url: str) -> None:
    for commit, state in ((first_commit, BEFORE), (second_commit, AFTER)):
        with Lake.open(url, table_format=kind) as lake:
            commit(lake)
        assert names(kind, url) == state
    assert names(kind, url, 0) == BEFORE
    assert commits(kind, f"{url}/grown") == ["1", "2"]
    with Lake.open(url) as lake:  # nothing to do, and it stays a lake of such tables
        assert lake.table_format == kind
    assert commits(kind, f"{url}/grown") == ["1", "2"]
    with pytest.raises(LakeError, match=f"its tables are {kind}, not parquet"):
        Lake.open(url, table_format="parquet").__enter__()


class Killed(BaseException):
    """Raised in place of a crash."""


@pytest.mark.parametrize("tables", [0, 1])
def test_a_run_killed_between_tables(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    url = str(tmp_path / "lake")
    with Lake.open(url, table_format=kind) as lake:
        first_commit(lake)
    left = [tables]
    module = import_module(f"wireyard.lake.{kind}")
    publish = module.publish_table

    def dying(*given: object) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        publish(*given)

    def discard(lake: Lake) -> None:
        pass

    with monkeypatch.context() as patched:
        patched.setattr(module, "publish_table", dying)
        patched.setattr(Lake, "_discard", discard)
        with pytest.raises(Killed), Lake.open(url) as lake:
            second_commit(lake)
    found = names(kind, url)
    assert all(found[table] in (BEFORE[table], AFTER[table]) for table in AFTER)
    assert sum(found[table] == AFTER[table] for table in AFTER) == tables
    assert read_lake(url).commits == 2
    with Lake.open(url):
        pass
    assert names(kind, url) == AFTER
    assert commits(kind, f"{url}/grown") == ["1", "2"]


def test_a_table_that_somebody_else_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    from wireyard.lake import iceberg

    url = str(tmp_path / "lake")
    with Lake.open(url, table_format="iceberg") as lake:
        first_commit(lake)
    from pyiceberg.io.pyarrow import parquet_files_to_data_files as found

    def racing(*given: Any) -> Any:
        metadata = tmp_path / "lake" / "grown" / "metadata"
        with monkeypatch.context() as alone:
            alone.setattr(iceberg, "parquet_files_to_data_files", found)
            newest = max(int(path.name[1:].split(".")[0]) for path in metadata.glob("v*.json"))
            content = (metadata / f"v{newest}.metadata.json").read_bytes()
            (metadata / f"v{newest + 1}.metadata.json").write_bytes(content)
        return found(*given)

    with Lake.open(url) as lake:
        monkeypatch.setattr(iceberg, "parquet_files_to_data_files", racing)
        with pytest.raises(LakeError, match="iceberg table 'grown': version 3 is there already"):
            second_commit(lake)
    monkeypatch.undo()
    assert read_lake(url).commits == 2
    with Lake.open(url):  # the commit was made, and the tables follow it
        pass
    assert names("iceberg", url) == AFTER


def test_what_was_removed_goes_when_it_expires(kind: str, tmp_path: Path) -> None:
    url = str(tmp_path)
    with Lake.open(url, table_format=kind) as lake:
        first_commit(lake)
        second_commit(lake)
    assert names(kind, url, 0) == BEFORE
    with Lake.open(url) as lake:
        lake.expire(timedelta(0))
        there = Path(lake.inner("_wireyard", "data")).rglob("*.parquet")
        assert not {"b.parquet", "old1.parquet"} & {path.name for path in there}
    assert names(kind, url) == AFTER
    if kind == "iceberg":
        assert commits(kind, f"{url}/grown") == ["2"]
        metadata = tmp_path / "grown" / "metadata"
        assert len(list(metadata.glob("v*.json"))) == 1


def test_all_tables_of_a_run(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in.jmq").write_bytes(HELLO + b"".join(map(message, range(4))))
    url = str(tmp_path / "lake")
    with Lake.open(url, table_format=kind) as lake:
        found = list_inputs([str(tmp_path / "in.jmq")]).inputs
        fill_lake(lake, found, None, Silent())
    snapshot = read_lake(url)
    assert len(snapshot.files) > 10
    for table in snapshot.files:
        rows, expected = read(kind, f"{url}/{table}"), snapshot.read(table)
        assert rows.num_rows == expected.num_rows
        assert rows.schema.names == expected.schema.names
        if table == "messages":
            assert rows["message_key"].to_pylist() == expected["message_key"].to_pylist()
    path = f"{url}/messages"
    if kind == "delta":
        added = pa.table(opened(kind, path).get_add_actions(flatten=True))
        assert pc.sum(added["num_records"]).as_py() == 4
    else:
        (task,) = opened(kind, path).plan_files()
        assert task.file.record_count == 4
        assert task.file.lower_bounds and task.file.upper_bounds


def test_without_the_package(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"delta": "deltalake", "iceberg": "pyiceberg"}[kind]
    monkeypatch.setitem(sys.modules, f"{package}.exceptions", None)
    with (
        pytest.raises(LakeError, match=rf"pip install 'wireyard\[{kind}\]'"),
        Lake.open(str(tmp_path), table_format=kind) as lake,
    ):
        first_commit(lake)
