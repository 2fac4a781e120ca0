"""What Spark did in a run, by its own event log: stages and tasks for each table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.captures.connections import make_capture

pytestmark = pytest.mark.spark

DIVIDED = """
import sys
from wireyard.cli import main
from wireyard.pipeline.facts import mqtt
mqtt.DIVISION = mqtt.DIVISION._replace(most_packets=0)
main(sys.argv[1:], prog_name="wireyard")
"""
"""A command that divides the facts of any number of packets among tasks."""


MOST_SHUFFLED = 1_000_000
"""Half of the bytes of what is shuffled, before they are compressed."""


class Ran(NamedTuple):
    """What Spark ran."""

    stages: Counter[str]
    """Number of stages by the description of their job."""
    tasks: Counter[str]
    """The same of tasks."""
    failed: int
    shuffled: int
    """Bytes that Spark shuffled."""


def run(folder: Path, *inputs: Path, program: tuple[str, ...] = ("-m", "wireyard")) -> Ran:
    """Run as a user does, on two threads; read the event log."""
    log = folder / "events"
    log.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    given = ["run", *map(str, inputs), "--lake", str(folder / "lake"), "-q", "--master", "local[2]"]
    subprocess.run([sys.executable, *program, *given, *words], check=True)
    (file,) = log.iterdir()
    return read(file.read_text())


def read(text: str) -> Ran:
    ran = Ran(Counter(), Counter(), 0, 0)
    names: dict[int, str] = {}
    for line in text.splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            name = event["Properties"].get("spark.job.description", "other")
            names |= dict.fromkeys(event["Stage IDs"], name.removeprefix("wireyard: "))
        elif event["Event"] == "SparkListenerStageCompleted":
            stage = event["Stage Info"]
            ran.stages[names[stage["Stage ID"]]] += 1
            ran.tasks[names[stage["Stage ID"]]] += stage["Number of Tasks"]
        elif event["Event"] == "SparkListenerTaskEnd":
            written = event["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            failed = ran.failed + bool(event["Task Info"]["Failed"])
            ran = ran._replace(failed=failed, shuffled=ran.shuffled + written)
    return ran


def test_the_demo(tmp_path: Path, examples: Path) -> None:
    """Four stages, however many inputs there are."""
    inputs = [examples / "traffic.pcap", *sorted((examples / "traffic").glob("shop-*.jmq"))]
    ran = run(tmp_path, *inputs, examples / "store" / "fs370")
    assert ran.failed == 0
    assert ran.stages == {
        "write task": 1,  # bronze tables
        "derive groups": 1,  # facts
        "derive more": 1,  # latencies, and counts of destinations
        "merge": 1,
    }
    assert sum(ran.tasks.values()) <= 10, ran.tasks


def test_a_capture_that_is_divided(tmp_path: Path) -> None:
    """The facts of many packets are one job: packets by client, then messages by topic."""
    capture = tmp_path / "in.pcap"
    capture.write_bytes(make_capture(Random(11), 1000))
    ran = run(tmp_path, capture, program=("-c", DIVIDED))
    assert ran.failed == 0
    assert ran.stages == {
        "write task": 1,
        "derive groups": 1,  # of other protocols
        "count": 1,  # topics
        "split": 5,  # packets, clients, their subscriptions, topics and files, what follows
        "derive more": 1,
        "merge": 1,
    }
    assert ran.tasks["split"] <= 12, ran.tasks  # few partitions for little data
    assert ran.shuffled < MOST_SHUFFLED
