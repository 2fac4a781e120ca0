"""Many captures that grow are read by the tasks of one stage."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.captures.make import BEGAN_NS, Packet, both_ways, pcap
from tests.formats.mqtt.make import connack, connect, publish
from tests.spark import lakes
from tests.spark.lakes import HEADER_BYTES
from wireyard.lake.writer import Lake
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.growing.input import GrowingInput
from wireyard.pipeline.inputs.finding import list_inputs
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


def test_the_parts_of_a_turn_are_tasks_of_one_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, run = list[tuple[str, int]](), Runner.run

    def counted(self: Runner, tasks: Any, work: Any, *given: Any, **named: Any) -> Any:
        stages.append((work.func.__name__, len(tasks)))
        return run(self, tasks, work, *given, **named)

    monkeypatch.setattr(Runner, "run", counted)
    follow(tmp_path / "lake", tmp_path / "in", None)
    assert [tasks for name, tasks in stages if name == "_read_part"] == [CAPTURES] * 2


@pytest.mark.spark
def test_the_process_that_follows_decodes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("decoded in the driver")

    monkeypatch.setattr(GrowingInput, "read", fail)
    follow(tmp_path / "lake", tmp_path / "in", SparkEngine(lambda: spark))
