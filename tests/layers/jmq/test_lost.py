"""Recordings without some of their frames: the whole contradicts nothing that is derived."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

import wireyard
from tests.layers.jmq.judge import derive, differences
from tests.layers.jmq.recorded import SCENARIOS, ended, tables_of
from tests.layers.mqtt.test_beginnings import frames_of
from tests.reference.order import in_order
from wireyard.formats.base import Row

ROUNDS: Final = int(os.environ.get("WIREYARD_CUTS", "2"))
"""Random losses of each recording."""
_MOST_LOST: Final = 20
_UNKNOWN: Final = {"undecided", "in_transaction"}
"""Verdicts of deliveries whose end was not captured."""
_COUNTS: Final = ("in_flight_sent", "in_flight_received", "pauses", "paused_ns")


def values(rows: Iterable[Row], key: tuple[str, ...], column: str) -> dict[Any, set[Any]]:
    """Return the values of a column by the key of the rows."""
    found: defaultdict[Any, set[Any]] = defaultdict(set)
    for row in rows:
        found[tuple(row[name] for name in key)].add(row[column])
    return found


def write_without(lost: Collection[int], path: Path, cut: Path) -> Path:
    """Write a capture without some of its frames to `cut`."""
    header, frames = frames_of(path)
    kept = (frame for place, frame in enumerate(frames) if place not in lost)
    cut.write_bytes(b"".join((header, *kept)))
    return cut


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "bulk"])
def test_no_lost_frames_of_a_capture_contradict_the_whole(
    shared: Path, name: str, tmp_path: Path
) -> None:
    path = shared / "captures" / "openmq" / f"{name}.pcap"
    whole = tables_of(path)
    violations = values(whole["violations"], ("rule",), "captured_ns")
    copy = "message_key", "consumer", "consumer_id"
    verdicts = values(whole["deliveries"], copy, "verdict")
    ends = "client", "server"
    frames = range(len(frames_of(path)[1]))
    for number in range(ROUNDS):
        dice = random.Random(f"{name} {number}")
        lost = set(dice.sample(frames, dice.randint(1, _MOST_LOST)))
        cut = write_without(lost, path, tmp_path / f"{number}.pcap")
        rows: list[Row] = []
        for format in ("jmq", "gpacket") if name == "cluster" else ("jmq",):
            rows += wireyard.read(str(cut), format).to_pylist(maps_as_pydicts="lossy")
        part = derive(in_order(rows), ended(cut))
        for row in part["violations"]:
            assert row["captured_ns"] in violations[row["rule"],]
        for key, found in values(part["deliveries"], copy, "verdict").items():
            # Nothing shows the end of a connection whose FIN or reset is lost.
            held = {"held"} if "left" in verdicts[key] else set()
            assert found <= verdicts[key] | _UNKNOWN | held, key
        for column in (*_COUNTS, "ended_by"):
            true = values(whole["sessions"], ends, column)
            for key, found in values(part["sessions"], ends, column).items():
                # A login that was refused is not known if the refusal is lost.
                unknown = {"open", None} if column == "ended_by" else {None}
                assert found <= true[key] | unknown or true[key] == {"refused"}, (key, column)


def test_no_login_is_missing_where_only_acknowledgments_show_the_loss(tmp_path: Path) -> None:
    """Without both SYNs and the broker's first packets, all captured bytes follow each other."""
    example = Path(__file__).parents[3] / "examples" / "symptoms" / "jms-selector.pcap"
    cut = write_without({0, 1, 5, 7}, example, tmp_path / "cut.pcap")
    rows = in_order(wireyard.read(str(cut), "jmq").to_pylist(maps_as_pydicts="lossy"))
    assert derive(rows, ended(cut))["violations"] == []


@pytest.mark.parametrize("name", ["acks", "drops", "transactions"])
def test_columns_lose_the_same(shared: Path, name: str, tmp_path: Path) -> None:
    path = shared / "captures" / "openmq" / f"{name}.pcap"
    frames, dice = range(len(frames_of(path)[1])), random.Random(name)
    for number in range(ROUNDS):
        lost = dice.sample(frames, _MOST_LOST)
        cut = write_without(lost, path, tmp_path / f"{number}.pcap")
        assert differences({"jmq": wireyard.read(str(cut), "jmq")}, ended(cut)) == []
