"""Several runs make the same tables as one run over all inputs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.captures.make import both_ways, packets, pcap
from tests.formats.mqtt.make import connack, connect, publish
from tests.make import item, items, long_item
from tests.spark import lakes
from tests.spark.lakes import HELLO, HELLO_REPLY, message, table
from wireyard.lake import read_lake
from wireyard.lake.writer import Lake
from wireyard.layers.tables import TABLES as FACTS
from wireyard.pipeline.decoding.task import BronzeTask
from wireyard.pipeline.facts import stage as facts
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.growing.input import GrowingInput
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import drop_from_lake

DELIVERED = items(item(11, (1).to_bytes(4, "big")), long_item(9, 7), item(1, "orders"))


def run(lake: Path, *paths: Path) -> None:
    """Do one run, in this process."""
    lakes.run(lake, None, *paths)


def mqtt(name: str) -> bytes:
    return connect(4, client=name) + publish(4, topic=name, payload=b"x") * 3


def inputs(folder: Path) -> list[Path]:
    """Write small inputs, which share files where one run reads them."""
    folder.mkdir()
    contents = {
        "one.mqtt": mqtt("one"),
        "two.mqtt": mqtt("two"),
        "broker.mqtt": connack(4) + publish(4, topic="three"),
        "sent.jmq": HELLO + b"".join(message(number) for number in range(5)),
        "got.jmq": HELLO_REPLY + b"".join(message(n, items=DELIVERED) for n in range(3, 9)),
        "later.jmq": HELLO + b"".join(message(number) for number in range(50, 55)),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in contents]


def rows(lake: Path) -> dict[str, list[str]]:
    return {name: sorted(map(repr, table(lake, name).to_pylist())) for name in FACTS}


def files(lake: Path, names: Iterable[str] = FACTS) -> set[str]:
    return {path.name for name in names for path in (lake / name).glob("*.parquet")}


def test_what_is_new_leaves_other_facts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = inputs(tmp_path / "in")
    run(tmp_path / "lake", *(path for path in paths if path.name != "one.mqtt"))
    before = files(tmp_path / "lake")
    read: list[str] = []
    write_facts = facts.write_facts

    def seen(runner, lake, of, *given):  # type: ignore[no-untyped-def]
        read.extend(each.source for each in given[-1])
        return write_facts(runner, lake, of, *given)

    monkeypatch.setattr("wireyard.pipeline.job.write_facts", seen)
    run(tmp_path / "lake", paths[0])
    assert read == [str(paths[0])]
    assert before < files(tmp_path / "lake")


def test_what_shows_the_same_messages_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {path.name: path for path in inputs(tmp_path / "in")}
    order = ("later.jmq", "got.jmq", "sent.jmq")
    for name in order[:2]:
        run(tmp_path / "lake", paths[name])
    kept = {
        row["message_key"]: row["first_seen"]
        for row in table(tmp_path / "lake", "messages").to_pylist()
    }
    assert sorted(kept.values()) == ["delivered"] * 6 + ["sent"] * 5
    made: list[list[str]] = []
    write_facts = facts.write_facts

    def seen(runner, lake, of, *given):  # type: ignore[no-untyped-def]
        made.append([Path(each.source).name for each in given[-1]])
        return write_facts(runner, lake, of, *given)

    with monkeypatch.context() as patched:
        patched.setattr("wireyard.pipeline.job.write_facts", seen)
        run(tmp_path / "lake", paths["sent.jmq"])
    assert made == [["sent.jmq", "got.jmq"]]  # once
    run(tmp_path / "once", *(paths[name] for name in order))
    assert rows(tmp_path / "lake") == rows(tmp_path / "once")


def test_the_last_input_that_is_dropped_leaves_empty_tables(tmp_path: Path) -> None:
    paths = inputs(tmp_path / "in")
    run(tmp_path / "lake", *paths)
    with Lake.open(str(tmp_path / "lake")) as lake:
        drop_from_lake(lake, {str(path) for path in paths}, None)
    assert lakes.all_rows(tmp_path / "lake") == {}
    assert not any(rows(tmp_path / "lake").values())


def test_a_file_that_has_lost_all_rows_is_written_anew(tmp_path: Path) -> None:
    """Of three inputs that share a file of closed sessions one has all rows of it."""
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    flow = both_ways(mqtt("one") + bytes.fromhex("e000"), connack(4), (40000, 1883))
    other = both_ways(mqtt("two") + bytes.fromhex("e000"), connack(4), (40001, 1883))
    both = pcap(packets([*flow, *other]))
    first_bytes = len(pcap(packets(flow)))
    contents = {
        "over.pcap": (both[:first_bytes], both[first_bytes:]),
        "two.mqtt": (mqtt("two"), publish(4, topic="more")),
        "three.mqtt": (mqtt("three"), publish(4, topic="more")),
    }
    for name, (first, _) in contents.items():
        (folder / name).write_bytes(first)
    names = [str(folder / name) for name in contents]
    with Lake.open(str(lake)) as opened:
        growth = Growth(opened, None)
        for name in names:
            assert growth.open_input(list_inputs([name]).inputs[0])
        growth.commit({name: growth.unread_bytes(name) for name in names}, names)
        growth.close()
    for name, (_, more) in contents.items():
        with (folder / name).open("ab") as file:
            file.write(more)
        run(lake, folder)
        lakes.assert_as_one_run(folder, lake)


@pytest.mark.shared
def test_captures_of_several_points(tmp_path: Path, shared: Path) -> None:
    """Hops over captures that come to the lake one after the other."""
    recorded = shared / "captures" / "openmq"
    if not recorded.is_dir():
        pytest.skip("no captures of Open MQ in the shared folder")
    paths = []
    for name in ("cluster", "transactions", "requests"):
        paths.append(Path(shutil.copy(recorded / f"{name}.pcap", tmp_path)))
    paths.append(Path(shutil.copy(recorded / "cluster.pcap", tmp_path / "again.pcap")))
    run(tmp_path / "once", *paths)
    for path in paths:
        run(tmp_path / "lake", path)
    found, expected = rows(tmp_path / "lake"), rows(tmp_path / "once")
    assert found == expected and len(found["hops"]) > 100


def test_what_has_grown_is_read_on(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: dict[str, list[int]] = {}
    read_on = GrowingInput.read

    def seen(one: GrowingInput, stop: int, task: BronzeTask) -> None:
        began.setdefault(Path(one.source).name, []).append(one.position)
        read_on(one, stop, task)

    monkeypatch.setattr(GrowingInput, "read", seen)
    folder, lake, rng = tmp_path / "in", tmp_path / "lake", Random(5)
    folder.mkdir()
    streams = examples / "traffic"
    growing = [
        examples / "traffic.pcap",
        examples / "ring.pcap",
        streams / "shop-c2b.jmq",
        streams / "monitor-b2c.mqtt",
    ]
    shutil.copy(streams / "office-c2b.mqtt", folder)
    reports, sizes = [], {path.name: list[int]() for path in growing}
    for part in (0.3, 0.5, 0.8, 1.0):
        for path in growing:
            data = path.read_bytes()
            stop = len(data) if part == 1.0 else int(len(data) * (part + rng.random() / 10))
            (folder / path.name).write_bytes(data[:stop])
            sizes[path.name].append(stop)
        reports.append(lakes.run(lake, None, folder))
        lakes.assert_as_one_run(folder, lake)
    assert [report.grown for report in reports] == [0, 4, 4, 4]
    assert [report.replaced for report in reports] == [0, 0, 0, 0]
    for name, (_, second, third, _) in sizes.items():
        # Once more from the beginning, and from then on at the frame that was not whole.
        first, *later = began[name]
        assert first == 0
        assert all(0 < at <= size for at, size in zip(later, (second, third), strict=True))
        assert later[0] > second - 2000
    read = sum(each.bytes_read for one in reports[-1].added for each in one.ledger.values())
    assert 0 < reports[-1].held_bytes < read
    lakes.nothing_left(lake)
    # Where the state is gone, and where the file is another one, it is read as a whole.
    (folder / "shop-c2b.jmq").write_bytes((streams / "shop-b2c.jmq").read_bytes())
    with (folder / "monitor-b2c.mqtt").open("ab") as file:
        file.write(b"\xc0")
    report = lakes.run(lake, None, folder)
    assert report.grown + report.replaced == 2
    lakes.assert_as_one_run(folder, lake)


def test_a_rotated_capture_is_read_on(examples: Path, tmp_path: Path) -> None:
    folder, lake, rng = tmp_path / "in", tmp_path / "lake", Random(6)
    folder.mkdir()
    capture = (examples / "traffic.pcap").read_bytes()
    head, frames = capture[: lakes.HEADER_BYTES], lakes.records(capture)
    shutil.copy(examples / "traffic" / "shop-c2b.jmq", folder)
    cuts = [0, *sorted(rng.sample(range(1, len(frames)), 11)), len(frames)]
    names = iter(rng.sample(range(100), len(cuts)))
    reports = []
    for first, part in enumerate((cuts[:4], cuts[3:5], cuts[4:9], cuts[8:])):
        for start, stop in pairwise(part):
            # Files in the order of their packets, not of their names.
            (folder / f"{next(names):02}.pcap").write_bytes(head + b"".join(frames[start:stop]))
        if first == 1:
            (folder / "quiet.pcap").write_bytes(head)
        reports.append(lakes.run(lake, None, folder, rotated=True))
        lakes.assert_as_one_run(folder, lake, rotated=True)
    assert [report.grown for report in reports] == [0, 1, 1, 1]
    last = len(head) + sum(map(len, frames[cuts[8] :]))
    (whole,) = (each for each in reports[-1].added if each.source == str(folder))
    read = sum(one.bytes_read for one in whole.ledger.values()) - reports[-1].held_bytes
    assert 0 < read < last
    assert not lakes.run(lake, None, folder, rotated=True).added
    # A packet that belongs before what was read: all of it is read again.
    early = min(folder.glob("[0-9]*.pcap"), key=lambda path: path.read_bytes()[24:32][::-1])
    data = early.read_bytes()
    early.unlink()
    (folder / "again.pcap").write_bytes(data[:-100])
    lakes.run(lake, None, folder, rotated=True)
    lakes.assert_as_one_run(folder, lake, rotated=True)


def test_states_of_what_stands_still_for_a_day_are_forgotten(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    path = folder / "one.mqtt"
    for size in (30, 50, 70):
        path.write_bytes(mqtt("one")[:size])
        run(lake, folder)
    (source,) = read_lake(str(lake)).record.inputs
    assert read_lake(str(lake)).record.inputs[source].files["_open"]
    then = time.time() - 25 * 3600
    with path.open("ab") as file:
        file.write(mqtt("one")[70:72])
    os.utime(path, (then, then))
    run(lake, folder)
    (folder / "two.mqtt").write_bytes(mqtt("two"))
    run(lake, folder)
    assert "_open" not in read_lake(str(lake)).record.inputs[source].files
    lakes.assert_as_one_run(folder, lake)
