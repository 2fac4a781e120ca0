"""Many captures that grow are read by the tasks of one stage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.captures.make import BEGAN_NS, Packet, both_ways, pcap
from tests.formats.mqtt.make import connack, connect, publish
from tests.spark import lakes
from tests.spark.lakes import HEADER_BYTES
from wireyard.errors import SourceError
from wireyard.lake import read_lake
from wireyard.lake.writer import Lake
from wireyard.pipeline.decoding.task import BronzeTask
from wireyard.pipeline.growing import growth as spark_growth
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.growing.input import GrowingInput, read_states
from wireyard.pipeline.growing.tasks import read_parts
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.replacing import OPEN_STATES
from wireyard.pipeline.running import Runner
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAPTURES = 50


def capture(number: int) -> bytes:
    """Return a capture of a client that publishes."""
    client = connect(4, client=f"client-{number}")
    client += b"".join(publish(4, topic="a/b", payload=b"%d" % at) for at in range(4))
    frames = both_ways(client, connack(4), (40_000 + number, 1883))
    return pcap([Packet(frame, BEGAN_NS + at * 10**6) for at, frame in enumerate(frames)])


def follow(lake: Path, folder: Path, engine: SparkEngine | None) -> None:
    """Follow captures that grow in two turns, each by another process, as it were."""
    rng = Random(5)
    folder.mkdir()
    captures = {folder / f"{number}.pcap": capture(number) for number in range(CAPTURES)}
    with Lake.open(str(lake)) as opened:
        for is_last in (False, True):
            for path, data in captures.items():
                size = len(data) if is_last else rng.randint(HEADER_BYTES, len(data))
                path.write_bytes(data[:size])
            growth, found = Growth(opened, engine), list_inputs([str(folder)]).inputs
            assert all(growth.open_input(each) for each in found)
            unread = {each.path: growth.unread_bytes(each.path) for each in found}
            growth.commit(unread, unread if is_last else ())
            growth.close()
    lakes.assert_as_one_run(folder, lake)


def test_the_parts_of_a_turn_are_a_task_for_each_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, run = list[tuple[str, int]](), Runner.run

    def counted(self: Runner, tasks: Any, work: Any, *given: Any, **named: Any) -> Any:
        stages.append((work.func.__name__, len(tasks)))
        return run(self, tasks, work, *given, **named)

    monkeypatch.setattr(Runner, "run", counted)
    monkeypatch.setattr(Runner, "at_once", 3)
    follow(tmp_path / "lake", tmp_path / "in", None)
    assert [tasks for name, tasks in stages if name == "_read_task"] == [3, 3]


def test_small_parts_share_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "at_once", 2)
    follow(tmp_path / "lake", tmp_path / "in", None)
    lake = read_lake(str(tmp_path / "lake"))
    assert len(lake.inputs) == CAPTURES
    assert len(lake.record.tables["packets_mqtt"]) <= 2 * 3
    assert len(lake.record.tables["streams"]) <= 2 * 2


def test_turns_of_some_inputs_leave_the_rows_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that inputs share are copied without the rows that a part replaces."""
    monkeypatch.setattr(Runner, "at_once", 2)
    wholes_read = list[list[str]]()

    def seen(*given: Any) -> Any:
        parts, gone = read_parts(*given)
        wholes_read.append([part.source for part in parts if part.is_whole])
        return parts, gone

    monkeypatch.setattr(spark_growth, "read_parts", seen)
    rng, folder = Random(7), tmp_path / "in"
    folder.mkdir()
    wholes = {str(folder / f"{number}.pcap"): capture(number) for number in range(6)}
    sizes = dict.fromkeys(wholes, HEADER_BYTES)
    for path, data in wholes.items():
        Path(path).write_bytes(data[:HEADER_BYTES])
    with Lake.open(str(tmp_path / "lake")) as opened:
        growth = Growth(opened, None)
        for each in list_inputs([str(folder)]).inputs:
            assert growth.open_input(each)
        for turn in range(12):
            some = sorted(wholes) if turn == 0 else rng.sample(sorted(wholes), rng.randint(1, 4))
            for path in some:
                most = len(wholes[path])
                sizes[path] = rng.randint(max(sizes[path], most // 2), most)
                Path(path).write_bytes(wholes[path][: sizes[path]])
                assert growth.refresh(path, [path])
            growth.commit({path: growth.unread_bytes(path) for path in some}, ())
            now = read_lake(str(tmp_path / "lake"))
            for table in ("streams", "sessions"):
                keys = Counter(
                    (row["source"], row["stream"])
                    for row in now.read(table, columns=["source", "stream"]).to_pylist()
                )
                assert not keys or max(keys.values()) == 1, (turn, table)
            streams = {*now.read("streams", columns=["source"])["source"].to_pylist()}
            packets = {*now.read("packets_mqtt", columns=["source"])["source"].to_pylist()}
            assert packets <= streams, turn
            for path in wholes:
                for name in now.inputs[path].files[OPEN_STATES]:
                    assert path in read_states(now.path(OPEN_STATES, name)), turn
        for path, data in wholes.items():
            Path(path).write_bytes(data)
            assert growth.refresh(path, [path])
        growth.commit({path: growth.unread_bytes(path) for path in wholes}, wholes)
        growth.close()
    assert wholes_read[0] and not any(wholes_read[1:])
    lakes.assert_as_one_run(folder, tmp_path / "lake")


@pytest.mark.parametrize("is_read", [False, True])
def test_an_input_that_is_gone_leaves_no_rows_in_files_of_others(
    is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, end = tmp_path / "in", GrowingInput.end

    def gone(self: GrowingInput, task: BronzeTask) -> list[str]:
        if self.source == str(paths[1]):
            paths[1].unlink()
            raise SourceError("gone")
        return end(self, task)

    folder.mkdir()
    paths = [folder / f"{number}.pcap" for number in range(3)]
    with Lake.open(str(tmp_path / "lake")) as opened:
        growth = Growth(opened, None)
        for number, path in enumerate(paths):
            path.write_bytes(capture(number))
            assert growth.open_input(list_inputs([str(path)]).inputs[0])
        unread = {str(path): growth.unread_bytes(str(path)) for path in paths}
        if is_read:
            monkeypatch.setattr(GrowingInput, "end", gone)
        else:
            paths[1].unlink()
        growth.commit(unread, unread)
        assert {*read_lake(str(tmp_path / "lake")).inputs} == {str(paths[0]), str(paths[2])}
        growth.close()
    lakes.assert_as_one_run(folder, tmp_path / "lake")


@pytest.mark.spark
def test_the_process_that_follows_decodes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("decoded in the driver")

    monkeypatch.setattr(GrowingInput, "read", fail)
    follow(tmp_path / "lake", tmp_path / "in", SparkEngine(lambda: spark))
