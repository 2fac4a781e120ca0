"""The record of a proxy, judged by wireyard's own reading of it."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wireyard
from tests.conftest import ROOT
from tests.marked import leaks, variants
from tests.tap.sockets import reset, run, serving, tapped, until
from wireyard import mqtt
from wireyard.broker.recording import Recording, record_into
from wireyard.formats import get_format
from wireyard.formats.mqtt.writing import encode
from wireyard.tap.packets import Conversation, PacketReader, without_secrets
from wireyard.tap.proxy import Later

SECRET = b"sesame"
PROOF = {"authentication_method": "m", "authentication_data": SECRET}
LOGIN = encode(
    mqtt.Connect(
        client_id="till", username="ann", password=SECRET, version_in_force=5, properties=PROOF
    )
)
ANSWER = encode(mqtt.ConnAck(version_in_force=5, properties=PROOF))
AUTH = encode(mqtt.Auth(return_code=0x18, properties=PROOF))
PUBLISH = encode(mqtt.Publish(topic="a/b", payload=b"x" * 300, version_in_force=5))


def into(folder: Path, **limits: Any) -> Callable[[Later], Recording]:
    ticks = iter(range(1_000_000_000, 1 << 62, 1_000_000))  # a millisecond a frame

    def begin(later: Later) -> Recording:
        return record_into(
            folder, "tap", lambda: next(ticks), lambda text: None, later=later, **limits
        )

    return begin


def recorded(folder: Path, there: bytes, back: bytes, seed: int = 0, **limits: Any) -> None:
    """Record a connection with some bytes in each direction, in random pieces."""
    rng = random.Random(seed)

    async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = rng.choice((1, 7, 50, 4000))
            writer.write(data[at : at + size])
            at += size
            await asyncio.sleep(0.0005)
        writer.write_eof()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == there
        await send(writer, back)

    async def test() -> None:
        async with serving(handle) as port, tapped(port, record=into(folder, **limits)) as tap:
            reader, writer = await asyncio.open_connection(*tap.address)
            await send(writer, there)
            assert await reader.read() == back
            writer.close()
            await until(lambda: not tap.connections)

    run(test())


def names(path: Path) -> list[str | None]:
    return wireyard.read(str(path))["packet_type_name"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(3))
def test_every_packet_is_there_and_no_password(tmp_path: Path, seed: int) -> None:
    there, back = LOGIN + 20 * PUBLISH + AUTH + LOGIN + PUBLISH, ANSWER + AUTH + 20 * PUBLISH
    recorded(tmp_path, there, back, seed)
    (path,) = tmp_path.iterdir()
    assert SECRET not in path.read_bytes()
    table = wireyard.read(str(path)).to_pylist()
    found = [
        row for row in table if row["stream"].split(">")[0] == table[0]["stream"].split(">")[0]
    ]
    kinds = ["CONNECT", *["PUBLISH"] * 20, "AUTH", "CONNECT", "PUBLISH"]
    assert [row["packet_type_name"] for row in found] == kinds
    assert len(table) == len(kinds) + 22
    assert {row["status"] for row in table if row["packet_type_name"] != "CONNECT"} == {"ok"}
    assert {row["username"] for row in found if row["packet_type"] == 1} == {"ann"}


@pytest.mark.parametrize("cut", [len(LOGIN) - 3, len(LOGIN) - len(SECRET) + 1, 40])
def test_a_login_that_does_not_arrive_whole_is_not_shown(tmp_path: Path, cut: int) -> None:
    recorded(tmp_path, LOGIN[:cut], b"")
    (path,) = tmp_path.iterdir()
    assert b"ses" not in path.read_bytes()


def test_what_is_no_packet_and_logins_without_bound_are_not_shown(tmp_path: Path) -> None:
    will: dict[str, Any] = {
        "will_topic": "t",
        "will_payload": bytes(30_000),
        "will_qos": 0,
        "will_retain": False,
    }
    login = mqtt.Connect(client_id="c", username="u", password=SECRET * 10_000, **will)
    long = encode(login)
    lost = LOGIN + b"\x30\xff\xff\xff\xff" + SECRET
    for number, there in enumerate((b"user " + SECRET, long, lost)):
        folder = tmp_path / str(number)
        recorded(folder, there, b"" if number else SECRET)
        (path,) = folder.iterdir()
        assert SECRET not in path.read_bytes()
    assert names(path)[0] == "CONNECT"


UPGRADE = b"GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


def framed(data: bytes, rng: random.Random, *, masked: bool) -> bytes:
    """Return bytes in frames of WebSocket, of random sizes, with pings between them."""
    out, at = b"", 0
    while at < len(data):
        part = data[at : at + rng.choice((1, 9, 200))]
        at += len(part)
        for kind, body in ((0x82, part), (0x89, b"are you there"))[: rng.choice((1, 2))]:
            size = (
                bytes((len(body),)) if len(body) < 126 else b"\x7e" + len(body).to_bytes(2, "big")
            )
            mask = rng.randbytes(4) if masked else b""
            size = bytes((size[0] | 0x80 * masked,)) + size[1:]
            keys = mask * len(body) if masked else bytes(len(body))
            out += (
                bytes((kind,))
                + size
                + mask
                + bytes(a ^ b for a, b in zip(body, keys, strict=False))
            )
    return out


@pytest.mark.parametrize("seed", range(2))
def test_what_is_inside_websocket_is_recorded(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    there = UPGRADE + framed(LOGIN + 9 * PUBLISH, rng, masked=True)
    back = SWITCHED + framed(ANSWER + 5 * PUBLISH, rng, masked=False)
    recorded(tmp_path, there, back, seed)
    (path,) = tmp_path.iterdir()
    assert SECRET not in path.read_bytes()
    kinds = sorted(map(str, names(path)))
    assert kinds == ["CONNACK", "CONNECT", *["PUBLISH"] * 14]


def test_what_is_no_websocket_is_not_shown(tmp_path: Path) -> None:
    for number, rest in enumerate((b"\xc2\x86abcd" + SECRET, b"password=" + SECRET)):
        recorded(tmp_path / str(number), UPGRADE + rest, b"HTTP/1.1 400 No\r\n\r\n" + SECRET)
        (path,) = (tmp_path / str(number)).iterdir()
        assert SECRET not in path.read_bytes()


def test_no_part_of_any_login_is_shown() -> None:
    for place, data in variants(cuts=False):
        if place.format == "gpacket":
            continue
        talk, shown = Conversation(), b""
        reader = PacketReader(talk, is_client=True)
        read = [reader.read(data[at : at + 37]) for at in range(0, len(data), 37)]
        for passed, spans in (*read, reader.rest()):
            shown += without_secrets(talk.format, passed, spans)
        assert len(shown) == len(data) and not leaks(shown), place.name


def test_tls_that_only_passes_is_recorded_as_it_is(tmp_path: Path) -> None:
    hello = bytes.fromhex("1603010005") + b"hello"
    recorded(tmp_path, hello, hello)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().count(b"hello") == 2


def test_logins_of_jmq_are_masked(tmp_path: Path) -> None:
    data = (ROOT / "examples/traffic/shop-c2b.jmq").read_bytes()
    recorded(tmp_path, data, b"")
    (path,) = tmp_path.iterdir()
    packets = [*wireyard.packets(str(path))]
    assert len(packets) == len([*wireyard.packets(data, format="jmq")])
    bodies = [one.body for one in packets if one.packet_type == 12]
    assert bodies and all(body and not body.strip(b"*") for body in bodies)


@pytest.mark.parametrize("limits", [{"max_bytes": 2000}, {"max_seconds": 0.004}])
def test_a_record_rotates_and_is_read_as_one(tmp_path: Path, limits: dict[str, Any]) -> None:
    recorded(tmp_path, LOGIN + 30 * PUBLISH, ANSWER, **limits)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) > 1
    command = ["decode", "--rotated", *map(str, paths), "--out", "jsonl"]
    done = subprocess.run(
        [ROOT / ".venv/bin/wireyard", *command], capture_output=True, text=True, check=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(row["packet_type_name"] for row in rows) == [
        "CONNACK",
        "CONNECT",
        *["PUBLISH"] * 30,
    ]


@pytest.mark.peer
def test_tshark_reads_ends_and_resets(tmp_path: Path) -> None:
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark is not installed")
    recorded(tmp_path / "ends", LOGIN + PUBLISH, ANSWER)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(LOGIN))
        reset(writer)

    async def test() -> None:
        async with serving(handle) as port, tapped(port, record=into(tmp_path / "resets")) as tap:
            _, writer = await asyncio.open_connection(*tap.address)
            writer.write(LOGIN)
            await until(lambda: tap.connections)
            await until(lambda: not tap.connections)
            writer.close()

    run(test())
    found = {}
    for name in ("ends", "resets"):
        (path,) = (tmp_path / name).iterdir()
        command = [tshark, "-r", str(path), "-T", "fields", "-e", "tcp.flags.fin"]
        command += ["-e", "tcp.flags.reset", "-e", "tcp.analysis.flags"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        found[name] = [sum(row[at] in ("1", "True") for row in rows) for at in (0, 1)]
        assert not any(row[2] for row in rows)
    assert found == {"ends": [2, 0], "resets": [0, 1]}


@pytest.mark.parametrize("seed", range(20))
def test_packets_are_found_for_any_split(seed: int) -> None:
    rng = random.Random(seed)
    packets = [LOGIN, *rng.choices((PUBLISH, AUTH, b"\xc0\0", b"\x30\x80\x02" + bytes(256)), k=40)]
    data, talk = b"".join(packets), Conversation()
    whole = rng.choice((0, 200, 10_000))
    reader, at, passed, starts = PacketReader(talk, True, whole), 0, b"", []
    while at < len(data):
        size = rng.choice((1, 2, 3, 30, 500))
        part, spans = reader.read(data[at : at + size])
        assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
        assert not spans or (spans[0].start == 0 and spans[-1].stop >= len(part))
        starts += [
            (len(passed) + one.start, one.packet_type) for one in spans if one.packet_type > 0
        ]
        shown = without_secrets(talk.format, part, spans)
        assert len(shown) == len(part) and SECRET not in shown
        passed += part
        at += size
    assert passed + reader.rest()[0] == data
    expected, start = [], 0
    for packet in packets:
        expected.append((start, packet[0] >> 4))
        start += len(packet)
    if not whole:
        expected = [each for each in expected if each[1] in (1, 15)]
        starts = [each for each in starts if each[1] in (1, 15)]
    assert starts == expected
    assert talk.format is get_format("mqtt") and talk.context == 5
