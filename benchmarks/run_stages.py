"""What Spark does in a run over a large capture of MQTT, by its event log.

It prints stages, tasks and time by table, with two threads and 1 GB for Java. It fails if a task
failed, if the stages are not those below, if there are more tasks than the packets need, or if the
whole run, from its first job on, takes more than `MOST_TIMES` as long as decoding.

``python -m benchmarks.run_stages CAPTURE``
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.spark.event_log import FIRST, Ran, log_settings, read
from wireyard.lake import read_lake
from wireyard.pipeline.facts.mqtt import MOST_PACKETS

MOST_TIMES: Final = 2.6
STAGES: Final = {"derive groups": 1, "count": 1, "split": 5, "merge": 1}
"""Those after decoding."""


def main() -> None:
    """Run a capture, print what Spark did, and check it."""
    with TemporaryDirectory() as name:
        lake, log = Path(name) / "lake", Path(name) / "log"
        log.mkdir()
        options = ["--master", "local[2]", "--conf", "spark.driver.memory=1g", *log_settings(log)]
        command = ["-m", "wireyard", "run", sys.argv[1], "--lake", str(lake), "-q", *options]
        subprocess.run([sys.executable, *command], check=True)
        ended_s = time.time()
        (file,) = log.iterdir()
        (ran,) = read(file.read_text())
        took_s = ended_s - ran.began_ms / 1000
        packets = sum(each.rows for each in read_lake(str(lake)).record.tables["packets_mqtt"])
    _print(ran, packets, took_s)
    decoding_s = ran.times_ms[FIRST] / 1000
    after = {job: stages for job, stages in ran.stages.items() if job != FIRST}
    most_tasks = 12 * -(-packets // MOST_PACKETS) + 32
    assert not ran.sums["failed"]
    assert {"derive groups": 1, **after} == STAGES, after
    assert ran.tasks["split"] <= most_tasks, (ran.tasks, most_tasks)
    assert took_s <= MOST_TIMES * decoding_s, (took_s, decoding_s)


def _print(ran: Ran, packets: int, took_s: float) -> None:
    shuffled = ran.sums["shuffled"] / 1e6
    title = f"{packets:,} packets, {took_s:.0f} s, {shuffled:.0f} MB shuffled"
    table = Table("jobs", "stages", "tasks", "s", title=title)
    for job, stages in ran.stages.items():
        seconds = f"{ran.times_ms[job] / 1000:.1f}"
        table.add_row(job, str(stages), str(ran.tasks[job]), seconds)
    Console().print(table)


if __name__ == "__main__":
    main()
