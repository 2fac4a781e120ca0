"""Recordings without their first or last frames: the whole contradicts nothing that is said."""

from __future__ import annotations

import gzip
import os
import random
import struct
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import wireyard
from tests.layers.mqtt.recorded import capture_of
from tests.layers.mqtt.test_recorded import SCENARIOS
from tests.reference import mqtt
from tests.reference.order import in_order
from wireyard.captures.read import read_capture
from wireyard.layers.mqtt.deliveries.topics import matches, split_shared

Row = dict[str, Any]
Packet = tuple[str, int]
"""A stream, and an offset in it."""

CUTS: Final = int(os.environ.get("WIREYARD_CUTS", "2"))
"""Beginnings and ends of each recording that are tried."""
_OPEN: Final = {"in_flight", "queued", "undecided", "unaccepted", "unreleased"}
"""Verdicts that more of the capture may change."""
_MOST_UNDECIDED: Final = 0.02
_KNOWN: Final = {
    "deliveries": (
        "consumer_client_id", "destination", "consumer", "consumer_id", "subscription", "qos",
        "retained", "delivered_ns", "acknowledged_ns", "redelivered", "outcome",
    ),
    "sessions": (
        "client", "server", "client_id", "user", "status", "version", "resumed", "keep_alive",
        "opened_ns", "in_flight_sent", "in_flight_received",
    ),
    "retained": ("topic", "payload", "qos", "from_ns", "to_ns", "ended_by", "producer_client_id"),
    "conversations": ("requester", "replied_ns"),
}  # fmt: skip
"""Columns that have what the whole recording says, or nothing."""
_ANY_THAT_MATCHES: Final = ("subscription", "consumer_id")
"""Columns with one of several subscriptions, another one of which may be lost."""
_OF_SENDING: Final = ("message_key", "producer", "producer_client_id", "sent_ns")


class Read(NamedTuple):
    """What a capture holds, and where its packets are."""

    rows: list[Row]
    tables: dict[str, list[Row]]
    places: dict[str, dict[int, int]]
    """By stream the offset of what each frame brought, frames counted in the whole recording."""


@cache
def frames_of(path: Path) -> tuple[bytes, list[bytes]]:
    """Return the header of a classic capture, and its frames."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    frames, at = [], 24
    while at < len(data):
        stop = at + 16 + int(struct.unpack_from("<I", data, at + 8)[0])
        frames.append(data[at:stop])
        at = stop
    return data[:24], frames


def read_without(path: Path, lost: int, stop: int | None = None) -> Read:
    """Read a capture without its first frames, and without those from `stop` on."""
    return read_frames(path, range(len(frames_of(path)[1]))[lost:stop])


def read_frames(path: Path, kept: Sequence[int]) -> Read:
    """Read a capture that has only some of its frames."""
    header, frames = frames_of(path)
    data = b"".join((header, *(frames[number] for number in kept)))
    rows = in_order(wireyard.read(data, "mqtt").to_pylist())
    source = rows[0]["source"] if rows else ""
    streams, places = [], {}
    for one in read_capture(data).streams:
        frame, time_ns = one.closed or (None, None)
        streams.append(
            {
                "source": source, "stream": one.name, "opened": one.opened, "begun": one.begun,
                "paired": one.paired, "ended": one.ended, "ended_frame": frame,
                "ended_ns": time_ns,
            }
        )  # fmt: skip
        numbers = [kept[record] for record in one.runs.records.tolist()]
        places[one.name] = dict(zip(numbers, one.runs.offsets.tolist(), strict=True))
    return Read(rows, mqtt.derive(rows, streams), places)


def moved(part: Read, whole: Read) -> dict[str, tuple[str, int]]:
    """Return the name in the whole recording of each stream, and how far its offsets differ."""
    found = {}
    for name, places in part.places.items():
        for true, all_places in whole.places.items():
            both = [frame for frame in places if frame in all_places]
            if both and true.split("#")[0] == name.split("#")[0]:
                found[name] = true, all_places[both[0]] - places[both[0]]
    return found


class Judge:
    """What a part of a recording says, against the whole."""

    def __init__(self, part: Read, whole: Read) -> None:
        self.part, self.whole = part, whole
        self._moved = moved(part, whole)
        self._resent = {f"{row['stream']}@{row['offset']}" for row in part.rows if row.get("dup")}
        """Messages of which the first copy is not in the part, or of another session there."""

    def packet(self, row: Row) -> Packet:
        """Return where the packet of a row is in the whole recording."""
        stream, shift = self._moved[row["stream"]]
        return stream, row["offset"] + shift

    def key(self, message: str) -> str:
        """Return a message key as the whole recording has it."""
        stream, _, offset = message.rpartition("@")
        true, shift = self._moved[stream]
        return f"{true}@{int(offset) + shift}"

    def same(self, table: str, row: Row, true: Row) -> None:
        for column in _KNOWN[table]:
            assert row.get(column) in (None, "", true.get(column)), (column, row, true)

    def deliveries(self) -> None:
        attempts, others = {}, Counter[Any]()
        for row in self.whole.tables["deliveries"]:
            if "delivered_frame" in row:
                attempts[row["stream"], row["offset"]] = row
            others[row["message_key"], row["consumer_client_id"], row["verdict"]] += 1
            others[row["message_key"], row["verdict"]] += 1
        found = set()
        for row in self.part.tables["deliveries"]:
            if "delivered_frame" in row:
                place = self.packet(row)
                found.add(place)
                if place in attempts:
                    self.delivery(row, attempts[place])
                else:
                    self.resent(row)
            elif row["verdict"] not in _OPEN and row["message_key"] not in self._resent:
                # Of a refused message it may not be known who would have got it.
                who = () if row["verdict"] == "refused" else (row["consumer_client_id"],)
                assert others[self.key(row["message_key"]), *who, row["verdict"]], row
        for row in self.part.rows:
            if row["packet_type"] == 3 and row["status"] == "ok":
                assert self.packet(row) in found or self.packet(row) not in attempts

    def delivery(self, row: Row, true: Row) -> None:
        if (shown := row["subscription"]) not in (None, true["subscription"]):
            assert matches(split_shared(shown)[1], row["destination"]), (row, true)
            row = row | dict.fromkeys(_ANY_THAT_MATCHES)
        self.same("deliveries", row, true)
        message = row["message_key"]
        if message is not None and message not in self._resent:
            assert self.key(message) == true["message_key"], (row, true)
            assert all(row[one] in (None, true[one]) for one in _OF_SENDING[1:])
        again = row["verdict"] == "delivered" and true["verdict"] == "lost_ack"
        assert again or row["verdict"] in (*_OPEN, true["verdict"]), (row, true)

    def resent(self, row: Row) -> None:
        """Compare a delivery of which the first copy was delivered before."""
        assert row["redelivered"]
        verdicts = {
            true["verdict"]
            for true in self.whole.tables["deliveries"]
            if true.get("redelivered")
            and (true["destination"], true["acknowledged_ns"])
            == (row["destination"], row["acknowledged_ns"])
            and row["consumer_client_id"] in (None, true["consumer_client_id"])
        }
        assert verdicts & {"lost_ack", row["verdict"]} or row["verdict"] in _OPEN

    def violations(self) -> None:
        broken = {
            (one["rule"], one["stream"], one["offset"], one["client"])
            for one in self.whole.tables["violations"]
        }
        for row in self.part.tables["violations"]:
            assert (row["rule"], *self.packet(row), row["client"]) in broken, row

    def sessions(self) -> None:
        logins = {connection(one["stream"]): one for one in self.whole.tables["sessions"]}
        for row in self.part.tables["sessions"]:
            true = logins[connection(self.packet(row)[0])]
            self.same("sessions", row, true)
            assert row["ended_by"] in (None, true["ended_by"])
            assert row["closed_ns"] is None or row["closed_ns"] >= true["closed_ns"]

    def values_and_conversations(self) -> None:
        for table, key in (("retained", "message_key"), ("conversations", "request_key")):
            true: dict[str, list[Row]] = {}
            for one in self.whole.tables[table]:
                true.setdefault(one[key], []).append(one)
            for row in self.part.tables[table]:
                candidates = true[self.key(row[key])]
                reply = self.key(row["reply_key"]) if row.get("reply_key") else None
                self.same(table, row, next(x for x in candidates if x.get("reply_key") == reply))


def connection(stream: str) -> tuple[str, ...]:
    name, _, ordinal = stream.partition("#")
    return *sorted(name.split(">")), ordinal


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_beginning_of_a_capture_contradicts_the_whole(folder: Path, name: str) -> None:
    path = capture_of(folder, name)
    whole = read_without(path, 0)
    dice = random.Random(name)
    for _ in range(CUTS):
        judge = Judge(read_without(path, dice.randrange(1, len(frames_of(path)[1]))), whole)
        judge.deliveries()
        judge.violations()
        judge.sessions()
        judge.values_and_conversations()


def test_a_beginning_leaves_little_undecided(folder: Path) -> None:
    """All recordings without their first third: whose side each is, and most of what was sent."""
    verdicts, before, brokers = Counter[str](), Counter[str](), set()
    for name in SCENARIOS:
        path = capture_of(folder, name)
        part = read_without(path, len(frames_of(path)[1]) * 35 // 100)
        verdicts.update(row["verdict"] for row in part.tables["deliveries"])
        before.update(row["verdict"] for row in read_without(path, 0).tables["deliveries"])
        brokers |= {row["server"].partition(":")[2] for row in part.tables["sessions"]}
    assert brokers == {"1883"} or brokers == {"1883", "1884"}
    more = verdicts["undecided"] / verdicts.total() - before["undecided"] / before.total()
    assert more < _MOST_UNDECIDED


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_end_of_a_capture_contradicts_the_whole(folder: Path, name: str) -> None:
    """What is undecided at an end was delivered behind it, or is undecided in the whole too."""
    path = capture_of(folder, name)
    whole = read_without(path, 0)
    dice = random.Random(name)
    for _ in range(CUTS):
        stop = dice.randrange(1, len(frames_of(path)[1]))
        part = read_without(path, 0, stop)
        Judge(part, whole).violations()
        verdicts: dict[Any, set[str]] = {}
        for row in whole.tables["deliveries"]:
            true = {row["verdict"]} | ({"delivered"} if row["verdict"] == "lost_ack" else set())
            true |= {"undecided"} if row.get("delivered_frame", 0) > stop else set()
            verdicts.setdefault((row["message_key"], who(row)), set()).update(true)
        for row in part.tables["deliveries"]:
            if row["verdict"] not in _OPEN - {"undecided"}:
                assert row["verdict"] in verdicts[row["message_key"], who(row)], row


def who(row: Row) -> Any:
    """Return whom a message is for: a client, or any member of a shared subscription."""
    shared = (row.get("subscription") or "").startswith("$share/")
    return row["subscription"] if shared else row["consumer_client_id"]
