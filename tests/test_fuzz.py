"""A slice of what ``make fuzz`` searches, the same in every run: 50,000 damaged packets."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import check_case, corpus_of, time_bound
from tests.mutations import mutate_packet, mutated_stream
from tests.readings import table_of

ROOT = Path(__file__).resolve().parent.parent
PACKETS = 500


@cache
def corpus() -> list[bytes]:
    return corpus_of()


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_all_readings_of_damaged_streams_agree(first: int) -> None:
    for number in range(first, first + 10):
        check_case(number, corpus(), PACKETS)


def test_all_readings_of_damaged_vectors_agree(shared: Path) -> None:
    more = corpus_of(shared)
    assert len(more) > len(corpus())
    for number in range(1000, 1010):
        check_case(number, more[len(corpus()) :], PACKETS)


def test_a_seed_makes_the_same_stream_again() -> None:
    one, other = (mutated_stream(corpus(), Random(5), 50) for _ in range(2))
    assert one == other != mutated_stream(corpus(), Random(6), 50)


def test_damage_is_damage_and_reaches_every_rule() -> None:
    """A search is worth what it reaches: every kind of row, and errors in every section."""
    rng = Random(1)
    assert sum(mutate_packet(packet, rng) != packet for packet in corpus()[:500]) > 450
    data = b"".join(mutated_stream(corpus(), Random(n), PACKETS) for n in range(10))
    table = table_of(data, compiled=True, max_packet_bytes=4096)
    statuses = table["status"].to_pylist()
    assert {"ok", "malformed", "garbage"} <= set(statuses)
    assert statuses.count("malformed") > len(statuses) // 5
    assert statuses.count("ok") > len(statuses) // 5
    faults = {(error["code"], error["field"]) for error in table["error"].to_pylist() if error}
    assert {
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
    } <= faults


def test_a_hang_would_end_the_process() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import time\nfrom tests.fuzz import time_bound\n"
            "with time_bound(0.5):\n    time.sleep(60)\n",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1 and "Timeout" in done.stderr


def test_the_program_prints_its_seed_and_what_it_did() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", "2", "--packets", "20", "--seed", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("seed 7, ") and last.startswith("40 packets in 2 cases")
    with time_bound():
        assert table_of(b"", compiled=True).num_rows == 0
