"""Tables of inputs and of lakes, and what a query may not do."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.mqtt import make as mqtt
from tests.make import item, items, packet
from wireyard.answers import Tables, open_tables, reading
from wireyard.errors import SourceError, UsageError
from wireyard.spark.lake import Change, Lake
from wireyard.streams.plan import Plan
from wireyard.streams.scan import scan_streams

EXAMPLES = Path(__file__).parents[2] / "examples"
CAPTURE = EXAMPLES / "traffic.pcap"
FACTS = {
    "conversations", "deliveries", "destinations", "hops", "messages", "producers", "retained",
    "sessions", "transactions", "violations",
}  # fmt: skip
READ = {
    "files", "ledger", "packets_gpacket", "packets_jmq", "packets_mqtt", "packets_rmp",
    "quarantine", "store_records", "streams",
}  # fmt: skip


def count(tables: Tables, table: str) -> int:
    found: int = tables.sql(f"SELECT count(*) AS n FROM {table}")["n"][0].as_py()
    return found


def test_a_capture_gives_the_tables_of_a_lake() -> None:
    with open_tables([str(CAPTURE)]) as tables:
        assert set(tables.names) == FACTS | READ | {"latencies"}
        assert not tables.lake
        assert count(tables, "packets_jmq") == 882
        assert count(tables, "packets_mqtt") == 301
        assert count(tables, "deliveries") == 227
        assert count(tables, "sessions") == 14
        balance = tables.sql(
            "SELECT sum(bytes_read) AS read, sum(bytes_ok + bytes_malformed + bytes_garbage"
            " + bytes_tail) AS rows FROM ledger"
        ).to_pylist()[0]
        assert balance["read"] == balance["rows"] > 0
        assert tables.notes == []


def test_inputs_are_read_by_as_many_threads_as_any_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def scan(streams: Iterable[tuple[Any, Plan]], threads: int) -> Iterator[pa.RecordBatch]:
        wanted = list(streams)
        asked.append((wanted[0][1].format.name, threads))
        return scan_streams(wanted, threads)

    monkeypatch.setattr(reading, "scan_streams", scan)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    bare = tmp_path / "bare.mqtt"
    bare.write_bytes(mqtt.connect(4) + mqtt.publish(4))
    inputs = CAPTURE, bare, EXAMPLES / "traffic" / "shop-c2b.jmq"
    with open_tables([str(path) for path in inputs]) as tables:
        assert count(tables, "files") == 3
    assert asked == [("jmq", 4), ("mqtt", 4), ("mqtt", 1), ("jmq", 4)]


def test_tables_are_made_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from wireyard.answers import tables as home

    def fail(*_: object) -> None:
        raise AssertionError("facts were made for nothing")

    monkeypatch.setattr(home, "derive_facts", fail)
    with open_tables([str(CAPTURE)]) as tables:
        assert count(tables, "streams") == 28
        with pytest.raises(AssertionError, match="for nothing"):
            count(tables, "deliveries")


def test_parameters_are_values() -> None:
    with open_tables([str(CAPTURE)]) as tables:
        query = "SELECT count(*) AS n FROM packets_mqtt WHERE topic = $1"
        assert tables.sql(query, ["shop/shelf/7/temperature"])["n"][0].as_py() > 0
        assert tables.sql(query, ["' OR ''='"])["n"][0].as_py() == 0


def test_times_are_utc() -> None:
    with open_tables([str(CAPTURE)]) as tables:
        found = tables.sql(
            "SELECT first_ns, first_at, CAST(first_at AS VARCHAR) AS text FROM streams LIMIT 1"
        )
        row = found.to_pylist()[0]
        assert str(found.schema.field("first_at").type) == "timestamp[us, tz=UTC]"
        assert row["text"].endswith("+00")
        assert row["first_at"].timestamp() == pytest.approx(row["first_ns"] / 1e9, abs=1e-5)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT * FROM read_text('/etc/hosts')", "Cannot access file"),
        ("SELECT * FROM glob('/etc/*')", "Cannot access"),
        ("SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')", "Cannot access file"),
        ("COPY (SELECT 1) TO '{folder}/x.csv'", "one statement that selects"),
        ("COPY (SELECT 1) TO 'elsewhere/x.csv'", "Cannot access file|one statement that selects"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/x.csv'", "one statement that selects"),
        ("CREATE TABLE x AS SELECT 1", "one statement that selects"),
        ("ATTACH 'elsewhere/x.db'", "Cannot access file|one statement that selects"),
        ("INSTALL httpfs", "one statement that selects"),
        ("LOAD httpfs", "one statement that selects"),
        ("SET enable_external_access = true", "one statement that selects"),
        ("SELECT 1; SELECT 2", "one statement that selects"),
        ("", "one statement that selects"),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM nowhere", "no table nowhere; there are conversations, deliveries"),
        ("SELECT nothing FROM streams", "nothing"),
        ("SELECT CAST('x' AS INTEGER)", "Could not convert"),
    ],
)
def test_what_a_query_may_not_do(query: str, problem: str) -> None:
    with open_tables([str(CAPTURE)]) as tables:
        count(tables, "ledger")
        folder = tables.connection.sql("SELECT current_setting('allowed_directories')")
        path = folder.fetchall()[0][0][0].rstrip("/")
        with pytest.raises(UsageError, match=problem) as caught:
            tables.sql(query.format(folder=path))
        assert "\n" not in str(caught.value)
        assert not Path(path, "x.csv").exists()


def test_bad_bytes_are_in_the_quarantine(tmp_path: Path) -> None:
    path = tmp_path / "damaged.jmq"
    damaged = packet(items=items(item(1, "x", length=600)))
    path.write_bytes(packet(body=b"first") + damaged + b"no packet" + packet()[:-3])
    with open_tables([str(path)]) as tables:
        rows = tables.sql(
            'SELECT status, first_bytes FROM quarantine ORDER BY "offset"'
        ).to_pylist()
        assert [row["status"] for row in rows] == ["malformed", "garbage", "tail"]
        assert rows[0]["first_bytes"] == damaged[:32].hex()
        assert rows[1]["first_bytes"] is None
        (ledger,) = tables.sql("SELECT * FROM ledger").to_pylist()
        parts = ("bytes_ok", "bytes_malformed", "bytes_garbage", "bytes_tail")
        assert ledger["bytes_read"] == path.stat().st_size == sum(ledger[part] for part in parts)
        assert (ledger["packets_ok"], ledger["packets_malformed"]) == (1, 1)


def test_a_folder_is_all_files_in_it(tmp_path: Path) -> None:
    for name in ("shop-c2b.jmq", "shop-b2c.jmq"):
        (tmp_path / name).write_bytes((EXAMPLES / "traffic" / name).read_bytes())
    (tmp_path / "notes.txt").write_text("nothing of ours\n" * 100)
    (tmp_path / ".hidden").write_text("not looked at")
    with open_tables([str(tmp_path)]) as tables:
        assert count(tables, "streams") == 2
        (note,) = tables.notes
        assert note.startswith(f"left out: {tmp_path}/notes.txt: begins like no format")


def test_a_store_has_its_records() -> None:
    with open_tables([str(EXAMPLES / "store" / "fs370")]) as tables:
        assert count(tables, "store_records") > 0
        assert count(tables, "packets_jmq") > 0


def test_no_password_gets_into_a_table(tmp_path: Path) -> None:
    secret = b"very-secret"
    connect = b"\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01a\x00\x01u" + b"\x00\x0b" + secret
    path = tmp_path / "login.mqtt"
    path.write_bytes(bytes([0x10, len(connect)]) + connect)
    with open_tables([str(path)], format="mqtt") as tables:
        for name in tables.names:
            assert "very-secret" not in str(tables.sql(f"SELECT * FROM {name}").to_pylist())
            assert secret.hex() not in str(tables.sql(f"SELECT * FROM {name}").to_pylist())
        assert count(tables, "packets_mqtt") == 1


def test_a_lake_is_read_as_it_is(tmp_path: Path) -> None:
    with open_tables([str(CAPTURE)]) as tables, Lake.open(str(tmp_path)) as made:
        made.make_staging(tables.names)
        for name in tables.names:
            pq.write_table(tables.sql(f"FROM {name}"), made.staged(name, "it's one.parquet"))
        made.commit(Change(append={name: ["it's one.parquet"] for name in tables.names}))
        expected = {name: count(tables, name) for name in tables.names}
    with open_tables([str(tmp_path)]) as lake:
        assert lake.lake
        assert {name: count(lake, name) for name in lake.names} == expected
    with pytest.raises(UsageError, match="is a lake, which is asked alone"):
        open_tables([str(tmp_path), str(CAPTURE)]).__enter__()


def test_inputs_that_are_not_there() -> None:
    with pytest.raises(SourceError, match=r"nowhere\.pcap: there is no such file"):
        open_tables(["nowhere.pcap"]).__enter__()


def test_without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r"pip install 'wireyard\[sql\]'"):
        open_tables([str(CAPTURE)]).__enter__()


def test_nothing_is_left_behind() -> None:
    with open_tables([str(CAPTURE)]) as tables:
        count(tables, "messages")
        (folder,) = tables.connection.sql(
            "SELECT current_setting('allowed_directories')"
        ).fetchall()[0]
    assert not Path(folder[0]).exists()
