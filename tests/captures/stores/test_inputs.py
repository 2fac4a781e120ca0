"""Stores as inputs: of the Python face and of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import wireyard
from wireyard.captures.stores.read import read_store

STORE = Path(__file__).parents[3] / "examples" / "store" / "fs370"


def test_a_store_is_read_as_a_table() -> None:
    table = wireyard.read(STORE, "jmq")
    ok = [row for row in table.to_pylist() if row["status"] == "ok"]
    held = [
        (file.name, packet.start)
        for file in read_store(STORE)
        for record in file.records
        for packet in record.contents.packets
        if file.format is not None and (packet.start, packet.stop) in record.held
    ]
    assert [(row["stream"], row["offset"]) for row in ok] == held
    assert {row["status"] for row in table.to_pylist()} == {"ok", "gap"}
    assert all(row["error"] is None for row in table.to_pylist())
    strict = wireyard.read(STORE, "jmq", mode="failfast")
    assert strict["offset"].to_pylist() == table["offset"].to_pylist()
    dropped = wireyard.read(STORE, "jmq", mode="dropmalformed")
    assert dropped.num_rows == len(ok) == len(list(wireyard.packets(STORE, "jmq")))


def test_one_file_of_a_store_and_a_folder_of_none(tmp_path: Path) -> None:
    [path] = list(STORE.glob("txnlog"))
    assert "ok" in wireyard.read(path, "jmq")["status"].to_pylist()
    with pytest.raises(wireyard.SourceError, match="is a folder, and no file store of Open MQ"):
        wireyard.read(tmp_path)
