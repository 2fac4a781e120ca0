"""``wireyard slow``: known delays are found, and nobody else is named."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from tests.answers.talks import Talk
from wireyard.answers import open_tables
from wireyard.answers.latencies import Latencies, measure_latencies
from wireyard.cli import main
from wireyard.cli.blocks import WIDTH

CLIENTS = ("one", "two", "three", "four")
MESSAGES = 200
DELAY_MS = 50.0
TOPIC = "plant/state"


def conversation(path: Path, late: str | None, acknowledges_late: str | None = None) -> Path:
    """Write a capture in which four clients get what a fifth sends, one of them late."""
    rng = Random(18)
    talk = Talk()
    for number, name in enumerate(CLIENTS):
        talk.login(number, 5001 + number, name)
        talk.subscribe(number + 0.5, 5001 + number, TOPIC)
    talk.login(5, 5009, "sends")
    for number in range(1, MESSAGES + 1):
        now = 10 + number * 5
        payload = b"state %d" % number
        talk.publish(now, 5009, TOPIC, payload, number)
        for client, name in enumerate(CLIENTS):
            waits = 0.3 + rng.random() + (DELAY_MS if name == late else 0)
            takes = 0.2 + rng.random() / 2 + (DELAY_MS if name == acknowledges_late else 0)
            talk.deliver(now + waits, 5001 + client, TOPIC, payload, number, acknowledged_ms=takes)
    return talk.write(path)


def measured(path: Path) -> Latencies:
    with open_tables([str(path)]) as tables:
        return measure_latencies(tables)


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}


def test_a_known_delay_is_measured_and_its_consumer_named(tmp_path: Path) -> None:
    before, after = (
        measured(conversation(tmp_path / f"{late}.pcap", late)) for late in (None, "three")
    )
    assert before.slower == []
    (slow,) = after.slower
    assert (slow["name"], slow["destination"], slow["what"]) == ("three", TOPIC, "in queue")
    assert (slow["deliveries"], slow["peers"]) == (MESSAGES, 3)
    without, with_delay = by_name(before.consumers), by_name(after.consumers)
    assert after.consumers[0]["name"] == "three"
    for column in ("p50_ns", "p90_ns", "p99_ns"):
        late = with_delay["three"][column] - without["three"][column]
        assert abs(late - DELAY_MS * 1e6) < 1e6
    for name in set(CLIENTS) - {"three"}:
        assert with_delay[name] == without[name]


def test_percentiles_are_those_of_a_count_by_hand(tmp_path: Path) -> None:
    path = conversation(tmp_path / "in.pcap", "two")
    with open_tables([str(path)]) as tables:
        rows = tables.sql("SELECT * FROM latencies").to_pylist()
    assert len(rows) == MESSAGES * len(CLIENTS)
    times = sorted(row["queue_ns"] for row in rows if row["consumer_client_id"] == "two")
    found = by_name(measured(path).consumers)["two"]
    for column, share in (("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)):
        place, rest = divmod(share * (MESSAGES - 1), 1)
        low, high = times[int(place)], times[min(int(place) + 1, MESSAGES - 1)]
        assert found[column] == pytest.approx(low + rest * (high - low), abs=1)
    assert found["longest_ns"] == times[-1]


def test_a_consumer_that_acknowledges_late_is_named_too(tmp_path: Path) -> None:
    (slow,) = measured(conversation(tmp_path / "in.pcap", None, "four")).slower
    assert (slow["name"], slow["what"]) == ("four", "to acknowledge")
    assert abs(slow["median_ns"] - slow["peers_ns"] - DELAY_MS * 1e6) < 1e6


def test_the_age_of_what_waits_at_any_time_follows_from_the_table(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "gets")
    talk.subscribe(2, 5001, TOPIC)
    talk.login(3, 5002, "sends")
    sent = {1: (10, 400), 2: (20, 410), 3: (300, 500)}  # when it was sent, and handed over
    for number, (sent_ms, handed_ms) in sent.items():
        talk.publish(sent_ms, 5002, TOPIC, b"%d" % number, number)
        talk.deliver(handed_ms, 5001, TOPIC, b"%d" % number, number)
    path = talk.write(tmp_path / "in.pcap")
    with open_tables([str(path)]) as tables:
        (first,) = tables.sql("SELECT min(sent_ns) AS ns FROM latencies")["ns"].to_pylist()
        for ms in (15, 250, 405, 450, 600):
            (head,) = tables.sql(
                "SELECT min(sent_ns) AS ns FROM latencies"
                " WHERE sent_ns <= $now AND delivered_ns > $now",
                {"now": first + (ms - 10) * 1_000_000},
            )["ns"].to_pylist()
            waiting = [at for at, until in sent.values() if at <= ms < until]
            expected = min(waiting) if waiting else None
            assert (None if head is None else (head - first) / 1e6 + 10) == expected


def test_the_page_and_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation(tmp_path / "in.pcap", "three")
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(main, ["slow", "in.pcap"], prog_name="wireyard")
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0 and max(map(len, lines)) <= WIDTH
    assert lines[0] == "slower than their peers"
    assert lines[2].split() == ["three", TOPIC, "in", "queue", "50.8", "ms", "0.8", "ms"]
    assert lines[4] == "nothing was waiting at the end"
    rows = CliRunner().invoke(main, ["slow", "in.pcap", "--out", "jsonl"], prog_name="wireyard")
    tables = [json.loads(line)["table"] for line in rows.stdout.splitlines()]
    assert tables == ["slower", "destinations", *["consumers"] * len(CLIENTS)]


def test_of_what_has_no_times_nothing_is_said(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "alone")
    path = talk.write(tmp_path / "in.pcap")
    shown = CliRunner().invoke(main, ["slow", str(path)], prog_name="wireyard")
    assert (shown.exit_code, shown.stdout) == (
        0, "no message was seen both sent and handed over\n",
    )  # fmt: skip
