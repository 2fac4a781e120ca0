"""What brokers do beside the standard: shares of their own, bridges, RETAIN on live messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, deliveries_of, pair, tables_of, verdicts_of
from wireyard.formats.mqtt import layout
from wireyard.formats.mqtt.filters import Filter

_LASTS = (("session_expiry_interval", 600),)
_EXPIRES = (("message_expiry_interval", 5),)


def _group(version: int, share: str) -> Capture:
    capture = Capture(version)
    for name in ("one", "two"):
        capture.connect(name)
        capture.subscribe(name, share, qos=1)
    capture.connect("pub")
    return capture


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("share", ["$share/g/t/#", "$queue/t/#", "$exclusive/t/#"])
def test_one_member_of_a_group_gets_a_message(version: int, share: str) -> None:
    capture = _group(version, share)
    for number, name in enumerate(["one", "two", "two"], 1):
        capture.message("pub", "t/a", b"%d" % number, 1, number)
        capture.hand(name, "t/a", b"%d" % number, 1, number)
    for name in ("one", "two", "pub"):
        capture.ping(name)
    rows = deliveries_of(capture)
    assert [row["verdict"] for row in rows] == ["delivered"] * 3
    assert {row["subscription"] for row in rows} == {share}


@pytest.mark.parametrize(
    ("share", "verdict"),
    [("$share/g/t", "not_forwarded"), ("$queue/t", "undecided"), ("$exclusive/t", "undecided")],
)
def test_a_message_that_no_member_gets(share: str, verdict: str) -> None:
    """To a broker without them, the other prefixes are names that match nothing."""
    capture = _group(4, share)
    capture.message("pub", "t", b"x", 1)
    for name in ("one", "two"):
        capture.ping(name)
    assert verdicts_of(capture) == [verdict]


def test_a_message_for_later_may_be_published_on_another_topic() -> None:
    capture = pair(4, 1)
    capture.message("pub", "$delayed/2/t/1", b"x", 1)
    capture.wait(2)
    capture.hand("sub", "t/1", b"x", 1)
    tables = tables_of(capture)
    assert sorted(row["verdict"] for row in tables["deliveries"]) == ["delivered", "undecided"]
    assert not tables["violations"]


def _bridge(version: int, level: int, qos: int = 1) -> Capture:
    """Return a bridge and a client, both of which subscribe to all topics."""
    capture = Capture(version)
    capture.connect("bridge")
    said: dict[str, Any] = {"protocol_version": level}
    if level >= 0x80:
        said |= {"verdict": "MQTT-3.1.2-2" if version == 4 else "protocol_level"}
        said |= {"status": "malformed"}
    capture.rows[0] |= said
    capture.subscribe("bridge", "#", qos=qos)
    capture.connect("local")
    capture.subscribe("local", "#", qos=qos)
    return capture


@pytest.mark.parametrize(("version", "level"), [(3, 0x83), (4, 0x84), (3, 3), (4, 4)])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_bridge_does_not_get_its_own_messages(version: int, level: int, qos: int) -> None:
    capture = _bridge(version, level, qos)
    capture.message("bridge", "t", b"x", qos)
    capture.hand("local", "t", b"x", qos)
    for name in ("bridge", "local"):
        capture.ping(name)
    tables = tables_of(capture)
    verdicts = sorted(row["verdict"] for row in tables["deliveries"])
    assert verdicts == (["delivered"] if level >= 0x80 else ["delivered", "not_forwarded"])
    assert not tables["violations"]


def test_a_bridge_gets_messages_with_their_retain() -> None:
    capture = _bridge(4, 0x84)
    capture.message("local", "t", b"x", 1, retain=True)
    capture.hand("bridge", "t", b"x", 1, retain=True)
    capture.hand("local", "t", b"x", 1)
    capture.ping("bridge")
    tables = tables_of(capture)
    rows = {row["consumer_client_id"]: row for row in tables["deliveries"]}
    assert {row["verdict"] for row in rows.values()} == {"delivered"}
    assert rows["bridge"]["retained"] is False and not tables["violations"]


RULE = {2: "retained_live", 3: "retained_live", 4: "MQTT-3.3.1-9", 5: "MQTT-3.3.1-12"}


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_live_message_with_retain_is_one_delivery(version: int, qos: int) -> None:
    capture = pair(version, qos)
    capture.message("pub", "t/1", b"x", qos, retain=True)
    capture.hand("sub", "t/1", b"x", qos, retain=True)
    for name in ("pub", "sub"):
        capture.ping(name)
    tables = tables_of(capture)
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["retained"]) == ("delivered", False)
    (found,) = tables["violations"]
    assert (found["rule"], found["client"]) == (RULE[version], "10.0.0.1:1883")


def test_a_second_copy_with_retain_is_not_the_delivery() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"x", 1, retain=True)
    capture.hand("sub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1, retain=True)
    rows = deliveries_of(capture)
    assert [row["retained"] for row in rows] == [False, True]


def test_a_newer_subscription_explains_retain() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"x", 1, retain=True)
    capture.subscribe("sub", "t/1", qos=1)
    capture.hand("sub", "t/1", b"x", 1, retain=True)
    tables = tables_of(capture)
    assert {row.get("retained") for row in tables["deliveries"]} == {True, None}
    assert not [row for row in tables["violations"] if row["rule"] == "MQTT-3.3.1-9"]


def test_retain_as_published_breaks_no_rule() -> None:
    capture = pair(5, options=8)
    capture.message("pub", "t/1", b"x", 1, retain=True)
    capture.hand("sub", "t/1", b"x", 1, retain=True)
    tables = tables_of(capture)
    assert [row["retained"] for row in tables["deliveries"]] == [False]
    assert not tables["violations"]


# --- subscriptions ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_filter_twice_in_one_subscribe(version: int) -> None:
    capture = Capture(version)
    capture.connect("sub")
    capture.subscribe("sub", "t", "t", qos=1)
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1)
    capture.hand("sub", "t", b"x", 1)
    assert verdicts_of(capture) == ["delivered"]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_subscriptions_that_are_answered_in_another_order(version: int) -> None:
    capture = Capture(version)
    capture.connect("sub")
    for number, qos in ((1, 0), (2, 1)):
        asked = (Filter("t", qos),)
        capture.put("sub", True, layout.SUBSCRIBE, packet_id=number, filters=asked)
    for number, qos in ((2, 1), (1, 0)):
        capture.put("sub", False, layout.SUBACK, packet_id=number, return_codes=(qos,))
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1)
    capture.ping("sub")
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row["subscription"]) == ("not_forwarded", "t")


def test_a_subscriber_without_its_connect_has_its_subscription() -> None:
    capture = Capture(4)
    capture.subscribe("sub", "t", qos=1)
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1)
    capture.hand("sub", "t", b"x", 1)
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row["subscription"]) == ("delivered", "t")


def test_a_client_that_is_back_on_the_same_port() -> None:
    """A message that was missed on one connection is not excused by those of the next."""
    capture = Capture(4)
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t", qos=1)
    capture.connect("pub")
    capture.message("pub", "t", b"missed", 1, 1)
    capture.message("pub", "t", b"first", 1, 2)
    capture.hand("sub", "t", b"first", 1, 1)
    capture.put("sub", True, layout.DISCONNECT)
    first = len(capture.rows)
    capture.connect("sub", clean=False, present=True)
    capture.message("pub", "t", b"second", 1, 3)
    capture.hand("sub", "t", b"second", 1, 2)
    ends = capture.stream("sub"), capture.stream("sub", up=False)
    for row in capture.rows[first:]:
        if row["stream"] in ends:
            row["stream"] += "#2"
    assert sorted(verdicts_of(capture)) == ["delivered", "delivered", "not_forwarded"]


# --- rules of several packets --------------------------------------------------------------------


def _rules(capture: Capture) -> list[str]:
    return [row["rule"] for row in tables_of(capture)["violations"]]


@pytest.mark.parametrize(("version", "rule"), [(4, "MQTT-3.3.5-1"), (5, "MQTT-3.3.4-2")])
def test_a_copy_below_the_highest_qos_of_its_subscriptions(version: int, rule: str) -> None:
    # Of a single copy at the end of a capture it is not known that no other one follows.
    cases = [((0, 0), 0, [rule]), ((0,), 2, [rule]), ((0,), 0, []), ((1,), 2, []), ((0, 1), 2, [])]
    for copies, goes_on_s, broken in cases:
        capture = Capture(version)
        capture.connect("sub")
        capture.subscribe("sub", "t/#", qos=0)
        capture.subscribe("sub", "t/1", qos=1)
        capture.connect("pub")
        capture.message("pub", "t/1", b"x", 1)
        for qos in copies:
            capture.hand("sub", "t/1", b"x", qos)
        capture.wait(goes_on_s)
        capture.ping("sub")
        assert _rules(capture) == broken


def test_a_clients_own_message_in_spite_of_no_local() -> None:
    for options, broken in ((4, ["MQTT-3.8.3-3"]), (0, [])):
        capture = Capture(5)
        capture.connect("me")
        capture.subscribe("me", "t", qos=1, options=options)
        capture.message("me", "t", b"x", 1)
        capture.hand("me", "t", b"x", 1, 2)
        assert _rules(capture) == broken


@pytest.mark.parametrize(
    ("waits_s", "left_s", "broken"),
    [(20, None, ["MQTT-3.3.2-5"]), (3, None, []), (3, 2, []), (3, 5, ["MQTT-3.3.2-6"]), (0, 5, [])],
)
@pytest.mark.parametrize("wanted", ["t", "$share/g/t"])
def test_the_expiry_interval_of_a_message_that_waited(
    waits_s: int, left_s: int | None, broken: list[str], wanted: str
) -> None:
    capture = Capture(5)
    capture.connect("sub", clean=False, properties=_LASTS)
    capture.subscribe("sub", wanted, qos=1)
    capture.disconnect("sub")
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1, properties=_EXPIRES)
    capture.wait(waits_s)
    capture.connect("sub", clean=False, present=True, properties=_LASTS)
    left = () if left_s is None else (("message_expiry_interval", left_s),)
    capture.hand("sub", "t", b"x", 1, properties=left)
    assert _rules(capture) == broken


@pytest.mark.parametrize(
    ("waits_s", "broken"), [(0, []), (3, ["MQTT-3.3.2-6"]), (8, ["MQTT-3.3.2-5"])]
)
@pytest.mark.parametrize("kind", ["will", "delayed", "released", "away"])
def test_a_message_waits_from_when_the_broker_takes_it_over(
    kind: str, waits_s: int, broken: list[str]
) -> None:
    """A will from when it is published, one at QoS 2 from its PUBREL."""
    capture = Capture(5)
    capture.connect("sub", clean=False, properties=_LASTS)
    capture.subscribe("sub", "t", qos=1)
    if kind == "away":
        capture.disconnect("sub")
    will: dict[str, Any] = {"will_topic": "t", "will_payload": b"x", "will_qos": 1}
    later = (("will_delay_interval", 20),) if kind == "delayed" else ()
    will["will_properties"] = (*_EXPIRES, *later)
    capture.connect("pub", clean=False, properties=_LASTS, **({} if kind == "released" else will))
    if kind == "released":
        capture.publish("pub", True, "t", b"x", 2, properties=_EXPIRES)
        capture.put("pub", False, layout.PUBREC, packet_id=1)
    capture.wait(30)
    if kind == "released":
        capture.put("pub", True, layout.PUBREL, packet_id=1)
        capture.put("pub", False, layout.PUBCOMP, packet_id=1)
    else:
        capture.end("pub")
    capture.wait(waits_s + (20 if kind == "delayed" else 0))
    if kind == "away":
        capture.connect("sub", clean=False, present=True, properties=_LASTS)
    capture.hand("sub", "t", b"x", 1, properties=_EXPIRES)
    assert _rules(capture) == broken


@pytest.mark.parametrize(("left_s", "broken"), [(2, []), (5, ["MQTT-3.3.2-6"]), (None, [])])
def test_the_expiry_interval_of_a_retained_value(left_s: int | None, broken: list[str]) -> None:
    capture = Capture(5)
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1, retain=True, properties=_EXPIRES)
    capture.wait(3)
    capture.connect("sub")
    capture.subscribe("sub", "t", qos=1)
    left = () if left_s is None else (("message_expiry_interval", left_s),)
    capture.hand("sub", "t", b"x", 1, retain=True, properties=left)
    assert _rules(capture) == broken


@pytest.mark.parametrize("first", ["got", "lost", None])
def test_a_message_that_another_member_got_first_does_not_expire(first: str | None) -> None:
    """Its delivery had begun; one that is handed on to another member has no DUP."""
    capture = Capture(5)
    for who in ("one", "two"):
        capture.connect(who, clean=False, properties=_LASTS)
        capture.subscribe(who, "$share/g/t", qos=1)
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1, properties=_EXPIRES)
    if first == "got":
        capture.publish("one", False, "t", b"x", 1)
    elif first == "lost":
        capture.gap("one", False)
    capture.disconnect("one")
    capture.wait(20)
    capture.hand("two", "t", b"x", 1)
    assert _rules(capture) == ([] if first else ["MQTT-3.3.2-5"])


@pytest.mark.parametrize("qos", [1, 2])
def test_the_age_of_a_message_that_was_sent_again_is_not_certain(qos: int) -> None:
    """The broker may have read the second copy only."""
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t", qos=qos)
    capture.connect("pub", clean=False, properties=_LASTS)
    capture.publish("pub", True, "t", b"x", qos, properties=_EXPIRES)
    capture.end("pub")
    capture.wait(20)
    capture.connect("pub", clean=False, present=True, properties=_LASTS)
    capture.publish("pub", True, "t", b"x", qos, dup=True, properties=_EXPIRES)
    capture.acknowledge("pub", True, qos)
    capture.hand("sub", "t", b"x", qos, properties=_EXPIRES)
    assert _rules(capture) == []


@pytest.mark.parametrize(("version", "rule"), [(4, "MQTT-4.3.3-1"), (5, "MQTT-4.3.3-6")])
@pytest.mark.parametrize("released", [True, False])
def test_a_message_that_is_sent_again_after_its_pubrel(
    version: int, rule: str, released: bool
) -> None:
    capture = Capture(version)
    said = (("session_expiry_interval", 600),) if version == 5 else ()
    capture.connect("pub", clean=False, properties=said)
    capture.publish("pub", True, "t", b"x", 2)
    capture.put("pub", False, layout.PUBREC, packet_id=1)
    if released:
        capture.put("pub", True, layout.PUBREL, packet_id=1)
    capture.end("pub")
    capture.connect("pub", clean=False, present=True, properties=said)
    capture.publish("pub", True, "t", b"x", 2, dup=True)
    assert _rules(capture) == ([rule] if released else [])


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("copies", [2, 3])
def test_each_copy_may_be_acknowledged(version: int, copies: int) -> None:
    for kind, qos in ((layout.PUBACK, 1), (layout.PUBREC, 2)):
        capture = Capture(version)
        capture.connect("pub")
        for number in range(copies):
            capture.publish("pub", True, "t", b"x", qos, dup=number > 0)
        for _ in range(copies):
            capture.put("pub", False, kind, packet_id=1)
        assert not [rule for rule in _rules(capture) if rule.startswith(("puback", "pubrec"))]
        assert not [rule for rule in _rules(capture) if rule == "MQTT-2.3.1-6"]


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(("copies", "answers"), [(2, 2), (3, 2), (1, 2)])
def test_each_pubrel_may_be_answered(version: int, copies: int, answers: int) -> None:
    capture = Capture(version)
    capture.connect("pub")
    capture.publish("pub", True, "t", b"x", 2)
    capture.put("pub", False, layout.PUBREC, packet_id=1)
    for _ in range(copies):
        capture.put("pub", True, layout.PUBREL, packet_id=1)
    for _ in range(answers):
        capture.put("pub", False, layout.PUBCOMP, packet_id=1)
    rules = [rule for rule in _rules(capture) if rule.startswith("pubcomp")]
    assert rules == (["pubcomp_unasked"] if answers > copies else [])


def _subscriber(capture: Capture) -> None:
    capture.connect("sub")
    capture.subscribe("sub", "t", qos=1)


def _member(capture: Capture) -> None:
    """Two members of a group, of which one gets messages at another listener."""
    capture.connect("here")
    capture.subscribe("here", "$share/g/t", qos=1)
    capture.connect("sub")
    capture.subscribe("sub", "$share/g/t", qos=1)


def _moved(capture: Capture) -> None:
    """A client that continues its session at another listener."""
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t", qos=1)
    capture.disconnect("sub")


@pytest.mark.parametrize(
    ("begin", "moves", "elsewhere"),
    [
        (_subscriber, "pub", "undecided"),
        (_member, "sub", "undecided"),
        (_moved, "sub", "undecided"),
    ],
)
def test_another_listener_may_have_the_subscriber(
    begin: Callable[[Capture], None], moves: str, elsewhere: str
) -> None:
    for listener, verdict in ((8883, elsewhere), (1883, "delivered")):
        capture = Capture(4)
        begin(capture)
        capture.connect("pub")
        capture.message("pub", "t", b"x", 1)
        if begin is _moved:
            capture.connect("sub", clean=False, present=True)
        capture.hand("sub", "t", b"x", 1)
        for name in ("pub", "sub", "here"):
            capture.ping(name)
        port = capture.port_of(moves)
        for row in capture.rows:
            if port in (row["src_port"], row["dst_port"]):
                for name in ("src_port", "dst_port"):
                    row[name] = listener if row[name] == 1883 else row[name]
                row["stream"] = row["stream"].replace(":1883", f":{listener}")
        tables = tables_of(capture)
        rows = [row for row in tables["deliveries"] if row["message_key"]]
        assert [row["verdict"] for row in rows] == [verdict]
        assert not tables["violations"]
