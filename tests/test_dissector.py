"""The dissectors for Wireshark: what tshark shows is what our rows say, field by field."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.formats.gpacket.make import gpacket as any_gpacket
from tests.formats.rmp.make import ALL_FLAGS, MORE, REPLY_TO, SEGMENT, message
from tests.make import ALL_ITEMS, ALL_TYPES, items, packet, section, text, variety
from wireyard import dissector
from wireyard.dissector import lua_script
from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.formats.base import Format, Row
from wireyard.formats.rmp.packet import read_row
from wireyard.streams.framer import Framer

CAPTURES = (
    "bodies", "pubsub", "requests", "transactions", "acks", "flow", "deadletters", "jms20", "bulk",
    "cluster",
)  # fmt: skip
DERIVED = ("properties", "unknown_items", "raw_header", "raw_properties")
"""Columns that tshark has as a tree, or as bytes, or not at all."""

Pairs = list[tuple[str, Any]]


@pytest.fixture(scope="session")
def tshark() -> str:
    """Return tshark's path; skip where there is none that runs Lua."""
    found = shutil.which("tshark")
    if found is None:
        pytest.skip("tshark is not installed")
    about = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    if "with Lua" not in about.stdout:
        pytest.skip("this tshark was built without Lua")
    return found


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with all dissectors."""
    path = tmp_path_factory.mktemp("lua") / "wireyard.lua"
    path.write_text(lua_script())
    return path


def run(tshark: str, script: Path, capture: Path, *options: str) -> str:
    """Read a capture with tshark and the dissectors, and return what it prints."""
    done = subprocess.run(
        [tshark, "-X", f"lua_script:{script}", "-r", str(capture), *options],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "HOME": str(script.parent)},  # no plugins of the user's
    )
    assert done.returncode == 0 and "Lua" not in done.stderr, done.stderr
    assert "Lua Error" not in done.stdout
    return done.stdout


def shown_packets(output: str, names: Iterable[str]) -> Iterator[tuple[str, str, Pairs]]:
    """Yield stream, protocol and fields of each packet in tshark's JSON.

    Its objects have a key more than once where a frame has several packets.
    """
    for frame in json.loads(output, object_pairs_hook=list):
        layers = dict(dict(frame)["_source"])["layers"]
        one = dict(layers)
        ip = dict(one["ip"])
        ports = dict(one.get("tcp") or one["udp"])
        kind = "tcp" if "tcp" in one else "udp"
        ends = (f"{ip[f'ip.{end}']}:{ports[f'{kind}.{end}port']}" for end in ("src", "dst"))
        stream = ">".join(ends)
        for name, fields in layers:
            if name in names:
                yield stream, name, fields if isinstance(fields, list) else []


def one_value(kind: str, text: str) -> Any:
    if kind in ("int32", "int64"):
        return int(text)
    if kind == "bool":
        return text in ("1", "True")
    return bytes.fromhex(text.replace(":", "")) if kind == "binary" else text


def assert_same_fields(fields: Pairs, row: Row, format: Format, name: str) -> None:
    """Assert that each plain column has the value tshark shows, and is not shown where null."""
    columns = format.columns
    if name in format.inner.other_rows:
        columns = tuple(format.inner.other_rows[name].values())
        row = {**row, "flags": row["bit_flags"]}
    seen = defaultdict(list)
    for key, value in fields:
        seen[key.removeprefix(f"{name}.")].append(value)
    for column in columns:
        if column.name in DERIVED or column.kind == "offset" or column.name == "magic":
            continue
        expected = row.get(column.name)
        found = [one_value(column.kind, text) for text in seen[column.name]]
        wanted = [] if expected is None or expected == b"" else [expected]
        assert found == wanted, f"{column.name}: {found} is not {wanted}"


def shown_properties(fields: Pairs, name: str) -> list[tuple[str, str, Any]]:
    """Return name, type and value of each property in tshark's tree."""
    found = []
    for key, tree in fields:
        if key == f"{name}.properties_tree":
            for _, leaves in tree:
                values = dict(leaves)
                kind = values[f"{name}.property.type"]
                found.append(
                    (values[f"{name}.property.name"], kind, values.get(f"{name}.property.{kind}"))
                )
    return found


def assert_same_properties(fields: Pairs, row: Row, name: str) -> None:
    found = {key: (kind, text) for key, kind, text in shown_properties(fields, name)}
    expected: Mapping[str, Any] = row.get("properties") or {}
    assert found.keys() == expected.keys()
    for key, (kind, value) in expected.items():
        said, text = found[key]
        assert said == kind, key
        match value:
            case bool():
                assert one_value("bool", text) is value
            case float():
                assert float(text) == pytest.approx(value, rel=1e-5)  # six digits are shown
            case bytes():
                assert bytes.fromhex((text or "").replace(":", "")) == value
            case _:
                assert text == str(value).replace("\0", "␀"), key  # a NUL ends text in C


def rows_of(data: bytes, format: Format) -> Iterator[Row]:
    framer = Framer(format)
    while (frame := framer.next_frame(memoryview(data)[framer.position :], True)) is not None:
        row, error = format.read_row(data[frame.start : frame.stop], frame.context)
        assert error is None
        yield row


@pytest.mark.parametrize("capture", CAPTURES)
def test_tshark_shows_what_our_rows_say(
    capture: str, tshark: str, script: Path, shared: Path
) -> None:
    names = ("jmq", "gpacket", "gpacket_link")
    path = shared / "captures" / "openmq" / f"{capture}.pcap"
    output = run(tshark, script, path, "-T", "json", "-Y", "jmq or gpacket or gpacket_link")
    packets = defaultdict(list)
    for stream, name, fields in shown_packets(output, names):
        packets[stream].append((name, fields))
    folder = shared / "streams" / "real"
    streams = [
        one
        for one in json.loads((folder / "index.json").read_text())
        if one["capture"] == path.name
    ]
    assert streams
    for one in streams:
        format = get_format(one["format"])
        rows = list(rows_of((folder / one["file"]).read_bytes(), format))
        assert len(packets[one["stream"]]) == len(rows) == one["packets"]
        for (name, fields), row in zip(packets[one["stream"]], rows, strict=True):
            assert name == row.get("format", format.name)
            assert_same_fields(fields, row, format, name)
            if name != "gpacket_link":
                assert_same_properties(fields, row, name)


# --- packets no broker would send -----------------------------------------------------------


def capture_of(path: Path, payloads: Iterable[bytes], *, udp: bool = False) -> Path:
    """Write a capture: IPv4 without link layer, one direction of one connection."""
    parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 101)]
    sequence = 1
    for payload in payloads:
        if udp:
            inner = struct.pack(">HHHH", 4000, 5000, 8 + len(payload), 0) + payload
        else:
            inner = (
                struct.pack(">HHIIBBHHH", 4000, 5000, sequence, 1, 5 << 4, 0x18, 65535, 0, 0)
                + payload
            )
            sequence += len(payload)
        ends = bytes([10, 0, 0, 1, 10, 0, 0, 2])
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(inner), 1, 0, 64, 17 if udp else 6, 0)
        frame = head + ends + inner
        parts.append(struct.pack("<IIII", 1, 0, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(parts))
    return path


JMQ_PACKETS = [one for one in variety() if one[4:6] in (b"\0\xc8", b"\x01\x2d")]
RARE = [
    packet(items=ALL_ITEMS, properties=section(*ALL_TYPES), bit_flags=0x8FFF, priority=-1),
    packet(version=103, bit_flags=0xFF05, consumer_id=-7, transaction_id=-2, items=items()),
    packet(expiration=2**63 - 1, timestamp=-(2**63), sequence=-1, source_port=-1),
    packet(consumer_id=-(2**63), source_ip=bytes.fromhex("20010db8" + "00" * 11 + "2a")),
    packet(packet_type=-5),
]


def test_rare_packets_are_exact_to_64_bits(tshark: str, script: Path, tmp_path: Path) -> None:
    capture = capture_of(tmp_path / "rare.pcap", RARE)
    output = run(tshark, script, capture, "-T", "json", "-Y", "jmq")
    shown = list(shown_packets(output, ("jmq",)))
    format = get_format("jmq")
    assert len(shown) == len(RARE)
    for (_, _, fields), data in zip(shown, RARE, strict=True):
        row, error = format.read_row(data, 0)
        assert error is None
        assert_same_fields(fields, row, format, "jmq")
        assert_same_properties(fields, row, "jmq")


def test_packets_are_put_together_however_segments_cut_them(
    tshark: str, script: Path, tmp_path: Path
) -> None:
    data = b"".join(JMQ_PACKETS)
    cut = [data[at : at + 100] for at in range(0, len(data), 100)]
    output = run(tshark, script, capture_of(tmp_path / "cut.pcap", cut), "-T", "json", "-Y", "jmq")
    sizes = [dict(fields)["jmq.size"] for _, _, fields in shown_packets(output, ("jmq",))]
    assert sizes == [str(len(one)) for one in JMQ_PACKETS]


def gpacket(order: str, *, flags: int = 0x80000001, version: int = 350) -> bytes:
    properties = section(*ALL_TYPES)
    size = struct.pack(">HHI", version, 33, 36 + len(properties) + 4)
    magic = bytes.fromhex("7fffe3c2")
    head = size + magic if order == "shipped" else magic + size
    rest = struct.pack(">iqqI", len(properties), 1105948800001, -(2**63), flags)
    return head + rest + properties + b"load"


def test_both_orders_of_the_gpacket_and_the_packets_of_the_link(
    tshark: str, script: Path, tmp_path: Path
) -> None:
    link = struct.pack(">HHIII", 100, 7, 20, 0, 1) + b"ping"
    ported = any_gpacket(packet_type=54, properties=section((".v", 3, 301)), bit_flags=0x1010)
    data = [link, gpacket("shipped"), gpacket("documented"), ported]
    capture = capture_of(tmp_path / "gpacket.pcap", data)
    # A link packet is short and weakly marked: another heuristic of Wireshark may come first.
    output = run(tshark, script, capture, "-T", "json", "-d", "tcp.port==5000,gpacket")
    shown = list(shown_packets(output, ("gpacket", "gpacket_link")))
    assert [name for _, name, _ in shown] == ["gpacket_link", *["gpacket"] * 3]
    format = get_format("gpacket")
    for (_, name, fields), one in zip(shown, data, strict=True):
        row, error = format.read_row(one, 0)
        assert error is None
        assert_same_fields(fields, row, format, name)
        if name == "gpacket":
            assert_same_properties(fields, row, name)


def test_damage_is_an_expert_item_and_never_a_lua_error(
    tshark: str, script: Path, tmp_path: Path
) -> None:
    whole = packet(items=ALL_ITEMS, properties=section(*ALL_TYPES), body=b"body")
    broken = []
    for at in range(12, len(whole)):
        for value in (0, 0x7F, 0xFF):
            broken.append(whole[:at] + bytes([value]) + whole[at + 1 :])
    broken += [packet(version=999), packet(property_size=9999), packet(items=b"\0\1\0\xffshort")]
    for order in ("shipped", "documented"):
        one = gpacket(order)
        broken += [one[:12] + bytes([0xFF]) + one[13:], gpacket(order, version=351)]
        broken += [one[:at] + b"\xff" + one[at + 1 :] for at in range(36, len(one), 3)]
    # Each on a connection of its own would be slow; what is out of step is dissected all the same.
    capture = capture_of(tmp_path / "broken.pcap", broken)
    for name in ("jmq", "gpacket"):
        output = run(tshark, script, capture, "-V", "-d", f"tcp.port==5000,{name}")
        assert "[Group: Malformed]" in output


def test_garbage_does_not_lose_the_packets_after_it(
    tshark: str, script: Path, tmp_path: Path
) -> None:
    one = packet(body=b"one")
    capture = capture_of(tmp_path / "garbage.pcap", [one, b"no packet" + one, b"none" * 5, one])
    output = run(tshark, script, capture, "-T", "json", "-Y", "jmq")
    found = [dict(fields).get("jmq.size") for _, _, fields in shown_packets(output, ("jmq",))]
    assert found == ["75", None, "75", None, "75"]


def test_the_port_mapper_is_left_alone(tshark: str, script: Path, shared: Path) -> None:
    path = shared / "captures" / "openmq" / "jms20.pcap"
    output = run(tshark, script, path, "-Y", "tcp.port == 7676 and jmq")
    assert output == ""


# --- RMP ------------------------------------------------------------------------------------


def rmp_rows(packet: bytes, context: int) -> list[Row]:
    framer = Framer(get_format("rmp/list-order" if context else "rmp"))
    rows = []
    while (frame := framer.next_frame(memoryview(packet)[framer.position :], True)) is not None:
        rows.append(read_row(packet[frame.start : frame.stop], frame.context)[0])
    return rows


@pytest.mark.parametrize("name", ["jmq", "gpacket"])
def test_short_objects_are_a_preference(
    name: str, tshark: str, script: Path, tmp_path: Path
) -> None:
    properties = struct.pack(">ii", 1, 4) + text("o") + struct.pack(">hH", 9, 3) + b"\1\2\3"
    properties += text("n") + struct.pack(">hi", 4, -7)
    java = bytes.fromhex("aced0005740001 61")  # shows the width of its length
    for name_of_object, code in (("s", ">hH"), ("l", ">hi")):
        properties += text(name_of_object) + struct.pack(code, 9, len(java)) + java
    make: Callable[..., bytes] = packet if name == "jmq" else any_gpacket
    data = make(properties=properties)
    capture = capture_of(tmp_path / "short.pcap", [data])
    asked = ("-d", f"tcp.port==5000,{name}", "-o", f"{name}.short_objects:TRUE")
    output = run(tshark, script, capture, "-T", "json", *asked)
    [(_, _, fields)] = shown_packets(output, (name,))
    row, error = get_format(f"{name}/short-object").read_row(data, 1)
    assert error is None and row["properties"]["o"].value == b"\1\2\3"
    assert_same_properties(fields, row, name)


@pytest.mark.parametrize("list_order", [False, True])
def test_rmp_messages_of_all_kinds(
    list_order: bool, tshark: str, script: Path, tmp_path: Path
) -> None:
    packets = [
        message(flags | 2, b"data", list_order=list_order)
        + (message(0, b"last") + b"" if flags & MORE else b"")
        for flags in ALL_FLAGS
    ]
    packets += [b"\x10\0abc", message(MORE) + b"\xff\xffxyz", message(63, b"")]
    capture = capture_of(tmp_path / "rmp.pcap", packets, udp=True)
    order = f"rmp_messaging.list_order:{str(list_order).upper()}"
    decode_as = ("-d", "udp.port==5000,rmp_messaging", "-o", order)
    output = run(tshark, script, capture, "-T", "json", *decode_as)
    shown = [fields for _, _, fields in shown_packets(output, ("rmp_messaging",))]
    rows = [row for one in packets for row in rmp_rows(one, int(list_order))]
    assert len(shown) == len(rows) == len(packets) + 33
    format = get_format("rmp")
    for fields, row in zip(shown, rows, strict=True):
        assert_same_fields(fields, row, format, "rmp_messaging")


@pytest.mark.parametrize(
    "packet",
    [
        b"\0",
        message(MORE, b"a"),
        message(MORE, b"a") + b"\0",
        message(MORE, b"abc", length=4),
        message(SEGMENT, segment=(1, 2, 1)),
        message(SEGMENT, segment=(1, 0, 0)),
        message(REPLY_TO)[:9],
    ],
)
def test_rmp_packets_that_break_a_rule(
    packet: bytes, tshark: str, script: Path, tmp_path: Path
) -> None:
    capture = capture_of(tmp_path / "rmp.pcap", [packet], udp=True)
    output = run(tshark, script, capture, "-V", "-d", "udp.port==5000,rmp_messaging")
    assert "[Group: Malformed]" in output


# --- the script itself ----------------------------------------------------------------------


def test_formats_with_a_dissector() -> None:
    assert dissector.names() == ("jmq", "gpacket", "rmp")
    with pytest.raises(UsageError, match="there are: jmq, gpacket, rmp"):
        lua_script(["mqtt"])


@pytest.mark.parametrize("name", dissector.names())
def test_one_format_stands_alone(name: str, tshark: str, tmp_path: Path) -> None:
    script = tmp_path / "one.lua"
    script.write_text(lua_script([name, name]))
    capture = capture_of(tmp_path / "none.pcap", [b"nothing"])
    run(tshark, script, capture)


def test_every_plain_column_is_a_field() -> None:
    for name in dissector.names():
        text = lua_script([name])
        for column in get_format(name).columns:
            assert (f'name = "{column.name}"' in text) is not column.name.startswith("raw_")
