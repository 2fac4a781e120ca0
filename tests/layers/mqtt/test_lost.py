"""Gaps in streams: no violation and no verdict may follow from the absence of a packet."""

from __future__ import annotations

import pytest

from tests.layers.mqtt.make import Capture, deliveries_of, pair, tables_of, verdicts_of
from tests.reference.order import in_order
from wireyard.formats.mqtt import layout

_POSITION = ("source", "stream", "offset", "length", "src_addr", "src_port", "dst_addr", "dst_port")


def lose(capture: Capture, *indexes: int) -> None:
    """Replace rows by gaps, which have no time, as if the packets were not captured."""
    mark_begun(capture)
    for index in indexes:
        row = capture.rows[index]
        capture.rows[index] = {name: row[name] for name in _POSITION} | {"status": "gap"}
    capture.rows = in_order(capture.rows)


def break_off(capture: Capture, index: int, first: int, last: int) -> None:
    """Replace the bytes from `first` to `last` of a packet by a gap; the others are no packet."""
    mark_begun(capture)
    row = capture.rows[index]
    place = {name: row[name] for name in _POSITION}
    time = {name: row[name] for name in ("captured_ns", "frame")}
    bounds = (0, first, last, row["length"])
    capture.rows[index : index + 1] = [
        place
        | ({} if status == "gap" else time)
        | {"status": status, "offset": row["offset"] + start, "length": stop - start}
        for status, start, stop in zip(("tail", "gap", "garbage"), bounds, bounds[1:], strict=False)
        if start < stop
    ]
    capture.rows = in_order(capture.rows)


def mark_begun(capture: Capture) -> None:
    """Mark the beginning of every stream as captured."""
    ended = {row["stream"]: row for row in capture.streams}
    no_end = {"ended": None, "ended_frame": None, "ended_ns": None}
    capture.streams = [
        {"source": "made.pcap", "stream": stream, **ended.get(stream, no_end), "begun": True}
        for stream in dict.fromkeys(row["stream"] for row in capture.rows)
    ]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_lost_connack_refuses_nothing(version: int, begun: bool) -> None:
    capture = Capture(version)
    for who in ("sub", "pub"):
        capture.connect(who)
        if who == "sub":
            capture.subscribe(who, "t/#")
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1)
    capture.ping("sub")
    lose(capture, 1, 5)
    capture.streams = [{**stream, "begun": begun} for stream in capture.streams]
    tables = tables_of(capture)
    assert tables["violations"] == []
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["subscription"], row["producer_client_id"]) == (
        "delivered", "t/#", "pub",
    )  # fmt: skip
    assert [(row["client_id"], row.get("status")) for row in tables["sessions"]] == [
        ("sub", None),
        ("pub", None),
    ]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("answered", [True, False])
def test_a_connect_behind_lost_bytes_of_the_broker_is_the_first(
    version: int, answered: bool
) -> None:
    """As where the handshake of TLS or of a WebSocket was not captured whole."""
    capture = Capture(version)
    capture.gap("sub", False)
    capture.connect("sub")
    if not answered:
        capture.rows.pop()
    capture.subscribe("sub", "t/#")
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1)
    mark_begun(capture)
    capture.streams[0]["begun"] = False
    tables = tables_of(capture)
    assert tables["violations"] == []
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["subscription"]) == ("delivered", "t/#")


def test_a_message_before_a_lost_connack_counts() -> None:
    """AUTH was captured, so the gap comes after it, and after the message sent in between."""
    capture = Capture(5)
    method = (("authentication_method", "m"),)
    capture.put("pub", True, layout.CONNECT, client_id="pub", properties=method)
    capture.put("pub", False, layout.AUTH, return_code=24, properties=method)
    capture.publish("pub", True, "t/1", b"x", 0)
    capture.gap("pub", False)
    mark_begun(capture)
    tables = tables_of(capture)
    assert [(row["destination"], row["verdict"]) for row in tables["deliveries"]] == [
        ("t/1", "undecided")
    ]
    assert tables["violations"] == []


def test_a_broker_whose_beginning_was_not_captured_may_have_answered() -> None:
    capture = Capture()
    capture.connect("sub")
    capture.subscribe("sub", "t/#")
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1)
    mark_begun(capture)
    del capture.rows[1]
    assert "MQTT-3.2.0-1" in {row["rule"] for row in tables_of(capture)["violations"]}
    for row in capture.streams:
        row["begun"] = False
    tables = tables_of(capture)
    assert tables["violations"] == []
    assert [row["verdict"] for row in tables["deliveries"]] == ["delivered"]


@pytest.mark.parametrize("index", [2, 3])
def test_a_lost_subscription_may_match(index: int) -> None:
    """Either SUBSCRIBE or SUBACK is lost."""
    capture = pair()
    capture.message("pub", "t/1", b"x", 1)
    capture.ping("sub")
    lose(capture, index)
    assert verdicts_of(capture) == ["undecided"]


def test_a_lost_ping_subscribes_to_nothing() -> None:
    capture = pair()
    capture.message("pub", "u", b"x", 1)
    capture.ping("sub")
    lose(capture, -1)
    assert verdicts_of(capture) == ["no_subscriber"]


def test_a_lost_message_may_be_the_delivered_one() -> None:
    capture = pair()
    for number in (1, 2):
        capture.message("pub", "t/1", b"same", 1, number)
        capture.hand("sub", "t/1", b"same", 1, number)
    lose(capture, 6)
    assert sorted((row["verdict"], row["origin"]) for row in deliveries_of(capture)) == [
        ("delivered", "broker"),
        ("delivered", "broker"),
        ("undecided", "publish"),
    ]


@pytest.mark.parametrize("part", [(0, 1), (7, 8), (12, 13)])
def test_a_packet_without_a_byte_is_lost(part: tuple[int, int]) -> None:
    """Its other bytes are no packet, so a byte may be a message."""
    capture = pair()
    for number in (1, 2):
        capture.message("pub", "t/1", b"same", 1, number)
    for number in (1, 2):
        capture.hand("sub", "t/1", b"same", 1, number)
    break_off(capture, 6, *part)
    tables = tables_of(capture)
    assert {row["verdict"] for row in tables["deliveries"]} == {"delivered", "undecided"}
    assert tables["violations"] == []


@pytest.mark.parametrize(("clean", "verdict"), [(False, "undecided"), (True, "discarded")])
def test_a_waiting_message_may_be_delivered_after_a_lost_connack(clean: bool, verdict: str) -> None:
    capture = Capture()
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t/#")
    capture.connect("pub")
    capture.end("sub")
    capture.message("pub", "t/1", b"x", 1)
    capture.connect("sub", clean=clean, present=not clean)
    capture.ping("sub")
    lose(capture, -3)
    assert verdicts_of(capture) == [verdict]


def away_behind_a_lost_connect(present: bool, *, ends: bool = True) -> Capture:
    """Return a capture in which a client is away, and comes back twice; the first CONNECT is lost.

    It has not acknowledged a message. Others are sent to it at QoS 0 and 1 while it is away, and
    one is delivered to it when it comes back.
    """
    capture = Capture()
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t/#")
    capture.connect("pub")
    capture.message("pub", "t/0", b"unacknowledged", 1)
    capture.publish("sub", False, "t/0", b"unacknowledged", 1)
    capture.end("sub")
    capture.message("pub", "t/1", b"waits", 1)
    capture.message("pub", "t/2", b"late", 0)
    capture.ping("pub")
    lost = len(capture.rows)
    capture.connect("sub", clean=False, present=True)
    capture.hand("sub", "t/1", b"waits", 1, 2)
    if ends:
        capture.end("sub")
        capture.connect("sub", clean=False, present=present)
        capture.ping("sub")
    lose(capture, lost)
    return capture


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("present", [True, False])
def test_a_client_may_have_been_back_on_a_connection_without_its_connect(
    present: bool, ends: bool
) -> None:
    tables = tables_of(away_behind_a_lost_connect(present, ends=ends))
    assert tables["violations"] == []
    rows = [row for row in tables["deliveries"] if row["consumer_client_id"] == "sub"]
    assert {(row["destination"], row["verdict"], row.get("outcome")) for row in rows} == {
        ("t/0", "undecided", None),
        ("t/1", "undecided", None),
        ("t/2", "undecided", None),
    }
    assert all(row.get("redelivered") is None for row in rows)


def test_a_connection_at_the_same_time_is_of_another_client() -> None:
    capture = Capture()
    capture.put("other", False, layout.CONNACK, session_present=False, return_code=0)
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t/#")
    capture.connect("pub")
    capture.end("sub")
    capture.message("pub", "t/1", b"waits", 1)
    capture.ping("other")
    capture.connect("sub", clean=True)
    assert verdicts_of(capture) == ["discarded"]


def test_a_resend_may_be_of_a_message_before_a_lost_connect() -> None:
    capture = Capture()
    capture.connect("c")
    capture.publish("c", True, "t", b"x", 1)
    capture.end("c")
    capture.connect("c")
    capture.publish("c", True, "t", b"x", 1, dup=True)
    lose(capture, 0)
    assert tables_of(capture)["violations"] == []


@pytest.mark.parametrize("ends", [True, False])
def test_a_lost_acknowledgement_was_perhaps_sent(ends: bool) -> None:
    """Of two messages without one, the second came behind the gap."""
    capture = pair()
    for packet_id in (1, 2, 3):
        capture.message("pub", f"t/{packet_id}", b"x", 1, packet_id)
        if packet_id == 2:
            capture.ping("sub")
        capture.hand("sub", f"t/{packet_id}", b"x", 1, packet_id)
    if ends:
        capture.end("sub")
        capture.connect("sub")
    del capture.rows[-1 - 2 * ends]  # the acknowledgement of the last one, which was never sent
    lose(capture, 9)
    tables = tables_of(capture)
    rows = {row["destination"]: row for row in tables["deliveries"]}
    found = {
        topic: tuple(row.get(name) for name in ("verdict", "outcome", "redelivered"))
        for topic, row in rows.items()
    }
    assert found == {
        "t/1": ("undecided", None, None),
        "t/2": ("delivered", "acknowledged", False),
        "t/3": ("abandoned" if ends else "in_flight", "unacknowledged", False),
    }
    sessions = [row for row in tables["sessions"] if row["client_id"] == "sub"]
    assert sessions[0].get("in_flight_received") is None
    assert [row["in_flight_received"] for row in sessions[1:]] == [0] * ends
    assert not tables["violations"]


def test_a_packet_identifier_is_used_again_after_a_lost_acknowledgement() -> None:
    capture = pair()
    for number in (1, 2):
        capture.message("pub", "t", b"%d" % number, 1, number)
        capture.hand("sub", "t", b"%d" % number, 1, 9)
    lose(capture, 9)
    rows = deliveries_of(capture)
    assert [(row["verdict"], row.get("outcome")) for row in rows] == [
        ("undecided", None),
        ("delivered", "acknowledged"),
    ]


def test_the_copy_that_was_delivered_may_be_the_second_one() -> None:
    capture = pair()
    capture.publish("pub", True, "t", b"x", 1)
    capture.hand("sub", "t", b"x", 1, 1)
    capture.end("pub")
    capture.connect("pub", clean=False, present=True)
    capture.publish("pub", True, "t", b"x", 1, dup=True)
    capture.acknowledge("pub", True, 1)
    capture.hand("sub", "t", b"x", 1, 2)
    capture.rows[4]["clean_start"] = False
    assert verdicts_of(capture) == ["delivered", "duplicate"]
    lose(capture, 7, 8)
    assert verdicts_of(capture) == ["undecided"]


def test_an_earlier_connection_of_the_session_may_have_lost_the_request() -> None:
    """The PUBREC that the PUBREL answers is lost, on the connection before."""
    capture = Capture()
    capture.connect("c", clean=False)
    capture.publish("c", True, "t", b"x", 2)
    capture.put("c", False, layout.PUBREC, packet_id=1)
    capture.end("c")
    capture.connect("c", clean=False, present=True)
    capture.put("c", True, layout.PUBREL, packet_id=1)
    lose(capture, 3)
    assert tables_of(capture)["violations"] == []


@pytest.mark.parametrize(
    ("index", "ends"),
    [
        (2, {b"2": "replaced", b"3": "replaced", b"4": None}),
        (5, {b"1": None, b"3": "replaced", b"4": None}),
        (8, {b"1": "replaced", b"2": None, b"4": None}),
        # A lost PINGREQ is too short to be a message.
        (6, {b"1": "replaced", b"2": "replaced", b"3": "replaced", b"4": None}),
    ],
)
def test_a_lost_message_may_have_ended_a_retained_value(
    index: int, ends: dict[bytes, str | None]
) -> None:
    capture = Capture()
    capture.connect("pub")
    for payload in (b"1", b"2", b"3", b"4"):
        capture.publish("pub", True, "t", payload, 0, retain=True)
        capture.ping("pub")
    lose(capture, index)
    values = tables_of(capture)["retained"]
    assert {row["payload"]: row.get("ended_by") for row in values} == ends
    assert all((row.get("to_ns") is None) == (row.get("ended_by") is None) for row in values)


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_message_may_have_changed_the_value_that_a_subscription_gets(lost: bool) -> None:
    capture = Capture()
    capture.connect("pub")
    capture.message("pub", "t", b"1", 1, retain=True)
    capture.ping("pub")
    capture.publish("pub", True, "t" if lost else "u", b"", 0, retain=True)
    capture.ping("pub")
    capture.connect("sub")
    capture.subscribe("sub", "t")
    capture.ping("sub")
    if lost:
        lose(capture, 6)
    rules = [row["rule"] for row in tables_of(capture)["violations"]]
    assert rules == ([] if lost else ["MQTT-3.3.1-6"])


def test_a_lost_message_may_be_the_live_one_that_came_with_retain() -> None:
    """The subscription has Retain As Published, and does not want retained values."""
    capture = pair(5, options=8 | 2 << 4)
    capture.message("pub", "t/1", b"x", 1, retain=True)
    capture.hand("sub", "t/1", b"x", 1, retain=True)
    lose(capture, 6)
    assert tables_of(capture)["violations"] == []


def test_a_lost_disconnect_leaves_the_end_open() -> None:
    """The gap before the FIN may be a DISCONNECT, which discards the will."""
    capture = pair()
    capture.connect("c", will_topic="t/c", will_payload=b"gone", will_qos=0, will_retain=False)
    capture.put("c", True, layout.DISCONNECT)
    capture.end("c")
    capture.ping("sub")
    (whole,) = (row for row in tables_of(capture)["sessions"] if row["client_id"] == "c")
    assert whole["ended_by"] == "client"
    lose(capture, 8)
    tables = tables_of(capture)
    (row,) = (row for row in tables["sessions"] if row["client_id"] == "c")
    assert row.get("ended_by") is None
    assert tables["deliveries"] == []


def test_a_connection_that_ends_after_a_gap_is_dropped() -> None:
    """Both sides sent packets after their gaps, so the last packet of each was captured."""
    capture = Capture()
    capture.connect("c")
    for _ in range(3):
        capture.ping("c")
    capture.end("c")
    lose(capture, 4, 5)
    (row,) = tables_of(capture)["sessions"]
    assert row["ended_by"] == "dropped"


def test_the_release_of_a_lost_message_is_no_violation() -> None:
    """The PUBREL is for the lost PUBLISH, not for the one in the earlier session, which is over."""
    capture = Capture()
    capture.connect("c")
    capture.publish("c", True, "t", b"x", 2)
    capture.end("c")
    capture.connect("c")
    capture.publish("c", True, "t", b"y", 2)
    capture.put("c", False, layout.PUBREC, packet_id=1)
    capture.put("c", True, layout.PUBREL, packet_id=1)
    lose(capture, 5)
    assert tables_of(capture)["violations"] == []


@pytest.mark.parametrize(
    ("lost", "frame"), [((), 12), ((9,), 12), ((8,), None), ((9, 10, 11, 14), None)]
)
def test_an_acknowledgement_may_be_of_a_message_that_was_lost(
    lost: tuple[int, ...], frame: int | None
) -> None:
    """Two messages with one identifier: the end of the first and the second one are lost."""
    capture = pair()
    for number, payload in enumerate((b"x", b"y"), 1):
        capture.message("pub", "t/1", payload, 1, number)
        capture.hand("sub", "t/1", payload, 2, 1)
    lose(capture, *lost)
    rows = [row for row in deliveries_of(capture) if row.get("delivered_frame") == 9]
    assert [row.get("acknowledged_frame") for row in rows] == ([] if 8 in lost else [frame])
    assert all(row["verdict"] == ("delivered" if frame else "undecided") for row in rows)


def test_what_comes_behind_a_session_is_of_no_message_in_it() -> None:
    capture = pair()
    capture.publish("sub", False, "t/1", b"x", 2)
    capture.put("sub", True, layout.PUBREC, packet_id=1)
    capture.end("sub")
    capture.connect("sub")
    capture.hand("sub", "t/1", b"y", 2)
    lose(capture, 10)  # the second message
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row.get("acknowledged_frame")) == ("abandoned", None)


@pytest.mark.parametrize(
    ("lost", "verdict"), [(None, "queued"), (-4, "undecided"), (-1, "undecided"), (0, "queued")]
)
def test_what_a_full_window_kept_may_have_come_later(lost: int | None, verdict: str) -> None:
    """The client comes back; its CONNECT or its last packet is lost, or nothing."""
    capture = Capture()
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t/#", qos=1)
    capture.connect("pub")
    for number in range(1, 12):
        capture.message("pub", "t/1", b"%d" % number, 1, number)
        if number < 11:
            capture.publish("sub", False, "t/1", b"%d" % number, 1, number)
    capture.end("sub")
    if lost is not None:
        capture.connect("sub", clean=False, present=True)
        capture.ping("sub")
    if lost:
        lose(capture, lost)
    assert deliveries_of(capture)[-1]["verdict"] == verdict
