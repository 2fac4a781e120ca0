"""Situations like those that users report, one after the other: what became of each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.layers.mqtt.make import Capture, pair, tables_of
from tests.layers.mqtt.test_lost import break_off, lose
from wireyard.formats.mqtt import layout
from wireyard.formats.mqtt.filters import Filter

_LASTS: Final = (("session_expiry_interval", 100),)


def granted(version: int, *codes: int, between: bool = False) -> Capture:
    """Return a capture with a subscriber to ``t/1`` that is granted some QoS, or refused."""
    capture = Capture(version)
    capture.connect("sub")
    capture.connect("pub")
    capture.put("sub", True, layout.SUBSCRIBE, packet_id=1, filters=(Filter("t/1", 2),))
    if between:
        capture.message("pub", "t/1", b"x", 1)
    capture.put("sub", False, layout.SUBACK, packet_id=1, return_codes=codes)
    if not between:
        capture.message("pub", "t/1", b"x", 1)
    return capture


def dead_member(version: int) -> Capture:
    """A member of a group dies with a message, which the other one gets."""
    capture = Capture(version)
    for who in ("a", "b"):
        capture.connect(who)
        capture.subscribe(who, "$share/g/t/#", qos=1)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 1)
    capture.publish("a", False, "t/1", b"x", 1)
    capture.end("a")
    capture.hand("b", "t/1", b"x", 1)
    return capture


def narrow(passed: bool) -> Capture:
    """A client takes one message at a time; the third one may come before the second."""
    capture = Capture(5)
    capture.connect("sub", properties=(("receive_maximum", 1),))
    capture.subscribe("sub", "t/#", qos=1)
    capture.connect("pub")
    for number in (1, 2, 3):
        capture.message("pub", "t/1", b"%d" % number, 1, number)
    capture.publish("sub", False, "t/1", b"1", 1, 1)
    if passed:
        capture.acknowledge("sub", False, 1, 1)
        capture.publish("sub", False, "t/1", b"3", 1, 2)
    return capture


def away(version: int) -> Capture:
    """A client comes back for what waited at each QoS."""
    last: dict[str, Any] = {"properties": _LASTS} if version == 5 else {}
    capture = Capture(version)
    capture.connect("sub", clean=False, **last)
    capture.subscribe("sub", "t/#")
    capture.connect("pub")
    capture.disconnect("sub")
    for qos in (0, 1, 2):
        capture.message("pub", "t/1", b"%d" % qos, qos, qos + 1)
    capture.connect("sub", clean=False, present=True, **last)
    capture.hand("sub", "t/1", b"1", 1, 1)
    capture.publish("sub", False, "t/1", b"2", 2, 2)
    capture.put("sub", True, layout.PUBREC, packet_id=2)
    capture.disconnect("sub")
    return capture


def released_later() -> Capture:
    """A publisher sends its PUBREL on the next connection."""
    capture = pair(5)
    capture.end("pub")
    capture.connect("pub", clean=False, properties=_LASTS)
    capture.publish("pub", True, "t/1", b"x", 2)
    capture.put("pub", False, layout.PUBREC, packet_id=1)
    capture.end("pub")
    capture.connect("pub", clean=False, present=True)
    capture.put("pub", True, layout.PUBREL, packet_id=1)
    capture.put("pub", False, layout.PUBCOMP, packet_id=1)
    capture.hand("sub", "t/1", b"x", 2)
    return capture


def retained_will() -> Capture:
    """A will with RETAIN goes to a subscriber, and to one who comes later."""
    capture = Capture()
    capture.connect("dead", will_topic="t/w", will_payload=b"gone", will_qos=1, will_retain=True)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1)
    capture.end("dead")
    capture.hand("sub", "t/w", b"gone", 1)
    capture.connect("late")
    capture.subscribe("late", "t/+", qos=0)
    capture.hand("late", "t/w", b"gone", 0, retain=True)
    return capture


def two_publishers() -> Capture:
    """Of equal messages of two publishers one comes."""
    capture = pair()
    capture.connect("other")
    for who in ("pub", "other"):
        capture.message(who, "t/1", b"ON", 1)
    capture.hand("sub", "t/1", b"ON", 1)
    capture.ping("sub")
    return capture


def damaged(index: int, *part: int) -> Capture:
    """A message is delivered, and packets of this were not captured, or some bytes of one."""
    capture = pair()
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1)
    capture.ping("sub")
    if part:
        break_off(capture, index, *part)
    else:
        lose(capture, index)
    return capture


@pytest.mark.parametrize(
    ("make", "verdicts"),
    [
        *((lambda v=v: dead_member(v), "abandoned delivered") for v in (3, 4, 5)),
        *((lambda v=v: away(v), "offline delivered in_flight") for v in (3, 4, 5)),
        (lambda: narrow(False), "queued queued in_flight"),
        (lambda: narrow(True), "not_forwarded delivered in_flight"),
        (released_later, "delivered"),
        (retained_will, "delivered delivered"),
        (two_publishers, "not_forwarded delivered"),
        *((lambda v=v: granted(v, 128), "no_subscriber") for v in (4, 5)),
        (lambda: granted(4, 0, between=True), "undecided"),
        (lambda: granted(4, 1), "undecided"),
        (lambda: damaged(2), "delivered"),
        (lambda: damaged(2, 3, 4), "delivered"),
        (lambda: damaged(6), "delivered"),
        (lambda: damaged(6, 1, 2), "delivered"),
        (lambda: damaged(8), "undecided"),
        (lambda: damaged(8, 0, 1), "undecided"),
        (lambda: damaged(9), "undecided"),
    ],
)
def test_what_became_of_each_message(make: Callable[[], Capture], verdicts: str) -> None:
    tables = tables_of(make())
    assert sorted(row["verdict"] for row in tables["deliveries"]) == sorted(verdicts.split())
    assert tables["violations"] == []
