"""store: the files of a store, as a table and as JSON Lines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.results import Run, one_line, rows_of

FIRST_RECORD = 24


@pytest.fixture
def damaged(examples: Path, tmp_path: Path) -> Path:
    """Return a store whose first order has a damaged record."""
    store = tmp_path / "store"
    shutil.copytree(examples / "store", store)
    path = store / "fs370/message/Qorders/vrfile"
    data = bytearray(path.read_bytes())
    data[FIRST_RECORD] = 0
    path.write_bytes(data)
    return store


def test_every_file_is_told(run: Run, examples: Path) -> None:
    result = run("store", examples / "store", "--out", "jsonl")
    assert result.exit_code == 0
    rows = {row["file"]: row for row in rows_of(result)}
    assert len(rows) == 13
    assert rows["fs370/message/Tprices/vrfile"] == {
        "file": "fs370/message/Tprices/vrfile",
        "kind": "messages",
        "destination": "T:prices",
        "size": 2048,
        "records": {"header": 1, "allocated": 6, "last": 1, "unused": 1},
        "bytes": {"header": 24, "allocated": 1536, "last": 12, "unused": 476},
        "packets": 6,
        "consumers": {"routed": 6, "acknowledged": 2, "delivered": 3},
    }
    for row in rows.values():
        assert sum(row["bytes"].values()) == row["size"]


def test_the_table_shows_what_differs(run: Run, examples: Path) -> None:
    result = run("store", examples / "store", "--out", "table")
    lines = {line.split()[0]: line.split(maxsplit=4) for line in result.stdout.splitlines()}
    assert lines["fs370/message/Qorders/vrfile"][1:] == [
        *("Q:orders", "3072", "5"),
        "3 free, 5 allocated; 5 delivered",
    ]
    assert "unused" not in result.stdout


def test_damage_is_told_and_sets_the_status(run: Run, damaged: Path) -> None:
    result = run("store", damaged)
    assert result.exit_code == 1
    assert "fs370/message/Qorders/vrfile: 24, 256 bytes: vrfile: 'magic' is not there" in one_line(
        result
    )
    (orders,) = (row for row in rows_of(result) if row["destination"] == "Q:orders")
    assert orders["records"]["damaged"] == 1
    assert orders["bytes"]["damaged"] == 256


def test_one_file_is_a_store_too(run: Run, examples: Path) -> None:
    (row,) = rows_of(run("store", examples / "store/fs370/txnlog"))
    assert (row["kind"], row["packets"], row["records"]["live"]) == ("log", 6, 11)


def test_other_files_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    result = run("store", path)
    assert result.exit_code == 3
    assert "begins like no file of a store" in one_line(result)


def test_queues_are_picked_by_name(run: Run, examples: Path) -> None:
    store = examples / "store"
    for names in (("orders",), ("Q:orders",), ("orders", "T:prices")):
        words = [word for name in names for word in ("--queue", name)]
        rows = rows_of(run("store", store, "--out", "jsonl", *words))
        wanted = {"Q:orders"} | ({"T:prices"} if len(names) > 1 else set())
        assert {row["destination"] for row in rows} == wanted
    unknown = run("store", store, "--queue", "orders", "--queue", "nothing")
    assert unknown.exit_code == 2 and unknown.stdout == ""
    assert "--queue nothing: the store has none; it has Q:" in one_line(unknown)
