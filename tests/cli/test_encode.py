"""encode: what decode printed comes back byte for byte, anything else is one clear line."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wireyard
from tests.captures.make import one_way
from tests.cli.results import Run, one_line, rows_of
from tests.formats.gpacket.make import variety as gpacket_variety
from tests.make import item, items, packet, section, variety
from wireyard.formats import get_format, names
from wireyard.formats.base import Row
from wireyard.formats.gpacket import packet as gpacket
from wireyard.formats.jmq import packet as jmq
from wireyard.formats.mqtt.control import CONTROL_PACKETS, Connect, Publish, Subscribe
from wireyard.formats.rmp import packet as rmp
from wireyard.formats.rows import pick_columns

JMQ = get_format("jmq")
CONNECT = bytes.fromhex("10 0d 0004 4d515454 04 02 003c 0001 61")
PUBLISH = bytes.fromhex("30 05 0003 612f62")


def there_and_back(run: Run, source: Path) -> bytes:
    """Return a stream after decode and encode."""
    printed = run("decode", source, "--out", "jsonl", "--secrets")
    assert (printed.exit_code, printed.stderr) == (0, "")
    result = run("encode", stdin=printed.stdout_bytes)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout_bytes


def test_recorded_streams_come_back(
    run: Run, traffic: list[Path], mqtt_traffic: list[Path]
) -> None:
    for source in [*traffic, *mqtt_traffic]:
        assert there_and_back(run, source) == source.read_bytes(), source.name


@pytest.mark.parametrize("name", ["jmq", "gpacket", "mqtt"])
def test_captured_packets_come_back(name: str, run: Run, tmp_path: Path) -> None:
    """Rows of captures have columns that the rows of streams do not have."""
    packets = {"jmq": variety(), "gpacket": gpacket_variety(), "mqtt": [CONNECT, PUBLISH]}[name]
    data, source = b"".join(packets), tmp_path / "captured.pcap"
    pieces = [(at, data[at : at + 1400]) for at in range(0, len(data), 1400)]
    source.write_bytes(one_way(pieces, server=4567))
    assert there_and_back(run, source) == data


def test_a_recorded_capture_comes_back(run: Run) -> None:
    source = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"
    printed = run("decode", source, "--out", "jsonl", "--secrets")
    result = run("encode", stdin=printed.stdout_bytes)
    assert (result.exit_code, result.stderr) == (0, "")
    lengths = [json.loads(line)["length"] for line in printed.stdout.splitlines()]
    assert len(result.stdout_bytes) == sum(lengths)


def test_real_streams_come_back(run: Run, shared: Path) -> None:
    sources = [*sorted((shared / "streams/real").glob("*.jmq")), shared / "streams/jmq_5000.stream"]
    assert len(sources) == 27
    for source in sources:
        assert there_and_back(run, source) == source.read_bytes(), source.name


@pytest.mark.parametrize("number", range(len(variety())))
def test_every_kind_of_packet_comes_back(number: int, run: Run, tmp_path: Path) -> None:
    source, data = tmp_path / "one.jmq", variety()[number]
    source.write_bytes(data)
    assert there_and_back(run, source) == data


def test_a_row_needs_no_more_than_a_type(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "ping.jmq"
    line = '\n  {"packet_type": 54, "consumer_id": 7, "destination": null}  \n\n'
    result = run("encode", "--format", "jmq", "-w", target, stdin=line)
    assert (result.exit_code, result.stderr) == (0, f"wireyard: wrote {target}, 1 packet\n")
    made = wireyard.decode(target.read_bytes(), "jmq")
    assert (made.packet_type, made.consumer_id, made.destination) == (54, 7, None)


def test_lines_may_be_compressed_and_as_long_as_they_like(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl.gz"
    rows = [{"format": "jmq", "packet_type": 1, "body": "ab" * size} for size in (3_000_000, 1)]
    source.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    result = run("encode", source)
    assert result.exit_code == 0
    table = wireyard.read(result.stdout_bytes, format="jmq")
    assert table["body_size"].to_pylist() == [3_000_000, 1]


def test_a_line_without_end_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireyard.cli.packets.encode._MAX_LINE_BYTES", 1000)
    source = tmp_path / "rows.jsonl"
    source.write_text('{"packet_type":54}\n' + "x" * 2000)
    result = run("encode", source, "--format", "jmq")
    assert (result.exit_code, one_line(result)) == (3, f"{source}, line 2: is over 1000 bytes")


def test_faults_have_no_bytes_to_write(run: Run, damaged: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jmq"
    assert run("decode", damaged, "-w", source).exit_code == 1
    result = run("encode", source, "-w", target)
    assert (result.exit_code, target.exists()) == (3, False)
    assert one_line(result).endswith(f"in {source}, line 2")
    result = run("encode", source, "-w", target, "--skip-faults")
    assert (result.exit_code, one_line(result)) == (
        0,
        f"{source}: 4 rows left out, being no packets",
    )
    assert target.read_bytes() == packet(body=b"first") + packet(body=b"last")


@pytest.mark.parametrize("words", [(), ("--secrets", "--body", "none")])
def test_a_body_that_was_taken_out_is_missed(words: tuple[str, ...], run: Run, login: Path) -> None:
    rows = run("decode", login, *words)
    result = run("encode", stdin=rows.stdout_bytes)
    assert result.exit_code == 3
    assert one_line(result).startswith("'body' cannot be None: body_size is 17;")
    edited = [without_derived(row) for row in rows_of(rows)]
    assert run("encode", stdin="\n".join(map(json.dumps, edited))).exit_code == 0


BAD_LINES = {
    '{"format":"jmq","packet_type":1,"timestamps":[null]}': "'timestamps' cannot be None: a ",
    "{bad": "is no JSON: Expecting property name enclosed in double quotes, column 2",
    "[1]": "is no row: an object with columns is needed",
    "[" * 100_000: "is no JSON: bytes that are not UTF-8, or too many brackets",
    '{"packet_type":54}': "the row has no 'format'; name it with --format",
    '{"format":"jmq"}': "'packet_type' cannot be None: every packet has a type",
    '{"format":"hmq"}': "unknown format 'hmq'; there are:",
    '{"format":"jmq","destinaton":"x"}': "'column' cannot be 'destinaton': there are source,",
    '{"format":"jmq","packet_type":"1"}': "'packet_type' cannot be '1': an integer is needed",
    '{"format":"jmq","packet_type":true}': "'packet_type' cannot be True: an integer is needed",
    '{"format":"jmq","packet_type":1,"body":"xy"}': "'body' cannot be 'xy': bytes are written as",
    '{"format":"jmq","packet_type":1,"properties":[]}': "'properties' cannot be []",
    '{"format":"jmq","packet_type":1,"properties":{"a":1}}': "'property a' cannot be 1",
    '{"format":"jmq","packet_type":70000}': "'packet_type' cannot be 70000",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named(line: str, run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jmq"
    source.write_text(f'{{"format":"jmq","packet_type":54}}\n\n{line}\n')
    result = run("encode", source, "-w", target)
    assert result.exit_code == (2 if "hmq" in line else 3)
    assert one_line(result).startswith(BAD_LINES[line])
    assert one_line(result).endswith(f"in {source}, line 3")
    assert not target.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["type", "value"]), inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["integer", "float", "object", "string", "x"]), "value": inner}
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("name", names())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_json_is_a_packet_or_one_line(name: str, run: Run, data: st.DataObject) -> None:
    columns = [column.name for column in pick_columns(get_format(name), None)]
    row = data.draw(st.dictionaries(st.sampled_from(columns), JSON, max_size=6))
    least = {} if name == "rmp" else {"packet_type": data.draw(st.integers(1, 15))}
    words = "encode", "--format", name, "--skip-faults"
    result = run(*words, stdin=json.dumps({**least, **row}))
    if result.exit_code:
        assert result.exit_code == 3
        assert one_line(result).endswith("in -, line 1")


def without_derived(row: Row) -> Row:
    format = get_format(row["format"].partition("_")[0])
    return {name: value for name, value in row.items() if name not in format.derived}


def test_a_row_is_changed_without_the_columns_that_follow(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "one.jmq"
    source.write_bytes(packet(items=items(item(1, "old")), properties=section(("n", 4, 1))))
    (row,) = rows_of(run("decode", source))
    row["destination"] = "a much longer name than before"
    result = run("encode", stdin=json.dumps(row))
    assert (result.exit_code, one_line(result)) == (
        3,
        "'size' cannot be 101: by the other columns it is 125; in -, line 1",
    )
    result = run("encode", stdin=json.dumps(without_derived(row)))
    assert result.exit_code == 0
    assert wireyard.decode(result.stdout_bytes, "jmq").destination == row["destination"]


# --- columns that follow from others --------------------------------------------------------

PLACES = {"packet_offset", "message_in_packet"}
"""Columns of RMP that say where the message stood."""


@pytest.mark.parametrize("name", names())
def test_every_column_counts_or_follows_from_others(name: str) -> None:
    format = get_format(name)
    columns = {column.name for column in format.columns}
    counts = {"packet_type", *(field.name for one in PACKETS[name] for field in fields(one))}
    counts.add("raw_properties")  # how the properties of a packet are laid out
    assert set(format.derived) <= columns
    assert columns <= counts | {*format.derived} | PLACES
    # Of these another type of packet, or another version, has a choice.
    assert counts & {*format.derived} <= {
        "property_offset", "flags", "qos", "remaining_length_bytes", "header_flags",
    }  # fmt: skip


PACKETS: dict[str, tuple[Any, ...]] = {
    "jmq": (jmq.Packet,),
    "gpacket": (gpacket.Packet, gpacket.LinkPacket),
    "mqtt": tuple(CONTROL_PACKETS.values()),
    "rmp": (rmp.Message,),
}
ROWS: list[tuple[str, Any]] = [
    ("jmq", jmq.Packet(packet_type=1, bit_flags="Q", source_ip="1.2.3.4", destination="q",
                       properties={"n": 1}, body="text")),
    ("gpacket", gpacket.Packet(packet_type="G_PING", bit_flags="A", properties={"n": 1},
                               payload=b"x")),
    ("mqtt", Connect(client_id="c", username="u", password="p", version_in_force=5)),
    ("mqtt/5.0", Publish(topic="a", payload="x", qos=1, packet_id=1, version_in_force=5)),
    ("mqtt/3.1", Subscribe(packet_id=1, filters=["a"], version_in_force=3)),
    ("rmp", rmp.Message(layer="RPC", data=b"x")),
    ("rmp/framed", rmp.Message(layer="RPC", data=b"x", framed_bytes=3)),
]  # fmt: skip


@pytest.mark.parametrize(("label", "made"), ROWS, ids=[f"{a} {type(b).__name__}" for a, b in ROWS])
def test_a_column_that_contradicts_what_it_follows_from_is_refused(
    label: str, made: Any, run: Run, tmp_path: Path
) -> None:
    source = tmp_path / "one.stream"
    source.write_bytes(wireyard.encode(made))
    (row,) = rows_of(run("decode", source, "--format", label, "--secrets"))
    assert run("encode", "--format", label, stdin=json.dumps(row)).stdout_bytes == (
        source.read_bytes()
    )
    changed = 0
    for name in get_format(label).derived:
        if row[name] is None or name in COUNTING.get(label, ()):
            continue
        other = not row[name] if isinstance(row[name], bool) else row[name] * 2 or 1
        result = run("encode", "--format", label, stdin=json.dumps({**row, name: other}))
        assert result.exit_code == 3
        # That a body and its size differ has a line of its own.
        of_body = f"'{get_format(label).body.column}' cannot be b"
        assert one_line(result).startswith((f"'{name}' cannot be {other!r}: by ", of_body))
        changed += 1
    assert changed >= 3


COUNTING = {"mqtt": {"flags"}, "mqtt/5.0": {"qos"}, "mqtt/3.1": {"flags", "remaining_length_bytes"}}
"""Columns that count for the packet of a label, though they follow from others elsewhere."""


def subscription(label: str, ignored_bits: int) -> Row:
    filters = [{"filter": "a", "qos": 1, "ignored_bits": ignored_bits}]
    return {"format": label, "packet_type": 8, "packet_id": 1, "filters": filters}


def test_what_a_packet_does_not_have_is_refused(run: Run) -> None:
    for row, field in (
        ({"format": "mqtt", "packet_type": 3, "topic": "a", "keep_alive": 60}, "keep_alive"),
        ({"format": "mqtt", "packet_type": 12, "verdict": "trailing_bytes"}, "verdict"),
        ({"format": "mqtt", "packet_type": 1, "header_flags": 1}, "header_flags"),
        (subscription("mqtt/5.0", 4), "ignored_bits"),
        (subscription("mqtt/3.1.1", 3), "ignored_bits"),
        (subscription("mqtt/3.1.1", 256), "ignored_bits"),
        ({"format": "gpacket", "packet_type": 33, "destination_id": 1}, "destination_id"),
        ({"format": "gpacket", "packet_type": 7, "version": 100, "sequence": 1}, "sequence"),
        ({"format": "rmp", "foreign": True, "data": "1000", "layer_name": "RPC"}, "layer_name"),
    ):
        result = run("encode", stdin=json.dumps(row))
        assert (result.exit_code, one_line(result).split()[0]) == (3, f"'{field}'")
