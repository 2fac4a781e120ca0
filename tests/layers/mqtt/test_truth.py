"""Verdicts against what is known of a capture: the whole of it, or a made one's record."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

import wireyard
from tests.layers.mqtt.recorded import capture_of, ends_of, rows_of, streams_of
from tests.layers.mqtt.test_recorded import SCENARIOS
from tests.reference import mqtt
from tests.reference.order import in_order

Row = dict[str, Any]

CUTS: Final = int(os.environ.get("WIREYARD_CUTS", "2"))
"""Ends of each recording that are tried."""
MESSAGES: Final = int(os.environ.get("WIREYARD_LOAD", "1500"))
"""Messages of each capture that is made."""
_OPEN: Final = {"in_flight", "queued", "undecided", "unaccepted", "unreleased"}
"""Verdicts that what comes later may change."""
_KNOWN_EARLY: Final = ("client", "server", "client_id", "user", "status", "version", "resumed")


def until(frame: int, rows: list[Row], streams: list[Row]) -> dict[str, list[Row]]:
    """Return the tables of the first frames of a capture."""
    seen = [row for row in rows if row["frame"] is not None and row["frame"] <= frame]
    open_end = {"ended": None, "ended_frame": None, "ended_ns": None}
    names = {row["stream"] for row in seen}
    ends = [
        row if (row["ended_frame"] or 0) <= frame else row | open_end
        for row in streams
        if row["stream"] in names
    ]
    return mqtt.derive(seen, ends)


def what(row: Row) -> tuple[Any, ...]:
    """Return what a delivery is about: the packet it came in, or who did not get the message."""
    if "delivered_frame" in row:
        return row["stream"], row["offset"]
    return row["message_key"], row["consumer_client_id"]


def is_open(row: Row, known: list[Row], cut: int) -> bool:
    """Return whether nothing up to frame `cut` decides a delivery, by all rows of its message.

    What reached the subscriber is in a later frame, or does not show in the whole capture either:
    until then the broker may have lost the message, or send it yet. Of a shared subscription
    another of its clients may have got it.
    """
    subscription = row.get("subscription") or ""
    shared = subscription if subscription.startswith("$share/") else None
    return all(
        one["verdict"] == "undecided" or one.get("delivered_frame", 0) > cut
        for one in known
        if one["consumer_client_id"] == row["consumer_client_id"]
        or (shared and one["subscription"] == shared)
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_end_of_a_capture_contradicts_the_whole(folder: Path, name: str) -> None:
    path = capture_of(folder, name)
    rows, streams = rows_of(path), streams_of(path)
    whole = mqtt.derive(rows, streams)
    deliveries = {what(row): row for row in whole["deliveries"]}
    sessions = {(row["stream"], row["offset"]): row for row in whole["sessions"]}
    dice = random.Random(name)
    last = max(row["frame"] or 0 for row in rows)
    undecided = Counter[bool]()
    of_message: dict[str | None, list[Row]] = {}
    for row in whole["deliveries"]:
        of_message.setdefault(row["message_key"], []).append(row)
    for _ in range(CUTS):
        cut = dice.randrange(1, last)
        early = until(cut, rows, streams)
        for row in early["deliveries"]:
            later = deliveries.get(what(row))
            if row["verdict"] == "undecided":
                undecided[not is_open(row, of_message[row["message_key"]], cut)] += 1
            else:
                undecided[False] += 1
            if row["verdict"] not in _OPEN:
                assert later is not None, row
                again = row["verdict"] == "delivered" and later["verdict"] == "lost_ack"
                assert again or row["verdict"] == later["verdict"], row
                assert row["message_key"] == later["message_key"]
                assert row.get("retained") == later.get("retained")
        for row in early["violations"]:
            assert row in whole["violations"]
        for row in early["sessions"]:
            later = sessions[row["stream"], row["offset"]]
            assert row["ended_by"] in ("open", later["ended_by"])
            assert all(row[column] in (None, "", later[column]) for column in _KNOWN_EARLY)
    assert undecided.total() and not undecided[True]


@pytest.mark.parametrize("seed", range(2))
def test_every_delivery_of_a_busy_broker_is_known(shared: Path, tmp_path: Path, seed: int) -> None:
    """The truth is written where the capture is made: what was never forwarded too."""
    tool = shared / "tools" / "load" / "mqtt_load.py"
    if not tool.is_file():
        pytest.skip("nothing in the shared folder that makes captures")
    path, truth = tmp_path / "load.pcap", tmp_path / "truth.jsonl"
    command = [sys.executable, str(tool), "--messages", str(MESSAGES), "--seed", str(seed)]
    faults = ["--lost", "0.01", "--unacknowledged", "0.01", "--version", str(4 + seed)]
    subprocess.run(
        [*command, *faults, "-o", str(path), "--truth", str(truth)], check=True, capture_output=True
    )
    tables = mqtt.derive(
        in_order(wireyard.read(path, "mqtt").to_pylist()), ends_of(path, str(path))
    )
    assert not tables["violations"]
    found = {(row["message_key"], row["consumer_client_id"]): row for row in tables["deliveries"]}
    assert len(found) == len(tables["deliveries"])
    verdicts = Counter[tuple[str, str]]()
    for line in truth.read_text().splitlines()[:-1]:
        message = json.loads(line)
        for client, (verdict, delivered_ns, acknowledged_ns) in message["to"].items():
            row = found[message["key"], client]
            verdicts[verdict, row["verdict"]] += 1
            if row["verdict"] == verdict:
                assert row.get("delivered_ns") == delivered_ns
                assert row.get("acknowledged_ns") == acknowledged_ns
    wrong = {pair for pair in verdicts if pair[0] != pair[1]}
    assert wrong <= {("not_forwarded", "undecided"), ("not_forwarded", "unaccepted")}
    assert sum(verdicts[pair] for pair in wrong) <= 3
    assert verdicts["not_forwarded", "not_forwarded"] > 10
