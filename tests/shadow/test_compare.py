"""Two recordings compared: no difference where there is none, and each planted defect by itself."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import wireyard
from tests.conftest import ROOT
from tests.shadow.defects import DEFECTS, Planted, Swapped, check, news, nothing, record
from tests.shadow.scenario import SERVER, Defect, JmsScenario, Scenario, none
from wireyard import mqtt
from wireyard.answers import Tables, open_tables
from wireyard.cli import main
from wireyard.shadow import Difference, differences

BROKERS = ROOT / "tests/shadow/brokers"


def recorded(path: Path, defect: Defect = none, began: float = 1_700_000_000.0) -> Path:
    Scenario(path, defect, began).run()
    return path


def lost(n: int) -> Defect:
    return Planted(news(), nothing, n)


def compared(a: Path | Tables, b: Path) -> list[Difference]:
    with ExitStack() as stack:
        left, right = (
            stack.enter_context(open_tables([str(one)])) if isinstance(one, Path) else one
            for one in (a, b)
        )
        return differences(left, right)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("shadow") / "a.pcapng")


@pytest.fixture(scope="module")
def tables(sound: Path) -> Iterator[Tables]:
    with open_tables([str(sound)]) as tables:
        yield tables


def test_another_run_of_the_same_broker_has_no_difference(
    sound: Path, tables: Tables, tmp_path: Path
) -> None:
    assert differences(tables, tables) == []
    own = mqtt.Publish(topic="$SYS/uptime", payload=b"3", version_in_force=5)
    chatty = Planted(news(), lambda packet: (packet, own), 4)
    other = recorded(tmp_path / "b.pcapng", chatty, began=1_700_012_345.0)
    assert other.read_bytes() != sound.read_bytes()
    assert compared(tables, other) == []
    assert compared(traffic := ROOT / "examples/traffic.pcap", traffic) == []


def blocks(path: Path) -> list[bytes]:
    """Return the blocks of a pcapng file; the third is the first frame."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        found.append(data[at : at + size])
        at += size
    return found


@pytest.mark.parametrize("kept", ["first half", "second half", "95 %", "80 %", "to the broker"])
def test_what_a_worse_capture_lacks_is_no_difference(
    sound: Path, tables: Tables, tmp_path: Path, kept: str
) -> None:
    """Nor is what it pairs otherwise for that reason."""
    head, frames = blocks(sound)[:2], blocks(sound)[2:]
    middle, dice = len(frames) // 2, random.Random(kept)
    left = {
        "first half": frames[:middle],
        "second half": frames[middle:],
        "to the broker": [one for one in frames if one[64:66] == SERVER[1].to_bytes(2, "big")],
    }
    if kept not in left:
        left[kept] = [one for one in frames if dice.random() < int(kept[:2]) / 100]
    worse = tmp_path / "worse.pcapng"
    worse.write_bytes(b"".join([*head, *left[kept]]))
    assert worse.stat().st_size < sound.stat().st_size
    with open_tables([str(worse)]) as part:
        assert differences(tables, part) == differences(part, tables) == []


@pytest.fixture(scope="module")
def sound_jms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shadow") / "jms.pcapng"
    record(None, 0, path, is_jms=True)
    return path


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_and_nothing_else(
    sound: Path, sound_jms: Path, tmp_path: Path, name: str
) -> None:
    row, path = DEFECTS[name], tmp_path / "b.pcapng"
    touched = record(row, 1, path, row.is_jms)
    check(row, touched, sound_jms if row.is_jms else sound, path)


@pytest.mark.parametrize(("second", "found"), [(1, ["order"]), (2, [])])
def test_the_order_is_that_of_messages_with_one_qos(
    tmp_path: Path, second: int, found: list[str]
) -> None:
    """That of publication: both come at QoS 1 here."""
    paths = tmp_path / "a.pcapng", tmp_path / "b.pcapng"
    defects: Sequence[Defect] = none, Swapped(1, qos=1)
    for path, defect in zip(paths, defects, strict=True):
        scenario = Scenario(path, defect)
        for name in ("display", "till"):
            scenario.connect(name)
        scenario.send("display", mqtt.Subscribe, packet_id=1, filters=[("shop/1", 1)])
        for number, qos in enumerate((1, second)):
            scenario.publish("till", "shop/1", b"%d" % number, qos=qos, number=number)
        scenario.send("till", mqtt.PubRel, packet_id=2)
        scenario.end("display", "till")
    assert [each.difference for each in compared(*paths)] == found


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({}, ["order"]),
        ({"bit_flags": "QPA"}, []),
        ({"delivery_time": 1_700_000_000_500}, []),
        ({"producer": 1}, []),
    ],
)
def test_the_order_of_jms_is_that_of_a_producer_and_a_delivery_mode(
    tmp_path: Path, other: dict[str, Any], found: list[str]
) -> None:
    """What is delayed has none."""
    paths = [tmp_path / "a.pcapng", tmp_path / "b.pcapng"]
    for path in paths:
        scenario = JmsScenario(path)
        till, tape = scenario.joined("till")
        producers = [till.producer("stock") for _ in range(2)]
        fields = {"one": dict(other), "two": {}}
        for text in fields if path == paths[0] else reversed(fields):
            producer = producers[fields[text].pop("producer", 0)]
            till.send(producer, text, destination="stock", **fields[text])
            scenario.broker.wait(1)
        scenario.leave(till, tape)
        scenario.consume("desk", "stock")
        scenario.end()
    assert [each.difference for each in compared(*paths)] == found


def test_a_member_of_a_share_is_a_freedom(tmp_path: Path) -> None:
    paths = []
    for turn in (0, 1):
        path = tmp_path / f"{turn}.pcapng"
        scenario = Scenario(path)
        members = ["one", "two"]
        for name in (*members, "till"):
            scenario.connect(name)
        for name in members if turn else members[::-1]:
            scenario.send(name, mqtt.Subscribe, packet_id=1, filters=[("$share/g/a", 1)])
        for number in range(4):
            scenario.publish("till", "a", b"%d" % number, qos=1, number=number)
        scenario.end(*members, "till")
        paths.append(path)
    found = compared(*paths)
    assert {(each.difference, each.breaks) for each in found} == {("share", "neither")}


def test_what_a_recording_could_not_show_is_no_difference(
    tables: Tables, sound: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.pcapng"
    scenario = Scenario(short)
    scenario.run(rounds=5)  # fewer messages were sent, and the rest is the same
    with open_tables([str(short)]) as fewer:
        assert differences(tables, fewer) == differences(fewer, tables) == []
    alone = tmp_path / "alone.pcapng"
    scenario = Scenario(alone)
    scenario.connect("till")
    for number in range(12):
        for topic in ("shop/1", "shop/2"):
            scenario.publish("till", topic, b"%d" % number, qos=number % 2, number=number)
    scenario.end("till")
    assert compared(tables, alone) == []  # whose subscribers were not there


@pytest.mark.parametrize(
    ("broker", "kind", "client", "topic", "breaks", "b"),
    [
        # A will with an empty payload is refused in 3.1.1, with a code of 5.0.
        ("mochi-2.7.9", "will", "watcher", "home/gone/empty", "neither", "not delivered"),
        ("mochi-2.7.9", "refusal", "gone-empty", None, "B", "connection 1: 130"),
        # A retained value comes at the QoS of its publication, above the granted one.
        ("aedes-1.2.0", "QoS", "late", "home/2", "B", "qos 2"),
        # Retained values go to clients without a filter that matches.
        ("amqtt-0.12.1", "retained", "gone-full", "home/0", "neither", "delivered"),
    ],
)
def test_the_defects_of_other_brokers_come_out(
    broker: str, kind: str, client: str, topic: str | None, breaks: str, b: str
) -> None:
    """One conversation in 3.1.1 with our broker, and its replays to others."""
    found = compared(BROKERS / "wireyard.pcapng", BROKERS / f"{broker}.pcapng")
    rows = [
        one for one in found
        if (one.difference, one.client, one.destination) == (kind, client, topic)
    ]  # fmt: skip
    assert rows and all(one.breaks == breaks and one.b.startswith(b) for one in rows)


def test_the_command(sound: Path, tmp_path: Path) -> None:
    other = recorded(tmp_path / "b.pcapng", lost(4))
    text = CliRunner().invoke(main, ["shadow", str(sound), str(other)])
    assert text.exit_code == 0
    lines = text.stdout.splitlines()
    assert lines[3].split()[:4] == ["class", "rows", "A", "B"]
    assert lines[4].split() == ["missing", "1", "-", "1", "-", "-"]
    assert lines[6] == "missing: display on shop/1"
    assert " ".join(lines[8].split()).startswith("B not delivered: not_forwarded, frame ")
    for out in ("jsonl", "csv"):
        done = CliRunner().invoke(main, ["shadow", str(sound), str(other), "--out", out])
        assert done.exit_code == 0
        rows = done.stdout.splitlines()
        if out == "jsonl":
            (row,) = map(json.loads, rows)
        else:
            (row,) = csv.DictReader(rows)
        assert (row["difference"], row["client"], row["breaks"]) == ("missing", "display", "B")
    page = tmp_path / "page.html"
    same = CliRunner().invoke(main, ["shadow", str(sound), str(sound), "-w", str(page)])
    assert same.stdout.splitlines()[-1] == "no difference"
    assert "There is no difference." in page.read_text()


def test_clients_of_one_side_are_named(sound: Path, tmp_path: Path) -> None:
    paths = tmp_path / "a.pcapng", tmp_path / "b.pcapng"
    for path, names in zip(paths, (("till", *"abcdef"), ("till", "g")), strict=True):
        scenario = Scenario(path)
        for name in names:
            scenario.connect(name)
        scenario.end(*names)
    done = CliRunner().invoke(main, ["shadow", *map(str, paths)])
    assert done.stdout.splitlines() == [
        f"A  {paths[0]}", "   has alone, so they are not compared: a, b, c, d, e, and 1 other",
        f"B  {paths[1]}", "   has alone, so they are not compared: g", "", "no difference",
    ]  # fmt: skip
    other = tmp_path / "other.pcapng"
    scenario = Scenario(other)
    scenario.connect("alone")
    scenario.end("alone")
    done = CliRunner().invoke(main, ["shadow", str(sound), str(other)])
    assert done.exit_code == 2 and done.stderr.endswith("have no client in common\n")


def test_names_of_files_move_no_cursor(sound: Path, tmp_path: Path) -> None:
    other = recorded(tmp_path / "b\x1b[2J\n.pcapng", lost(4))
    done = CliRunner().invoke(main, ["shadow", str(sound), str(other)])
    assert done.exit_code == 0 and "\x1b" not in done.output
    assert [line for line in done.stdout.splitlines() if "b\\x1b[2J" in line] != []
    assert not any(line.startswith(".pcapng") for line in done.stdout.splitlines())


def test_the_page(sound: Path, tmp_path: Path) -> None:
    other, page = recorded(tmp_path / "<b>.pcapng", lost(4)), tmp_path / "page.html"
    done = CliRunner().invoke(main, ["shadow", str(sound), str(other), "-w", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    heads = re.findall(r'<p class="figure"><b>(\d+)</b> differences?</p>\s*<p>(where \w+)', text)
    assert heads == [("1", "where B"), ("0", "where A"), ("0", "where both"), ("0", "where no")]
    assert "<b>.pcapng" not in text and "&lt;b&gt;.pcapng" in text
    assert "<b>display</b> on <b>shop/1</b>: B breaks a rule" in text
    assert text.count('class="bytes"') == 2  # the delivery of A, and the message that B accepted
    assert re.findall("wireyard inspect (\\S+) --frame", text)[0] == str(sound)


def test_a_replay_leaves_nothing_for_the_next(sound: Path, tmp_path: Path) -> None:
    with wireyard.broker() as broker:
        line = ["shadow", str(sound), "--to", broker.url, "--speed", "max"]
        done = CliRunner().invoke(main, [*line, "--record", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"replay", "again"}
    # What waits in a queue waits as long as the machine takes.
    assert {row.split()[0] for row in table_of(done)} <= {"class", "latency"}


def table_of(done: Result) -> list[str]:
    """Return the table of classes."""
    table = done.stdout.partition("\n\n")[2].partition("\n\n")[0]
    return [] if table.startswith("no difference") else table.splitlines()


def test_a_replay_to_a_broker_that_a_command_starts(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    scenario = Scenario(path, lost(1))
    for name in ("display", "till"):
        scenario.connect(name)
    scenario.send("display", mqtt.Subscribe, packet_id=1, filters=[("shop/1", 1)])
    for number in range(3):
        scenario.publish("till", "shop/1", b"%d" % number, qos=1, number=number)
    scenario.end("display", "till")
    started = f"{shlex.quote(sys.executable)} -m wireyard broker --port {{port}}"
    line = ["shadow", str(path), "--to", started, "--speed", "max"]
    done = CliRunner().invoke(main, [*line, "--out", "jsonl"])
    (row,) = map(json.loads, done.stdout.splitlines())
    assert (row["difference"], row["breaks"], row["noise"]) == ("extra", "A", 0)
    with wireyard.broker() as broker:
        done = CliRunner().invoke(main, [*line, "--own", broker.url])
    assert table_of(done)[-1].split() == ["extra", "1", "1", "-", "-", "-", "1"]


def test_mistakes_are_one_line(sound: Path) -> None:
    for command, said in (("false {port}", "it says nothing"), ("absent {port}", "No such file")):
        failed = CliRunner().invoke(main, ["shadow", str(sound), "--to", command])
        assert failed.exit_code == 3 and said in failed.stderr
    failed = CliRunner().invoke(main, ["shadow", str(sound)])
    assert failed.exit_code == 2 and "name two recordings" in failed.stderr


@pytest.mark.peer
def test_two_replays_to_mosquitto_have_no_difference(sound: Path) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin"
    if (program := shutil.which("mosquitto", path=path)) is None:
        pytest.skip("mosquitto is not installed")
    line = ["shadow", str(sound), "--to", f"{program} -p {{port}}", "--speed", "max"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    noisy = {row.split()[0] for row in table_of(done) if row.split()[-1] not in ("-", "noise")}
    assert noisy <= {"latency"}
