"""What Spark did in a run, by its own event log: stages and tasks for each table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.captures.connections import make_capture
from tests.spark.event_log import Ran, log_settings, read

pytestmark = pytest.mark.spark

RUNS = """
import sys
from wireyard.cli import main
from wireyard.pipeline.facts import mqtt
from wireyard.spark import facts, session
lake, *runs = sys.argv[1:]
for words in runs:
    try:
        main(words.split(" "), prog_name="wireyard")
    except SystemExit as ended:
        assert not ended.code, ended.code
    mqtt.DIVISION = mqtt.DIVISION._replace(most_packets=0)
mqtt.MOST_PACKETS = 1_000
spark = session()
spark.sparkContext.setJobDescription("facts")
tables = facts(*(spark.read.parquet(f"{lake}/{name}") for name in ("packets_mqtt", "streams")))
for name in ("deliveries", "messages"):
    in_lake = spark.read.parquet(f"{lake}/{name}").where("protocol = 'mqtt'")
    both = (rows.toArrow().to_pylist() for rows in (tables[name], in_lake))
    found, wanted = (sorted(map(repr, rows)) for rows in both)
    assert found and found == wanted, name
"""
"""Commands one after the other, with one Spark; after the first, the facts of any number of packets
are divided among tasks, as then those of the last lake's packets as DataFrames."""
MOST_SHUFFLED = 1_000_000
"""Half of the bytes of what is shuffled, before they are compressed."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> list[Ran]:
    """Run the demo, and then a capture that is divided, on two threads; read the event log."""
    folder = tmp_path_factory.mktemp("log")
    log, capture = folder / "events", folder / "in.pcap"
    log.mkdir()
    capture.write_bytes(make_capture(Random(11), 1000))
    conf = log_settings(log)
    demo = [examples / "traffic.pcap", *sorted((examples / "traffic").glob("shop-*.jmq"))]
    runs = {"demo": [*demo, examples / "store" / "fs370"], "divided": [capture]}
    words = [
        " ".join(["run", *map(str, inputs), "--lake", str(folder / name), "-q",
                  "--master", "local[2]", *conf])
        for name, inputs in runs.items()
    ]  # fmt: skip
    subprocess.run([sys.executable, "-c", RUNS, str(folder / "divided"), *words], check=True)
    (file,) = log.iterdir()
    return read(file.read_text())


def test_the_demo(ran: list[Ran]) -> None:
    """Four stages, however many inputs there are."""
    demo = ran[0]
    assert demo.sums["failed"] == 0
    assert demo.stages == {
        "write task": 1,  # bronze tables
        "derive groups": 1,  # facts
        "delay": 1,  # latencies of messages with a delivery delay
        "merge": 1,  # counts of destinations, producers
    }
    assert sum(demo.tasks.values()) <= 10, demo.tasks


def test_a_capture_that_is_divided(ran: list[Ran]) -> None:
    """The facts of many packets are one job: packets by client, then messages by topic."""
    divided = ran[1]
    assert divided.sums["failed"] == 0
    assert divided.stages == {
        "write task": 1,
        "derive groups": 1,  # of other protocols
        "count": 1,  # topics
        "split": 5,  # packets, clients, their subscriptions, topics and files, what follows
        "delay": 1,
        "merge": 1,
    }
    assert divided.tasks["split"] <= 12, divided.tasks  # few partitions for little data
    assert 0 < divided.sums["shuffled"] < MOST_SHUFFLED


def test_facts_as_data_frames_are_divided_as_those_of_a_run(ran: list[Ran]) -> None:
    """Their rows are compared where they are made."""
    assert ran[2].shares["facts"] >= ran[1].shares["split"] > 1, ran[1:]
