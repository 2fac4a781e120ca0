"""A slice of what ``make fuzz`` searches, the same in every run, for each format."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import check_case, time_bound
from tests.mutations import Corpus, damaged_streams, mutate_packet, subject_of
from tests.readings import table_of
from tests.stored import STORED
from wireyard.formats import names
from wireyard.formats.mqtt.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
PACKETS = {"jmq": 300, "gpacket": 300, "mqtt": 500, "rmp": 500}
"""In a case of each format: as many as reach every rule, as tests below judge."""
CASES = {"jmq": 14, "gpacket": 14, "mqtt": 24, "rmp": 3}
"""How many of each format; a packet of RMP alone is a stream, and costs more."""


@cache
def corpus(name: str) -> Corpus:
    return subject_of(name).corpus(None)


@pytest.mark.parametrize("name", names())
def test_all_readings_of_damaged_streams_agree(name: str) -> None:
    for number in range(CASES[name]):
        check_case(number, subject_of(name), corpus(name), PACKETS[name])


@pytest.mark.parametrize(
    ("name", "cases", "outcomes"),
    [
        ("commit", 2000, {"commit refused", "commit read"}),
        ("state", 40, {"state refused", "state continued"}),
        ("framer", 4000, {"framer refused", "framer continued"}),
        ("keylog", 16, {"key log refused", "key log read"}),
    ],
)
def test_damage_to_what_is_stored_is_refused_or_harmless(
    name: str, cases: int, outcomes: set[str]
) -> None:
    found: Counter[str] = Counter()
    for number in range(cases):
        with time_bound():
            found += STORED[name](number)
    assert found.keys() == outcomes


@pytest.mark.parametrize("name", names())
def test_all_readings_of_damaged_vectors_agree(name: str, shared: Path) -> None:
    """The packets of the shared folder alone, in the formats that have some there."""
    subject = subject_of(name)
    more = {
        context: packets[len(corpus(name)[context]) :]
        for context, packets in subject.corpus(shared).items()
    }
    assert any(more.values())
    both = {context: packets or corpus(name)[context] for context, packets in more.items()}
    for number in range(1000, 1002):
        check_case(number, subject, both, PACKETS[name])


@pytest.mark.parametrize("name", names())
def test_a_seed_makes_the_same_stream_again(name: str) -> None:
    one, other, another = (
        damaged_streams(subject_of(name), corpus(name), Random(seed), 50) for seed in (5, 5, 6)
    )
    assert one == other != another


@pytest.mark.parametrize("name", names())
def test_damage_is_damage(name: str) -> None:
    rng, subject = Random(1), subject_of(name)
    packets = subject.packets(subject, corpus(name), rng, 500)
    assert sum(mutate_packet(packet, rng, subject) != packet for packet in packets) > 400


def reached(name: str, cases: int, *more: str) -> tuple[list[str], set[tuple[object, ...]]]:
    """Return the statuses of damaged streams and their faults, in all dialects by turns."""
    subject = subject_of(name)
    asked = ["status", "error", *more]
    statuses: list[str] = []
    faults: set[tuple[object, ...]] = set()
    for number in range(cases):
        turn = subject.read_as(subject.labels[number % len(subject.labels)])
        for data in damaged_streams(turn, corpus(name), Random(number), PACKETS[name]):
            table = table_of(
                data, compiled=True, format=turn.format, columns=asked, max_packet_bytes=4096
            )
            statuses += table["status"].to_pylist()
            for row in table.filter(table["error"].is_valid()).to_pylist():
                faults.add((row["error"]["code"], *(row[column] for column in more)))
                faults.add((row["error"]["code"], row["error"]["field"]))
    return statuses, faults


FAULTS: dict[str, set[tuple[object, ...]]] = {
    "jmq": {
        ("bad_magic", "magic"),
        ("bad_size", "size"),
        ("limit_exceeded", "size"),
        ("unsupported_version", "version"),
        ("malformed", "property offset"),
        ("malformed", "property size"),
        ("truncated", "item type"),
        ("truncated", "destination"),
        ("bad_utf8", "destination"),
        ("malformed", "transaction_id"),
        ("malformed", "property version"),
        ("limit_exceeded", "property count"),
        ("malformed", "property type"),
        ("bad_utf8", "property name"),
        ("truncated", "property value"),
        ("bad_java", "stream header"),
    },
    "gpacket": {
        ("bad_magic", "magic"),
        ("bad_size", "size"),
        ("limit_exceeded", "size"),
        ("unsupported_version", "version"),
        ("malformed", "property size"),
        ("malformed", "property version"),
        ("limit_exceeded", "property count"),
        ("malformed", "property type"),
        ("truncated", "property name"),
        ("bad_utf8", "property name"),
        ("bad_utf8", "property value"),
        ("truncated", "property value"),
    },
    "rmp": {
        ("empty_packet", "packet"),
        ("nothing_follows", "more follows"),
        ("malformed", "packet number"),
        ("truncated", "typing information"),
        ("truncated", "segmentation and reassembly"),
        ("truncated", "domain filtering"),
        ("truncated", "multiple clients"),
        ("truncated", "reply to"),
        ("truncated", "multiplexing packets"),
        ("truncated", "data"),
    },
}
"""Codes and fields of the errors that damage has to reach, one at least in every section."""


@pytest.mark.parametrize("name", FAULTS)
def test_damage_reaches_every_rule(name: str) -> None:
    """A search is worth what it reaches: every kind of row, and errors in every section."""
    statuses, faults = reached(name, 12)
    assert {"ok", "malformed", "garbage"} <= set(statuses)
    assert statuses.count("ok") > len(statuses) // 5
    assert statuses.count("malformed") > len(statuses) // 20
    assert FAULTS[name] <= faults, FAULTS[name] - faults


def test_damage_reaches_every_rule_of_mqtt() -> None:
    """Almost each rule of the table, in one of the versions that have it at least."""
    statuses, faults = reached("mqtt", 100, "version_in_force")
    assert {"ok", "malformed", "garbage", "tail"} <= set(statuses)
    assert statuses.count("ok") > len(statuses) // 5
    assert statuses.count("malformed") > len(statuses) // 5
    missed = {
        rule.name
        for rule in RULES.values()
        if not any((rule.verdict(version), version) in faults for version in rule.cited)
    }
    # The rarest take a longer search; and bytes that begin no packet have no version.
    assert len(missed) < 8, missed
    assert ("remaining_length", "Remaining Length") in faults


def test_a_hang_would_end_the_process() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import time\nfrom tests.fuzz import time_bound\n"
            "with time_bound(0.5):\n"
            "    time.sleep(1)\n"
            "    print('waited', flush=True)\n"
            "    while True: pass\n",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == -signal.SIGPROF and done.stdout == "waited\n"
    assert "<string>" in done.stderr


@pytest.mark.parametrize(
    ("cases", "chosen", "packets", "shown"),
    [
        (8, (), 84, ["jmq: 20, ", "gpacket: 20, ", "mqtt: 20, ", "rmp: 20, ", "commit: 1, "]),
        (4, ("--format", "mqtt"), 80, ["mqtt: 80, "]),
        (4, ("--format", "state"), 4, ["state: 4, "]),
    ],
)
def test_the_program_prints_its_seed_and_what_it_did(
    cases: int, chosen: tuple[str, ...], packets: int, shown: list[str]
) -> None:
    arguments = ("--cases", str(cases), "--packets", "20", "--seed", "7", *chosen)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "seed 7, 20 packets a case"
    assert last.startswith(f"{packets} packets in {cases} cases")
    assert all(one in last for one in shown)
    with time_bound():
        assert table_of(b"", compiled=True).num_rows == 0
