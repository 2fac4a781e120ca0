"""Spark's event log: the stages and tasks of each run, and how long they took."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

FIRST = "write task"
"""The description of the jobs that write tables of packets."""
FACTS = "facts"
"""That of jobs over packets as DataFrames, which are no run of a command."""


def log_settings(folder: Path) -> list[str]:
    """Return the options of a run that writes one plain file of events into a folder."""
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    return [word for one in settings.items() for word in ("--conf", "=".join(one))]


class Ran(NamedTuple):
    """What Spark ran."""

    stages: Counter[str]
    """Number of stages by the description of their job."""
    tasks: Counter[str]
    """The same of tasks."""
    sums: Counter[str]
    """Tasks that failed, and bytes that Spark shuffled."""
    times_ms: Counter[str]
    """How long the jobs of a description took together, in milliseconds."""
    shares: Counter[str]
    """The most tasks of one stage that read what others have shuffled."""
    began_ms: int
    """When its first job began, since 1970."""


def read(text: str) -> list[Ran]:
    """Return what Spark ran in each run; the first jobs of a run write tables of packets."""
    runs, names, jobs = list[Ran](), dict[int, tuple[Ran, str]](), dict[int, tuple[str, int]]()
    name, reading = "", Counter[int]()
    for line in text.splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            before, name = name, event["Properties"].get("spark.job.description", "other")
            name = name.removeprefix("wireyard: ")
            if name in (FIRST, FACTS) and before != name:
                began_ms = event["Submission Time"]
                runs.append(Ran(Counter(), Counter(), Counter(), Counter(), Counter(), began_ms))
            jobs[event["Job ID"]] = name, event["Submission Time"]
            names |= dict.fromkeys(event["Stage IDs"], (runs[-1], name))
        elif event["Event"] == "SparkListenerJobEnd":
            job, began_ms = jobs[event["Job ID"]]
            runs[-1].times_ms[job] += event["Completion Time"] - began_ms
        elif event["Event"] == "SparkListenerStageCompleted":
            stage = event["Stage Info"]
            run, job = names[stage["Stage ID"]]
            run.stages[job] += 1
            run.tasks[job] += stage["Number of Tasks"]
        elif event["Event"] == "SparkListenerTaskEnd":
            run, job = names[event["Stage ID"]]
            read_rows = event["Task Metrics"]["Shuffle Read Metrics"]["Total Records Read"]
            reading[event["Stage ID"]] += read_rows > 0
            run.shares[job] = max(run.shares[job], reading[event["Stage ID"]])
            written = event["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            run.sums["failed"] += bool(event["Task Info"]["Failed"])
            run.sums["shuffled"] += written
    return runs
