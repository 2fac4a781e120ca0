"""Lakes for tests: runs over streams, and their tables read back."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import wireyard
from tests.make import item, items, long_item, packet
from wireyard.lake import read_lake
from wireyard.lake.records import is_shown
from wireyard.lake.writer import Lake
from wireyard.layers.tables import TABLES as FACTS
from wireyard.pipeline.facts import jmq, mqtt, rmp
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.pipeline.report import Report
from wireyard.schema import CAPTURED
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "HEADER_BYTES",
    "HELLO",
    "HELLO_REPLY",
    "NOON_MS",
    "TABLES",
    "Silent",
    "all_rows",
    "assert_as_one_run",
    "divide",
    "message",
    "nothing_left",
    "packets_equal",
    "parquet_files",
    "records",
    "rows",
    "run",
    "table",
    "uncaptured",
]

TABLES = {"packets_jmq", "quarantine", "ledger", "streams", "files", *FACTS}
NOON_MS = 1_700_000_040_000  # a whole minute
HELLO, HELLO_REPLY = packet(packet_type=10), packet(packet_type=11)


HEADER_BYTES = 24
"""Before the first record of a pcap file."""


def records(capture: bytes) -> list[bytes]:
    """Return the records of a pcap file, little-endian."""
    found, at = [], HEADER_BYTES
    while at < len(capture):
        size = 16 + int.from_bytes(capture[at + 8 : at + 12], "little")
        found.append(capture[at : at + size])
        at += size
    return found


class Silent:
    """A watch that keeps how many bytes were read."""

    def __init__(self) -> None:
        self.bytes: list[tuple[int, int]] = []

    def stage(self, name: str) -> None:
        pass

    def at(self, done_bytes: int, total_bytes: int) -> None:
        self.bytes.append((done_bytes, total_bytes))


def run(
    lake: Path,
    spark: SparkSession | None,
    *inputs: Path,
    watch: Silent | None = None,
    rotated: bool = False,
    **settings: Any,
) -> Report:
    """Do one run over inputs, by Spark if there is a session."""
    start = None if spark is None else SparkEngine(lambda: spark)
    with Lake.open(str(lake)) as opened:
        paths = [str(path) for path in inputs]
        found = list_inputs(paths, inside=str(lake), rotated=rotated).inputs
        return fill_lake(opened, found, start, watch or Silent(), **settings)


def divide(monkeypatch: pytest.MonkeyPatch, most_packets: int = 0) -> None:
    """Have the facts of more than so many packets be divided among tasks."""
    for module in (jmq, mqtt, rmp):
        divided = module.DIVISION._replace(most_packets=most_packets)
        monkeypatch.setattr(module, "DIVISION", divided)


def all_rows(lake: Path) -> dict[str, list[str]]:
    """Return all rows of all tables that have some."""
    held = read_lake(str(lake))
    found = {}
    for name in filter(is_shown, held.files):
        rows = sorted(map(repr, ds.dataset(held.paths(name)).to_table().to_pylist()))
        if rows:
            found[name] = rows
    return found


def assert_as_one_run(folder: Path, lake: Path, **settings: Any) -> None:
    """Compare a lake with that of one run over the folder as it is now."""
    once = lake.with_name("once")
    shutil.rmtree(once, ignore_errors=True)
    run(once, None, folder, **settings)
    found, expected = all_rows(lake), all_rows(once)
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name] == rows, name


def table(lake: Path, name: str) -> pa.Table:
    """Read a table of a lake as anybody would."""
    return ds.dataset(lake / name).to_table()


def rows(lake: Path, name: str, *columns: str) -> list[Any]:
    """Return columns of a table as tuples, sorted."""
    found = table(lake, name).select(list(columns)).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=str)


def packets_equal(lake: Path, paths: Sequence[Path], format: str = "jmq") -> None:
    """Compare a bronze table with what one reader reads of each source."""
    keys = [("source", "ascending"), ("offset", "ascending")]
    expected = pa.concat_tables([wireyard.read(path, format=format) for path in paths])
    assert uncaptured(table(lake, f"packets_{format}")).sort_by(keys).equals(expected.sort_by(keys))


def uncaptured(packets: pa.Table) -> pa.Table:
    """Return packets of bare streams without the columns of captures, which are null."""
    names = [column.name for column in CAPTURED]
    assert all(packets[name].null_count == packets.num_rows for name in names)
    return packets.drop_columns(names)


def parquet_files(lake: Path) -> set[str]:
    return {path.name for name in TABLES for path in (lake / name).glob("*.parquet")}


def nothing_left(lake: Path) -> None:
    """Check that a lake has the files that its newest commit lists, and no others.

    Files that a commit removed from their tables are still there, or expired since.
    """
    held = read_lake(str(lake))
    listed = {path for table in held.files for path in held.paths(table)}
    removed = {held.path_of(each.table, each.file) for each in held.record.removed}
    there = (lake / "_wireyard" / "data").rglob("*")
    differ = ({str(path) for path in there if path.is_file()} - removed) ^ listed
    assert not differ, [(path, Path(path).exists()) for path in sorted(differ)]


def message(number: int, **changes: Any) -> bytes:
    """Lay out a message that a client sends."""
    given = {
        "packet_type": 1,
        "items": items(long_item(9, 7), item(1, "orders")),
        "sequence": number,
        "timestamp": NOON_MS + number,
        "bit_flags": 0x0005,  # a queue, persistent
        "body": b"body %d" % number,
    }
    return packet(**{**given, **changes})
