"""The main job with Spark: what ends up in a lake, once and only once."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import wireyard
from tests.formats.mqtt.examples import events_of
from tests.make import nested, packet
from tests.spark.lakes import (
    HELLO,
    HELLO_REPLY,
    NOON_MS,
    TABLES,
    Silent,
    message,
    nothing_left,
    packets_equal,
    parquet_files,
    rows,
    run,
    table,
)
from wireyard.errors import LedgerError, SourceError
from wireyard.lake.writer import Lake, LakeError
from wireyard.layers.tables import TABLES as FACTS
from wireyard.pipeline.decoding import balance
from wireyard.pipeline.decoding import task as bronze
from wireyard.pipeline.decoding.task import AnyPiece
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of streams with everything that can be in one."""
    folder = tmp_path_factory.mktemp("streams")
    inner = message(90) + message(91)
    streams = {
        "client.jmq": HELLO + b"".join(message(n) for n in range(20)),
        "broker.jmq": HELLO_REPLY + b"".join(message(n, consumer_id=5) for n in range(10)),
        "nested.jmq": HELLO + nested(message(50), inner) + nested(message(51), inner, before=3),
        "damaged.jmq": HELLO + b"noise" + message(60) + packet(properties=b"\xff" * 9) + HELLO[:40],
        "below/empty.jmq": b"",
        "below/notes.txt": b"no packets at all",
        "_hidden.jmq": HELLO,
    }
    for name, data in streams.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


STREAMS = ("broker.jmq", "client.jmq", "damaged.jmq", "nested.jmq")


@pytest.fixture(scope="module")
def lake(folder: Path, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with the folder in it."""
    lake = tmp_path_factory.mktemp("lakes") / "lake"
    watch = Silent()
    report = run(lake, spark, folder, watch=watch)
    assert len(report.added) == len(STREAMS) + 1
    size = sum((folder / name).stat().st_size for name in STREAMS)
    assert watch.bytes[-1] == (size, size)
    return lake


# --- what is in the tables ------------------------------------------------------------------


def test_packets_are_those_of_a_reader(lake: Path, folder: Path) -> None:
    packets_equal(lake, [folder / name for name in STREAMS])


def test_every_byte_is_in_the_ledger(lake: Path, folder: Path) -> None:
    ledger = table(lake, "ledger")
    assert ledger.schema.names == [
        "source", "stream", "bytes_read", "bytes_ok", "bytes_malformed", "bytes_garbage",
        "bytes_tail", "packets_ok", "packets_malformed",
    ]  # fmt: skip
    assert rows(lake, "ledger", "source", "bytes_read") == sorted(
        (str(folder / name), (folder / name).stat().st_size)
        for name in (*STREAMS, "below/empty.jmq")
    )
    for row in ledger.to_pylist():
        parts = ("ok", "malformed", "garbage", "tail")
        assert row["bytes_read"] == sum(row[f"bytes_{part}"] for part in parts)
    (damaged,) = (row for row in ledger.to_pylist() if row["source"].endswith("damaged.jmq"))
    malformed = packet(properties=b"\xff" * 9)
    assert list(damaged.values())[4:] == [len(malformed), 5, 40, 2, 1]


def test_what_is_no_packet_is_in_quarantine(lake: Path, folder: Path) -> None:
    found = table(lake, "quarantine").sort_by("offset").to_pylist()
    assert [row["status"] for row in found] == ["garbage", "malformed", "tail"]
    assert {row["source"] for row in found} == {str(folder / "damaged.jmq")}
    assert found[0]["first_bytes"] is None  # it may be a part of a secret
    assert found[0]["error"]["code"] == "bad_magic"


MESSAGE_COLUMNS = [
    "message_key",
    "protocol",
    "sent_ms",
    "sent_ns",
    "sent_at",
    "captured_ns",
    "captured_at",
    "producer",
    "client",
    "producer_client_id",
    "user",
    "destination",
    "destination_kind",
    "persistent",
    "qos",
    "priority",
    "retained",
    "expiration_ms",
    "expiration_at",
    "delivery_time_ms",
    "delivery_time_at",
    "correlation_id",
    "reply_to",
    "message_type",
    "transaction_id",
    "body_kind",
    "body_size",
    "body",
    "properties",
]


def test_messages_have_the_columns_of_the_contract(lake: Path) -> None:
    schema = table(lake, "messages").schema
    assert schema.names[: len(MESSAGE_COLUMNS)] == MESSAGE_COLUMNS
    assert {"file", "frame", "source", "stream", "offset", "length"} <= set(schema.names)
    for name in schema.names:
        if name.endswith(("_ms", "_ns")):
            assert schema.field(name).type == pa.int64()
            assert schema.field(f"{name[:-3]}_at").type == pa.timestamp("us", "UTC")
    packets = table(lake, "packets_jmq").schema
    assert schema.field("properties").type == packets.field("properties").type


def test_a_message_seen_again_is_one_message(lake: Path, folder: Path) -> None:
    found = table(lake, "messages").to_pylist()
    assert sorted(row["sent_ms"] - NOON_MS for row in found) == [*range(20), 50, 51, 60]
    assert {row["first_seen"] for row in found} == {"sent"}
    assert str(folder / "broker.jmq") not in {row["source"] for row in found}


def test_destinations_count_messages_by_the_minute(lake: Path) -> None:
    sizes: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for one in table(lake, "messages").to_pylist():
        sizes[one["source"]] += one["length"]
        messages[one["source"]] += 1
    found = table(lake, "destinations").to_pylist()
    assert len(found) == len(sizes) > 1 and messages.total() == 23
    for row in found:
        assert row.pop("minute_at").timestamp() * 1000 == NOON_MS
        assert row == {
            "destination": "orders",
            "destination_kind": "queue",
            "minute_ms": NOON_MS,
            "messages": messages[row["source"]],
            "bytes": sizes[row["source"]],
            "producers": 1,
            "source": row["source"],
        }


def test_every_reader_sees_the_same(lake: Path, spark: SparkSession) -> None:
    assert {path.name for path in lake.iterdir() if path.name[0] != "_"} == TABLES
    for name in TABLES:
        expected = table(lake, name).num_rows
        (counted,) = duckdb.execute(f"SELECT count(*) FROM '{lake}/{name}/*.parquet'").fetchall()
        assert counted == (expected,)
        assert spark.read.parquet(f"{lake}/{name}").count() == expected
        schemas = [pq.read_schema(path) for path in (lake / name).glob("*.parquet")]
        assert all(schema.equals(schemas[0]) for schema in schemas)


# --- once and only once ---------------------------------------------------------------------


def copied(folder: Path, target: Path) -> list[Path]:
    """Copy the streams to where a test may change them."""
    target.mkdir()
    for name in STREAMS:
        (target / name).write_bytes((folder / name).read_bytes())
    return [target / name for name in STREAMS]


def test_runs_add_what_is_new_and_replace_what_changed(folder: Path, tmp_path: Path) -> None:
    lake, paths = tmp_path / "lake", copied(folder, tmp_path / "in")
    run(lake, None, tmp_path / "in")
    first = parquet_files(lake)

    assert run(lake, None, tmp_path / "in").unchanged == len(STREAMS)
    assert parquet_files(lake) == first

    new = tmp_path / "in" / "new.jmq"
    new.write_bytes(HELLO + message(70))
    report = run(lake, None, tmp_path / "in")
    assert [each.source for each in report.added] == [str(new)]
    assert report.unchanged == len(STREAMS)
    packets_equal(lake, [*paths, new])
    packets = {path.name for path in (lake / "packets_jmq").iterdir()}
    assert len(packets - first) == 1

    damaged = paths[STREAMS.index("damaged.jmq")]
    with damaged.open("ab") as file:  # it grows, and its tail becomes a packet
        file.write(HELLO[40:] + message(80))
    report = run(lake, None, tmp_path / "in")
    assert [each.source for each in report.added] == [str(damaged)]
    assert report.grown == 1  # from its beginning, as the lake has no state of it
    packets_equal(lake, [*paths, new])
    assert sorted(table(lake, "quarantine")["status"].to_pylist()) == ["garbage", "malformed"]
    assert {70, 80} <= {sent - NOON_MS for (sent,) in rows(lake, "messages", "sent_ms")}
    assert table(lake, "ledger").num_rows == len(STREAMS) + 1
    assert run(lake, None, tmp_path / "in").unchanged == len(STREAMS) + 1


def test_tables_are_there_without_a_single_packet(tmp_path: Path) -> None:
    (tmp_path / "empty.jmq").write_bytes(b"")
    run(tmp_path / "lake", None, tmp_path / "empty.jmq")
    assert {name: table(tmp_path / "lake", name).num_rows for name in TABLES - {"packets_jmq"}} == {
        "messages": 0, "destinations": 0, "quarantine": 0, "ledger": 1, "streams": 1, "files": 0,
        **dict.fromkeys(FACTS, 0),
    }  # fmt: skip


@pytest.mark.parametrize("split_bytes", [100, 1000, 4096])
def test_wrong_guesses_are_repaired(tmp_path: Path, split_bytes: int) -> None:
    inner = b"".join(message(n, body=b"deep" * 9) for n in range(100, 108))
    path = tmp_path / "nested.jmq"
    size = {100: 2, 1000: 7, 4096: 17}[split_bytes]
    path.write_bytes(HELLO + b"".join(nested(message(n), inner) for n in range(size)) + b"noise")
    report = run(tmp_path / "lake", None, path, split_bytes=split_bytes)
    assert report.repaired
    packets_equal(tmp_path / "lake", [path])
    nothing_left(tmp_path / "lake")


def test_cut_streams_and_whole_ones_in_one_run(folder: Path, tmp_path: Path) -> None:
    run(tmp_path / "lake", None, folder, split_bytes=900)
    packets_equal(tmp_path / "lake", [folder / name for name in STREAMS])


@pytest.fixture
def by_value() -> Iterator[None]:
    """Send functions of this file to workers, which cannot import it."""
    from pyspark import cloudpickle

    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)  # type: ignore[no-untyped-call]
    yield
    cloudpickle.unregister_pickle_by_value(here)  # type: ignore[no-untyped-call]


def dies_once(marks: str, when: str, original: Any) -> Any:
    """Return `original` for tasks, whose first attempt dies before, in or after its work."""

    def write_task(task: tuple[int, Sequence[AnyPiece]], **given: Any) -> Any:
        mark = os.path.join(marks, str(task[0]))
        first = not os.path.exists(mark)
        if first:
            with open(mark, "w"):
                pass
        if first and when == "before":
            os._exit(1)
        for result in original(task, **given):
            if first and when == "written":
                os._exit(1)
            yield result
            if first and when == "said":
                os._exit(1)

    return write_task


@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize("when", ["before", "written", "said"])
def test_attempts_that_are_killed_leave_nothing_double(
    folder: Path,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    dying = dies_once(str(marks), when, bronze.write_task)
    monkeypatch.setattr(bronze, "write_task", dying)
    run(tmp_path / "lake", spark, folder, split_bytes=2000)
    assert len(list(marks.iterdir())) > 1
    packets_equal(tmp_path / "lake", [folder / name for name in STREAMS])
    assert table(tmp_path / "lake", "messages").num_rows == 23
    assert table(tmp_path / "lake", "quarantine").num_rows == 3
    nothing_left(tmp_path / "lake")


def test_a_run_that_fails_adds_nothing(
    folder: Path,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    examples: Path,
) -> None:
    paths = copied(folder, tmp_path / "in")
    run(tmp_path / "lake", spark, paths[0])
    before = parquet_files(tmp_path / "lake")
    with Lake.open(str(tmp_path / "lake")) as lake:
        found = list_inputs([str(path) for path in paths]).inputs
        paths[1].unlink()
        with pytest.raises(SourceError, match=r"client\.jmq: there is no such file"):
            fill_lake(lake, found, SparkEngine(lambda: spark), Silent())
    assert parquet_files(tmp_path / "lake") == before
    monkeypatch.setattr(balance, "LEDGER", ("bytes_read", "packets_ok", "packets_malformed"))
    for path in (paths[2], examples / "traffic.pcap"):  # joined by the driver, and by its task
        with pytest.raises(LedgerError, match="out of balance"):
            run(tmp_path / "lake", None, path)
    assert parquet_files(tmp_path / "lake") == before


def test_a_lake_that_spark_does_not_reach(folder: Path, spark: SparkSession) -> None:
    with Lake.open("memory://unreached") as lake:
        found = list_inputs([str(folder)]).inputs
        with pytest.raises(LakeError, match=r"^memory://unreached: .* cannot read it \(File"):
            fill_lake(lake, found, SparkEngine(lambda: spark), Silent())


def test_a_full_disk_under_spark_is_one_line(
    folder: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("java.io.IOException: No space left on device")

    monkeypatch.setattr("pyspark.sql.classic.dataframe.DataFrame.toArrow", fail)
    with pytest.raises(LakeError, match=r"^Spark: No space left on device$"):
        run(tmp_path / "lake", spark, folder)


def test_recorded_traffic(
    traffic: list[Path],
    mqtt_traffic: list[Path],
    examples: Path,
    tmp_path: Path,
) -> None:
    run(tmp_path / "lake", None, examples / "traffic", secrets=True)
    packets_equal(tmp_path / "lake", traffic)
    packets_equal(tmp_path / "lake", mqtt_traffic, "mqtt")
    sent = {
        row["sys_message_id"]
        for path in traffic
        if path.stem.endswith("-c2b")
        for row in wireyard.read(path, columns=["packet_type", "sys_message_id"]).to_pylist()
        if row["packet_type"] <= 6
    }
    found = table(tmp_path / "lake", "messages")
    keys = found.filter(pc.equal(found["protocol"], "jms"))["message_key"].to_pylist()
    assert set(keys) == sent
    assert len(keys) == len(sent)
    published = [
        (path.name, *message)
        for path in mqtt_traffic
        if path.stem.endswith("-c2b")
        for message in _told(examples, path.stem.removesuffix("-c2b"))
    ]
    # A source is apart from others: what came again in another file counts there.
    again = {
        f"{row['stream']}@{row['offset']}"
        for path in mqtt_traffic
        if path.stem.endswith("-c2b")
        for row in wireyard.read(path, "mqtt", columns=["stream", "offset", "dup"]).to_pylist()
        if row["dup"]
    }
    names = (
        "producer_client_id",
        "destination",
        "qos",
        "retained",
        "body",
        "correlation_id",
        "reply_to",
    )
    assert published == [
        (Path(row["stream"]).name, *(row[name] for name in names))
        for row in found.sort_by([("stream", "ascending"), ("offset", "ascending")]).to_pylist()
        if row["protocol"] == "mqtt" and row["message_key"] not in again
    ]
    assert found.num_rows == len(sent) + len(published) + len(again)
    assert sum(table(tmp_path / "lake", "destinations")["messages"].to_pylist()) == found.num_rows
    assert table(tmp_path / "lake", "quarantine").num_rows == 0


def _told(examples: Path, connection: str) -> Iterator[tuple[Any, ...]]:
    """Yield what an MQTT client says that it published, in the words of the table."""
    # One came again under its name, and one left it to the broker to find a name.
    client_id = {"till-again": "till", "stock-2": None}.get(connection, connection)
    for one in events_of(examples, connection, "published"):
        correlation = one["properties"].get("CorrelationData")
        with suppress(UnicodeDecodeError):
            correlation = correlation and bytes.fromhex(correlation).decode()
        said = (one["topic"], one["qos"], one["retain"], one["payload"], correlation)
        yield (client_id, *said, one["properties"].get("ResponseTopic"))
