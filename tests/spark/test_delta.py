"""Delta tables follow the commits of a lake, whenever a run is killed, on disks and on S3."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.spark.lakes import HELLO, Silent, message, no_session
from tests.spark.test_lake import AFTER, BEFORE, first_commit, second_commit
from wireyard.errors import LakeError
from wireyard.lake import delta as publishing
from wireyard.lake import read_lake
from wireyard.spark.inputs import list_inputs
from wireyard.spark.job import fill_lake
from wireyard.spark.lake import Lake

deltalake = pytest.importorskip("deltalake")

HTTP = {"AWS_ALLOW_HTTP": "true"}


@pytest.fixture(params=["disk", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "lake")
    request.getfixturevalue("s3")
    return f"s3://bucket/{uuid4().hex}"


def in_delta(url: str, version: int | None = None) -> dict[str, list[str]]:
    """Return the rows of Delta tables."""
    found = {}
    for table in AFTER:
        delta = deltalake.DeltaTable(f"{url}/{table}", version=version, storage_options=HTTP)
        found[table] = sorted(delta.to_pyarrow_table()["name"].to_pylist())
    return found


def test_delta_tables_follow_commits(url: str) -> None:
    for commit, state in ((first_commit, BEFORE), (second_commit, AFTER)):
        with Lake.open(url, table_format="delta") as lake:
            commit(lake)
        assert in_delta(url) == state
    assert in_delta(url, 0) == BEFORE
    history = deltalake.DeltaTable(f"{url}/grown", storage_options=HTTP).history()
    assert [each["wireyard_commit"] for each in history] == ["2", "1"]
    with Lake.open(url) as lake:  # nothing to do, and it stays a lake of Delta tables
        assert lake.table_format == "delta"
    assert len(deltalake.DeltaTable(f"{url}/grown", storage_options=HTTP).history()) == 2
    with pytest.raises(LakeError, match="its tables are delta, not parquet"):
        Lake.open(url, table_format="parquet").__enter__()


class Killed(BaseException):
    """What stands for a crash."""


@pytest.mark.parametrize("tables", [0, 1])
def test_a_run_killed_between_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    url = str(tmp_path / "lake")
    with Lake.open(url, table_format="delta") as lake:
        first_commit(lake)
    left = [tables]
    publish = publishing._publish_table

    def dying(*given: object) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        publish(*given)  # type: ignore[arg-type]

    def discard(lake: Lake) -> None:
        pass

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_publish_table", dying)
        patched.setattr(Lake, "_discard", discard)
        with pytest.raises(Killed), Lake.open(url) as lake:
            second_commit(lake)
    found = in_delta(url)
    assert all(found[table] in (BEFORE[table], AFTER[table]) for table in AFTER)
    assert sum(found[table] == AFTER[table] for table in AFTER) == tables
    assert read_lake(url).commits == 2
    with Lake.open(url):
        pass
    assert in_delta(url) == AFTER
    assert len(deltalake.DeltaTable(f"{url}/grown").history()) == 2


def test_what_was_removed_goes_when_it_expires(tmp_path: Path) -> None:
    from datetime import timedelta

    with Lake.open(str(tmp_path), table_format="delta") as lake:
        first_commit(lake)
        second_commit(lake)
    assert (tmp_path / "grown" / "b.parquet").exists()
    with Lake.open(str(tmp_path)) as lake:
        lake.expire(timedelta(0))
        # The record lists what it removed for an hour, and the second names of it stay as long.
        assert not Path(lake.inner("_wireyard", "data")).joinpath("b.parquet").exists()
    assert in_delta(str(tmp_path)) == AFTER


def test_all_tables_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "in.jmq").write_bytes(HELLO + b"".join(map(message, range(4))))
    url = str(tmp_path / "lake")
    with Lake.open(url, table_format="delta") as lake:
        found = list_inputs([str(tmp_path / "in.jmq")]).inputs
        fill_lake(lake, found, no_session, Silent(), few_bytes=1 << 30)
    snapshot = read_lake(url)
    assert len(snapshot.files) > 10
    for table in snapshot.files:
        delta = deltalake.DeltaTable(f"{url}/{table}")
        rows = delta.to_pyarrow_table()
        assert rows.num_rows == snapshot.read(table).num_rows
        assert rows.schema.names == snapshot.read(table).schema.names
        added = pa.table(delta.get_add_actions(flatten=True))
        assert sum(added["num_records"].to_pylist()) == rows.num_rows


def test_without_deltalake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake.exceptions", None)
    with (
        pytest.raises(LakeError, match=r"pip install 'wireyard\[delta\]'"),
        Lake.open(str(tmp_path), table_format="delta") as lake,
    ):
        first_commit(lake)
