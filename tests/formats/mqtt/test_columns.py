"""Compiled columns against the scalar reader: common, rare, broken, at edges and at the end."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from tests.formats.mqtt.make import (
    EVERY_PUBLISH_PROPERTY,
    VERSIONS,
    block,
    connack,
    connect,
    numbered,
    packet,
    publish,
    random_stream,
    subscribe,
    text,
    user,
    variable,
    variety,
)
from tests.formats.mqtt.test_recorded import recorded, tables
from tests.mutations import damaged_stream
from tests.readings import assert_one_reading, assert_same, table_of
from wireyard.conform.packets import CASES
from wireyard.formats import get_format
from wireyard.formats.mqtt import columns
from wireyard.formats.mqtt.columns import ColumnDecoder, scan_frames
from wireyard.formats.mqtt.layout import COLUMNS, MAX_ENTRIES
from wireyard.streams import scan
from wireyard.streams.plan import Condition

MQTT = get_format("mqtt")
DIALECTS = {2: "mqtt/mqipdp", 3: "mqtt/3.1", 4: "mqtt/3.1.1", 5: "mqtt/5.0"}
BROKEN = {
    version: [
        data
        for case in CASES
        if case.rule != "remaining_length"
        and (data := case.make(version)) is not None
        and data[0] != 0x10
    ]
    for version in VERSIONS
}
TEXTS = (
    b"", b"a", b"1234567", b"12345678", b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 100, "é".encode(),
    "日本語".encode(), "😀".encode(), b"abcdefg\xc3\xa9", b"\xc3\xa9" * 20, b"\x01", b"\x7f",
    b"\0", b"a\0", b"+", b"#", b"a+", b"x" * 31 + b"+", b"x" * 40 + b"#y", b"x" * 70 + b"\0",
    b"\x80", b"\xff", b"\xc3", b"\xc3(", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80",
    ("x" * 40 + "é").encode(), b"x" * 40 + b"\xff",
)  # fmt: skip


def one_reading(
    data: bytes, dialect: str = "mqtt", max_packet_bytes: int | None = None
) -> pa.Table:
    """Read a stream every way there is, and return what all of them say."""
    return assert_one_reading(data, Random(len(data)), max_packet_bytes, dialect)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(4))
def test_random_well_formed_streams(version: int, seed: int) -> None:
    data = random_stream(version, Random(seed), 400)
    table = one_reading(data)
    assert set(table["status"].to_pylist()) == {"ok"} and len(table) == 401
    assert set(table["version_in_force"].to_pylist()) == {version}


@pytest.mark.parametrize("version", VERSIONS)
def test_streams_with_broken_packets_among_others(version: int) -> None:
    table = one_reading(random_stream(version, Random(version), 600, BROKEN[version]))
    verdicts = set(table["verdict"].to_pylist())
    assert len(verdicts) > (5 if version < 4 else 10)
    for row in table.to_pylist():
        assert (row["status"] == "malformed") == (row["verdict"] is not None)
        assert row["verdict"] == (row["error"]["code"] if row["error"] else None)


@pytest.mark.parametrize(("version", "dialect"), [*DIALECTS.items(), (4, "mqtt"), (5, "mqtt")])
def test_streams_without_their_connect(version: int, dialect: str) -> None:
    """While the version is not known, an answer to CONNECT may tell it in the middle."""
    data = random_stream(version, Random(version), 300)[len(connect(version)) :]
    table = one_reading(data, dialect)
    known = [one for one in table["version_in_force"].to_pylist() if one is not None]
    assert set(known) <= {version} and (known or dialect == "mqtt")


@pytest.mark.parametrize("raw", TEXTS, ids=lambda raw: str(raw)[:24])
@pytest.mark.parametrize("version", [0, *VERSIONS])
def test_any_topic_anywhere(raw: bytes, version: int) -> None:
    """Alone, in the middle, and last in memory with nothing behind it."""
    dialect = DIALECTS.get(version, "mqtt")
    for first, number in ((0x30, None), (0x32, 7)):
        alone = publish(version, first, raw, number, b"")
        one_reading(alone, dialect)
        one_reading(publish(version) + alone + publish(version), dialect)
        long = publish(version, first, raw, number, b"\xa9\x80\xbf" * 20)
        one_reading(long + alone, dialect)


@pytest.mark.parametrize("raw", TEXTS, ids=lambda raw: str(raw)[:24])
def test_any_text_in_properties(raw: bytes) -> None:
    quoted: tuple[bytes, ...] = (raw, b'say "' + raw, raw + b"\\", b"\n" + raw, raw + "é".encode())
    blocks = [b"\x03" + text(raw), b"\x08" + text(raw), b"\x09" + text(raw)]
    blocks += [b"\x26" + text(one) + text(other) for one, other in product(quoted, quoted)]
    alone = [publish(5, properties=one) for one in blocks]
    alone.append(publish(5, topic="", properties=b"\x23\0\7" + b"".join(blocks[:3])))
    one_reading(b"".join(alone), "mqtt/5.0")
    for data in alone[:4]:
        one_reading(data, "mqtt/5.0")


def test_numbers_in_properties_at_their_edges() -> None:
    numbers = [b"\x01" + bytes([value]) for value in (0, 1, 2, 255)]
    numbers += [b"\x02" + value.to_bytes(4, "big") for value in (0, 9, 10**8, 2**31, 2**32 - 1)]
    numbers += [b"\x23" + value.to_bytes(2, "big") for value in (0, 1, 65535)]
    numbers += [b"\x0b" + variable(value) for value in (0, 1, 127, 128, 16384, 2**28 - 1)]
    numbers += [b"\x0b" + one for one in (b"\x80\0", b"\x81\0", b"\xff\xff\xff\xff\x7f", b"\x80")]
    data = b"".join(publish(5, properties=one) for one in numbers)
    table = one_reading(data, "mqtt/5.0")
    values = [one[0]["value"] for one in table["properties"].to_pylist() if one]
    assert values.count("4294967295") == 1 and values.count("268435455") == 1
    pairs = [publish(5, properties=one + other) for one, other in product(numbers, numbers)]
    one_reading(b"".join(pairs), "mqtt/5.0")


def test_properties_cut_at_every_byte() -> None:
    whole = EVERY_PUBLISH_PROPERTY
    cut = [publish(5, properties=whole[:size]) for size in range(len(whole) + 1)]
    cut += [publish(5, topic="", properties=whole[size:]) for size in range(len(whole) + 1)]
    table = one_reading(b"".join(cut), "mqtt/5.0")
    assert {"truncated", "MQTT-4.7.3-1", None} <= set(table["verdict"].to_pylist())


def test_every_first_byte_and_short_length() -> None:
    bodies = (
        b"",
        b"\0",
        b"\0\0",
        b"\0\1",
        b"\0\1a",
        b"\0\1a\0",
        b"\0\1a\0\1",
        b"\0\1a\0\1\0",
        b"\0\0\0\1\0",
    )
    data = b"".join(packet(first, body) for first, body in product(range(256), bodies))
    for dialect in ("mqtt", *DIALECTS.values()):
        one_reading(data, dialect)


def test_every_length_of_remaining_length() -> None:
    sizes = (0, 1, 120, 121, 122, 16_000, 16_376, 16_377, 16_378, 2_097_150)
    parts = [
        publish(4, payload=b"p" * size, least=least) for size in sizes for least in (1, 2, 3, 4)
    ]
    table = one_reading(b"".join(parts), "mqtt/3.1.1")
    assert set(table["remaining_length_bytes"].to_pylist()) == {1, 2, 3, 4}
    one_reading(b"".join(parts), "mqtt/5.0")


def test_the_end_of_a_stream_at_every_byte() -> None:
    data = publish(4) + publish(4, 0x32, "t", 1, b"payload") + packet(0xC0) + numbered(4, 0x40)
    for size in range(len(data) + 1):
        table = one_reading(data[:size], "mqtt/3.1.1")
        assert len(table) == 0 or size > 0


def test_lengths_that_lie() -> None:
    for lie in (b"\x30\xff\xff\xff\x7f", b"\x30\xff\xff\xff\xff\x7f", b"\x30\x80", b"\x30"):
        one_reading(publish(4) * 3 + lie + publish(4) * 3, "mqtt/3.1.1")
        one_reading(publish(4) * 3 + lie + connect(4) + publish(4), "mqtt", 1000)


@pytest.mark.parametrize("seed", range(12))
def test_damaged_streams(seed: int) -> None:
    rng = Random(seed)
    dialect = rng.choice(("mqtt", "mqtt", *DIALECTS.values()))
    one_reading(damaged_stream(dialect, rng, 300), dialect, rng.choice((None, 4096)))


# --- columns and rows that are asked for ----------------------------------------------------


def test_any_columns_are_those_of_the_whole() -> None:
    rng = Random(5)
    data = random_stream(5, rng, 300, BROKEN[5]) + random_stream(3, rng, 100, BROKEN[3])
    whole = table_of(data, format=MQTT, compiled=True)
    for name in whole.schema.names:
        alone = table_of(data, format=MQTT, compiled=True, columns=[name])
        assert alone.equals(whole.select([name])), name
    for _ in range(20):
        names = rng.sample(whole.schema.names, rng.randint(2, 8))
        some = table_of(data, format=MQTT, compiled=True, columns=names)
        assert some.equals(whole.select(names)), names


def test_conditions_and_modes() -> None:
    data = random_stream(4, Random(9), 500, BROKEN[4])
    for where in ([("packet_type", "==", 3)], [("topic", "==", "room/3/t")], [("qos", ">", 0)]):
        conditions: list[Condition] = list(where)
        for mode in ("permissive", "dropmalformed"):
            assert_same(
                table_of(data, format=MQTT, compiled=True, where=conditions, mode=mode),
                table_of(data, format=MQTT, compiled=False, where=conditions, mode=mode),
            )


def test_frames_end_before_what_changes_their_context() -> None:
    data = np.frombuffer(
        publish(4) * 3 + connack(4) + publish(4) + connect(4) + publish(4), np.uint8
    )
    size = len(publish(4))
    starts, sizes, contexts = scan_frames(data, 0, len(data), len(data), 1000, 0)
    assert starts.tolist() == [0, size, 2 * size] and sizes.tolist() == [size] * 3
    assert contexts.tolist() == [0] * 4
    starts, _, _ = scan_frames(data, 0, len(data), len(data), 1000, 4)
    assert len(starts) == 5  # a known version is not changed by CONNACK
    assert len(scan_frames(data, 0, len(data), 2 * size, 1000, 4)[0]) == 2
    assert len(scan_frames(data, 0, len(data), len(data), size - 1, 4)[0]) == 0


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packets_are_decoded_while_they_are_found(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Window by window, more and fewer packets than were foreseen: as if they were found before."""
    monkeypatch.setattr(columns, "_FEW_ROWS", 1)
    rng = Random(version)
    stream = random_stream(version, rng, 4000, BROKEN[version])[len(connect(version)) :]
    data = np.frombuffer(stream, np.uint8)
    decoder, plain = (ColumnDecoder(COLUMNS, True, {}) for _ in range(2))
    stop = start = ahead = 0
    while stop < len(data):
        stop = min(stop + rng.choice((500, 5_000, 20_000)), len(data))
        limits = data, start, stop, rng.choice((stop, stop - 300)), 1000, version
        starts, sizes, contexts = found = decoder.scan_frames(*limits)
        for one, other in zip(found, scan_frames(*limits), strict=True):
            assert one.tolist() == other.tolist()
        ahead += decoder._decoded is not None
        before = contexts[:-1]
        batch, rejected = decoder.decode(data, stop, starts, sizes, before, starts)
        other, same = plain.decode(data, stop, starts, sizes, before, starts)
        assert rejected.tolist() == same.tolist()
        batch.validate(full=True)
        sure = np.delete(np.arange(len(starts)), rejected)
        assert batch.take(pa.array(sure)).equals(other.take(pa.array(sure)))
        start = int(starts[-1] + sizes[-1]) if len(starts) else start
    assert ahead > 10


@pytest.mark.parametrize("window_bytes", [300, 3_000, 30_000])
def test_windows_with_and_without_what_ends_a_run(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_FEW_ROWS", 1)
    monkeypatch.setattr(scan, "even_bytes", lambda size: window_bytes)
    data = b"".join(random_stream(version, Random(7), 1000, BROKEN[version]) for version in (4, 5))
    for where in ([], [("packet_type", "==", 3)]):
        conditions: list[Condition] = list(where)
        compiled, scalar = (
            table_of(data, format=MQTT, compiled=compiled, where=conditions)
            for compiled in (True, False)
        )
        assert_same(compiled, scalar)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_common_packets_are_not_left_to_the_scalar_reader(version: int) -> None:
    common = [
        publish(version), publish(version, 0x33, "é", 1), publish(version, 0x3C, "t", 9, b""),
        *(numbered(version, first) for first in (0x40, 0x50, 0x62, 0x70)),
        packet(0xC0), packet(0xD0), packet(0xE0),
    ]  # fmt: skip
    if version == 5:
        common.append(publish(5, 0x30, "a", None, b"", EVERY_PUBLISH_PROPERTY))
        common.append(publish(5, 0x32, "", 9, b"x", b"\x23\0\1"))
    data = np.frombuffer(b"".join(common), np.uint8)
    starts, sizes, contexts = scan_frames(data, 0, len(data), len(data), 1000, version)
    assert len(starts) == len(common)
    decoder = ColumnDecoder(COLUMNS, True, {})
    batch, rejected = decoder.decode(data, len(data), starts, sizes, contexts[:-1], starts)
    assert list(rejected) == [] and batch.num_rows == len(common)


@pytest.mark.parametrize(
    ("column", "lead", "entry"),
    [
        ("properties", b"\x30\0\1t", user("", "")),
        ("filters", b"\x82\0\1\0", text("a") + b"\0"),
        ("filters", b"\xa2\0\1\0", text("a")),
        ("return_codes", b"\x90\0\1\0", b"\0"),
    ],
)
def test_lists_have_a_limit(column: str, lead: bytes, entry: bytes) -> None:
    for count in (MAX_ENTRIES, MAX_ENTRIES + 1):
        entries = entry * count
        body = block(5, entries) if column == "properties" else entries
        data = np.frombuffer(packet(lead[0], lead[1:] + body), np.uint8)
        row, error = MQTT.read_row(data.tobytes(), 5)
        starts, sizes, contexts = scan_frames(data, 0, len(data), len(data), len(data), 5)
        decoder = ColumnDecoder(COLUMNS, True, {})
        _, rejected = decoder.decode(data, len(data), starts, sizes, contexts[:-1], starts)
        assert len(row[column]) == MAX_ENTRIES
        is_over = count > MAX_ENTRIES
        assert (error is not None) == is_over
        assert len(rejected) == (is_over or column == "properties")
    assert row["verdict"] == "limit_exceeded"


def sessions(version: int) -> list[bytes]:
    """Packets that open, subscribe and answer, each of which a kernel answers."""
    will = block(version) + text("w/t") + text("gone")
    packets = [
        connect(version),
        connect(version, 0, client="sensor-é"),
        connect(version, 0xEE, will + text("user") + text(b"\0secret")),
        connect(version, 0x82, text("")),
        connack(version),
        connack(version, 0, 135 if version == 5 else 5),
        subscribe(version, ("a/+/#", 1), ("$SYS/x", 2), ("+", 0)),
        numbered(version, 0xA2, text("a/b") + text("#"), properties=b""),
        numbered(version, 0x90, bytes([0, 1, 2, 128]), properties=b""),
        numbered(version, 0xB0, b"" if version < 5 else bytes([0, 17, 135]), properties=b""),
    ]
    if version > 3:
        packets += [connect(version, client=""), connack(version, 1)]
    if version == 5:
        reason = b"\x1f" + text("why") + user("k", "v")
        packets += [
            connect(5, 0x42, text(b"alone"), properties=bytes.fromhex("1100000005 210014")),
            connack(5, 0, 0, bytes.fromhex("2400 25012a 00") + b"\x12" + text("given")),
            subscribe(5, ("a", 0x2C), ("b", 0x19)),
            numbered(5, 0x82, text("a") + b"\1", properties=b"\x0b\x07" + user("k", "v")),
            numbered(5, 0x90, bytes([135]), properties=reason),
            *(numbered(5, first, bytes([146])) for first in (0x62, 0x70)),
            numbered(5, 0x40, b"\x10"),
            numbered(5, 0x50, bytes([128, len(reason)]) + reason),
            packet(0xE0, b"\x04"),
            packet(0xE0, bytes([129, len(reason)]) + reason),
        ]
    return packets


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packets_of_sessions_are_not_left_to_the_scalar_reader(version: int) -> None:
    packets = sessions(version)
    one_reading(connect(version) + b"".join(packets), DIALECTS[version])
    data = np.frombuffer(b"".join(packets), np.uint8)
    sizes = np.array([len(one) for one in packets])
    starts = np.cumsum(sizes) - sizes
    decoder = ColumnDecoder(COLUMNS, True, {})
    contexts = np.full(len(packets), version)
    batch, rejected = decoder.decode(data, len(data), starts, sizes, contexts, starts)
    assert list(rejected) == [] and batch.num_rows == len(packets)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packets_of_sessions_cut_at_every_byte(version: int) -> None:
    bodies = [(one[0], one[2:]) for one in sessions(version)]
    cut = [packet(first, body[:size]) for first, body in bodies for size in range(len(body))]
    longer = [packet(first, body + b"\0") for first, body in bodies]
    table = one_reading(connect(version) + b"".join(cut + longer), DIALECTS[version])
    assert table["status"].to_pylist().count("malformed") > len(cut) / 2


@pytest.mark.parametrize("version", [3, 4, 5])
def test_any_text_in_packets_of_sessions(version: int) -> None:
    packets = []
    for raw in TEXTS:
        will = block(version) + text(raw) + text(raw)
        packets += [
            connect(version, client=raw),
            connect(version, 0x06, will),
            connect(version, 0xC2, text(raw) + text(raw)),
            subscribe(version, ("a", 0), (raw, 1)),
            numbered(version, 0xA2, text("a") + text(raw), properties=b""),
        ]
    assert len(one_reading(b"".join(packets), DIALECTS[version])) == len(packets)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_any_byte_in_packets_of_sessions(version: int) -> None:
    """Flags, levels, codes, options and lengths, whatever they are."""
    rng = Random(version)
    packets = []
    for one in sessions(version):
        for place in range(2, min(len(one), 40)):
            for value in (*rng.sample(range(256), 4), 0, 0x7F, 0x80, 0xFF):
                packets.append(one[:place] + bytes([value]) + one[place + 1 :])
    rng.shuffle(packets)
    one_reading(connect(version) + b"".join(packets), DIALECTS[version])


def test_kernels_as_plain_python() -> None:
    code = (
        "from random import Random\n"
        "from tests.formats.mqtt import test_columns as t\n"
        "for v in t.VERSIONS:\n"
        "    t.one_reading(t.random_stream(v, Random(v), 60, t.BROKEN[v]))\n"
        "print('same')"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=root,
        env={"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": f"{root}/src:{root}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("same\n", 0), done.stderr[-2000:]


# --- recordings -----------------------------------------------------------------------------


def test_recorded_streams(shared: Path) -> None:
    streams = 0
    for path in tables(shared):
        whole: dict[tuple[str, ...], list[bytes]] = {}
        for stream, data, _, _ in recorded(path):
            whole.setdefault(stream, []).append(data)
        largest = sorted(whole.values(), key=lambda packets: -sum(map(len, packets)))
        for packets in largest[:6]:
            if sum(map(len, packets)) > 3 << 20:
                packets = packets[:500]
            table = one_reading(b"".join(packets))
            assert len(table) == len(packets)
            streams += 1
    assert streams > 100


def test_varieties_in_one_stream() -> None:
    data = b"".join(connect(version) + b"".join(variety(version)) for version in VERSIONS)
    table = one_reading(data)
    assert set(table["status"].to_pylist()) == {"ok"}
    assert len(text("")) == 2 and MQTT.context == 0
