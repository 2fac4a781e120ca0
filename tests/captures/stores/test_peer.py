"""A real broker's store: read while it runs, after it was killed, and as the broker reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.recording.record import installed_java
from examples.recording.record_store import Depot
from peers import openmq
from tests.captures.stores.judge import judged, rows_of
from tests.captures.stores.test_read import look
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.read import read_store

pytestmark = [pytest.mark.peer, pytest.mark.slow]

TWO_MB = 2 << 20
QUEUES = ("orders", "freight", "bookings", "ledger")


@pytest.fixture
def depot(tmp_path: Path) -> Iterator[Depot]:
    """Return a broker's surroundings, if there can be one here."""
    try:
        home = openmq.fetch()
        openmq.jdk_tool("javac")
    except openmq.Unavailable as missing:
        if os.environ.get("WIREYARD_PEERS") == "require":
            raise
        pytest.skip(str(missing))
    yield Depot(home, installed_java(), tmp_path)


def held(depot: Depot) -> dict[str, list[str]]:
    """Return the ids of the messages in the queues' files."""
    found: dict[str, list[str]] = {}
    for file in read_store(depot.store):
        assert file.failure is None
        judged(file.kind, file.data)
        if file.destination and file.destination.startswith("Q:"):
            ids = [row["sys_message_id"] for row in rows_of(file) if row["status"] == "ok"]
            found.setdefault(file.destination[2:], []).extend(ids)
    return found


def test_a_store_is_read_as_its_broker_reads_it(depot: Depot) -> None:
    with depot.broker() as kill, depot.filled():
        for _ in range(5):  # the broker itself may write at the same time
            before = look(depot.store)
            running = held(depot)
            if look(depot.store) == before:
                break
        assert look(depot.store) == before
        kill()
    killed = held(depot)
    assert killed == running
    assert {name: len(ids) for name, ids in killed.items()} == {
        "orders": 5,
        "freight": 1,
        "bookings": 3,
        "ledger": 1,
    }
    with depot.broker():
        listed = [line.split(" ID:") for line in depot.listed(*QUEUES)]
        again = held(depot)
    assert again == killed
    for queue in QUEUES:
        assert sorted(killed[queue]) == sorted(number for name, number in listed if name == queue)


def test_a_message_of_two_megabytes_is_there(depot: Depot) -> None:
    with depot.broker() as kill:
        depot.send("freight", TWO_MB)
        kill()
    rows = [row for file in read_store(depot.store) for row in rows_of(file)]
    (body,) = (row["body"] for row in rows if row["status"] == "ok" and row["body_size"] == TWO_MB)
    assert body == bytes(range(256)) * (TWO_MB // 256)
    assert held(depot)["freight"]


def test_a_broker_that_plays_its_log_back_leaves_it_stale(depot: Depot) -> None:
    with depot.broker() as kill, depot.filled():
        kill()
    (log,) = (file for file in read_store(depot.store) if file.kind is Kind.LOG)
    states = [one.contents.transaction for one in log.records if one.state == "live"]
    assert [one.state for one in states if one] == [
        *("committed", "committed", "prepared", "committed", "prepared"),
    ]
    with depot.broker():
        files = list(read_store(depot.store))
    (log,) = (file for file in files if file.kind is Kind.LOG)
    assert log.ledger.keys() <= {"header", "stale", "unused"}
    (incomplete,) = (file for file in files if file.kind is Kind.INCOMPLETE)
    kept = [one for one in incomplete.records if one.state == "allocated"]
    assert [one.contents.kind for one in kept] == ["local prepare"]
    assert [one.contents.transaction for one in kept] == [states[-1]]
