"""Facts of all packets of an input that grows are made while its parts are committed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate
from pathlib import Path
from threading import Event, get_native_id
from typing import Any

import pytest

from tests.captures.make import one_way, one_way_frames, packets, pcap
from tests.formats.mqtt.make import connect, publish
from tests.spark import lakes
from tests.spark.lakes import HEADER_BYTES, nothing_left, records
from wireyard.errors import LakeError
from wireyard.lake.writer import Lake
from wireyard.pipeline import job
from wireyard.pipeline.growing import all_facts
from wireyard.pipeline.growing import growth as spark_growth
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import drop_from_lake, fill_lake

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"
PARTS = 8
KEYS = {
    "messages": ("protocol", "source", "message_key"),
    "deliveries": ("source", "message_key", "consumer", "consumer_client_id", "offset"),
    "hops": ("message_key", "hop", "kind", "stream", "offset"),
    "sessions": ("source", "stream", "offset"),
    "violations": ("source", "stream", "offset", "rule", "message_key"),
    "conversations": ("source", "request_key", "reply_key"),
    "transactions": ("source", "stream", "offset", "transaction_id", "outcome"),
    "destinations": ("source", "destination", "minute_ms"),
}
"""Columns that no two rows of a table have the same of; a JMS message has one of all sources."""


class Slow:
    """Makes facts, but waits for an event before it does."""

    def __init__(self) -> None:
        self.leave = Event()
        self.leave.set()
        self.made: list[set[str]] = []
        self.niceness: set[int] = set()
        self.error: Exception | None = None

    def add_facts(self, make: Callable[..., Any], *given: Any) -> Any:
        assert self.leave.wait(60)
        self.niceness.add(os.getpriority(os.PRIO_PROCESS, get_native_id()))
        if self.error is not None:
            raise self.error
        found = make(*given)
        self.made.append({*given[2]})
        return found


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Have facts be made beside, which takes as long as a test wants."""
    one, make = Slow(), job.add_facts
    monkeypatch.setattr(spark_growth, "take_long", lambda rows: True)
    monkeypatch.setattr(spark_growth, "_SHORT_S", 0.0)
    monkeypatch.setattr(spark_growth, "_PAUSES_AFTER_LONG", 1e6)
    monkeypatch.setattr(all_facts, "add_facts", lambda *given: one.add_facts(make, *given))
    yield one
    one.leave.set()


class Growing:
    """A lake that follows captures which are written part by part."""

    def __init__(self, folder: Path, partition_by: str | None = None) -> None:
        self.folder, self.root = folder / "in", folder / "lake"
        self.folder.mkdir()
        data = CAPTURE.read_bytes()
        self._head, self._frames = data[:HEADER_BYTES], records(data)
        self._open = Lake.open(str(self.root), partition_by=partition_by)
        self.lake = self._open.__enter__()
        self.growth = Growth(self.lake, None)

    def path(self, name: str = "grows.pcap") -> str:
        return str(self.folder / name)

    def write(self, part: int, name: str = "grows.pcap") -> None:
        """Append a part of the example to a capture."""
        first, stop = (len(self._frames) * number // PARTS for number in (part, part + 1))
        with (self.folder / name).open("ab") as file:
            file.write((b"" if part else self._head) + b"".join(self._frames[first:stop]))

    def commit(self, *names: str, ending: Collection[str] = ()) -> None:
        """Commit what is new of some captures."""
        unread = {}
        for path in map(self.path, names or ["grows.pcap"]):
            if not self.growth.is_open(path):
                assert self.growth.open_input(list_inputs([path]).inputs[0])
            else:
                assert self.growth.refresh(path, [path])
            unread[path] = self.growth.unread_bytes(path)
        self.growth.commit(unread, {*map(self.path, ending)})

    def grow(self, part: int) -> None:
        """Write a part of a capture, and commit it."""
        self.write(part)
        self.commit()
        self.check()

    def end(self, *names: str) -> None:
        """Have captures stand still, and commit all that there is."""
        self.growth.commit_facts(wait=True)
        self.commit(*names, ending=names)
        self.growth.commit_facts(wait=True)

    def make_due(self) -> None:
        """Have the facts of all packets be due."""
        self.growth._inputs[self.path()].facts_at_s = float("-inf")

    def check(self) -> None:
        """Look whether every row is there once."""
        for table, columns in KEYS.items():
            found = [
                (row[0], *row[2:]) if row[0] == "jms" else row
                for row in lakes.rows(self.root, table, *columns)
            ]
            assert len({*found}) == len(found), table

    def count(self, table: str) -> int:
        return len(lakes.rows(self.root, table, "source"))

    def close(self) -> None:
        self.growth.close()
        self._open.__exit__(None, None, None)

    def kill(self, slow: Slow) -> None:
        """End as if the process were killed, what makes facts too, and begin anew."""
        making = self.growth._all_facts
        slow.error = LakeError("killed")
        slow.leave.set()
        assert making is not None
        assert making._made.exception(60) is slow.error
        slow.error = None
        self.close()
        self._open = Lake.open(str(self.root))
        self.lake = self._open.__enter__()
        self.growth = Growth(self.lake, None)

    def assert_as_one_run(self) -> None:
        self.close()
        lakes.assert_as_one_run(self.folder, self.root)
        nothing_left(self.root)


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_parts_are_committed_meanwhile(
    tmp_path: Path, slow: Slow, partition_by: str | None
) -> None:
    growing = Growing(tmp_path, partition_by)
    growing.grow(0)
    growing.growth.commit_facts(wait=True)
    growing.check()
    growing.grow(1)
    slow.leave.clear()
    growing.make_due()
    growing.grow(2)
    assert growing.growth.is_making
    counts = [growing.count("messages")]
    for part in (3, 4, 5):
        growing.grow(part)
        assert growing.growth.commit_facts() == []
        counts.append(growing.count("messages"))
    assert counts == sorted({*counts})  # each part's messages are there at once
    minutes = growing.count("destinations")
    sessions = lakes.rows(growing.root, "sessions", *KEYS["sessions"], "closed_frame")
    slow.leave.set()
    growing.growth.commit_facts(wait=True)
    growing.check()
    assert not growing.growth.is_making
    assert growing.count("messages") == counts[-1]
    assert growing.count("destinations") > minutes
    assert lakes.rows(growing.root, "sessions", *KEYS["sessions"], "closed_frame") == sessions
    growing.grow(6)
    assert growing.count("messages") > counts[-1]
    growing.grow(7)
    growing.end("grows.pcap")
    assert slow.made == [{growing.path()}] * 3
    if sys.platform == "linux":
        ours = os.getpriority(os.PRIO_PROCESS, get_native_id())
        assert slow.niceness == {max(ours, 10)}
    growing.assert_as_one_run()


@pytest.mark.parametrize("meanwhile", ["a part", "the end", "nothing"])
def test_killed_while_facts_are_made(tmp_path: Path, slow: Slow, meanwhile: str) -> None:
    growing = Growing(tmp_path)
    growing.grow(0)
    growing.growth.commit_facts(wait=True)
    slow.leave.clear()
    growing.make_due()
    growing.write(1)
    growing.commit(ending=["grows.pcap"] if meanwhile == "the end" else ())
    if meanwhile == "a part":
        growing.grow(2)
    growing.kill(slow)
    growing.commit()
    # They are not taken for made, so they are made first.
    assert growing.growth.is_making
    growing.growth.commit_facts(wait=True)
    growing.check()
    for part in (3, 4) if meanwhile == "a part" else (2, 3, 4):
        growing.grow(part)
    growing.end("grows.pcap")
    growing.assert_as_one_run()


@pytest.mark.parametrize("ends", [False, True])
def test_a_run_makes_what_was_not_made(tmp_path: Path, slow: Slow, ends: bool) -> None:
    growing = Growing(tmp_path)
    growing.grow(0)
    growing.growth.commit_facts(wait=True)
    slow.leave.clear()
    growing.make_due()
    growing.write(1)
    growing.commit(ending=["grows.pcap"] if ends else ())
    slow.error = LakeError("killed")
    slow.leave.set()
    growing.close()
    report = lakes.run(growing.root, None, growing.folder)
    assert report.grown == 1
    lakes.assert_as_one_run(growing.folder, growing.root)
    nothing_left(growing.root)


def test_a_capture_that_goes_on_while_its_facts_are_made(tmp_path: Path, slow: Slow) -> None:
    growing = Growing(tmp_path)
    growing.grow(0)
    growing.growth.commit_facts(wait=True)
    slow.leave.clear()
    growing.write(1)
    growing.commit(ending=["grows.pcap"])
    counts = [growing.count("messages")]
    assert not growing.growth.paths
    for part in (2, 3):
        growing.grow(part)
        counts.append(growing.count("messages"))
    assert counts == sorted({*counts})
    slow.leave.set()
    growing.growth.commit_facts(wait=True)
    growing.check()
    assert growing.count("messages") == counts[-1]
    assert "growing" in growing.lake.inputs[growing.path()].stamp
    growing.grow(4)
    growing.end("grows.pcap")
    growing.assert_as_one_run()


def test_a_capture_that_rotates_has_facts_beside_the_next(tmp_path: Path, slow: Slow) -> None:
    growing = Growing(tmp_path)
    growing.grow(0)
    growing.growth.commit_facts(wait=True)
    growing.write(1)
    slow.leave.clear()
    growing.commit(ending=["grows.pcap"])
    data = (Path(CAPTURE).parent / "traffic" / "stock-1-c2b.mqtt").read_bytes()
    stream = growing.folder / "next.mqtt"
    for size in (100, 300, len(data)):
        stream.write_bytes(data[:size])
        path = str(stream)
        if not growing.growth.is_open(path):
            assert growing.growth.open_input(list_inputs([path]).inputs[0])
        assert growing.growth.refresh(path, [path])
        assert growing.growth.has_to_wait(path)
        growing.growth.commit({path: growing.growth.unread_bytes(path)}, ())
    packets = lakes.rows(growing.root, "packets_mqtt", "source")
    assert (str(stream),) in packets
    slow.leave.set()
    growing.growth.commit_facts(wait=True)
    growing.check()
    growing.end("next.mqtt")
    growing.assert_as_one_run()


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_facts_that_others_have_made_anew_are_made_again(
    tmp_path: Path, slow: Slow, grows: bool, ends: bool
) -> None:
    growing = Growing(tmp_path)
    growing.write(0)
    growing.write(1)
    growing.grow(2)
    growing.growth.commit_facts(wait=True)
    slow.leave.clear()
    growing.make_due()
    growing.write(3)
    growing.commit(ending=["grows.pcap"] if ends else ())
    copy = growing.folder / "whole.pcap"
    copy.write_bytes((growing.folder / "grows.pcap").read_bytes())
    growing.lake.begin_run()
    found = list_inputs([str(copy)]).inputs
    fill_lake(growing.lake, found, None, lakes.Silent())
    growing.check()
    if grows:
        growing.grow(4)
    slow.leave.set()
    slow.made.clear()
    growing.growth.commit_facts(wait=True)
    assert len(slow.made) == 2
    growing.check()
    if ends and not grows:
        lakes.assert_as_one_run(growing.folder, growing.root)
    growing.grow(5 if grows else 4)
    growing.end("grows.pcap")
    growing.assert_as_one_run()


def test_an_input_that_comes_meanwhile_and_shows_the_same_messages(
    tmp_path: Path, slow: Slow
) -> None:
    """Its run does not see facts that are not committed."""
    growing = Growing(tmp_path)
    for part in range(PARTS):
        growing.write(part)
    slow.leave.clear()
    growing.commit(ending=["grows.pcap"])
    copy = growing.folder / "whole.pcap"
    copy.write_bytes((growing.folder / "grows.pcap").read_bytes())
    growing.lake.begin_run()
    found = list_inputs([str(copy)]).inputs
    fill_lake(growing.lake, found, None, lakes.Silent())
    slow.leave.set()
    growing.growth.commit_facts(wait=True)
    growing.check()
    growing.assert_as_one_run()


def test_a_capture_without_facts_has_ended(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    Path(growing.path()).write_bytes(one_way([]))
    growing.commit(ending=["grows.pcap"])
    growing.growth.commit_facts(wait=True)
    assert "growing" not in growing.lake.inputs[growing.path()].stamp
    growing.assert_as_one_run()


def test_captures_that_grow_and_show_the_same_messages(tmp_path: Path, slow: Slow) -> None:
    growing, names = Growing(tmp_path), ("grows.pcap", "other.pcap")
    for part in range(PARTS):
        for name in names:
            growing.write(part, name)
        if part in (3, 5):
            slow.leave.clear()
            growing.make_due()
        growing.commit(*names)
        growing.check()
        if part in (0, 4, 6):
            slow.leave.set()
            growing.growth.commit_facts(wait=True)
            growing.check()
    growing.end("grows.pcap")
    growing.check()
    growing.end("other.pcap")
    growing.assert_as_one_run()


def test_a_capture_that_has_become_long_meanwhile(
    tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path)
    growing.grow(0)
    growing.growth.commit_facts(wait=True)
    slow.leave.clear()
    growing.make_due()
    growing.grow(1)
    monkeypatch.setattr(spark_growth, "take_long", lambda rows: False)
    stream = growing.folder / "next.mqtt"
    stream.write_bytes((CAPTURE.parent / "traffic" / "stock-1-c2b.mqtt").read_bytes())
    path = str(stream)
    assert growing.growth.open_input(list_inputs([path]).inputs[0])
    assert not growing.growth.has_to_wait(path)
    monkeypatch.setattr(spark_growth, "take_long", lambda rows: True)
    growing.growth.commit({path: stream.stat().st_size}, {path})
    assert growing.growth.is_making
    slow.leave.set()
    growing.growth.commit_facts(wait=True)
    growing.check()
    growing.end("grows.pcap")
    growing.assert_as_one_run()


def test_an_input_that_shared_files_gets_parts_meanwhile(tmp_path: Path, slow: Slow) -> None:
    """Facts that were made of several inputs together are copied, not made again."""
    growing, names = Growing(tmp_path), ("one.pcap", "two.pcap")
    frames = {}
    for number, name in enumerate(names):
        pieces = [connect(4, client=name), *[publish(4, topic="a/b", payload=b"x")] * 16]
        starts = accumulate(map(len, pieces), initial=0)
        placed = list(zip(starts, pieces, strict=False))
        frames[name] = packets(one_way_frames(placed, 40_000 + number))
    for at in range(1, 5):
        for name in names:
            Path(growing.path(name)).write_bytes(pcap(frames[name][: at * len(frames[name]) // 4]))
        if at == 2:
            slow.leave.clear()
            growing.growth._inputs[growing.path("one.pcap")].facts_at_s = float("-inf")
        growing.commit(*names)
        if at != 2:
            slow.leave.set()
            growing.growth.commit_facts(wait=True)
        growing.check()
    assert slow.made == [{*map(growing.path, names)}, {growing.path("one.pcap")}]
    growing.end(*names)
    growing.assert_as_one_run()


def test_what_another_file_replaces_was_related(tmp_path: Path, slow: Slow) -> None:
    """What was received of its messages has other rows from then on."""
    growing, recorded = Growing(tmp_path), CAPTURE.parent / "traffic"
    sent, got = growing.folder / "sent.jmq", growing.folder / "got.jmq"
    sent.write_bytes((recorded / "shop-c2b.jmq").read_bytes())
    got.write_bytes((recorded / "billing-b2c.jmq").read_bytes())
    growing.commit(sent.name, got.name, ending=[sent.name, got.name])
    growing.growth.commit_facts(wait=True)
    assert growing.count("messages")
    sent.rename(tmp_path / "gone.jmq")
    sent.write_bytes((recorded / "stranger-c2b.jmq").read_bytes())
    growing.commit(sent.name, ending=[sent.name])
    growing.growth.commit_facts(wait=True)
    growing.assert_as_one_run()


def test_a_capture_that_is_dropped_while_it_grows_is_read_anew(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.write(0)
    growing.write(0, "other.pcap")
    growing.commit("grows.pcap", "other.pcap")
    growing.growth.commit_facts(wait=True)
    growing.growth.close()
    growing.lake.begin_run()
    drop_from_lake(growing.lake, {growing.path()}, None)
    assert growing.lake.inputs.keys() == {growing.path("other.pcap")}
    growing.write(1)
    growing.commit(ending=["grows.pcap"])
    growing.end("other.pcap")
    growing.assert_as_one_run()


def test_what_goes_wrong_is_said(tmp_path: Path, slow: Slow) -> None:
    growing = Growing(tmp_path)
    slow.error = LakeError("no room")
    growing.write(0)
    growing.commit()
    with pytest.raises(LakeError, match="no room"):
        growing.growth.commit_facts(wait=True)
    growing.close()
