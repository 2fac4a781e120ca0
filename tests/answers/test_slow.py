"""``wireyard slow``: known delays are found, and nobody else is named."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from tests.answers.talks import Talk
from tests.captures.make import BEGAN_NS
from wireyard.answers import open_tables
from wireyard.answers.latencies import Latencies, ages, measure_latencies
from wireyard.cli import main
from wireyard.cli.asking.answers import WIDTH, columns

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
    sent = {1: (10, 400), 2: (20, 410), 3: (300, 500)}  # when it was sent, and delivered
    for number, (sent_ms, delivered_ms) in sent.items():
        talk.publish(sent_ms, 5002, TOPIC, b"%d" % number, number)
        talk.deliver(delivered_ms, 5001, TOPIC, b"%d" % number, number)
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
        0, "no message was seen both sent and delivered\n",
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_ages_at_any_moment_are_those_of_a_count_by_hand(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    talk = Talk()
    talk.login(1, 5001, "gets")
    for number, topic in enumerate(("a", "b")):
        talk.subscribe(2 + number, 5001, topic)
    talk.login(5, 5002, "sends")
    sent: list[tuple[str, float, float, float | None]] = []
    for _ in range(60):
        at = 10.0 + rng.randrange(0, 300_000)
        waits = rng.choice([0.3, float(rng.randrange(1, 200_000))])
        takes = rng.choice([0.2, float(rng.randrange(1, 100_000)), None])
        sent.append((rng.choice("ab"), at, at + waits, takes))
    end_ms = 600_010.0
    for number, (topic, at, until, takes) in enumerate(sorted(sent, key=itemgetter(1)), 1):
        payload = b"%d" % number
        talk.publish(at, 5002, topic, payload, number)
        talk.deliver(until, 5001, topic, payload, number, acknowledged_ms=takes)
    talk.publish(end_ms - 0.1, 5002, "nobody", b"", 61)  # the last packet is its PUBACK
    path = talk.write(tmp_path / "in.pcap")
    with open_tables([str(path)]) as tables:
        minutes = measure_latencies(tables).ages
        seconds = tables.sql(f"FROM ({ages(10**9)})").to_pylist()
    for step_ns, rows in ((60 * 10**9, minutes), (10**9, seconds)):
        found = {(row["at_ns"], row["destination"]): row for row in rows}
        first = -(-BEGAN_NS // step_ns) * step_ns
        for at_ns in range(first, BEGAN_NS + int(end_ms * 1e6) + step_ns, step_ns):
            now = (at_ns - BEGAN_NS) / 1e6
            for topic in "ab":
                own = [one[1:] for one in sent if one[0] == topic]
                waiting = [now - at for at, until, _ in own if at <= now < until]
                held = [
                    now - until
                    for _, until, takes in own
                    if until <= now < (end_ms + 0.001 if takes is None else until + takes)
                ]
                row = found.pop((at_ns, topic), None)
                if row is None:
                    assert not waiting and not held
                    continue
                assert (row["waiting"], row["unacknowledged"]) == (len(waiting), len(held))
                for ages_ms, name in ((waiting, "oldest_ns"), (held, "oldest_unacknowledged_ns")):
                    expected = max(ages_ms) * 1e6 if ages_ms else None
                    assert row[name] == (expected and pytest.approx(expected, abs=1000))
        assert not found


def test_ages_are_printed_by_minute(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "gets")
    talk.subscribe(2, 5001, TOPIC)
    talk.login(3, 5002, "sends")
    talk.publish(1000, 5002, TOPIC, b"1", 1)
    talk.deliver(200_000, 5001, TOPIC, b"1", 1)
    path = talk.write(tmp_path / "in.pcap")
    shown = CliRunner().invoke(main, ["slow", str(path)], prog_name="wireyard")
    lines = shown.stdout.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("at full minutes"))
    minutes = [line.split() for line in lines[at + 2 : lines.index("", at)]]
    assert [row[0][-6:] for row in minutes] == sorted((r[0][-6:] for r in minutes), reverse=True)
    assert len(minutes) == 3 and {row[1] for row in minutes} == {TOPIC}
    oldest = [float(row[3]) for row in minutes]
    assert oldest == pytest.approx([oldest[0] - 60 * later for later in range(3)])
    assert 139 < oldest[0] < 199 and max(map(len, lines)) <= WIDTH


def test_the_delay_of_a_real_proxy_is_measured() -> None:
    """Of recordings of mosquitto behind a proxy that held one client up, and did not."""
    folder = Path(__file__).parents[2] / "examples" / "delay"
    before, after = (measured(folder / f"{name}.pcap") for name in ("without", "with"))
    assert before.slower == []
    (slow,) = after.slower
    assert (slow["name"], slow["what"], slow["deliveries"], slow["peers"]) == (
        "late", "in queue", 100, 3,
    )  # fmt: skip
    assert after.consumers[0]["name"] == "late"
    without, with_delay = by_name(before.consumers), by_name(after.consumers)
    assert without.keys() == with_delay.keys() == {"late", "left", "middle", "right"}
    for name, row in with_delay.items():
        expected = without[name]["p50_ns"] + (DELAY_MS * 1e6 if name == "late" else 0)
        assert abs(row["p50_ns"] - expected) < 1e6


def test_columns_are_as_wide_as_what_is_seen_of_them() -> None:
    lines = [
        columns((10, -6, 4), text, "7", "x") for text in ("tea", "緑茶", "緑茶" * 9, "t" * 10**6)
    ]
    assert lines == [
        "tea           7 x",
        "緑茶          7 x",
        "緑茶緑..      7 x",
        "ttttttt..     7 x",
    ]
