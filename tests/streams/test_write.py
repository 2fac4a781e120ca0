"""Tables back to streams: byte for byte where nothing was changed, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import fsspec
import polars
import pyarrow as pa
import pytest

import wireyard
from tests.formats.gpacket import make as gpacket
from tests.formats.mqtt import make as mqtt
from tests.formats.rmp import make as rmp
from tests.make import ALL_ITEMS, ALL_TYPES, item, items, long_item, packet, random_packet, section
from tests.readings import JMQ, table_of
from wireyard.errors import EncodeError, SourceError
from wireyard.streams.write import encode_batches, encode_rows, whole_file, write_stream

ROOT = Path(__file__).resolve().parents[2]
DATA = (
    packet(items=ALL_ITEMS, properties=section(*ALL_TYPES), body=b"body", bit_flags=5)
    + packet(packet_type=20)
    + packet(properties=section())
    + packet(items=items(item(1, "q"), item(99, b"new")), body=b"\0\xff")
    + packet(version=103, items=items(), transaction_id=-4)
    + packet(version=200, body=b"200")
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out" / "stream.jmq"


@pytest.fixture(autouse=True)
def _folder(target: Path) -> None:
    target.parent.mkdir()


def only(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("compiled", [False, True])
def test_what_was_read_is_written_byte_for_byte(compiled: bool, target: Path) -> None:
    table = table_of(DATA, compiled=compiled)
    assert wireyard.write(table, target, "jmq") == len(DATA)
    assert target.read_bytes() == DATA
    assert only(target.parent) == [target.name]


@pytest.mark.parametrize(
    ("label", "data"),
    [
        ("gpacket", gpacket.gpacket(properties=section(*ALL_TYPES), payload=b"p") + gpacket.link()),
        ("mqtt", b"".join(mqtt.variety(5))),
        ("mqtt/3.1.1", b"".join(mqtt.variety(4)[3:])),
        ("mqtt/mqipdp-msb", mqtt.connect(2) + mqtt.publish(2, 0x32, packet_id=1)),
        ("rmp", rmp.message(rmp.MORE | rmp.DOMAIN, b"one") + rmp.message(rmp.REPLY_TO, b"two")),
        ("rmp/framed", rmp.framed(rmp.message(0, b"one"), rmp.message(rmp.CLIENT, b"two"))),
    ],
)
def test_every_format_is_written_byte_for_byte(label: str, data: bytes, target: Path) -> None:
    table = table_of(data, compiled=False, format=label)
    assert wireyard.write(table, target, label) == len(data)
    assert target.read_bytes() == data


def test_real_streams_come_back_from_columns(shared: Path, target: Path) -> None:
    for path in sorted((shared / "streams" / "real").glob("*.jmq")):
        wireyard.write(wireyard.read(path), target, "jmq")
        assert target.read_bytes() == path.read_bytes(), path.name


def test_examples_come_back_from_columns(traffic: list[Path], target: Path) -> None:
    for path in traffic:
        wireyard.write(wireyard.read(path), target, "jmq")
        assert target.read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("compiled", [True, False])
def test_random_packets_come_back_from_columns(target: Path, compiled: bool) -> None:
    rng = Random(3)
    data = b"".join(random_packet(rng) for _ in range(400))
    wireyard.write(table_of(data, compiled=compiled), target, "jmq")
    assert target.read_bytes() == data


def test_a_changed_row_is_written_anew() -> None:
    odd = packet(
        items=items(item(1, "first"), long_item(9, 7)), properties=section(*PAIR), body=b"b"
    )
    table = table_of(odd, compiled=True)
    assert table["raw_header"][0].as_py() == odd[:96]
    assert table["raw_properties"][0].as_py() == section(*PAIR)
    [row] = table.to_pylist()
    [batch] = table.to_batches()
    assert b"".join(encode_batches([batch], JMQ)) == odd
    for name, value in (("destination", "second"), ("priority", 1), ("producer_id", 8)):
        [written] = encode_rows([{**_mapped(row), name: value}], JMQ)
        found = wireyard.decode(written, "jmq")
        assert getattr(found, name) == value and found.raw_header is None
        assert found.properties == {"n": ("integer", 2)}
    changed = {**_mapped(row), "properties": {"n": {"type": "integer", "value": "3"}}}
    [written] = encode_rows([changed], JMQ)
    assert wireyard.decode(written, "jmq").properties == {"n": ("integer", 3)}
    assert section(("n", 4, 3)) in written


PAIR = (("n", 4, 1), ("n", 4, 2))


def _mapped(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "properties": dict(row["properties"])}


def test_columns_that_are_not_there_get_their_defaults(target: Path) -> None:
    table = pa.table({"packet_type": [54, 55], "destination": ["a", None]})
    wireyard.write(table, target, "jmq")
    found = list(wireyard.packets(target))
    assert [one.packet_type for one in found] == [54, 55]
    assert [one.destination for one in found] == ["a", None]
    assert [one.priority for one in found] == [5, 5]


def test_columns_of_others_are_let_be(target: Path) -> None:
    table = pa.table({"packet_type": [54], "my_note": ["x"], "size": [12345], "body_size": [9]})
    assert wireyard.write(table, target, "jmq") == 72


def test_frames_and_results_of_other_libraries_are_taken(target: Path) -> None:
    table = wireyard.read(DATA)
    frame = polars.from_arrow(table)
    wireyard.write(frame, target, "jmq")
    assert target.read_bytes() == DATA
    rows = duckdb.from_arrow(table).order('"offset"')
    wireyard.write(rows, target, "jmq")
    assert target.read_bytes() == DATA


def test_a_reader_is_written_batch_by_batch(target: Path) -> None:
    table = wireyard.read(DATA)
    reader = pa.RecordBatchReader.from_batches(table.schema, iter(table.to_batches(2)))
    assert wireyard.write(reader, target, "jmq") == len(DATA)
    assert target.read_bytes() == DATA


def test_no_rows_are_an_empty_stream(target: Path) -> None:
    assert wireyard.write(wireyard.read(b"", "jmq"), target, "jmq") == 0
    assert target.read_bytes() == b""


def test_a_store_behind_fsspec_is_written() -> None:
    assert wireyard.write(wireyard.read(DATA), "memory://written/stream.jmq", "jmq") == len(DATA)
    with fsspec.open("memory://written/stream.jmq", "rb") as file:
        assert file.read() == DATA


# --- what cannot be written -----------------------------------------------------------------


def batch_of(**columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"packet_type": [1], **columns})


@pytest.mark.parametrize(
    "batch",
    [
        pa.RecordBatch.from_pydict({"destination": ["no type"]}),
        batch_of(priority=[1000]),
        batch_of(packet_type=[None]),
        batch_of(raw_header=["text"]),
        batch_of(properties=[{}], raw_properties=["text"]),
        batch_of(source_ip=[b"short"]),
        batch_of(version=[300]),
        batch_of(body=[5]),
        batch_of(properties=[{"a": {"type": "double", "value": None}}]),
        batch_of(properties=[{"a": {"type": "whole", "value": "1"}}]),
        batch_of(properties=[{"a": {"type": "integer", "value": "one"}}]),
        batch_of(properties=[{"a": None}]),
        batch_of(properties=[{"a": {"kind": "integer"}}]),
        batch_of(unknown_items=[[{"type": 5, "value": b""}]]),
    ],
    ids=range(14),
)
def test_a_row_that_is_no_packet_is_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(EncodeError) as caught:
        b"".join(encode_batches([batch], JMQ))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"noise", packet(version=9), packet()[:60]], ids=["garbage", "malformed", "tail"]
)
def test_a_fault_is_not_written_as_if_it_were_a_packet(data: bytes, target: Path) -> None:
    target.write_bytes(b"what was there")
    table = wireyard.read(packet() + data, "jmq")
    with pytest.raises(EncodeError, match="status"):
        wireyard.write(table, target, "jmq")
    assert target.read_bytes() == b"what was there"
    assert only(target.parent) == [target.name]


def test_a_file_appears_whole_or_not_at_all(target: Path) -> None:
    with pytest.raises(RuntimeError), whole_file(str(target)) as file:
        file.write(b"half")
        assert not target.exists()
        raise RuntimeError
    assert only(target.parent) == []
    with whole_file(str(target)) as file:
        file.write(b"whole")
    assert target.read_bytes() == b"whole" and only(target.parent) == [target.name]


def test_nothing_is_written_through_a_link_of_others(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireyard.streams.write.token_hex", lambda size: "guessed")
    victim, link = target.with_name("victim"), target.with_name(f".{target.name}.guessed.part")
    victim.write_text("theirs")
    link.symlink_to(victim)
    with pytest.raises(SourceError, match="File exists"), whole_file(str(target)) as file:
        file.write(b"ours")
    assert victim.read_text() == "theirs" and not target.exists()


def test_an_interrupt_leaves_what_was_there(target: Path) -> None:
    target.write_bytes(b"what was there")
    with pytest.raises(KeyboardInterrupt), whole_file(str(target)) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"what was there" and only(target.parent) == [target.name]


def test_a_folder_that_is_not_there_is_one_line(target: Path) -> None:
    missing = target.parent / "no" / "such" / "stream.jmq"
    with pytest.raises(SourceError) as caught:
        wireyard.write(wireyard.read(DATA), missing, "jmq")
    assert str(caught.value).startswith(f"{missing}: cannot be written (")


def test_a_folder_cannot_be_written_as_a_file(target: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written"):
        wireyard.write(wireyard.read(DATA), target.parent, "jmq")
    assert target.parent.is_dir() and only(target.parent) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_a_full_device_is_one_line() -> None:
    with pytest.raises(SourceError) as caught:
        wireyard.write(wireyard.read(DATA), "/dev/full", "jmq")
    assert str(caught.value) == "/dev/full: cannot be written (No space left on device)"
    assert Path("/dev/full").is_char_device()


def test_a_disk_that_gets_full_leaves_nothing_behind(target: Path) -> None:
    target.write_bytes(b"what was there")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import resource, sys, wireyard\n"
            "from tests.make import packet\n"
            "table = wireyard.read(packet(body=bytes(1000)) * 100)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
            "try:\n"
            "    wireyard.write(table, sys.argv[1], 'jmq')\n"
            "except wireyard.SourceError as error:\n"
            "    print(error)\n",
            str(target),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == f"{target}: cannot be written (File too large)\n", done.stderr
    assert target.read_bytes() == b"what was there" and only(target.parent) == [target.name]


def test_a_device_takes_bytes_as_they_come() -> None:
    assert wireyard.write(wireyard.read(DATA), "/dev/null", "jmq") == len(DATA)
    assert Path("/dev/null").is_char_device()


def test_a_fault_of_the_source_is_not_one_of_the_target(target: Path) -> None:
    def batches() -> object:
        yield from wireyard.read(DATA).to_batches()
        raise SourceError("in.jmq: Input/output error")

    with pytest.raises(SourceError, match=r"in\.jmq"):
        write_stream(batches(), str(target), JMQ)  # type: ignore[arg-type]
    assert only(target.parent) == []
