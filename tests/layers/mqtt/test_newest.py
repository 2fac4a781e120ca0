"""The newest packets give the rows that all packets so far give, or say that they cannot."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.layers.kept_rows import KeptRows, derived_rows
from tests.layers.mqtt.make import Capture
from wireyard.captures.stream_table import STREAMS, streams_table
from wireyard.formats.mqtt import FORMAT, layout
from wireyard.formats.rows import rows_to_batch
from wireyard.layers import newest
from wireyard.layers.mqtt.newest import MQTT
from wireyard.layers.newest import NewestPackets, NewestRows
from wireyard.schema import CAPTURED, COMMON

Row = dict[str, Any]

SOURCE = "made.pcap"
KEYS = pa.schema([STREAMS.field(name) for name in ("source", "stream")])


class Traffic:
    """Publishers, and subscribers who get most of it, resend some, go away and come back."""

    def __init__(self, version: int, seed: int) -> None:
        self.capture, self.dice = Capture(version), random.Random(seed)
        self.there: dict[str, bool] = {}
        for name in ("one", "two", "three"):
            self.capture.connect(name, clean=False)
            self.capture.subscribe(name, "plant/#", qos=2)
            self.there[name] = True
        for name in ("left", "right"):
            self.capture.connect(name)

    def run(self, messages: int) -> None:
        for number in range(messages):
            self.message(number)
            who = self.dice.choice([*self.there])
            if self.dice.random() < 0.1:
                self.turn(who)
            elif self.there[who]:
                self.capture.ping(who)

    def message(self, number: int) -> None:
        capture, dice = self.capture, self.dice
        qos, packet_id = dice.randrange(3), number % 50 + 1
        topic, payload = f"plant/{number % 4}", b"%d" % number
        publisher = dice.choice(("left", "right"))
        if qos and dice.random() < 0.1:
            capture.publish(publisher, True, topic, payload, qos, packet_id)
            capture.message(publisher, topic, payload, qos, packet_id, dup=True)
        else:
            capture.message(publisher, topic, payload, qos, packet_id)
        for name, there in self.there.items():
            if there and dice.random() < 0.9:
                capture.hand(name, topic, payload, qos, packet_id)

    def break_rules(self, number: int) -> None:
        """Acknowledge what nobody sent, and log in twice."""
        self.capture.put("left", False, layout.PUBACK, packet_id=70 + number)
        self.capture.connect("left")
        self.capture.put("right", True, layout.PUBREL, packet_id=70 + number)

    def ask(self, number: int) -> None:
        """Send a request, which is answered later or never."""
        topic, data = f"plant/{number % 4}", b"%d" % number
        asked = (("response_topic", "answers"), ("correlation_data", data))
        self.capture.message("left", topic, data, 0, properties=asked)
        if number % 2:
            said = (("correlation_data", data),)
            self.capture.message("right", "answers", b"done", 0, properties=said)

    def turn(self, who: str) -> None:
        """Have a client leave, or come back."""
        self.there[who] = not self.there[who]
        if self.there[who]:
            self.capture.connect(who, clean=False, present=self.capture.version > 3)
        else:
            self.capture.disconnect(who)


def packets_of(capture: Capture) -> pa.Table:
    batch = rows_to_batch((*COMMON, *CAPTURED, *FORMAT.columns), capture.rows)
    return pa.Table.from_batches([batch]).select(MQTT.needed["mqtt"])


def shown_of(*packets: pa.Table) -> pa.Table:
    """Return what captures show of streams that they have from their beginnings."""
    streams = pa.concat_tables(packets).select(["source", "stream"]).cast(KEYS)
    return streams_table(
        {**row, "format": "mqtt", "begun": True}
        for row in streams.group_by(KEYS.names).aggregate([]).to_pylist()
    )


def derived(packets: pa.Table) -> dict[str, list[Row]]:
    return derived_rows(MQTT, {"mqtt": packets}, shown_of(packets), SOURCE)


def parts_of(packets: pa.Table, since_ns: int, part: int) -> Iterator[tuple[int, list[NewestRows]]]:
    """Yield rows as they are made part by part, and after how many packets."""
    start = packets["captured_ns"].to_pylist().index(since_ns) + 1
    before = max(start - newest.MAX_NEWEST, 0)
    some = NewestPackets(MQTT)
    some.advance(SOURCE, since_ns)
    some.add("mqtt", packets.slice(0, before), old=True)
    some.add("mqtt", packets.slice(before, start - before))
    for at in range(start, packets.num_rows, part):
        some.add("mqtt", packets.slice(at, part))
        stop = min(at + part, packets.num_rows)
        yield stop, some.rows(shown_of(packets.slice(0, stop)), [SOURCE])


def made(packets: pa.Table, since_ns: int, part: int) -> list[tuple[int, str, bool, Row]]:
    """Return the rows of messages: after how many packets, of which table."""
    found = []
    for stop, rows in parts_of(packets, since_ns, part):
        for name, closed, still_open in rows:
            if name in MQTT.tables:
                found += [(stop, name, True, row) for row in closed.to_pylist()]
                found += [(stop, name, False, row) for row in still_open.to_pylist()]
    return found


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("most", [60, 1 << 16])
def test_rows_are_those_of_all_packets_so_far(
    version: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", most)
    traffic = Traffic(version, seed=version)
    traffic.run(80)
    packets = packets_of(traffic.capture)
    since_ns = packets["captured_ns"][packets.num_rows // 4].as_py()
    seen: dict[str, set[str]] = {"messages": set(), "deliveries": set()}
    closed = 0
    whole: dict[int, dict[str, list[Row]]] = {}
    for stop, name, is_closed, row in made(packets, since_ns, 97):
        if stop not in whole:
            whole[stop] = derived(packets.slice(0, stop))
        rows = whole[stop][name]
        closed += is_closed
        seen[name].add(row["message_key"])
        if row.get("verdict") == "undecided":
            # No broker is said to have lost what a gap may hide.
            rows = [each | {"verdict": "undecided"} for each in rows]
        assert row in rows
    assert bool(closed) == (most == 60)
    of_packets = {
        row["message_key"] for row in derived(packets)["messages"] if row["captured_ns"] > since_ns
    }
    assert seen["messages"] == of_packets
    assert seen["deliveries"] == of_packets


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("most", [60, 1 << 16])
def test_sessions_violations_and_answers_are_those_of_all_packets_so_far(
    version: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", most)
    traffic = Traffic(version, seed=version + 10)
    traffic.capture.message("left", "plant/1", b"before", 1, 60)
    for number in range(80):
        traffic.message(number)
        if number % 3 == 0:
            traffic.turn(traffic.dice.choice([*traffic.there]))
        if number % 4 == 0:
            traffic.break_rules(number)
        if number % 5 == 0 and version == 5:
            traffic.ask(number)
    packets = packets_of(traffic.capture)
    start = packets.num_rows // 4
    since_ns = packets["captured_ns"][start].as_py()
    kept = KeptRows(derived(packets.slice(0, start + 1)), since_ns)
    for stop, rows in parts_of(packets, since_ns, 97):
        kept.take(rows)
        counts = kept.judge(derived(packets.slice(0, stop)))
    assert counts["sessions"] > 15
    assert counts["violations"] > 10
    assert (counts["conversations"] > 5) == (version == 5)


def test_inputs_together_give_the_rows_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their streams have the same names, and their packets become gaps at different times."""
    monkeypatch.setattr(newest, "MAX_NEWEST", 60)
    packets = dict[str, pa.Table]()
    for seed, source in enumerate(("a.pcap", "b.pcap")):
        traffic = Traffic(4, seed)
        traffic.run(60)
        rows = packets_of(traffic.capture)
        place, names = rows.schema.get_field_index("source"), pa.array([source] * rows.num_rows)
        packets[source] = rows.set_column(place, "source", names.cast(rows.schema.types[place]))
    together, alone = NewestPackets(MQTT), {source: NewestPackets(MQTT) for source in packets}
    for source, one in alone.items():
        for some in (one, together):
            some.advance(source, packets[source]["captured_ns"][20].as_py())
    counts = Counter[str]()
    for at in range(0, max(each.num_rows for each in packets.values()), 40):
        expected = Counter[tuple[str, int, str]]()
        for source, one in alone.items():
            some = packets[source].slice(at, 30 if source == "a.pcap" else 40)
            one.add("mqtt", some)
            together.add("mqtt", some)
            expected.update(_texts(one.rows(shown_of(packets[source]), [source])))
        every = shown_of(*packets.values())
        assert Counter(_texts(together.rows(every, [*packets]))) == expected
        counts.update(name for name, *_ in expected)
    assert min(counts[name] for name in ("messages", "deliveries", "sessions")) > 20


def _texts(found: list[NewestRows]) -> list[tuple[str, int, str]]:
    """Return rows with their tables, and whether they are open."""
    return [
        (name, place, repr(sorted(row.items())))
        for name, *both in found
        for place, rows in enumerate(both)
        for row in rows.to_pylist()
    ]


def test_of_a_gap_nothing_is_said_to_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", 20)
    capture = Capture(4)
    capture.connect("one")
    since_ns = capture.now_ns
    capture.publish("one", True, "t", b"x", 1, 1)
    for _ in range(40):
        capture.ping("one")
    packets = packets_of(capture)
    found = [
        (row["packets"], row["bytes"], row["in_flight_sent"])
        for _, rows in parts_of(packets, since_ns, 13)
        for name, _, still_open in rows
        if name == "sessions"
        for row in still_open.to_pylist()
    ]
    size = packets["length"].to_numpy().cumsum()
    # All packets are there in the first two parts, and a gap since the third.
    assert found == [
        (stop, size[stop - 1], 1 if number < 2 else None)
        for number, stop in enumerate((15, 28, 41, 54, 67, 80, 83))
    ]


def test_each_row_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", 40)
    traffic = Traffic(4, seed=7)
    traffic.run(60)
    packets = packets_of(traffic.capture)
    rows = made(packets, packets["captured_ns"][100].as_py(), 31)
    keys = [
        (name, row["message_key"], row.get("consumer_client_id"), row["offset"])
        for _, name, is_closed, row in rows
        if is_closed
    ]
    assert len(keys) == len({*keys}) > 50


def test_a_resend_waits_for_what_is_in_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", 10)
    capture = Capture(4)
    capture.connect("one")
    capture.publish("one", True, "t", b"x", 1, 1)
    for _ in range(20):
        capture.ping("one")
    since_ns = capture.now_ns
    capture.message("one", "t", b"x", 1, 1, dup=True)
    capture.message("one", "t", b"y", 1, 2)
    rows = made(packets_of(capture), since_ns, 100)
    bodies = [row["body"] for _, name, _, row in rows if name == "messages"]
    assert bodies == [b"y"]


def test_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST_BYTES", 100_000)
    capture = Capture(4)
    capture.connect("one")
    for number in range(200):
        capture.message("one", "t", bytes(2_000), 1, number + 1)
    packets = packets_of(capture)
    some = NewestPackets(MQTT)
    some.advance(SOURCE, 0)
    for at in range(0, packets.num_rows, 50):
        some.add("mqtt", packets.slice(at, 50))
        some.rows(shown_of(packets), [SOURCE])
        assert sum(part.nbytes for part in some._newest["mqtt"]) < 110_000


def test_rare_packets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MAX_NEWEST", 10)
    monkeypatch.setattr(newest, "MAX_RARE", 40)
    capture = Capture(4)
    for number in range(100):
        capture.connect(f"client {number}")
        capture.message(f"client {number}", "t", b"%d" % number, 1)
    packets = packets_of(capture)
    kinds = packets["packet_type"].to_pylist()
    assert kinds.count(layout.CONNECT) == 100
    some = NewestPackets(MQTT)
    some.advance(SOURCE, 0)
    bodies = set[bytes]()
    for at in range(0, packets.num_rows, 40):
        some.add("mqtt", packets.slice(at, 40))
        for table, *both in some.rows(shown_of(packets), [SOURCE]):
            if table == "messages":
                bodies.update(body for rows in both for body in rows["body"].to_pylist())
        assert sum(part.num_rows for part in some._rare["mqtt"]) <= 40
    assert bodies == {b"%d" % number for number in range(100)}


def test_a_session_of_which_rare_packets_are_dropped_keeps_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The packets of the broker alone would give another row of the session."""
    monkeypatch.setattr(newest, "MAX_NEWEST", 10)
    monkeypatch.setattr(newest, "MAX_RARE", 40)
    capture = Capture(4)
    for number in range(60):
        capture.connect(f"client {number}")
    for number in range(200):
        capture.hand(f"client {number % 60}", "t", b"%d" % number, 1, number + 1)
        if number % 3 == 0:
            capture.ping(f"client {number % 60}")
    packets = packets_of(capture)
    some, proofs = NewestPackets(MQTT), dict[frozenset[str], set[tuple[str, int]]]()
    some.advance(SOURCE, 0)
    for at in range(0, packets.num_rows, 25):
        some.add("mqtt", packets.slice(at, 25))
        for table, *both in some.rows(shown_of(packets), [SOURCE]):
            for row in (row for rows in both for row in rows.to_pylist()):
                if table == "sessions":
                    connection = frozenset(row["stream"].split(">"))
                    proofs.setdefault(connection, set()).add((row["stream"], row["offset"]))
    assert len(proofs) == 60
    assert {len(found) for found in proofs.values()} == {1}
