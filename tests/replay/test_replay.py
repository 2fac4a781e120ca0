"""Recorded clients again: the same intents, the broker's own packet ids, and what is not sent."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import wireyard
from tests.conftest import ROOT
from tests.shadow.scenario import SERVER, Scenario
from tests.tap.sockets import run, serving
from wireyard import mqtt
from wireyard.answers import open_tables
from wireyard.broker.access import Access, hash_password, read_users
from wireyard.broker.recording import Recording, record_into
from wireyard.broker.settings import Settings
from wireyard.captures.inputs import open_input
from wireyard.cli import main
from wireyard.client import Client, Message
from wireyard.client.address import parse_address
from wireyard.formats import get_format
from wireyard.formats.mqtt.control import Packet
from wireyard.formats.mqtt.writing import encode
from wireyard.replay import player
from wireyard.replay.player import Played
from wireyard.replay.script import End, Script, Send, read_script
from wireyard.shadow import Difference, compare, differences
from wireyard.streams.decoder import Decoder

ACKS = mqtt.PubAck | mqtt.PubRec | mqtt.PubComp


def script_of(path: Path) -> Script:
    with_end = open_input(str(path))
    try:
        return read_script(with_end)
    finally:
        with_end.close()


def intents(path: Path) -> dict[str, list[Any]]:
    """Return what each client did, in order, but what is not its choice.

    These are the ids that it acknowledges, and who closes first after DISCONNECT.
    """
    done: defaultdict[str, list[Any]] = defaultdict(list)
    for _, _, connection, what in script_of(path).steps:
        own = done[connection.client]
        if isinstance(what, Send):
            packet = what.packet
            if isinstance(packet, ACKS):
                packet = replace(packet, packet_id=1)
            own.append((packet, what.awaits))
        elif isinstance(what, End) and what.by_client and type(own[-1][0]) is not mqtt.Disconnect:
            own.append(what)
    return done


def compared(a: Path, b: Path) -> list[Difference]:
    with open_tables([str(a)]) as left, open_tables([str(b)]) as right:
        return differences(left, right)


def replayed(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def replayed_to_own(path: Path, folder: Path, *arguments: object) -> tuple[Result, Path]:
    """Replay to a broker of our own; return the record too."""
    with wireyard.broker() as broker:
        done = replayed(path, "--to", broker.url, "--record", folder, *arguments)
    (record,) = folder.iterdir()
    return done, record


class Silent(Scenario):
    """Whose clients do not acknowledge every other message."""

    count = 0

    def _answer(self, name: str, packet: Packet) -> None:
        if isinstance(packet, mqtt.Publish):
            self.count += 1
            if self.count % 2:
                return
        super()._answer(name, packet)


@pytest.mark.parametrize("speed", ["0.05", "max"])  # packets are 2 ms apart: busy machines
@pytest.mark.parametrize("kind", [Scenario, Silent])
def test_clients_do_the_same_again(kind: type[Scenario], speed: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    kind(path).run()
    done, record = replayed_to_own(path, tmp_path / "again", "--speed", speed)
    assert done.exit_code == 0, done.output
    assert intents(record) == intents(path)
    assert sum(map(len, intents(path).values())) > 50
    # What waits in a queue waits longer at a slower pace.
    assert {one.difference for one in compared(path, record)} <= {"latency"}


def test_a_recording_of_our_own_broker_again(tmp_path: Path) -> None:
    with wireyard.broker(record=tmp_path / "first") as broker:
        run(_talk(broker.url))
    (path,) = (tmp_path / "first").iterdir()
    done, record = replayed_to_own(path, tmp_path / "again", "--speed", "max")
    assert done.exit_code == 0, done.output
    assert intents(record) == intents(path)
    types = {type(one[0]) for own in intents(path).values() for one in own}
    assert types >= {mqtt.PubAck, mqtt.PubRec, mqtt.PubRel, mqtt.PubComp, mqtt.Unsubscribe}
    assert compared(path, record) == []


async def _talk(url: str) -> None:
    will = Message("gone", b"bye", qos=1)
    async with (
        Client(url, client_id="sub", version="3.1.1") as sub,
        Client(url, client_id="pub", will=will) as pub,
    ):
        await sub.subscribe("a/#", 2)
        await sub.subscribe("gone", 1)
        for number in range(12):
            await pub.publish(f"a/{number % 2}", b"same", qos=number % 3, retain=not number)
        for _ in range(12):
            await anext(aiter(sub))
        await sub.unsubscribe("a/#")
        async with Client(url, client_id="late") as late:
            await late.subscribe("a/#", 2)
            await anext(aiter(late))
        assert pub._wire is not None
        pub._wire.abort()
        await anext(aiter(sub))


def test_a_lake_again_with_other_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lake = tmp_path / "a.pcapng", tmp_path / "lake"
    Scenario(path).run(rounds=5)
    line = ["run", str(path), "--lake", str(lake), "--engine", "process", "-q"]
    assert CliRunner().invoke(main, line).exit_code == 0
    rename = ("--rename", "shop/#=test/shop/#", "--rename", "gone/#=left/#")
    done, record = replayed_to_own(lake, tmp_path / "again", "--speed", "max", *rename)
    assert done.exit_code == 0, done.output

    def as_text(path: Path) -> str:
        """Return the intents, but resets, which a lake has for any end without DISCONNECT."""
        return str(intents(path)).replace("is_reset=True", "is_reset=False")

    wanted = as_text(path).replace("'shop/", "'test/shop/").replace("'gone/", "'left/")
    assert as_text(record) == wanted and "'test/shop/#'" in wanted and "'left/#'" in wanted
    monkeypatch.setattr(compare, "_DELIVERIES_AT_ONCE", 5)
    found = CliRunner().invoke(main, ["shadow", str(lake), str(record), *rename, "--out", "jsonl"])
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert {row["difference"] for row in rows} <= {"latency"}
    for rule in ("a", "a/#=b", "+/a=b", "=b"):
        done = replayed(lake, "--to", "localhost", "--rename", rule)
        assert done.exit_code == 2 and "is not OLD=NEW or OLD/#=NEW/#" in done.stderr


@pytest.mark.parametrize("name", ["mqtt-healthy", "mqtt-unacknowledged", "mqtt-taken_over"])
def test_recordings_of_another_broker(name: str, tmp_path: Path) -> None:
    path = ROOT / f"examples/symptoms/{name}.pcap"
    done, record = replayed_to_own(path, tmp_path / "again", "--speed", "max")
    assert done.exit_code == 0, done.output
    assert intents(record) == intents(path)
    assert compared(path, record) == []


# --- a broker that does what a test says --------------------------------------------------


def played(path: Path, answer: Any) -> tuple[Played, list[Packet | str]]:
    """Replay to a broker that answers packets by `answer`; return what it was sent."""
    got: list[Packet | str] = []
    lines: list[str] = []
    result: list[Played] = []
    script = script_of(path)
    assert script.notes == []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder(get_format("mqtt/5.0"))
        try:
            while data := await reader.read(1 << 16):
                decoder.receive_data(data)
                for event in decoder.events():
                    got.append(event.packet)
                    writer.write(b"".join(map(encode, answer(event.packet))))
            got.append("closed")
        except ConnectionResetError:
            got.append("reset")

    async def test() -> None:
        async with serving(handle) as port:
            address = parse_address(f"127.0.0.1:{port}")
            replay = partial(player.run, [script], {None: address}, lines.append, speed=None)
            result.extend(await asyncio.to_thread(replay))

    run(test())
    return result[0], got


def answers(packet: Packet, *, sent: Sequence[tuple[int, bytes]] = ()) -> list[Packet]:
    """Answer CONNECT, and SUBSCRIBE also with messages."""
    if isinstance(packet, mqtt.Connect):
        return [mqtt.ConnAck(version_in_force=5)]
    if not isinstance(packet, mqtt.Subscribe):
        return []
    messages = [
        mqtt.Publish(topic="a", payload=text, qos=1, packet_id=number, version_in_force=5)
        for number, text in sent
    ]
    return [mqtt.SubAck(packet_id=1, return_codes=[1], version_in_force=5), *messages]


def conversation(path: Path, end: str = "closed") -> Path:
    """Record a client that acknowledges the last and the first of three messages, and ends."""
    with path.open("wb") as file:
        times = iter(range(1_700_000_000_000_000_000, 1 << 62, 1_000_000))
        tape = Recording(file, times.__next__).open(("10.0.0.2", 40000), ("10.0.0.1", 1883))

        def send(packet: Packet) -> None:
            tape.write(True, encode(packet))
            sent = [(1, b"one"), (2, b"two"), (3, b"three")]
            for each in answers(packet, sent=sent):
                tape.write(False, encode(each))

        send(mqtt.Connect(client_id="till", version_in_force=5))
        send(mqtt.Subscribe(packet_id=1, filters=[("a", 1)], version_in_force=5))
        for number in (3, 1):
            send(mqtt.PubAck(packet_id=number, version_in_force=5))
        if end == "reset":
            tape.reset(by_client=True)
        elif end == "closed":
            tape.finish(by_client=True)
            tape.write(False, encode(mqtt.PingResp()))  # on its way when the client closed
            tape.finish(by_client=False)
    return path


def test_acknowledgements_are_for_the_same_messages_under_other_ids(tmp_path: Path) -> None:
    path = conversation(tmp_path / "a.pcapng")

    def answer(packet: Packet) -> list[Packet]:
        return answers(packet, sent=[(77, b"two"), (78, b"three"), (79, b"one")])

    result, got = played(path, answer)
    assert [one.packet_id for one in got if isinstance(one, mqtt.PubAck)] == [78, 79]
    assert got[-1] == "closed" and not result.unsent


def test_a_message_that_does_not_come_is_not_acknowledged(tmp_path: Path) -> None:
    path = conversation(tmp_path / "a.pcapng")
    result, got = played(path, lambda packet: answers(packet, sent=[(5, b"one")]))
    assert [one.packet_id for one in got if isinstance(one, mqtt.PubAck)] == [5]
    assert result.unsent == {"till": 1} and result.sent == 3


def test_a_client_that_is_late_waits_as_long_as_it_did(tmp_path: Path) -> None:
    """The first message does not come, and the answer takes 0.6 s as in the recording."""
    path = tmp_path / "a.pcapng"
    publish = mqtt.Publish(topic="a", payload=b"own", qos=1, packet_id=1, version_in_force=5)
    answer = mqtt.PubAck(packet_id=1, version_in_force=5)
    with path.open("wb") as file:
        now_ms = 0
        tape = Recording(file, lambda: now_ms * 1_000_000).open(("10.0.0.2", 40000), SERVER)
        for at_ms, packet, is_client in (
            (1, mqtt.Connect(client_id="till", version_in_force=5), True),
            (2, mqtt.ConnAck(version_in_force=5), False),
            (3, mqtt.Publish(topic="a", payload=b"other", version_in_force=5), False),
            (4, publish, True),
            (604, answer, False),
            (605, mqtt.PingReq(version_in_force=5), True),
        ):
            now_ms = at_ms
            tape.write(is_client, encode(packet))
        tape.close(by_client=True)
    passed: list[object] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder(get_format("mqtt/5.0"))
        while data := await reader.read(1 << 16):
            decoder.receive_data(data)
            for event in decoder.events():
                passed.append(type(event.packet))
                if isinstance(event.packet, mqtt.Connect):
                    writer.write(encode(mqtt.ConnAck(version_in_force=5)))
                elif isinstance(event.packet, mqtt.Publish):
                    asyncio.get_running_loop().call_later(0.6, reply, writer)
        writer.close()

    def reply(writer: asyncio.StreamWriter) -> None:
        passed.append("answered")
        writer.write(encode(answer))

    async def test() -> None:
        async with serving(handle) as port:
            done = await asyncio.to_thread(replayed, path, "--to", f"127.0.0.1:{port}")
            assert done.exit_code == 0, done.output

    run(test())
    assert passed == [mqtt.Connect, mqtt.Publish, "answered", mqtt.PingReq]


def test_a_broker_that_sends_more_than_is_recorded_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "_MOST_SURPLUS_BYTES", 5_000)
    path = conversation(tmp_path / "a.pcapng")
    more = [(number, bytes(100)) for number in range(1, 200)]
    result, got = played(path, lambda packet: answers(packet, sent=more))
    assert got[-1] == "closed" and len(result.came) < 60


def test_a_broker_that_sends_no_packets_is_noted_once_and_left(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(
                    encode(mqtt.ConnAck(version_in_force=5)) + b"\xf0\x02\xff\xff" * 10_000
                )
                await writer.drain()

    results: list[Result] = []

    async def test() -> None:
        async with serving(handle) as port:
            path = conversation(tmp_path / "a.pcapng")
            words = (path, "--to", f"127.0.0.1:{port}", "--speed", "max")
            results.append(await asyncio.to_thread(replayed, *words))

    run(test())
    (done,) = results
    assert done.exit_code == 1
    assert done.stderr.count("the broker sends what is no packet") == 1


def test_a_reset_is_a_reset(tmp_path: Path) -> None:
    path = conversation(tmp_path / "a.pcapng", "reset")
    _, got = played(path, lambda packet: answers(packet, sent=[(3, b"three"), (1, b"one")]))
    assert got[-1] == "reset"


def test_each_listener_of_the_recording_has_its_address(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    with path.open("wb") as file:
        times = iter(range(1_700_000_000_000_000_000, 1 << 62, 1_000_000))
        recording = Recording(file, times.__next__)
        for number, port in enumerate((1883, 1884)):
            tape = recording.open(("10.0.0.2", 40000 + number), ("10.0.0.1", port))
            connect = mqtt.Connect(client_id=f"at {port}", version_in_force=5)
            tape.write(True, encode(connect))
            tape.write(False, encode(mqtt.ConnAck(version_in_force=5)))
            tape.close(by_client=True)
    with (
        wireyard.broker(record=tmp_path / "first") as first,
        wireyard.broker(record=tmp_path / "second") as second,
    ):
        target = f"127.0.0.1:{first.port},1884=127.0.0.1:{second.port}"
        done = replayed(path, "--to", target, "--speed", "max")
        assert done.exit_code == 0, done.output
        python = shlex.quote(sys.executable)
        started = f"sh -c 'exec {python} -m wireyard broker --port $0' {{port}} {{1884}}"
        only_one = replayed(path, "--to", started, "--speed", "max")
        assert only_one.exit_code == 1 and "at 1884: 127.0.0.1:" in only_one.stderr
    for name, client in (("first", "at 1883"), ("second", "at 1884")):
        (record,) = (tmp_path / name).iterdir()
        assert [*intents(record)] == [client]
    done = replayed(path, "--to", "127.0.0.1,x=127.0.0.1")
    assert done.exit_code == 2 and "'x=127.0.0.1' is not PORT=ADDRESS" in done.stderr


def test_what_has_no_end_has_none_in_the_record(tmp_path: Path) -> None:
    path = conversation(tmp_path / "a.pcapng", "none")
    _, record = replayed_to_own(path, tmp_path / "again", "--speed", "max")
    assert len(intents(record)["till"]) == 2  # nobody sent what it acknowledges
    assert not any(isinstance(step.what, End) for step in script_of(record).steps)


# --- the command --------------------------------------------------------------------------


def test_logins_are_given_where_passwords_are_masked(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(hash_password("ann", b"right"))
    settings = Settings(access=Access(read_users(str(users))))
    with wireyard.broker(settings, record=tmp_path / "first") as broker:
        run(_log_in(f"mqtt://ann:right@127.0.0.1:{broker.port}"))
    (path,) = (tmp_path / "first").iterdir()
    with wireyard.broker(settings) as broker:
        refused = replayed(path, "--to", broker.url, "--speed", "max")
        assert refused.exit_code == 1, refused.output
        lines = refused.stderr.splitlines()
        assert lines[0].endswith(
            "till: its password is masked in the recording, and --logins has none"
        )
        assert lines[1].endswith(
            "till: the broker refuses the connection: Bad User Name or Password"
        )
        assert lines[2].endswith("till: 2 of its packets could not be sent")
        logins = tmp_path / "logins.json"
        for name in ("till", "ann"):
            logins.write_text(json.dumps({name: {"username": "ann", "password": "right"}}))
            logins.chmod(0o600)
            options = ("--logins", logins, "--record", tmp_path / name)
            done = replayed(path, "--to", broker.url, "--speed", "max", *options)
            assert done.exit_code == 0, done.output
            (record,) = (tmp_path / name).iterdir()
            assert b"right" not in record.read_bytes()
            assert compared(path, record) == []


async def _log_in(url: str) -> None:
    async with Client(url, client_id="till") as client:
        await client.publish("a", b"1", qos=1)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--to", "broker.example"), 2, "broker.example is not this machine; --yes-to"
         " broker.example replays 9 connections of 8 clients and 27 messages"),
        (("--to", "10.0.0.1", "--yes-to", "10.0.0.2"), 2, "10.0.0.1 is not this machine"),
        (("--to", "ws://localhost"), 2, "replay has no WebSocket"),
        (("--to", "localhost", "--speed", "0"), 2, "'0' is neither a factor above 0 nor max"),
        (("--to", "localhost", "--logins", "open"), 2, "others may read it (chmod 600)"),
        (("--to", "localhost", "--logins", "odd"), 2, "odd: is no JSON of the form"),
        (("--to", "localhost", "--logins", "none"), 3, "none: No such file or directory"),
        (("--to", "mosquitto -p 1883"), 2, "a command that starts a broker has {port}"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_before_anything_is_sent(
    arguments: Sequence[str],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Scenario(tmp_path / "a.pcapng").run()
    for name, mode in (("open", 0o644), ("odd", 0o600)):
        Path(name).write_text("[" * 100_000)
        os.chmod(name, mode)
    done = replayed("a.pcapng", *arguments)
    assert done.exit_code == status
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_folder_of_the_proxy_again(tmp_path: Path) -> None:
    """Its files are one capture: a connection goes on in the next one."""
    folder, moment = tmp_path / "record", iter(range(1_700_000_000_000_000_000, 1 << 62, 1_000_000))
    recording = record_into(folder, "tap", moment.__next__, lambda line: None, max_bytes=400)
    tape = recording.open(("10.0.0.2", 40000), SERVER)
    tape.write(True, encode(mqtt.Connect(client_id="till", version_in_force=5)))
    tape.write(False, encode(mqtt.ConnAck(version_in_force=5)))
    for number in range(10):
        publish = mqtt.Publish(topic="a", payload=b"%d" % number, version_in_force=5)
        tape.write(True, encode(publish))
    tape.write(True, encode(mqtt.PingReq()) + b"\xc1\0")
    tape.write(True, encode(mqtt.Disconnect(version_in_force=5)))
    tape.close(by_client=True)
    recording.close()
    assert len([*folder.iterdir()]) > 1
    done, record = replayed_to_own(folder, tmp_path / "again", "--speed", "max")
    assert done.exit_code == 1
    assert "1 packets that are malformed or not whole are left out" in done.stderr
    sent = [step[0] for step in intents(record)["till"]]
    assert [one.payload for one in sent if isinstance(one, mqtt.Publish)] == [
        b"%d" % number for number in range(10)
    ]


def test_what_cannot_be_replayed_is_said(tmp_path: Path) -> None:
    stream = ROOT / "examples/traffic/till-c2b.mqtt"
    done = replayed(stream, "--to", "localhost")
    assert done.exit_code == 2 and "replay needs a capture" in done.stderr
    path = tmp_path / "a.pcapng"
    scenario = Scenario(path)
    scenario.connect("whole")
    scenario.connect("parts")
    scenario.end("whole", "parts")
    data = path.read_bytes()
    for name in ("parts", "whole"):
        connect = encode(mqtt.Connect(client_id=name, version_in_force=5))
        data = data.replace(connect, encode(mqtt.PingReq()) * (len(connect) // 2))
        (tmp_path / name).write_bytes(data)
    path = tmp_path / "parts"
    done, record = replayed_to_own(path, tmp_path / "again", "--speed", "max")
    assert done.exit_code == 1
    left_out = [line for line in done.stderr.splitlines() if "without the CONNECT" in line]
    assert len(left_out) == 1 and left_out[0].endswith("of their connection are left out")
    assert [*intents(record)] == ["whole"]
    lake = tmp_path / "lake"
    run = ["run", str(path), "--lake", str(lake), "--engine", "process"]
    CliRunner().invoke(main, run, catch_exceptions=False)
    done, _ = replayed_to_own(lake, tmp_path / "third", "--speed", "max")
    assert done.exit_code == 1
    assert f"{lake}: " in done.stderr
    done = replayed(tmp_path / "whole", "--to", "localhost")
    assert done.exit_code == 2 and "has no MQTT connection with its CONNECT" in done.stderr


def test_a_broker_that_says_nothing_is_noted(tmp_path: Path) -> None:
    """As one of another protocol does, that ends the connection once all is sent."""
    path = conversation(tmp_path / "a.pcapng")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass
        writer.close()

    async def test() -> None:
        async with serving(handle) as port:
            done = await asyncio.to_thread(replayed, path, "--to", f"127.0.0.1:{port}")
            assert done.exit_code == 1
            assert done.stderr.splitlines()[-1].endswith("till: the broker sent it nothing")

    run(test())


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    path = conversation(tmp_path / "a.pcapng")
    with wireyard.broker() as broker:
        url = broker.url
    done = replayed(path, "--to", url, "--speed", "max")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].endswith("till: 4 of its packets could not be sent")
