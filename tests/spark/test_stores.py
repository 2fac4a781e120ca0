"""Stores on Spark: packets and records of a real broker's store beside streams."""

from __future__ import annotations

from pathlib import Path

import wireyard
from tests.spark.lakes import message, run, table
from wireyard.captures.stores.read import read_store

STORE = Path(__file__).parents[2] / "examples" / "store"


def test_a_store_fills_the_lake(tmp_path: Path) -> None:
    stream = tmp_path / "more.jmq"
    stream.write_bytes(message(1))
    report = run(tmp_path / "lake", None, STORE, stream)
    files = [
        file for one in report.added if one.source != str(stream) for file in read_store(one.source)
    ]
    held = sum(len(file.records) for file in files)
    records = table(tmp_path / "lake", "store_records")
    assert records.num_rows == held > 20
    ledger = {row["source"]: row for row in table(tmp_path / "lake", "ledger").to_pylist()}
    packets = table(tmp_path / "lake", "packets_jmq")
    for file in files:
        expected = wireyard.read(file.source, "jmq") if file.stream is not None else None
        mine = [row for row in packets.to_pylist() if row["source"] == file.source]
        if expected is not None and file.format is not None and file.format.name == "jmq":
            assert [row["offset"] for row in mine] == expected["offset"].to_pylist()
        inside = sum(row["length"] for row in mine if row["status"] == "ok")
        if file.format is None or file.format.name == "jmq":
            assert ledger[file.source]["bytes_ok"] == inside
    assert table(tmp_path / "lake", "quarantine").num_rows == 0
    states = {
        consumer["state"]
        for packets in records["packets"].to_pylist()
        for packet in packets or ()
        for consumer in packet["consumers"]
    }
    assert len(states) > 1
    assert run(tmp_path / "lake", None, STORE, stream).unchanged == len(report.added)
