"""The hops of a message: in one source, over a cluster, and over several capture points."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.layers.jmq.judge import derive, packet_tables
from tests.layers.jmq.make import MS, Talk, block
from tests.layers.jmq.recorded import Rows, client_log, packets, tables_of
from tests.layers.jmq.test_joins import relayed
from wireyard.formats.base import Row
from wireyard.layers.jmq import hops as module
from wireyard.layers.jmq.clocks import CONTRADICTION, ONE_WAY
from wireyard.layers.jmq.columns import derive_columns
from wireyard.layers.jmq.hops import FOLLOWS, HOPS, UNKNOWN

DAY_NS = 86_400_000 * MS


def hops(*talks: Rows, key: str | None = None) -> Rows:
    """Return the hops that packets of some captures show, of one message if its key is given."""
    rows = sorted((row for rows in talks for row in rows), key=lambda row: row["captured_ns"] or 0)
    return [row for row in derive(rows)["hops"] if key in (None, row["message_key"])]


def brief(rows: Rows) -> list[tuple[str, int | None, float | None, str | None]]:
    """Return kind, the hop that each follows, what it took in ms, and why that is not known."""
    return [
        (
            row["kind"],
            row["follows"],
            None if row["took_ns"] is None else row["took_ns"] / MS,
            row["unknown"],
        )
        for row in rows
    ]


def sent_and_received() -> tuple[Talk, Row]:
    """Return a conversation in which a message is sent, accepted, delivered and acknowledged."""
    talk = Talk().login()
    talk.consumer(7)
    message = talk.request("TEXT_MESSAGE", reply="SEND_REPLY", destination="q")
    talk.acknowledge(talk.deliver(message, 7))
    return talk, message


def seen_from(
    rows: Rows, source: str, to_broker_ms: float = 0, to_client_ms: float = 0, ahead_ms: float = 0
) -> Rows:
    """Return packets as another point sees them, so much later, a tenth of a second apart."""
    later = {True: to_broker_ms + ahead_ms, False: to_client_ms + ahead_ms}
    return [
        row
        | {
            "source": source,
            "captured_ns": row["captured_ns"] * 100 + round(later[row["dst_port"] == 7677] * MS),
        }
        for row in rows
    ]


# --- one source -----------------------------------------------------------------------------


def test_every_hop_of_a_message_in_one_capture() -> None:
    talk, message = sent_and_received()
    found = hops(talk.rows)
    assert brief(found) == [
        ("sent", None, None, "first"),
        ("accepted", 1, 1, None),
        ("delivered", 1, 2, None),
        ("acknowledged", 3, 1, None),
    ]
    assert [row["hop"] for row in found] == [1, 2, 3, 4]
    client, broker = "10.0.0.9:50000", "10.0.0.1:7677"
    ends = [(client, broker), (broker, client), (broker, client), (client, broker)]
    assert [(row["sender"], row["receiver"]) for row in found] == ends
    assert [row["consumer_id"] for row in found] == [None, None, 7, 7]
    assert {row["message_key"] for row in found} == {message["sys_message_id"]}
    assert {row["took_error_ns"] for row in found} == {None, 0}
    assert {(row["clock_ahead_ns"], row["clock_error_ns"]) for row in found} == {(0, 0)}
    places = {(row["stream"], row["offset"]): row for row in talk.rows}
    for row in found:
        packet = places[row["stream"], row["offset"]]
        assert (row["captured_ns"], row["frame"]) == (packet["captured_ns"], packet["frame"])


def test_each_consumer_has_a_path_of_its_own() -> None:
    talk = Talk().login()
    for consumer_id in (7, 8):
        talk.consumer(consumer_id)
    message = talk.send()
    first, second = talk.deliver(message, 7), talk.deliver(message, 8)
    talk.acknowledge(second)
    talk.tell("REDELIVER", body=block(first), JMQSetRedelivered=True)
    talk.acknowledge(talk.deliver(message, 7, "R", count=2))
    assert brief(hops(talk.rows)) == [
        ("sent", None, None, "first"),
        ("delivered", 1, 1, None),
        ("delivered", 1, 2, None),
        ("acknowledged", 3, 1, None),
        ("delivered", 2, 5, None),
        ("acknowledged", 5, 1, None),
    ]


def test_a_message_that_crosses_the_cluster() -> None:
    sender = Talk().login()
    message = sender.send()
    link = relayed(message, [7, 8], sender.now_ms * MS + MS // 2)
    receiver = Talk(("10.0.0.9", 50001), ("10.0.0.2", 7677), now_ms=sender.now_ms + 1).login()
    receiver.consumer(7)
    receiver.acknowledge(receiver.deliver(message, 7))
    found = hops(sender.rows, [link], receiver.rows)
    assert brief(found)[:3] == [
        ("sent", None, None, "first"), ("relayed", 1, 0.5, None), ("relayed", 1, 0.5, None),
    ]  # fmt: skip
    assert [row["consumer_id"] for row in found] == [None, 7, 8, 7, 7]
    assert [row["follows"] for row in found[3:]] == [2, 4]


def test_what_nothing_was_seen_of_is_not_made_up() -> None:
    talk = Talk().login()
    talk.consumer(7)
    elsewhere = Talk(client=("10.0.0.8", 4000)).send()
    talk.acknowledge(talk.deliver(elsewhere, 7))
    assert brief(hops(talk.rows)) == [
        ("delivered", None, None, "first"),
        ("acknowledged", 1, 1, None),
    ]


def test_raw_streams_have_an_order_and_no_times() -> None:
    talk, _ = sent_and_received()
    untimed = dict.fromkeys(("captured_ns", "frame", "src_addr", "src_port", "dst_addr"))
    found = hops([row | untimed for row in talk.rows])
    assert [row["kind"] for row in found] == ["sent", "delivered"]
    assert {row["unknown"] for row in found} == {"untimed"}
    assert {(row["took_ns"], row["clock_ahead_ns"]) for row in found} == {(None, None)}
    assert [row["follows"] for row in found] == [None, 1]


# --- several capture points -----------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [0, 3_700, -86_400_000])
@pytest.mark.parametrize("names", [("a.pcap", "b.pcap"), ("b.pcap", "a.pcap")])
def test_both_ends_of_a_link(names: tuple[str, str], ahead_ms: float) -> None:
    """The client's capture has each packet 20 ms before the broker's or after it, by any clock."""
    talk, message = sent_and_received()
    at_client, at_broker = names
    client = seen_from(talk.rows, at_client, -20, 20, ahead_ms)
    broker = seen_from(talk.rows, at_broker)
    found = hops(client, broker)
    assert brief(found) == [
        ("sent", None, None, "first"),
        ("sent", 1, 20, None),
        ("accepted", 2, 100, None),
        ("accepted", 3, 20, None),
        ("delivered", 2, 200, None),
        ("delivered", 5, 20, None),
        ("acknowledged", 6, 60, None),
        ("acknowledged", 7, 20, None),
    ]
    client_first = [at_client, at_broker]
    broker_first = [at_broker, at_client]
    sources = [*client_first, *broker_first, *broker_first, *client_first]
    assert [row["source"] for row in found] == sources
    assert {row["message_key"] for row in found} == {message["sys_message_id"]}
    assert [bool(row["took_error_ns"]) for row in found] == 4 * [False, True]
    assert all(20 * MS <= row["took_error_ns"] < 21 * MS for row in found[1::2])
    ahead = {row["source"]: row["clock_ahead_ns"] for row in found}
    assert ahead[at_client] - ahead[at_broker] == ahead_ms * MS
    assert ahead["a.pcap"] == 0


def test_one_direction_alone_gives_no_offset() -> None:
    talk = Talk().login()
    talk.send()
    found = hops(seen_from(talk.rows, "a.pcap"), seen_from(talk.rows, "b.pcap", 20, 20))
    assert brief(found) == [("sent", None, None, ONE_WAY)] * 2
    assert [row["clock_ahead_ns"] for row in found] == [0, 0]


def test_a_clock_that_was_set_gives_no_offset() -> None:
    talk = Talk().login()
    messages = [talk.request("TEXT_MESSAGE", reply="SEND_REPLY") for _ in range(4)]
    client, broker = seen_from(talk.rows, "a.pcap", -20, 20), seen_from(talk.rows, "b.pcap")
    half = messages[2]["captured_ns"] * 100 - 50 * MS
    was_set = [
        row | {"captured_ns": row["captured_ns"] + 500 * MS * (row["captured_ns"] >= half)}
        for row in client
    ]
    assert {row["unknown"] for row in hops(client, broker)} == {"first", None}
    found = hops(was_set, broker)
    assert Counter(row["unknown"] for row in found) == {CONTRADICTION: 8, None: 8}
    assert {row["took_error_ns"] for row in found} == {None, 0}


def test_packets_that_one_point_missed_are_compared_with_none() -> None:
    """The client sends again what the broker's capture has once: which of them is unknown."""
    talk, _ = sent_and_received()
    client, broker = seen_from(talk.rows, "a.pcap", -2, 2), seen_from(talk.rows, "b.pcap")
    (sent,) = (row for row in client if row["packet_type"] == 1 and row["dst_port"] == 7677)
    again = sent | {"captured_ns": sent["captured_ns"] - 5_000 * MS, "offset": -1, "bit_flags": 0}
    found = hops([again, *client], broker)
    assert {row["unknown"] for row in found} == {"first", None}
    # Compared with the first, the last would have taken five seconds, and the clocks be apart.
    assert [row["took_ns"] // MS for row in found[1:3]] == [5_000, 2]


def test_a_message_that_waits_for_days_has_the_clock_of_each_day() -> None:
    """A drift of 50 ppm is 4.32 s in a day; the offset is that of the time of each packet."""
    first, later = Talk().login(), Talk(client=("10.0.0.9", 50002)).login()
    message = first.request("TEXT_MESSAGE", reply="SEND_REPLY")
    later.consumer(7)
    later.acknowledge(later.deliver(message, 7))
    halves = [
        [
            *seen_from(first.rows, source, *delays),
            *seen_from(later.rows, source, *delays, ahead_ms=DAY_NS / MS),
        ]
        for source, delays in (("a.pcap", (-2, 2)), ("b.pcap", (0, 0)))
    ]
    found = hops(halves[0], moved(halves[1], 0, 50), key=message["sys_message_id"])
    assert [row["unknown"] for row in found] == ["first"] + 7 * [None]
    ahead = [row["clock_ahead_ns"] / MS for row in found if row["source"] == "b.pcap"]
    assert ahead[:2] == pytest.approx([0, 0], abs=0.5)
    assert ahead[2:] == pytest.approx([4_320, 4_320], abs=0.5)
    waited = next(row for row in found if row["kind"] == "delivered" and row["source"] == "b.pcap")
    assert waited["took_ns"] == pytest.approx(DAY_NS, rel=1e-3)


# --- limits ---------------------------------------------------------------------------------


def test_caps_count_what_they_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk().login()
    talk.consumer(7)
    message = talk.send()
    for count in range(5):
        talk.deliver(message, 7, "R", count=count)
    monkeypatch.setattr(module, "MAX_SIGHTINGS", 3)
    monkeypatch.setattr(module, "MAX_POINTS", 2)
    rows = [row for name in "abc" for row in seen_from(talk.rows, name)]
    found = derive_columns(packet_tables(rows))
    assert found.dropped["MAX_SIGHTINGS"] == 15 and found.tables["hops"].num_rows == 3
    monkeypatch.setattr(module, "MAX_SIGHTINGS", 100)
    found = derive_columns(packet_tables(rows))
    assert found.dropped["MAX_POINTS"] == 6 and found.tables["hops"].num_rows == 12
    monkeypatch.setattr(module, "MAX_SPANS", 0)
    found = derive_columns(packet_tables(rows))
    assert found.dropped["MAX_SPANS"] == 2  # One of each direction, which tell nothing then.
    assert {row["clock_error_ns"] for row in found.tables["hops"].to_pylist()} == {0}
    monkeypatch.setattr(module, "MAX_SPANS", 100)
    monkeypatch.setattr(module, "MAX_WINDOWS", 1)
    found = derive_columns(packet_tables(rows))
    assert found.dropped["MAX_WINDOWS"] == 1 and found.tables["hops"].num_rows == 12
    assert {row["unknown"] for row in found.tables["hops"].to_pylist()} == {None, ONE_WAY}


def test_the_tables_of_kinds_and_reasons_fit_together() -> None:
    assert FOLLOWS.keys() == HOPS.keys()
    assert {kind for kinds in FOLLOWS.values() for kind in kinds} <= HOPS.keys()
    assert UNKNOWN.keys() == {"first", "untimed", ONE_WAY, CONTRADICTION}


# --- recorded -------------------------------------------------------------------------------


def moved(rows: Rows, ahead_ms: float, drift_ppm: int) -> Rows:
    """Return packets as a clock would show them that is ahead, and drifts."""
    start = rows[0]["captured_ns"]
    return [
        row
        | {
            "captured_ns": row["captured_ns"]
            + round(ahead_ms * MS)
            + (row["captured_ns"] - start) * drift_ppm // 1_000_000
        }
        for row in rows
    ]


@pytest.mark.parametrize(
    ("ahead_ms", "drift_ppm"), [(0, 0), (3_700, 0), (-86_400_000, 0), (5, 40), (-1_000, -90)]
)
def test_a_link_of_known_delay(examples: Path, ahead_ms: float, drift_ppm: int) -> None:
    """Both captures have the clock of one machine: it tells what each hop took, and our clock not.

    The link delays each direction by 20 ms. All that is known of it here are the packets, by the
    clock of the broker's capture and another one that is ahead and drifts.
    """
    client, broker = (
        list(packets(examples / "points" / f"{name}.pcap")) for name in ("client", "broker")
    )
    actual_ns = {
        (row["source"], row["stream"], row["offset"]): row["captured_ns"]
        for row in (*client, *broker)
    }
    found = hops(moved(client, ahead_ms, drift_ppm), broker)
    by_ordinal = {(row["message_key"], row["hop"]): row for row in found}
    links = 0
    for row in found:
        if row["took_ns"] is None:
            assert (row["unknown"], row["kind"]) == ("first", "sent")
            continue
        before = by_ordinal[row["message_key"], row["follows"]]
        took_ns = actual_ns[place(row)] - actual_ns[place(before)]
        assert row["took_ns"] >= 0
        if row["source"] == before["source"]:
            assert row["took_ns"] == pytest.approx(took_ns, rel=1e-4, abs=1)
            continue
        links += 1
        assert row["kind"] == before["kind"] and took_ns > 20 * MS
        assert abs(row["took_ns"] - took_ns) < MS
        assert abs(row["took_ns"] - took_ns) <= row["took_error_ns"] < 21 * MS
    assert links == len(found) // 2 > 100


def place(row: Row) -> tuple[str, str, int]:
    return row["source"], row["stream"], row["offset"]


def test_hops_are_what_the_clients_of_the_link_logged(examples: Path) -> None:
    folder = examples / "points"
    log = [json.loads(line) for line in (folder / "clients.jsonl").read_text("utf-8").splitlines()]
    found = hops(*(list(packets(folder / f"{name}.pcap")) for name in ("client", "broker")))
    check_against(log, found, points=2, sent="id", received="id")


def check_against(log: list[dict[str, Any]], found: Rows, points: int, **names: str) -> None:
    """Compare with a log: each message sent once, and delivered at least as often as received."""
    said = {
        event: Counter(entry[name].removeprefix("ID:") for entry in log if entry["event"] == event)
        for event, name in names.items()
    }
    seen = {
        kind: Counter(row["message_key"] for row in found if row["kind"] == kind) for kind in HOPS
    }
    assert seen["sent"].keys() >= said["sent"].keys() and len(said["sent"]) > 10
    assert {seen["sent"][key] for key in said["sent"]} == {points}
    assert all(seen["delivered"][key] >= points * many for key, many in said["received"].items())


@pytest.fixture(scope="module")
def cluster(shared: Path) -> Path:
    path = shared / "captures" / "openmq" / "cluster.pcap"
    if not path.is_file():
        pytest.skip("no captures of Open MQ in the shared folder")
    return path


def test_hops_over_the_recorded_cluster(cluster: Path) -> None:
    """Every message is sent to one broker, relayed, delivered by the other, and acknowledged back.

    In the order and as often as the client program logged.
    """
    found = hops(list(packets(cluster)))
    log = client_log(cluster)
    check_against(log, found, points=1, sent="jms_message_id", received="jms_message_id")
    received = [e["jms_message_id"].removeprefix("ID:") for e in log if e["event"] == "received"]
    delivered = Counter(row["message_key"] for row in found if row["kind"] == "delivered")
    unseen = [
        row for row in tables_of(cluster)["deliveries"] if row["verdict"] == "returned_unseen"
    ]
    assert delivered == Counter(received) + Counter(row["message_key"] for row in unseen)
    for key in delivered:
        path = [row for row in found if row["message_key"] == key]
        kinds = Counter(row["kind"] for row in path)
        assert (kinds["sent"], kinds["accepted"], kinds["relayed"]) == (1, 1, 1)
        assert kinds["acknowledged"] >= 1 and kinds["relay_acknowledged"] >= 1
        assert [row["unknown"] for row in path] == ["first"] + [None] * (len(path) - 1)
        assert all(row["took_ns"] > 0 for row in path[1:])
        by_ordinal = {row["hop"]: row for row in path}
        for row in path[1:]:
            before = by_ordinal[row["follows"]]
            assert before["kind"] in FOLLOWS[row["kind"]]
            assert row["took_ns"] == row["captured_ns"] - before["captured_ns"]
        (relay,) = (row for row in path if row["kind"] == "relayed")
        (sent,) = (row for row in path if row["kind"] == "sent")
        hosts = [end.rpartition(":")[0] for end in (relay["sender"], sent["receiver"])]
        assert hosts[0] == hosts[1]


def test_the_cluster_seen_from_two_points(cluster: Path) -> None:
    """Each broker's half of the capture, by a clock of its own: what both saw joins them."""
    rows = list(packets(cluster))
    halves = [
        [row | {"source": name} for row in rows if address in (row["src_addr"], row["dst_addr"])]
        for name, address in (("one.pcap", "10.77.0.1"), ("two.pcap", "10.77.0.2"))
    ]
    found = hops(halves[0], moved(halves[1], 2_500, 30))
    assert {row["unknown"] for row in found} == {"first", None}
    whole = {(row["stream"], row["offset"], row["consumer_id"]): row for row in hops(rows)}
    assert {(row["stream"], row["offset"], row["consumer_id"]) for row in found} == whole.keys()
    by_ordinal = {(row["message_key"], row["hop"]): row for row in found}
    actual_ns = {(row["stream"], row["offset"]): row["captured_ns"] for row in rows}
    crossed = 0
    for row in found:
        if row["took_ns"] is None:
            continue
        before = by_ordinal[row["message_key"], row["follows"]]
        took_ns = actual_ns[row["stream"], row["offset"]]
        took_ns -= actual_ns[before["stream"], before["offset"]]
        assert row["took_ns"] >= 0
        if before["source"] != row["source"]:
            crossed += 1
            assert abs(row["took_ns"] - took_ns) <= row["took_error_ns"] < MS
    assert crossed > 90
