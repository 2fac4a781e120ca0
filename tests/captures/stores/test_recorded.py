"""Real stores: the recorded one, the golden one, and files that the broker's own classes wrote."""

from __future__ import annotations

import gzip
import json
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.captures.stores.judge import judged, rows_of
from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.read import read_store
from wireyard.captures.stores.rows import record_rows
from wireyard.formats.base import Row

MOST_MESSAGE_TYPE = 6
SAME = (
    *("length", "version", "packet_type", "timestamp", "expiration", "source_port", "sequence"),
    *(
        "property_offset",
        "property_size",
        "encryption",
        "priority",
        "bit_flags",
    ),
    *("destination", "destination_class", "reply_to", "correlation_id", "message_type"),
    "body_size",
)
"""Columns that the judge has under the same names."""


def held(files: list[StoreFile]) -> dict[str, list[tuple[int, list[tuple[int, str]]]]]:
    """Return by destination the numbers that messages have as a property, and their states."""
    found: dict[str, list[tuple[int, list[tuple[int, str]]]]] = {}
    for file in files:
        if file.destination is None:
            continue
        states = {
            packet["offset"]: [tuple(one.values()) for one in packet["consumers"]]
            for row in record_rows(file)
            for packet in row["packets"]
        }
        for row in rows_of(file):
            if row["status"] == "ok":
                number = int(dict(row["properties"])["number"]["value"])
                found.setdefault(file.destination, []).append((number, states[row["offset"]]))
    return found


def test_the_recorded_store_holds_what_the_clients_left(examples: Path) -> None:
    files = list(read_store(examples / "store"))
    for file in files:
        assert file.failure is None
        assert all(one.status == "ok" for one in judged(file.kind, file.data))
    names = {
        json.loads(one.contents.entry.value)["durable_name"]: int(one.contents.entry.key)
        for file in files
        if file.name.endswith("interest")
        for one in file.records
        if one.contents.entry
    }
    archive, desk = names["all"], names["news"]
    new = (archive, "routed")
    assert held(files) == {
        "T:prices": [
            (1, [new, (desk, "acknowledged")]),
            (2, [new, (desk, "acknowledged")]),
            (3, [new, (desk, "delivered")]),
            (4, [new, (desk, "delivered")]),
            (5, [new, (desk, "delivered")]),
            (6, [new]),
        ],
        "Q:orders": [(number, [(0, "delivered")]) for number in range(4, 9)],
        "Q:freight": [(2, [(0, "delivered")])],
        "Q:bookings": [(number, [(0, "delivered")]) for number in (2, 3, 5)],
        "Q:ledger": [(1, [(0, "routed")])],
    }
    (log,) = (file for file in files if file.kind is Kind.LOG)
    transactions = [
        (one.contents.kind, one.contents.transaction.state, len(one.contents.packets))
        for one in log.records
        if one.contents.transaction
    ]
    assert transactions == [
        ("local one-phase", "committed", 3),
        ("local one-phase", "committed", 1),
        ("local prepare", "prepared", 1),
        ("local complete", "committed", 0),
        ("local prepare", "prepared", 1),
    ]


@pytest.fixture(scope="module")
def golden(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[StoreFile]:
    """Return the files of the golden store."""
    folder = tmp_path_factory.mktemp("store")
    with tarfile.open(shared / "captures/openmq/store-fs370.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return list(read_store(folder))


def wire(shared: Path, scenario: str) -> tuple[dict[str, Row], dict[str, Row]]:
    """Return the messages of a scenario as the broker's classes read them, by message id.

    Those that a client sent, as the first sighting of each is, and those that the broker delivered.
    """
    sent: dict[str, Row] = {}
    delivered: dict[str, Row] = {}
    with gzip.open(shared / f"captures/openmq/{scenario}.packets.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if row["format"] == "jmq" and 1 <= row["packet_type"] <= MOST_MESSAGE_TYPE:
                found = delivered if row["sys_message_id"] in sent else sent
                found.setdefault(row["sys_message_id"], row)
    return sent, delivered


def test_the_golden_store_is_whole(golden: list[StoreFile]) -> None:
    for file in golden:
        assert {one.status for one in judged(file.kind, file.data)} == {"ok"}
    counts = {
        file.name: len([row for row in rows_of(file) if row["status"] == "ok"]) for file in golden
    }
    assert {name: count for name, count in counts.items() if count} == {
        "fs370/txnlog": 28,
        "fs370/message/Qwy_drop/vrfile": 20,
        "fs370/message/Qwy_xa/vrfile": 3,
    }


def test_what_the_broker_delivered_is_marked_so(golden: list[StoreFile], shared: Path) -> None:
    """The program took half of them; the other half had reached its client when it ended."""
    (drops,) = (file for file in golden if file.destination == "Q:wy_drop")
    found = [packet for row in record_rows(drops) for packet in row["packets"]]
    states = [[one["state"] for one in packet["consumers"]] for packet in found]
    assert states == [["delivered"]] * 20
    sent, delivered = wire(shared, "drops")
    assert {packet["sys_message_id"] for packet in found} == set(sent) == set(delivered)


@pytest.mark.parametrize(
    ("scenario", "destination"), [("drops", "Q:wy_drop"), ("transactions", "Q:wy_xa")]
)
def test_stored_packets_are_those_that_were_sent(
    golden: list[StoreFile], shared: Path, scenario: str, destination: str
) -> None:
    sent, _ = wire(shared, scenario)
    (file,) = (file for file in golden if file.destination == destination)
    rows = [row for row in rows_of(file) if row["status"] == "ok"]
    assert rows
    for row in rows:
        theirs = sent[row["sys_message_id"]]
        assert {name: row[name] for name in SAME} == {name: theirs[name] for name in SAME}
        assert row["source_ip"].hex() == theirs["source_ip_hex"]
        for name in ("consumer_id", "producer_id"):
            assert row[name] == int(theirs[name])
        assert sha256(row["body"]).hexdigest() == theirs["body_sha256"]


def test_the_broker_s_own_writers_are_read_as_they_say(shared: Path) -> None:
    folder = shared / "vectors/openmq/store"
    expected = json.loads((folder / "index.json").read_text())
    (file,) = read_store(folder / "vrfile")
    records = [one for one in file.records if one.state not in ("header", "unused")]
    assert [one.start for one in records] == [
        one["offset"] for one in expected["vrfile"]["records"]
    ]
    for ours, theirs in zip(records, expected["vrfile"]["records"], strict=True):
        number = {"free": 1, "allocated": 2, "pending": 2, "last": 3}[ours.state.value]
        assert number == theirs["state"]
        assert (ours.state == "pending") == (theirs["cookie"] == -1)
        assert bool(ours.held) == theirs.get("loadable", False)
        if "packet" in theirs:
            (packet,) = ours.contents.packets
            assert packet.stop - packet.start == theirs["packet_size"]
            assert [one.consumer_id for one in packet.consumers] == [
                one for one, _ in theirs["consumer_states"]
            ]
    (one,) = read_store(folder / "1")
    assert [row["length"] for row in rows_of(one) if row["status"] == "ok"] == [443]


@pytest.mark.parametrize("name", ["txnlog_clean", "txnlog_crashed"])
def test_logs_of_the_broker_s_own_writers(shared: Path, name: str) -> None:
    folder = shared / "vectors/openmq/store"
    expected = json.loads((folder / "index.json").read_text())[name]["records"]
    (file,) = read_store(folder / name)
    records = [one for one in file.records if one.contents.sequence is not None]
    found = [
        (one.start, one.contents.sequence, one.contents.checkpoint_sequence, one.state == "live")
        for one in records
    ]
    keys = ("offset", "sequence", "checkpoint_sequence", "live")
    assert found == [tuple(one[key] for key in keys) for one in expected]
    assert all(one.status == "ok" and one.contents.kind for one in records)
