"""Tables of inputs and of lakes, and what a query may not do."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from io import TextIOWrapper
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.answers.talks import ends_before
from tests.captures import make as net
from tests.formats.mqtt import make as mqtt
from tests.make import item, items, packet
from tests.spark.lakes import Silent
from wireyard.answers import Tables, open_tables
from wireyard.answers import tables as tables_module
from wireyard.arrays import Grid
from wireyard.captures.connections.stream import Stream
from wireyard.captures.quarantine import MAX_CORRUPT_BYTES, BadBytes
from wireyard.captures.stream_table import FILES
from wireyard.cli import main
from wireyard.errors import LakeDamaged, LakeError, SourceError, UsageError
from wireyard.lake import read_lake
from wireyard.lake.writer import Change, Lake
from wireyard.layers.symptoms import ENDS
from wireyard.pipeline import replacing
from wireyard.pipeline.decoding import task as bronze
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.streams.batches import DecodedParts
from wireyard.streams.plan import Plan
from wireyard.streams.scan import scan_parts, scan_stream

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
        assert count(tables, "deliveries") == 226
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

    def scan(streams: Iterable[tuple[Any, Plan]], threads: int) -> Iterator[DecodedParts]:
        wanted = list(streams)
        asked.append((wanted[0][1].format.name, threads))
        return scan_parts(wanted, threads)

    def scan_one(stream: Any, plan: Plan, *how: Any) -> Iterator[pa.RecordBatch]:
        asked.append((plan.format.name, how[-1]))
        return scan_stream(stream, plan, *how)

    monkeypatch.setattr(bronze, "scan_parts", scan)
    monkeypatch.setattr(bronze, "scan_stream", scan_one)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    bare = tmp_path / "bare.mqtt"
    bare.write_bytes(mqtt.connect(4) + mqtt.publish(4))
    inputs = CAPTURE, bare, EXAMPLES / "traffic" / "shop-c2b.jmq"
    with open_tables([str(path) for path in inputs]) as tables:
        assert count(tables, "files") == 3
    assert set(asked) == {("jmq", 4), ("mqtt", 4), ("mqtt", 1)}


def test_tables_are_made_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from wireyard.pipeline.facts import stage

    def fail(*_: object) -> None:
        raise AssertionError("facts were made for nothing")

    monkeypatch.setattr(stage, "write_facts", fail)
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


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_bytes_of_bad_rows_are_read_in_pieces(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Rows are near each other, far, longer than a piece, and behind the end of a cut file."""
    rng = Random(3)
    data = rng.randbytes(2_000_000)
    path = tmp_path / "bad"
    path.write_bytes(pack(data))
    with closing(BadBytes(str(path))) as bad_bytes:
        start = 0
        while start < len(data):
            length = rng.choice((0, 1, 2, 30, 5000, MAX_CORRUPT_BYTES, 300_000))
            shown = bad_bytes.read(start, length)
            assert shown == data[start : start + min(length, MAX_CORRUPT_BYTES)]
            start += rng.choice((0, length, length + 70_000))
        assert bad_bytes.read(len(data) + 9, 5) == b""


def test_the_gaps_of_a_stream_are_found_once_for_all_its_bad_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding them takes as long as there are gaps, which can be as many as the rows."""
    found = 0
    pieces = vars(Stream)["pieces"].fget

    def count_them(stream: Stream) -> Grid:
        nonlocal found
        found += 1
        result: Grid = pieces(stream)
        return result

    monkeypatch.setattr(Stream, "pieces", property(count_them))
    path = tmp_path / "holes.pcap"
    frames = net.one_way_frames([(2 * number, b"\x30") for number in range(400)])
    path.write_bytes(net.pcap([*map(net.Packet, frames)]))
    with open_tables([str(path)], format="mqtt") as tables:
        assert count(tables, "quarantine") >= 400
    assert 0 < found < 10


def test_a_table_of_many_rows_stays_in_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are alike take next to nothing in a file; a copy of them in memory does not."""
    monkeypatch.setattr(tables_module, "_FEW_ROWS", 100)
    with open_tables([str(CAPTURE)]) as tables:
        assert count(tables, "streams") == 28 and count(tables, "packets_jmq") > 100
        kept = tables.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal").to_pylist()
    assert kept == [{"view_name": "packets_jmq"}]


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
    url = str(tmp_path / "it's one")
    with open_tables([str(CAPTURE)]) as tables, Lake.open(url) as made:
        made.make_staging(tables.names)
        for name in tables.names:
            pq.write_table(tables.sql(f"FROM {name}"), made.staged(name, "one.parquet"))
        made.commit(Change(append={name: ["one.parquet"] for name in tables.names}))
        expected = {name: count(tables, name) for name in tables.names}
    with open_tables([url]) as lake:
        assert lake.lake
        assert {name: count(lake, name) for name in lake.names} == expected
    with pytest.raises(UsageError, match="is a lake, which is asked alone"):
        open_tables([url, str(CAPTURE)]).__enter__()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake with a table that is called like a word of SQL, and one for runs only."""
    with Lake.open(str(tmp_path / "lake")) as made:
        made.make_staging(["all", "_open"])
        for name in ("all", "_open"):
            pq.write_table(pa.table({"x": [1, 2]}), made.staged(name, "one.parquet"))
        made.commit(Change(append={"all": ["one.parquet"], "_open": ["one.parquet"]}))
    return tmp_path / "lake"


def test_a_table_may_be_called_like_a_word_of_sql(lake: Path) -> None:
    with open_tables([str(lake)]) as tables:
        assert tables.sql('SELECT sum(x) AS n FROM "all"')["n"][0].as_py() == 3
        tables.keep("select", 'FROM "all"')
        assert tables.sql('FROM "select"').num_rows == 2
    shown = CliRunner().invoke(main, ["sql", str(lake), "--out", "jsonl"])
    listed = {row["table"]: row["rows"] for row in map(json.loads, shown.stdout.splitlines())}
    assert (listed["all"], "_open" in listed) == (2, False)


def test_files_that_are_no_parquet(lake: Path) -> None:
    (path,) = read_lake(str(lake)).paths("all")
    Path(path).write_bytes(b"x" * Path(path).stat().st_size)
    with open_tables([str(lake)]) as tables, pytest.raises(LakeDamaged) as caught:
        tables.sql('FROM "all"')
    assert f"/all/{Path(path).name} is not what was written" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(LakeError, match=r"table 'all': .*Parquet") as damaged:
        read_lake(str(lake)).read("all")
    assert "\n" not in str(damaged.value)


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_text('{lake}/_wireyard/commits/00000001.json')",
        "FROM read_text('{lake}/**')",
        "FROM glob('{lake}/**')",
        "FROM read_parquet('{lake}/_wireyard/data/*/_open/one.parquet')",
        "FROM read_blob('{lake}/_wireyard/lock')",
        "FROM '{lake}/all/one.parquet'",
        "FROM sniff_csv('{lake}/_wireyard/commits/00000001.json')",
        "COPY (SELECT 1) TO '{lake}/x.csv'",
        "COPY (SELECT 1) TO '{table}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{lake}/x.csv'",
        "EXPORT DATABASE '{lake}/x'",
        "ATTACH '{lake}/x.db'",
        "CREATE TABLE x AS SELECT 1",
        "CREATE SECRET x (TYPE s3)",
        'INSERT INTO "all" SELECT 3',
        "PRAGMA enable_profiling",
        "CALL enable_logging(storage = 'file', storage_config = {{'path': '{lake}'}})",
        "FROM enable_logging(storage = 'file', storage_config = {{'path': '{lake}'}})",
        "FROM enable_profiling(save_location = '{lake}/x.json')",
        "FROM query('COPY (SELECT 1) TO ''{lake}/x.csv''')",
        "SET temp_directory = '{lake}'",
        "VACUUM",
        "FROM variable",
    ],
)
def test_a_query_reads_and_writes_nothing_else_of_a_lake(lake: Path, query: str) -> None:
    variable = pa.table({"y": [1]})
    there = {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()}
    with open_tables([str(lake)]) as tables:
        (path,) = read_lake(str(lake)).paths("all")
        with pytest.raises(UsageError) as caught:
            tables.sql(query.format(lake=lake, table=path))
        assert "\n" not in str(caught.value)
        assert tables.sql('FROM "all"').num_rows == 2
    assert variable.num_rows == 1
    assert there == {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()}


def test_standard_input_is_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_tables([str(CAPTURE)]) as tables:
        expected = count(tables, "deliveries")
    with CAPTURE.open("rb") as given:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(given))
        with open_tables(["-"]) as tables:
            assert count(tables, "deliveries") == expected
            sources = tables.sql("SELECT DISTINCT source FROM streams").to_pylist()
    assert sources == [{"source": "-"}]


def test_names_begin_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.pcap").write_bytes(CAPTURE.read_bytes())
    monkeypatch.chdir(tmp_path)
    for written, name in (("sub", "sub/one.pcap"), ("./sub/", "./sub/one.pcap")):
        with open_tables([written]) as tables:
            found = tables.sql("SELECT source, file FROM files").to_pylist()
            assert found == [{"source": name, "file": name}]


def test_a_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "copy.pcap").symlink_to(CAPTURE)
    with open_tables([str(CAPTURE), str(tmp_path / "copy.pcap")]) as tables:
        assert count(tables, "streams") == 28
        assert len(tables.notes) == 1 and "is the same as" in tables.notes[0]


def test_a_temporary_folder_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wireyard.cli import main

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("wireyard.lake.parts._Sink.write", fail)
    with pytest.raises(SystemExit) as ended:
        main(["sql", str(CAPTURE), "FROM deliveries"])
    assert ended.value.code == 4
    assert "No space left on device" in (shown := capsys.readouterr().err)
    assert "TMPDIR names another folder" in shown and shown.count("\n") == 1


def test_inputs_that_are_not_there() -> None:
    with pytest.raises(SourceError, match=r"nowhere\.pcap: there is no such file"):
        open_tables(["nowhere.pcap"]).__enter__()


def test_a_query_can_be_interrupted() -> None:
    """DuckDB makes an error of its own of what a handler of a signal raises."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with open_tables([str(CAPTURE)]) as tables, pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            tables.sql("SELECT count(*) FROM range(10000000000000)")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_nothing_is_left_behind() -> None:
    with open_tables([str(CAPTURE)]) as tables:
        count(tables, "messages")
        (folder,) = tables.connection.sql(
            "SELECT current_setting('allowed_directories')"
        ).fetchall()[0]
    assert not Path(folder[0]).exists()


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_lake_of_before_lacks_a_column(
    is_remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, merged = tmp_path / "lake", 3
    monkeypatch.setattr(replacing, "_MERGED", merged)
    for number in range(merged + 1):
        path = ends_before("session").write(tmp_path / f"{number}.pcap")
        with monkeypatch.context() as before, Lake.open(str(lake)) as opened:
            if number < merged - 1:
                at = FILES.get_field_index("last_ns")
                before.setattr(bronze, "FILES", FILES.remove(at))
            fill_lake(opened, list_inputs([str(path)]).inputs, None, Silent())
        with open_tables([str(lake)]) as tables:
            monkeypatch.setattr(tables, "_remote", is_remote)
            found = tables.sql("SELECT last_ns FROM files ORDER BY source")["last_ns"].to_pylist()
            assert [ns is None for ns in found] == [at < merged - 1 for at in range(number + 1)]
            assert all(row["end_ns"] for row in tables.rows(ENDS))
    assert sum("merged" in name for name in read_lake(str(lake)).files["files"]) == 2
