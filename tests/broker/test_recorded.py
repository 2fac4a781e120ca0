"""What passes the broker, judged by wireyard's own reading of the recording."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.simulation import Simulation
from tests.broker.wires import rows_of
from tests.marked import leaks, variants
from wireyard.answers import Tables, open_tables
from wireyard.broker.core import Core
from wireyard.broker.half import Half
from wireyard.broker.jmq.core import JmqCore
from wireyard.broker.recording import Recording
from wireyard.broker.settings import Settings

CONVERSATIONS = 20
STEPS = 120
WRONG = {"not_forwarded", "not_kept", "duplicate", "refused", "too_large"}
"""What would be a fault of the broker, and limits that these conversations do not reach."""


class Clock:
    """The time of the conversation that goes on."""

    simulation: Simulation | None = None

    def time_ns(self) -> int:
        return 0 if self.simulation is None else int(self.simulation.now * 1e9)


@pytest.fixture(scope="module", params=["in memory", "with a store"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tables, Tables]]:
    """The tables of random conversations of clients that are cut off and resume.

    First those of what the broker records, then those of the bytes of its sockets. A broker with a
    store is killed now and then, between any two commits.
    """
    files, clock = (io.BytesIO(), io.BytesIO()), Clock()
    recording, wires = (Recording(file, clock.time_ns) for file in files)
    folder = tmp_path_factory.mktemp("recorded")
    for seed in range(CONVERSATIONS):
        store = None if request.param == "in memory" else folder / f"{seed}.db"
        simulation = clock.simulation = Simulation(seed, recording, store, wires)
        for _ in range(STEPS):
            simulation.step()
        simulation.finish()
    paths = folder / "broker.pcapng", folder / "wires.pcapng"
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(file.getvalue())
    with open_tables([str(paths[0])]) as own, open_tables([str(paths[1])]) as others:
        yield own, others


@pytest.fixture
def tables(both: tuple[Tables, Tables]) -> Tables:
    return both[0]


@pytest.mark.parametrize("table", ["deliveries", "sessions", "violations", "messages"])
def test_what_the_broker_records_tells_what_its_sockets_do(
    both: tuple[Tables, Tables], table: str
) -> None:
    own, others = (rows_of(tables, table) for tables in both)
    assert own == others
    assert table == "violations" or len(own) > 5 * CONVERSATIONS


def test_the_recording_has_every_packet_whole(tables: Tables) -> None:
    found = tables.sql("SELECT count(*) AS n, count(verdict) AS bad FROM packets_mqtt")
    assert found["n"][0].as_py() > 50 * CONVERSATIONS
    assert found["bad"][0].as_py() == 0
    assert tables.sql("SELECT * FROM quarantine").num_rows == 0
    assert tables.notes == []


def test_nobody_breaks_a_rule(tables: Tables) -> None:
    assert tables.sql("SELECT rule, text, frame FROM violations").to_pylist() == []


def test_nothing_is_lost(tables: Tables) -> None:
    found = tables.sql("SELECT verdict, count(*) AS n FROM deliveries GROUP BY 1").to_pylist()
    counts = {row["verdict"]: row["n"] for row in found}
    assert counts["delivered"] > 40 * CONVERSATIONS
    assert not (WRONG - {"duplicate"}) & counts.keys()
    # At QoS 1 a publisher that has read no acknowledgement publishes again.
    twice = tables.sql(
        "SELECT d.message_key FROM deliveries d JOIN messages m USING (message_key)"
        " WHERE d.verdict = 'duplicate' AND m.qos = 2"
    )
    assert twice.num_rows == 0


def test_no_password_is_recorded(tables: Tables) -> None:
    secrets = tables.sql(
        "SELECT DISTINCT version_in_force > 2 AS has_login, has_password FROM packets_mqtt"
        " WHERE packet_type = 1 ORDER BY 1"
    )
    assert secrets["has_password"].to_pylist() == [None, True]  # 1999 has no logins


def recorded(broker: Half[Any], data: bytes) -> bytes:
    """Return what a broker records of a client that sends some bytes in pieces."""
    shown = bytearray()
    link = broker.open_link("a", lambda arrived, data: shown.extend(data))
    assert link is not None
    for at in range(0, len(data), 37):
        if link.endpoint.ended is None:
            broker.receive(link, data[at : at + 37], 1000.0)
    for each in broker.take_dirty():
        each.endpoint.take()
    return bytes(shown)


def test_no_part_of_any_login_is_recorded_or_noted() -> None:
    cores: dict[str, type[Half[Any]]] = {"mqtt": Core, "jmq": JmqCore}
    size, notes = 0, list[str]()
    for place, data in variants(cuts=False):
        core = cores.get(place.format)
        if core is not None:
            shown = recorded(core(Settings(), notes.append), data)
            size += len(shown)
            assert not leaks(shown), place.name
    assert size > 50_000 and len(notes) > 500
    assert not leaks("\n".join(notes))
