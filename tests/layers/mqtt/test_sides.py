"""Whose stream of a connection each is, by one piece of evidence after the other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.layers.mqtt.make import Capture, table_of, tables_of
from tests.reference import mqtt
from wireyard.formats.mqtt import FORMAT, layout
from wireyard.layers.mqtt.directions import Evidence, Side, decide_sides
from wireyard.layers.mqtt.evidence import NEEDED, StreamEvidence

Row = dict[str, Any]
End = tuple[str, int]

BROKER: Final = ("10.0.0.1", 7000)
CLIENTS: Final[Sequence[End]] = tuple(("10.0.0.2", 7001 + number) for number in range(4))


def stream(src: End, dst: End, **counts: Any) -> Evidence:
    name = f"{src[0]}:{src[1]}>{dst[0]}:{dst[1]}"
    return Evidence("made.pcap", name, *src, *dst, **counts)


def pair(client: End = CLIENTS[0], server: End = BROKER, **counts: Any) -> list[Evidence]:
    """Return both streams of a connection, the client's with `counts` and the other's with none."""
    return [stream(client, server, **counts), stream(server, client)]


def clients_of(evidence: list[Evidence]) -> list[str]:
    """Return the clients' streams of connections, however they are sorted."""
    sides = decide_sides(evidence)
    assert decide_sides(evidence[::-1]) == sides
    return sorted(name for (_, name), side in sides.items() if side.from_client)


TELLING: Final[list[dict[str, Any]]] = [
    {"connects": 1, "client_packets": 1}, {"client_packets": 1}, {"opened": True},
]  # fmt: skip


@pytest.mark.parametrize("counts", TELLING)
def test_one_stream_tells_both_and_what_is_on_its_endpoint(counts: dict[str, Any]) -> None:
    silent = [pair(other) for other in CLIENTS[1:2]]
    assert clients_of([*pair(**counts), *silent[0]]) == [
        "10.0.0.2:7001>10.0.0.1:7000", "10.0.0.2:7002>10.0.0.1:7000",
    ]  # fmt: skip


def test_a_broker_tells_as_well() -> None:
    one, other = pair()
    assert clients_of([one, other._replace(broker_packets=1)]) == [one.stream]


def test_a_packet_of_the_wrong_side_does_not_outweigh_the_others() -> None:
    """Nor a CONNECT, nor what other connections show of an endpoint."""
    wrong: dict[str, Any] = {"broker_packets": 3}
    assert clients_of(pair(connects=1, **wrong)) == ["10.0.0.2:7001>10.0.0.1:7000"]
    assert clients_of(pair(client_packets=4, **wrong)) == ["10.0.0.2:7001>10.0.0.1:7000"]
    others = pair(CLIENTS[1], connects=1)
    assert len(clients_of([*pair(**wrong), *others])) == 2
    assert "10.0.0.1:7000>10.0.0.2:7001" in clients_of(pair(**wrong))


def test_a_port_at_another_address() -> None:
    known = pair(connects=1)
    unknown = pair(CLIENTS[1], ("10.0.0.9", BROKER[1]))
    assert "10.0.0.2:7002>10.0.0.9:7000" in clients_of([*known, *unknown])
    assert not decide_sides(unknown)


def test_the_endpoint_with_many_peers() -> None:
    evidence = [one for client in CLIENTS for one in pair(client)]
    assert len(clients_of(evidence)) == len(CLIENTS)
    assert all(name.endswith(":7000") for name in clients_of(evidence))


@pytest.mark.parametrize("port", [1883, 8883])
def test_a_port_of_mqtt(port: int) -> None:
    assert clients_of(pair(server=(BROKER[0], port))) == [f"10.0.0.2:7001>10.0.0.1:{port}"]


def test_a_port_that_clients_get() -> None:
    assert clients_of(pair(("10.0.0.2", 50_000))) == ["10.0.0.2:50000>10.0.0.1:7000"]


def test_nothing_tells() -> None:
    assert not decide_sides(pair())
    assert not decide_sides([Evidence("made.mqtt", "raw")])
    assert not decide_sides(pair(client_packets=1, broker_packets=1))


def test_one_source_tells_nothing_of_another() -> None:
    other = [one._replace(source="other.pcap") for one in pair(CLIENTS[1])]
    assert {source for source, _ in decide_sides([*pair(connects=1), *other])} == {"made.pcap"}


def test_a_stream_alone() -> None:
    (side,) = decide_sides([stream(CLIENTS[0], BROKER, client_packets=1)]).values()
    name = "10.0.0.1:7000#10.0.0.2:7001#"
    assert side == Side(True, True, ("made.pcap", "10.0.0.1:7000", name), True)


def test_a_server_is_older_than_the_capture_if_a_connection_to_it_is() -> None:
    def older(*evidence: Evidence) -> set[bool]:
        return {side.older for side in decide_sides(evidence).values()}

    begun: dict[str, Any] = {"connects": 1, "begun": True}
    assert older(*pair(**begun)) == {False}
    assert older(*pair(**begun), *pair(CLIENTS[1], client_packets=1)) == {True}
    assert older(*pair(client_packets=1, begun=True)) == {False}
    assert older(*pair(client_packets=1, begun=True, gaps=1)) == {True}


@pytest.mark.parametrize(
    ("first_ns", "last_ns", "followed"),
    [(5, 9, False), (15, 16, True), (15, 99, True), (20, 99, True), (21, 99, False)],
)
def test_a_connection_without_its_connect_may_follow_one_that_it_does_not_overlap(
    first_ns: int, last_ns: int, followed: bool
) -> None:
    """The same client has a connection from 3 to 10, and another from 20 to 30."""
    known: list[Evidence] = []
    for client, begin, end in ((CLIENTS[0], 3, 10), (CLIENTS[1], 20, 30)):
        times: dict[str, Any] = {"first_ns": begin, "last_ns": end, "begun": True}
        known += pair(client, connects=1, client_id="one", **times)
    lost = pair(CLIENTS[2], begun=True, gaps=1, first_ns=first_ns, last_ns=last_ns)
    sides = decide_sides([*known, *lost])
    assert {name for (_, name), side in sides.items() if side.followed} == (
        {one.stream for one in known[:2]} if followed else set()
    ) | ({one.stream for one in known[2:]} if first_ns > 30 else set())
    assert not any(side.followed for side in decide_sides(known).values())


@pytest.mark.parametrize(
    ("kind", "code", "from_client"),
    [
        (layout.DISCONNECT, None, True), (layout.DISCONNECT, 4, True),
        (layout.DISCONNECT, 0x8E, False), (layout.DISCONNECT, 0x82, None),
        (layout.PUBACK, 0x10, False), (layout.PUBACK, 0, None), (layout.PUBREC, 0x10, False),
        (layout.AUTH, 0x19, True), (layout.AUTH, None, False), (layout.PINGREQ, None, True),
    ],
)  # fmt: skip
def test_reason_codes(kind: int, code: int | None, from_client: bool | None) -> None:
    row = {
        "source": "made.pcap", "stream": "t", "status": "ok", "packet_type": kind,
        "return_code": code,
    }  # fmt: skip
    sides = counted([row]).sides({})
    assert sides == by_model([row])
    assert [side.from_client for side in sides.values()] == (
        [] if from_client is None else [from_client]
    )
    if kind == layout.DISCONNECT:  # which another version may have read wrongly
        assert not by_model([row | {"status": "malformed"}])


def by_model(rows: list[Row]) -> dict[Any, Any]:
    return {**mqtt.sides_of(rows, {})}


def counted(rows: list[Row], cuts: Sequence[int] = ()) -> StreamEvidence:
    """Return the evidence of packets in files that are cut at some rows, as files keep it."""
    found = StreamEvidence()
    for first, stop in pairwise((0, *cuts, len(rows))):
        of_file = StreamEvidence()
        of_file.add(table_of(rows[first:stop]).select(NEEDED))
        found.add_counted(of_file.table(), ["made.pcap"])
    return found


def random_row(dice: random.Random, offset: int) -> Row:
    """Return a packet on one of some streams, the ports of which show no side."""
    server, client = ("10.0.0.1", 7000), ("10.0.0.2", dice.randrange(7001, 7004))
    (src, src_port), (dst, dst_port) = dice.sample((server, client), 2)
    name = dice.choice([None, "", "one", "two"])
    return {
        "source": "made.pcap", "stream": f"{src_port}>{dst_port}", "offset": offset, "length": 1,
        "src_addr": src, "src_port": src_port, "dst_addr": dst, "dst_port": dst_port,
        "status": dice.choice(["ok", "ok", "malformed", "gap"]),
        "captured_ns": dice.choice([None, dice.randrange(1, 50)]),
        "packet_type": dice.choice([None, *range(1, 16)]),
        "return_code": dice.choice([None, 0, 4, 16, 25, 142]), "client_id": name,
        "properties": name and [{"name": "assigned_client_identifier", "value": name}],
    }  # fmt: skip


def test_counts_of_columns_are_those_of_rows() -> None:
    """Whatever files they are in, and however packets of streams alternate."""
    dice = random.Random(5)
    names = set()
    for _ in range(100):
        rows = [random_row(dice, offset) for offset in range(dice.randrange(1, 30))]
        cuts = sorted(dice.sample(range(len(rows) + 1), min(dice.randrange(3), len(rows))))
        evidence = counted(rows, cuts)
        sides = evidence.sides({})
        assert sides == by_model(rows)
        packets = Counter((row["source"], row["stream"]) for row in rows)
        assert {name: evidence.packets(name) for name in packets} == packets
        names |= {side.key[2] for side in sides.values()}
    assert {"one", "two"} < names


def test_evidence_of_other_sources_is_left_out() -> None:
    rows = middle().rows
    found = StreamEvidence()
    found.add_counted(counted(rows).table(), ["other.pcap"])
    assert not found.sides({}) and counted(rows).sides({})


# --- what follows from it -------------------------------------------------------------------


def test_a_message_to_a_client_of_which_only_its_flow_was_captured() -> None:
    """PUBLISH at QoS 2, PUBREC, PUBREL, PUBCOMP: the port tells that the broker sent it."""
    capture = Capture()
    capture.hand("sub", "t", b"x", 2)
    tables = tables_of(capture)
    (delivery,), (session,) = tables["deliveries"], tables["sessions"]
    assert not tables["violations"]
    assert (delivery["verdict"], delivery["origin"]) == ("delivered", "broker")
    assert (session["client"], session["server"]) == ("10.0.0.2:40000", "10.0.0.1:1883")
    unknown = ("client_id", "opened_ns", "opened_frame", "version", "in_flight_received")
    assert [session[name] for name in unknown] == [None] * 5


def test_of_streams_that_nothing_tells_nothing_is_said() -> None:
    capture = Capture()
    capture.publish("one", True, "t", b"x", 1)
    capture.publish("one", False, "t", b"x", 1)
    ports = {"src_port": None, "dst_port": None, "src_addr": None, "dst_addr": None}
    tables = mqtt.derive([row | ports for row in capture.rows])
    assert not any(tables.values())


def middle() -> Capture:
    """Return a capture with a client that was there before."""
    capture = Capture()
    capture.put("old", True, layout.PINGREQ)
    return capture


def test_nobody_knows_who_subscribed_before_the_capture() -> None:
    for capture, verdict in ((middle(), "undecided"), (Capture(), "no_subscriber")):
        capture.connect("pub")
        capture.message("pub", "t", b"x", 1)
        (row,) = tables_of(capture)["deliveries"]
        assert row["verdict"] == verdict


def test_what_was_asked_before_the_capture_may_be_answered_in_it() -> None:
    capture = Capture(5)
    alias = (("topic_alias", 3),)
    capture.put("old", False, layout.PINGRESP)
    capture.put("old", False, layout.SUBACK, packet_id=1, return_codes=(0,))
    capture.put("old", False, layout.UNSUBACK, packet_id=2, return_codes=(0,))
    capture.publish("old", True, "", b"x", 1, 7, properties=alias)
    capture.put("old", True, layout.PUBREL, packet_id=9)
    capture.put("old", False, layout.PUBCOMP, packet_id=10)
    capture.put("old", False, layout.CONNACK, return_code=0, session_present=False)
    capture.put("old", False, layout.PINGRESP)
    assert not tables_of(capture)["violations"]


def test_what_is_sent_again_may_be_of_before_the_capture() -> None:
    """The client's session is new, and the message of one that is not in the capture."""
    for capture, rules in ((middle(), []), (Capture(), ["dup_first"])):
        capture.connect("pub", clean=False)
        capture.message("pub", "t", b"x", 1, dup=True)
        tables = tables_of(capture)
        assert [row["rule"] for row in tables["violations"]] == rules


def test_the_first_copy_may_never_have_left_on_an_earlier_connection() -> None:
    for present, rules in ((True, []), (False, ["dup_first"])):
        capture = Capture()
        capture.connect("sub", clean=False)
        capture.subscribe("sub", "t")
        capture.end("sub")
        capture.connect("sub", clean=False, present=present)
        capture.publish("sub", False, "t", b"x", 1, 1, dup=True)
        assert [row["rule"] for row in tables_of(capture)["violations"]] == rules


def test_a_copy_of_before_the_capture_is_not_taken_for_a_message_in_it() -> None:
    """Of two deliveries of the same content, any may be that of the message that was seen."""
    capture = middle()
    capture.connect("pub")
    sent = capture.publish("pub", True, "t", b"x", 0)
    capture.hand("old", "t", b"x", 1, 1)
    capture.hand("old", "t", b"x", 0)
    capture.ping("pub")
    rows = tables_of(capture)["deliveries"]
    assert [(row["verdict"], row.get("sent_frame")) for row in rows] == [
        ("undecided", sent), ("delivered", None), ("delivered", None),
    ]  # fmt: skip


def test_what_became_of_a_message_to_somebody_who_left_is_not_known() -> None:
    """It may have come again on a connection of which the client id was captured."""
    capture = middle()
    capture.publish("old", False, "t", b"x", 1, 5)
    capture.end("old")
    capture.connect("new")
    (row,) = tables_of(capture)["deliveries"]
    assert (row["verdict"], row["outcome"], row["redelivered"]) == ("undecided", None, None)


def test_a_connection_without_its_connect_misses_nothing_for_certain() -> None:
    """Its Maximum Packet Size and its window are not known."""
    for who, verdict in (("old", "undecided"), ("new", "not_forwarded")):
        capture = middle()
        if who == "new":
            capture.connect("new")
        capture.subscribe(who, "t", qos=1)
        capture.connect("pub")
        capture.message("pub", "t", b"x", 1)
        capture.ping(who)
        (row,) = tables_of(capture)["deliveries"]
        assert row["verdict"] == verdict


def test_a_group_may_have_members_from_before_the_capture() -> None:
    capture = Capture(5)
    capture.put("old", True, layout.PINGREQ)
    capture.connect("new")
    capture.subscribe("new", "$share/g/t", qos=1)
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1)
    capture.ping("new")
    (row,) = tables_of(capture)["deliveries"]
    assert row["verdict"] == "undecided"


def test_whether_a_message_is_a_retained_value_depends_on_its_subscription() -> None:
    """Which 5.0 alone lets ask for RETAIN as published."""
    for version, retained in ((4, True), (5, None)):
        capture = Capture(version)
        capture.put("old", True, layout.PINGREQ)
        capture.hand("old", "t", b"x", 0, retain=True)
        (row,) = tables_of(capture)["deliveries"]
        assert row["retained"] is retained


def test_a_disconnect_may_be_before_the_capture() -> None:
    capture = Capture()
    capture.put("old", False, layout.PINGRESP)
    answers = capture.stream("old", False)
    capture.end("old")
    capture.streams[-1]["stream"] = answers
    (session,) = tables_of(capture)["sessions"]
    assert session["ended_by"] is None and session["closed_ns"] is not None


# --- the version of packets without a CONNECT -----------------------------------------------


def packets(version: int, payloads: Sequence[bytes]) -> list[bytes]:
    capture = Capture(version)
    for payload in payloads:
        capture.publish("one", True, "a/b", payload, 0)
    return [FORMAT.encode(FORMAT.packet_of(row, version)) for row in capture.rows]


def test_the_version_that_most_packets_keep_the_rules_of() -> None:
    dice = random.Random(1)
    for version in (4, 5):
        for text in (b"", b"21.5", b"\x00\x00", bytes(range(32, 64))):
            some = packets(version, [text, b"on", dice.randbytes(9) + b"x"])
            assert FORMAT.evidence.find_context(some, 0) == (5 if version == 5 else 0)


def test_packets_that_are_the_same_in_all_versions_tell_none() -> None:
    pings = [bytes.fromhex("c000"), bytes.fromhex("d000"), bytes.fromhex("40020001")]
    assert FORMAT.evidence.find_context(pings, 0) == FORMAT.evidence.find_context([], 0) == 0


def test_a_dialect_is_believed() -> None:
    assert FORMAT.evidence.find_context(packets(5, [b"x"]), 4) == 4
