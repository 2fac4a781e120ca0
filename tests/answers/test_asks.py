"""The requests of users in docs/asks.md, each with a complete check."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from tests.answers.talks import Talk, puback
from tests.captures.make import Packet
from tests.captures.make import pcap as pcap_of
from tests.formats.mqtt.make import packet, publish
from tests.spark.lakes import Silent
from wireyard.answers import open_tables
from wireyard.captures.files.file import read_records
from wireyard.cli import main
from wireyard.lake.writer import Lake
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake

EXAMPLES = Path(__file__).parents[2] / "examples"
CAPTURE = EXAMPLES / "traffic.pcap"
LOGINS = EXAMPLES / "symptoms" / "mqtt-healthy.pcap"
ETHERNET, IP = 14, 20


def records(path: Path) -> list[Packet]:
    """Return the packets of a capture in the classic format."""
    data = path.read_bytes()
    found = []
    for some in read_records(np.frombuffer(data, np.uint8), ""):
        places = zip(
            some.starts.tolist(), some.captured.tolist(), some.times_ns.tolist(), strict=True
        )
        found += [Packet(data[at : at + size], time_ns) for at, size, time_ns in places]
    return found


def payload_of(record: Packet) -> int:
    """Return where the payload of a TCP segment begins."""
    ip = ETHERNET + 4 * (record.data[ETHERNET] & 15)
    return ip + 4 * (record.data[ip + 12] >> 4)


def cut(record: Packet, places: list[int]) -> list[Packet]:
    """Return a segment as several, cut at places of its payload."""
    start = payload_of(record)
    ip = ETHERNET + 4 * (record.data[ETHERNET] & 15)
    total = int.from_bytes(record.data[ETHERNET + 2 : ETHERNET + 4], "big")
    payload = record.data[start : ETHERNET + total]
    bounds = sorted({0, *(place for place in places if 0 < place < len(payload)), len(payload)})
    if len(bounds) < 3:
        return [record]
    (sequence,) = struct.unpack_from(">I", record.data, ip + 4)
    pieces = []
    for first, stop in pairwise(bounds):
        head = bytearray(record.data[:start])
        struct.pack_into(">H", head, ETHERNET + 2, total - len(payload) + stop - first)
        struct.pack_into(">I", head, ip + 4, (sequence + first) & 0xFFFFFFFF)
        pieces.append(Packet(bytes(head) + payload[first:stop], record.time_ns))
    return pieces


def messages(path: Path) -> pa.Table:
    """Return all that messages say apart from where the capture has them."""
    with open_tables([str(path)]) as tables:
        return tables.sql(
            "SELECT * EXCLUDE (source, file, frame, file_frame) FROM messages"
            ' ORDER BY stream, "offset", message_key'
        )


# --- 1: one row a message, every byte accounted for -----------------------------------------


@pytest.mark.parametrize("name", ["mqtt-healthy", "jms-healthy"])
def test_segments_that_are_cut_anywhere_give_the_same_messages(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / "symptoms" / f"{name}.pcap"
    whole, expected, rng = records(path), messages(path), Random(name)
    assert expected.num_rows >= 5
    random = [rng.random() for _ in range(3)]
    for way in ("every byte", "at random", *range(1, 20)):
        pieces = []
        for record in whole:
            size = max(len(record.data) - payload_of(record), 0)
            places = [way] if isinstance(way, int) else [int(one * size) for one in random]
            pieces += cut(record, list(range(size)) if way == "every byte" else places)
        assert len(pieces) > len(whole)
        again = tmp_path / "cut.pcap"
        again.write_bytes(pcap_of(pieces))
        assert messages(again).equals(expected), way
        if way == "every byte":
            glued = glue(pieces)
            assert len(glued) < len(pieces) / 4
            again.write_bytes(pcap_of(glued))
            assert messages(again).equals(expected)


def glue(pieces: list[Packet]) -> list[Packet]:
    """Return segments that follow each other at the same time as one."""
    glued: list[Packet] = []
    for piece in pieces:
        before = glued[-1] if glued else piece
        start = payload_of(piece)
        same = (
            before.data[ETHERNET + 12 : ETHERNET + IP + 4]
            == (piece.data[ETHERNET + 12 : ETHERNET + IP + 4])
        )
        (first,), (then,) = (
            struct.unpack_from(">I", one.data, ETHERNET + IP + 4) for one in (before, piece)
        )
        size = len(before.data) - payload_of(before)
        follows = same and size and (first + size) & 0xFFFFFFFF == then
        if glued and follows and before.time_ns == piece.time_ns and len(piece.data) > start:
            head = bytearray(before.data + piece.data[start:])
            struct.pack_into(">H", head, ETHERNET + 2, len(head) - ETHERNET)
            glued[-1] = Packet(bytes(head), before.time_ns)
        else:
            glued.append(piece)
    return glued


# --- 2: a verdict per delivery --------------------------------------------------------------


def test_one_of_three_at_qos_2_is_lost(tmp_path: Path) -> None:
    """As mosquitto#3056: three QoS 2 publishes, one of them never forwarded."""
    talk = Talk()
    talk.login(1, 5001, "gets")
    talk.subscribe(2, 5001, "plant/#", qos=2)
    talk.login(3, 5002, "sends")
    for number in (1, 2, 3):
        at = 10.0 * number
        topic, payload = f"plant/{number}", b"%d" % number
        talk.say(at, 5002, publish(4, 0x34, topic, packet_id=number, payload=payload), up=True)
        for later, kind, up in ((0.1, 0x50, False), (0.2, 0x62, True), (0.3, 0x70, False)):
            talk.say(at + later, 5002, packet(kind, number.to_bytes(2, "big")), up=up)
        if number == 2:
            continue
        talk.say(at + 1, 5001, publish(4, 0x34, topic, packet_id=number, payload=payload), up=False)
        for later, kind, up in ((1.1, 0x50, True), (1.2, 0x62, False), (1.3, 0x70, True)):
            talk.say(at + later, 5001, packet(kind, number.to_bytes(2, "big")), up=up)
    talk.say(60_000, 5002, packet(0xC0), up=True)
    path = talk.write(tmp_path / "lost.pcap")
    with open_tables([str(path)]) as tables:
        rows = tables.sql("FROM deliveries ORDER BY sent_ns").to_pylist()
    assert [row["verdict"] for row in rows] == ["delivered", "not_forwarded", "delivered"]
    lost = rows[1]
    assert (lost["destination"], lost["producer_client_id"], lost["consumer_client_id"]) == (
        "plant/2", "sends", "gets",
    )  # fmt: skip
    assert lost["sent_frame"] and lost["accepted_frame"] and lost["subscribed_frame"]
    assert lost["delivered_frame"] is None


def test_a_packet_identifier_that_is_used_again_is_flagged(tmp_path: Path) -> None:
    """As emqx#16296: the broker uses an identifier whose message is not acknowledged yet."""
    talk = Talk()
    talk.login(1, 5001, "gets")
    talk.subscribe(2, 5001, "plant/#")
    talk.login(3, 5002, "sends")
    for number in (1, 2):
        topic, payload = f"plant/{number}", b"%d" % number
        talk.publish(10.0 * number, 5002, topic, payload, number)
        talk.deliver(10.0 * number + 1, 5001, topic, payload, 7, acknowledged_ms=None)
    talk.say(40, 5001, puback(7), up=True)
    path = talk.write(tmp_path / "reused.pcap")
    with open_tables([str(path)]) as tables:
        rows = tables.sql("SELECT rule, client, frame FROM violations").to_pylist()
    assert any(row["rule"].startswith("MQTT-2.") for row in rows), rows


# --- 9: damage is data ----------------------------------------------------------------------


def counted(path: Path) -> dict[str, Any]:
    """Return how many messages, bad rows and gaps there are."""
    with open_tables([str(path)]) as tables:
        (row,) = tables.sql(
            "SELECT (SELECT count(*) FROM messages) AS messages,"
            " (SELECT count(*) FROM quarantine) AS bad,"
            " (SELECT count(*) FROM quarantine WHERE error IS NULL) AS unexplained,"
            " (SELECT sum(bytes_gap) FROM streams) AS gap,"
            " (SELECT sum(bytes_read - bytes_ok - bytes_malformed - bytes_garbage - bytes_tail)"
            " FROM ledger) AS nowhere"
        ).to_pylist()
        return {**row, "notes": tables.notes}


def test_what_is_whole_of_a_damaged_capture_comes_out(tmp_path: Path) -> None:
    whole, before = records(CAPTURE), counted(CAPTURE)
    rng = Random(9)
    damaged = {
        "5 % of frames lost": [one for one in whole if rng.random() >= 0.05],
        "96 bytes captured": [Packet(one.data[:96], one.time_ns, len(one.data)) for one in whole],
    }
    for name, some in damaged.items():
        path = tmp_path / "damaged.pcap"
        path.write_bytes(pcap_of(some))
        found = counted(path)
        assert found["nowhere"] == 0 and found["unexplained"] == 0, name
        assert found["bad"] > before["bad"] and found["gap"] > 0, name
        assert 0 < found["messages"] <= before["messages"], name
    path.write_bytes(CAPTURE.read_bytes()[:-5])
    cut_short = counted(path)
    assert before["messages"] - cut_short["messages"] <= 1
    assert any("not read" in note for note in cut_short["notes"])
    shown = CliRunner().invoke(main, ["decode", str(path), "--format", "mqtt", "--out", "jsonl"])
    assert shown.exit_code == 1 and shown.stdout.count("\n") > 250


def test_without_its_connect_a_version_that_was_guessed_says_so(tmp_path: Path) -> None:
    some = [one for one in records(LOGINS) if b"MQTT" not in one.data]
    path = tmp_path / "middle.pcap"
    path.write_bytes(pcap_of(some))
    assert len(some) < len(records(LOGINS))
    found = counted(path)
    assert found["messages"] > 0 and found["nowhere"] == 0


# --- 11: tables every engine takes ----------------------------------------------------------


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of the example and of a store."""
    folder = tmp_path_factory.mktemp("lakes") / "lake"
    with Lake.open(str(folder)) as opened:
        found = list_inputs([str(CAPTURE), str(EXAMPLES / "store" / "fs370")]).inputs
        fill_lake(opened, found, None, Silent())
    return folder


def tables_of(lake: Path) -> list[Path]:
    return sorted(one for one in lake.iterdir() if one.name[0] not in "_.")


def inner_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for place in range(kind.num_fields):
        yield from inner_types(kind.field(place).type)


def test_types_are_those_that_every_engine_has(lake: Path) -> None:
    names = {one.name for one in tables_of(lake)}
    assert {"messages", "deliveries", "latencies", "files", "store_records"} <= names
    for table in tables_of(lake):
        for field in ds.dataset(table).schema:
            for kind in inner_types(field.type):
                assert not pa.types.is_unsigned_integer(kind), (table.name, field)
                assert not pa.types.is_union(kind) and not pa.types.is_dictionary(kind)
                assert not pa.types.is_timestamp(kind) or kind == pa.timestamp("us", "UTC")


def test_duckdb_and_polars_read_every_table(lake: Path) -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    for table in tables_of(lake):
        rows = ds.dataset(table).count_rows()
        files = str(table / "*.parquet")
        assert polars.scan_parquet(files).collect().height == rows
        assert duckdb.execute(f"SELECT count(*) FROM '{files}'").fetchall() == [(rows,)]


def test_delta_takes_every_table_without_a_cast(lake: Path, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    for table in tables_of(lake):
        rows = ds.dataset(table).to_table()
        path = str(tmp_path / table.name)
        deltalake.write_deltalake(path, rows)
        written = deltalake.DeltaTable(path).to_pyarrow_table()
        assert written.num_rows == rows.num_rows, table.name


def test_iceberg_takes_every_table_without_a_cast(lake: Path, tmp_path: Path) -> None:
    reason = "pyiceberg or the sqlalchemy of its catalog in memory is not installed"
    memory = pytest.importorskip("pyiceberg.catalog.memory", reason=reason)
    catalog = memory.InMemoryCatalog("asks", warehouse=tmp_path.as_uri())
    catalog.create_namespace("lake")
    for table in tables_of(lake):
        rows = ds.dataset(table).to_table()
        iceberg = catalog.create_table(f"lake.{table.name}", schema=rows.schema)
        iceberg.append(rows)
        assert iceberg.scan().to_arrow().num_rows == rows.num_rows, table.name


# --- the page -------------------------------------------------------------------------------


def test_the_page_names_tests_that_there_are() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "asks.md").read_text()
    assert len(re.findall(r"^## \d+\. ", page, re.MULTILINE)) == 15
    assert named_tests(page) > 40
    threats = (root / "docs" / "threats.md").read_text()
    rows = re.findall(r"^\| .*", threats, re.MULTILINE)[1:]
    assert all(map(named_tests, rows)) and len(rows) > 10


def named_tests(page: str) -> int:
    """Return how many tests a page names; each of them exists."""
    root, named = Path(__file__).parents[2], 0
    for row in page.splitlines():
        text = ""
        for file, test in re.findall(r"`(?:(tests/[\w/.]+))?(?:::)?(test_\w+)?`", row):
            if file:
                assert (root / file).is_file(), file
                text = (root / file).read_text()
            if test:
                assert f"def {test}(" in text, (file, test)
                named += 1
    return named
