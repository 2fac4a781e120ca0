"""Recordings without some of their frames: the whole contradicts nothing that is derived."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.layers.mqtt.recorded import capture_of
from tests.layers.mqtt.test_beginnings import (
    Judge,
    Read,
    connection,
    frames_of,
    read_frames,
    read_without,
)
from tests.layers.mqtt.test_recorded import SCENARIOS
from wireyard.formats.mqtt.layout import CONNECT

Row = dict[str, Any]

ROUNDS: Final = int(os.environ.get("WIREYARD_CUTS", "2"))
"""Random losses of each recording."""
_MOST_LOST: Final = 20
_LARGE: Final = ("bulk-v4", "bulk-v5", "qos-v4", "qos-v5")
"""Recordings of thousands of messages, which take seconds."""


class JudgeOfLoss(Judge):
    """What a recording without some frames says, against the whole."""

    def __init__(self, part: Read, whole: Read) -> None:
        super().__init__(part, whole)
        for name in part.places:
            self._moved.setdefault(name, (name, 0))  # none of its bytes was captured
        self._contents = Counter(
            (row["topic"], row["payload"]) for row in whole.rows if row["packet_type"] == 3
        )
        self._payloads = {
            (row["stream"], row["offset"]): row["payload"]
            for row in whole.rows
            if row["packet_type"] == 3
        }

    def delivery(self, row: Row, true: Row) -> None:
        content = row["destination"], self._payloads[true["stream"], true["offset"]]
        if self._contents[content] > 2:
            # Which of several equal messages was delivered is not shown if one of them is lost.
            row = row | {"message_key": None}
        if row["message_key"] is None and true["message_key"] is not None:
            row = row | {"retained": None}  # the message that set the value is lost
        if row["message_key"] is None and true["verdict"] == "duplicate":
            # Nothing shows that a message that is not known came before.
            true = true | {"verdict": "delivered"}
        super().delivery(row, true)

    def sessions(self) -> None:
        logins = {connection(one["stream"]): one for one in self.whole.tables["sessions"]}
        for row in self.part.tables["sessions"]:
            true = logins[connection(self.packet(row)[0])]
            self.same("sessions", row, true)
            # Nothing shows an end of which the FIN or RST is lost.
            assert row["ended_by"] in (None, "open", true["ended_by"]), (row, true)

    def values(self) -> None:
        true = {one["message_key"]: one for one in self.whole.tables["retained"]}
        for row in self.part.tables["retained"]:
            value = true[self.key(row["message_key"])]
            self.same("retained", row | {"from_ns": None}, value)
            # A will counts from the end of its connection, of which the FIN may be lost.
            assert row["from_ns"] == value["from_ns"] or row["offset"] == 0


def losses(path: Path, whole: Read, dice: random.Random) -> set[int]:
    """Return random frames, always with a CONNECT, and with the last data of a stream."""
    frames = range(len(frames_of(path)[1]))
    lost = set(dice.sample(frames, dice.randint(1, _MOST_LOST)))
    lost.add(dice.choice([row["frame"] - 1 for row in whole.rows if row["packet_type"] == CONNECT]))
    lost.add(max(dice.choice([places for places in whole.places.values() if places])))
    return lost


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in _LARGE])
def test_no_lost_frames_of_a_capture_contradict_the_whole(folder: Path, name: str) -> None:
    path = capture_of(folder, name)
    whole = read_without(path, 0)
    for number in range(ROUNDS):
        lost = losses(path, whole, random.Random(f"{name} {number}"))
        kept = [frame for frame in range(len(frames_of(path)[1])) if frame not in lost]
        judge = JudgeOfLoss(read_frames(path, kept), whole)
        judge.deliveries()
        judge.violations()
        judge.sessions()
        judge.values()
