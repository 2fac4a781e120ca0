"""The steps of the chain: what they are partitioned by, and what each of them leaves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.layers.mqtt.make import MS, Capture, derived, pair, table_of, tables_of
from tests.layers.mqtt.recorded import capture_of, rows_of
from tests.reference import mqtt
from tests.reference.mqtt import sides_of
from wireyard.layers.mqtt.deliveries import conversations, subscriptions
from wireyard.layers.mqtt.deliveries.retained import MissingValue, attempt_record, keep_values
from wireyard.layers.mqtt.packets import KnownStream, Packets, Part, new_secret, stream_numbers
from wireyard.layers.mqtt.records import (
    Attempt,
    Client,
    Subscribed,
    ValueChange,
    value_records,
)
from wireyard.layers.records import Position
from wireyard.layers.stages import Fact, Found, KeyedRecord

Row = dict[str, Any]

SOURCE, SERVER = "made.pcap", "10.0.0.1:1883"


def at(place: int) -> Position:
    return Position(place, place, "stream", place, place, place, SOURCE)


def client(name: str) -> Client:
    return Client(SOURCE, SERVER, name, "10.0.0.2:40000", name)


# --- keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bulk-v4", "qos-v3", "splits-v5", "keepalive-v5"])
def test_the_order_of_packets_is_that_of_the_capture(folder: Path, name: str) -> None:
    rows = rows_of(capture_of(folder, name))
    numbers = {stream: 0 for stream in sorted({(row["source"], row["stream"]) for row in rows})}
    streams = [KnownStream(*stream, True, (stream[0], "", "")) for stream in numbers]
    numbers = {stream: number for number, stream in enumerate(numbers)}
    table, secret = table_of(rows), new_secret()
    part = Part.of(table, stream_numbers(table, numbers), secret)
    packets = Packets.of([part], streams, secret)
    positions = list(map(packets.position, range(len(packets))))
    assert positions == sorted(positions)
    assert [(one.stream, one.offset) for one in positions] == [
        (row["stream"], row["offset"]) for row in rows
    ]


def keys_of(capture: Capture) -> set[tuple[str, str, str]]:
    return {side.key for side in sides_of(capture.rows, {}).values()}


def test_a_connection_goes_by_its_client_id() -> None:
    capture = Capture()
    capture.connect("one")
    capture.leave("one")
    capture.connect("one")
    assert keys_of(capture) == {(SOURCE, SERVER, "one")}


def test_a_client_id_that_the_broker_assigns() -> None:
    assigned = (("assigned_client_identifier", "auto-1"),)
    for client_id in ("", "mine"):
        capture = Capture(5)
        capture.connect(client_id, said=assigned)
        capture.ping(client_id)
        assert keys_of(capture) == {(SOURCE, SERVER, "auto-1")}
        (session,) = tables_of(capture)["sessions"]
        assert session["client_id"] == "auto-1"
    refused = Capture(5)
    refused.connect("mine", said=assigned, code=0x87)
    assert keys_of(refused) == {(SOURCE, SERVER, "mine")}


def test_connections_of_nobody_known_are_kept_apart() -> None:
    capture = Capture()
    for who in ("one", "two"):
        capture.ping(who)
    assert len(keys_of(capture)) == 2
    assert [row["packets"] for row in tables_of(capture)["sessions"]] == [2, 2]


def test_streams_of_a_connection_have_one_key_whoever_they_are() -> None:
    """Where no packet tells whose they are, the port does."""
    capture = Capture()
    capture.publish("one", True, "t", b"x", 0)
    capture.publish("one", False, "t", b"y", 0)
    sides = sides_of(capture.rows, {})
    assert [side.from_client for side in sides.values()] == [True, False]
    assert sides == sides_of(capture.rows[::-1], {})
    assert len(keys_of(capture)) == len(tables_of(capture)["sessions"]) == 1


def test_one_client_id_at_two_brokers() -> None:
    capture = Capture()
    capture.connect("one")
    elsewhere = Capture()
    elsewhere.connect("one")
    other = [
        row
        | {"stream": row["stream"].replace("10.0.0.1:1883", "10.0.0.9:1883")}
        | {name: "10.0.0.9" for name in ("src_addr", "dst_addr") if row[name] == "10.0.0.1"}
        for row in elsewhere.rows
    ]
    tables = mqtt.derive([*capture.rows, *other])
    assert [row["ended_by"] for row in tables["sessions"]] == ["open", "open"]


# --- time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("later_s", "published"), [(5, False), (20, True)])
def test_a_delayed_will_needs_no_packet_of_its_own_client(later_s: float, published: bool) -> None:
    capture = pair(5)
    capture.connect(
        "rude", will_topic="t/w", will_payload=b"gone", will_qos=1, will_retain=True,
        will_properties=(), properties=(("session_expiry_interval", 100),),
    )  # fmt: skip
    capture.rows[-2]["will_properties"] = [{"name": "will_delay_interval", "value": 10}]
    capture.end("rude")
    ended_ns = capture.now_ns
    capture.wait(later_s)
    capture.ping("sub")
    tables = tables_of(capture)
    assert [row["verdict"] for row in tables["deliveries"]] == ["not_forwarded"] * published
    times = [(row["payload"], row["from_ns"]) for row in tables["retained"]]
    assert times == [(b"gone", ended_ns + 10_000 * MS)] * published


# --- who is subscribed ----------------------------------------------------------------------


def subscribed(name: str, filter: str, asked: int, gone: int | None) -> Subscribed:
    end = None if gone is None else at(gone)
    return Subscribed(
        client(name), filter, None, 1, False, False, None, at(asked), at(asked), at(asked), end, end
    )


def test_subscriptions_that_are_too_many_match_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_SUBSCRIPTIONS", 1)
    capture = pair()
    capture.subscribe("pub", "t/1")
    capture.message("pub", "t/1", b"x", 0)
    tables, dropped = derived(capture.rows)
    assert dropped == {"filters": 1}
    assert [row["subscription"] for row in tables["deliveries"]] == ["t/#"]


# --- values and conversations ---------------------------------------------------------------


def values_of(records: Iterable[KeyedRecord]) -> list[Found | Attempt | MissingValue]:
    ordered = sorted(records, key=lambda note: note.order)
    return list(keep_values(note.record for note in ordered))


def change(place: int, payload: bytes) -> KeyedRecord:
    one = ValueChange(client("p"), "t", payload, 1, at(place), at(place), at(place), None, 9, False)
    (note,) = value_records(one)
    return note


def test_a_value_that_was_handed_over_was_set_a_while_ago_at_most() -> None:
    """It may be on its way while the next ones come, but not while many do."""
    sent = [change(place, b"%d" % place) for place in range(20)]
    attempts = [
        attempt_record(Attempt(at(place), client("s"), "t", content, 1, True))
        for place, content in ((30, b"19"), (31, b"4"), (32, b"3"), (7, b"7"), (6, b"7"))
    ]
    found = values_of([*sent, *attempts])
    setters = {one.at.ns: one.setter and one.setter.ns for one in found if isinstance(one, Attempt)}
    assert setters == {30: 19, 31: 4, 32: None, 7: 7, 6: None}
    rows = [one.row for one in found if isinstance(one, Fact)]
    assert [row["from_ns"] for row in rows] == list(range(20))
    assert [row["to_ns"] for row in rows] == [*range(1, 20), None]


def test_of_requests_that_nobody_answers_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_WAITING", 2)
    capture = pair(5)
    for _ in range(5):
        capture.message("pub", "ask", b"?", 1, properties=(("response_topic", "answers"),))
    capture.message("sub", "answers", b"!", 1)
    tables, dropped = derived(capture.rows)
    assert dropped == {"requests": 3}
    rows = sorted(tables["conversations"], key=lambda row: row["offset"])
    answered = [row["reply_key"] is not None for row in rows]
    assert answered == [False, False, False, True, False]
