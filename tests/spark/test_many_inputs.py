"""Many captures that grow are read by the tasks of one stage."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.captures.make import BEGAN_NS, Packet, both_ways, pcap
from tests.formats.mqtt.make import connack, connect, publish
from tests.spark import lakes
from tests.spark.lakes import HEADER_BYTES, records
from wireyard.lake.writer import Lake
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.growing.input import GrowingInput
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.running import Runner
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAPTURES, TURNS = 50, 3


def capture(number: int) -> bytes:
    """Return a capture of a client that publishes."""
    client = connect(4, client=f"client-{number}")
    client += b"".join(publish(4, topic="a/b", payload=b"%d" % at) for at in range(4))
    frames = both_ways(client, connack(4), (40_000 + number, 1883))
    return pcap([Packet(frame, BEGAN_NS + at * 10**6) for at, frame in enumerate(frames)])


def follow(lake: Path, folder: Path, engine: SparkEngine | None) -> None:
    """Follow captures that grow in some turns; between two, another process may go on."""
    rng = Random(5)
    rest = {}
    for number in range(CAPTURES):
        data = capture(number)
        (folder / f"{number}.pcap").write_bytes(data[:HEADER_BYTES])
        rest[folder / f"{number}.pcap"] = records(data)
    with Lake.open(str(lake)) as opened:
        growth = Growth(opened, engine)
        for turn in range(TURNS):
            for path, frames in rest.items():
                size = len(frames) if turn == TURNS - 1 else rng.randint(0, len(frames))
                with path.open("ab") as file:
                    file.write(b"".join(frames[:size]))
                del frames[:size]
            if rng.random() < 0.5:
                growth.close()
                growth = Growth(opened, engine)
            for each in list_inputs([str(folder)]).inputs:
                if growth.is_open(each.path):
                    assert growth.refresh(each.path, [each.path])
                else:
                    assert growth.open_input(each)
            unread = {str(path): growth.unread_bytes(str(path)) for path in rest}
            growth.commit(unread, unread if turn == TURNS - 1 else ())
        growth.close()
    lakes.assert_as_one_run(folder, lake)


def test_the_parts_of_a_turn_are_tasks_of_one_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, run = list[tuple[str, int]](), Runner.run

    def counted(self: Runner, tasks: Any, work: Any, *given: Any, **named: Any) -> Any:
        stages.append((work.func.__name__, len(tasks)))
        return run(self, tasks, work, *given, **named)

    monkeypatch.setattr(Runner, "run", counted)
    (tmp_path / "in").mkdir()
    follow(tmp_path / "lake", tmp_path / "in", None)
    assert [tasks for name, tasks in stages if name == "_read_part"] == [CAPTURES] * TURNS


@pytest.mark.spark
def test_the_process_that_follows_decodes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("decoded in the driver")

    monkeypatch.setattr(GrowingInput, "read", fail)
    (tmp_path / "in").mkdir()
    follow(tmp_path / "lake", tmp_path / "in", SparkEngine(lambda: spark))
