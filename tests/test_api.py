"""The Python face: what the first page of the documentation promises."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from random import Random

import duckdb
import polars
import pyarrow as pa
import pytest

import wireyard
from tests.make import item, items, packet, random_packet, section, variety
from tests.readings import assert_same, table_of
from wireyard.formats.jmq.packet import Packet
from wireyard.streams.window import WINDOW_BYTES

DATA = b"".join(variety())


def test_formats_are_named_with_what_they_are() -> None:
    wireyard.read(DATA)
    for _ in range(2):  # whatever was imported meanwhile
        assert "jmq" in wireyard.formats()
    assert all("\n" not in title and title for title in wireyard.formats().values())


def test_every_public_name_is_there_and_listed() -> None:
    for name in wireyard.__all__:
        if name != "register":  # needs PySpark
            assert getattr(wireyard, name) is not None
    assert set(wireyard.__all__) < set(dir(wireyard))
    assert wireyard.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="nothing"):
        wireyard.nothing  # noqa: B018


def test_read_gives_a_table_and_scan_the_same_in_batches() -> None:
    table = wireyard.read(DATA)
    assert isinstance(table, pa.Table) and table.num_rows == len(variety())
    reader = wireyard.scan(DATA)
    assert isinstance(reader, pa.RecordBatchReader) and reader.schema == table.schema
    assert reader.read_all().equals(table)


def test_the_format_is_told_by_the_first_bytes_or_by_name() -> None:
    assert wireyard.read(DATA).equals(wireyard.read(DATA, "jmq"))
    assert wireyard.read(DATA, format="JMQ").num_rows == len(variety())
    with pytest.raises(wireyard.UsageError, match="begins like no format"):
        wireyard.read(b"x" + DATA)
    assert wireyard.read(b"x" + DATA, "jmq")["status"][0].as_py() == "garbage"
    with pytest.raises(wireyard.UsageError, match="'rmtp'"):
        wireyard.read(DATA, "rmtp")


def test_a_truncated_first_packet_is_told_by_its_beginning() -> None:
    for size in (4, 12, 71):
        assert wireyard.read(packet()[:size])["status"].to_pylist() == ["tail"]


def test_columns_where_and_mode_do_what_they_say() -> None:
    data = packet(packet_type=1) + packet(packet_type=2, body=b"b") + packet(version=9) + b"noise"
    assert wireyard.read(data, columns=["body", "offset"]).to_pydict() == {
        "body": [None, b"b", None, None],
        "offset": [0, 72, 145, 217],
    }
    kept = wireyard.read(data, columns=["offset"], mode="dropmalformed")
    assert kept.to_pydict() == {"offset": [0, 72]}
    found = wireyard.read(data, columns=["offset"], where=[("packet_type", "==", 2)])
    assert found.to_pydict() == {"offset": [72]}
    with pytest.raises(wireyard.DecodeError) as caught:
        wireyard.read(data, columns=["offset"], mode="failfast")
    assert caught.value.code == "unsupported_version"
    with pytest.raises(wireyard.UsageError):
        wireyard.read(data, columns=["nothing"])
    with pytest.raises(wireyard.UsageError):
        wireyard.read(data, mode="nothing")


def test_a_limit_on_packets() -> None:
    data = packet(body=bytes(1000)) + packet()
    found = wireyard.read(data, max_packet_bytes=500)
    assert found["status"].to_pylist() == ["garbage", "ok"]
    kept = wireyard.packets(data, "jmq", "dropmalformed", max_packet_bytes=500)
    assert [one.body for one in kept] == [None]


def test_packets_are_frozen_values_in_order() -> None:
    found = list(wireyard.packets(DATA))
    assert found == [wireyard.decode(data, "jmq") for data in variety()]
    assert all(isinstance(one, Packet) for one in found)


def test_packets_come_while_the_source_is_read() -> None:
    endless = wireyard.packets(Endless(), "jmq")  # type: ignore[arg-type]
    assert [next(endless).sequence for _ in range(3)] == [1, 1, 1]


class Endless:
    """A file of packets without an end."""

    def __init__(self) -> None:
        self.at = 0

    def read(self, size: int) -> bytes:
        start, self.at = self.at % 72, self.at + size
        return (packet() * (size // 72 + 2))[start : start + size]


def test_packets_end_at_the_first_fault_unless_told_otherwise() -> None:
    data = (
        packet(sequence=1) + b"noise" + packet(sequence=2) + packet(version=1) + packet(sequence=3)
    )
    kept = wireyard.packets(data + packet()[:9], mode="dropmalformed")
    assert [one.sequence for one in kept] == [1, 2, 3]
    found = wireyard.packets(data)
    assert next(found).sequence == 1
    with pytest.raises(wireyard.DecodeError) as caught:
        next(found)
    assert any("offset 72" in note for note in caught.value.__notes__)


def test_what_cannot_be_read_as_packets_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(wireyard.UsageError, match="permissive"):
        wireyard.packets(packet(), mode="permissive")
    with pytest.raises(wireyard.UsageError, match="unknown format"):
        wireyard.packets(packet(), format="jqm")
    with pytest.raises(wireyard.SourceError, match="no such file"):
        wireyard.packets(tmp_path / "nothing")


def test_no_columns_are_no_table() -> None:
    with pytest.raises(wireyard.UsageError, match="no column was asked for"):
        wireyard.read(packet(), columns=[])


def test_a_dialect_is_part_of_the_name() -> None:
    middle = bytes.fromhex("30 07 0003 612f62 00 78")
    (row,) = wireyard.read(middle, "mqtt/5.0").to_pylist()
    assert (row["format"], row["version_in_force"], row["payload"]) == ("mqtt/5.0", 5, b"x")
    (row,) = wireyard.read(middle, "mqtt/3.1.1").to_pylist()
    assert (row["version_in_force"], row["payload"]) == (4, b"\0x")
    with pytest.raises(wireyard.UsageError, match=r"no dialect '6'.*mqtt/5\.0"):
        wireyard.read(middle, "mqtt/6")
    with pytest.raises(wireyard.UnknownFormat, match=r"format=NAME, says.*: jmq, .*mqtt/5\.0"):
        wireyard.read(middle)


def test_decode_and_encode_are_each_others_inverse() -> None:
    data = packet(items=items(item(1, "queue")), properties=section(("n", 4, 7)), body=b"body")
    found = wireyard.decode(data, "jmq")
    assert (found.destination, found.properties["n"], found.body) == (
        "queue",
        ("integer", 7),
        b"body",
    )
    assert wireyard.encode(found) == data
    for kind in (bytearray, memoryview):
        assert wireyard.decode(kind(data), "jmq") == found
    with pytest.raises(wireyard.DecodeError):
        wireyard.decode(data + data, "jmq")
    with pytest.raises(wireyard.DecodeError):
        wireyard.decode(b"", "jmq")


@pytest.mark.parametrize("thing", [None, 5, b"bytes", object()])
def test_only_packets_can_be_encoded(thing: object) -> None:
    with pytest.raises(wireyard.WireError):
        wireyard.encode(thing)


def test_threads_do_not_show() -> None:
    rng = Random(1)
    large = packet(body=rng.randbytes(5000))
    data = b"".join(random_packet(rng) + large for _ in range(1800))
    assert len(data) > 2 * WINDOW_BYTES
    one = wireyard.read(data, threads=1)
    assert wireyard.read(data, threads=4).equals(one)
    assert wireyard.read(data).equals(one)
    assert_same(one.combine_chunks(), table_of(data, compiled=False))


def test_errors_go_between_processes_whole() -> None:
    for data in (
        packet(version=9),
        packet(size=99),
        packet(items=b"\0\1"),
        packet(property_size=-1),
    ):
        with pytest.raises(wireyard.DecodeError) as caught:
            wireyard.decode(data, "jmq")
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value) and again.row() == caught.value.row()
    error = wireyard.EncodeError("field", "value", "why")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# --- other libraries ------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [None, ["offset", "destination", "body", "properties"]])
def test_polars_takes_a_scan_as_it_is(columns: list[str] | None) -> None:
    frame = polars.from_arrow(wireyard.scan(DATA, columns=columns))
    assert isinstance(frame, polars.DataFrame)
    table = wireyard.read(DATA, columns=columns)
    assert frame.columns == table.schema.names and len(frame) == table.num_rows
    for name in {"offset", "destination", "body"} & set(frame.columns):
        assert frame[name].to_list() == table[name].to_pylist()
    assert polars.DataFrame(wireyard.read(DATA, columns=["version"])).shape == (len(variety()), 1)


def test_duckdb_takes_a_scan_as_it_is() -> None:
    found = duckdb.from_arrow(wireyard.scan(DATA)).aggregate("version, sum(length)", "version")
    sizes = {version: 0 for version in (103, 200, 301)}
    for data in variety():
        sizes[int.from_bytes(data[4:6], "big")] += len(data)
    assert dict(found.fetchall()) == sizes
    keyed = duckdb.from_arrow(wireyard.scan(packet(properties=section(("key", 4, 7)))))
    [(kind, value)] = keyed.project("properties['key'].type, properties['key'].value").fetchall()
    assert (kind, value) == ("integer", "7")


def test_anything_that_takes_an_arrow_stream_gets_one() -> None:
    again = pa.table(wireyard.scan(DATA))
    assert again.equals(wireyard.read(DATA))
    assert pa.RecordBatchReader.from_stream(wireyard.scan(DATA)).read_all().equals(again)


# --- loading --------------------------------------------------------------------------------


def test_importing_loads_the_standard_library_only() -> None:
    """In a fresh process, where nothing else has loaded anything before."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "before = set(sys.modules)\n"
            "import wireyard\n"
            "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
            "print(sorted(new - set(sys.stdlib_module_names) - {'wireyard'}))\n"
            "print(sorted(name for name in sys.modules if name.startswith('wireyard')))\n",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    assert done.stdout.splitlines() == ["[]", "['wireyard']"]
