"""Conversations about retained values, wills and sessions."""

from __future__ import annotations

from typing import Any

from wireyard.conform.rules import each, on
from wireyard.conform.talk import Talk
from wireyard.formats.mqtt import control as mqtt

# --- retained values ----------------------------------------------------------------------


def _kept(talk: Talk, payload: bytes = b"x", qos: int = 1) -> None:
    """Publish a retained value."""
    talk.connect("pub")
    talk.publish("pub", "t", payload, qos, retain=True)


@each("retained_missing", exact=("t",), plus=("+",), number_sign=("#",))
def _retained(talk: Talk, name: str) -> None:
    _kept(talk)
    talk.connect("sub")
    talk.subscribe("sub", (name, 1))
    talk.gets("sub", "t", qos=1, retain=True)


@on("retained_unmarked")
def _retained_value_has_retain(talk: Talk) -> None:
    _retained(talk, "t")


@each("retained_qos", **{f"{a} to {b}": (a, b) for a in range(3) for b in range(3)})
def _retained_with_qos(talk: Talk, sent: int, granted: int) -> None:
    _kept(talk, qos=sent)
    talk.ping("pub")
    talk.connect("sub")
    talk.subscribe("sub", ("t", granted))
    talk.gets("sub", "t", qos=min(sent, granted), retain=True)


@on("retained_stale")
def _retained_value_is_the_latest(talk: Talk) -> None:
    _kept(talk, b"old")
    talk.publish("pub", "t", b"new", 1, retain=True)
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1))
    talk.gets("sub", "t", b"new", 1, retain=True)
    talk.gets_not("sub", "t", b"old")


@each("cleared", qos_0=(0,), qos_1=(1,), qos_2=(2,))
def _empty_retained_message(talk: Talk, qos: int) -> None:
    _kept(talk)
    talk.publish("pub", "t", b"", qos, retain=True)
    talk.ping("pub")
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1))
    talk.gets_not("sub", "t")
    talk.gets_not("sub", "t", b"")


@on("not_kept")
def _not_retained(talk: Talk) -> None:
    _kept(talk)
    talk.publish("pub", "t", b"passing", 1)
    talk.publish("pub", "other", b"passing", 1)
    talk.connect("sub")
    talk.subscribe("sub", ("+", 1))
    talk.gets("sub", "t", qos=1, retain=True)
    talk.gets_not("sub", "other", b"passing")


@on("outlives")
def _publisher_leaves(talk: Talk) -> None:
    _kept(talk)
    talk.leave("pub")
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1))
    talk.gets("sub", "t", qos=1, retain=True)


@on("retained_live")
def _retained_while_subscribed(talk: Talk) -> None:
    talk.pair(("t", 1))
    talk.publish("pub", "t", b"x", 1, retain=True)
    talk.gets("sub", "t", qos=1, retain=False)


@each("retained_unpublished", with_retain=(True,), without=(False,))
def _retain_as_published(talk: Talk, retain: bool) -> None:
    talk.pair(("t", 9))
    talk.publish("pub", "t", b"x", 1, retain=retain)
    talk.gets("sub", "t", qos=1, retain=retain)


@on("retained_unwanted")
def _retain_handling_2(talk: Talk) -> None:
    _kept(talk)
    talk.connect("sub")
    talk.subscribe("sub", ("t", 0x21))
    talk.gets_not("sub", "t")


@on("retained_existing")
def _retain_handling_1(talk: Talk) -> None:
    _kept(talk)
    talk.connect("sub")
    talk.subscribe("sub", ("t", 0x11))
    talk.gets("sub", "t", qos=1, retain=True)
    talk.subscribe("sub", ("t", 0x11))
    talk.gets_not("sub", "t")


# --- wills --------------------------------------------------------------------------------


def with_will(talk: Talk, retain: bool = False, delay: int = 0, qos: int = 1) -> None:
    """Connect a client with a will, and a subscriber to it."""
    talk.connect("sub")
    talk.subscribe("sub", ("w", qos))
    delayed: dict[str, Any] = {"will_properties": {"will_delay_interval": delay}} if delay else {}
    will: dict[str, Any] = {"will_topic": talk.topic("w"), "will_payload": b"gone", "will_qos": qos}
    talk.resume("doomed", will_retain=retain, **will, **delayed)


@each("will", **{f"qos {qos}": (qos,) for qos in range(3)})
def _will(talk: Talk, qos: int) -> None:
    with_will(talk, qos=qos)
    talk.leave("doomed", by_reset=True)
    talk.gets("sub", "w", b"gone", qos, retain=False)


@on("will_delay")
def _back_within_the_delay(talk: Talk) -> None:
    with_will(talk, delay=5)
    talk.leave("doomed", by_reset=True)
    talk.resume("doomed", present=True)
    talk.pause(0.2)
    talk.gets_not("sub", "w", b"gone")


@on("will_deleted")
def _disconnects(talk: Talk) -> None:
    with_will(talk)
    talk.leave("doomed")
    talk.pause(0.2)
    talk.gets_not("sub", "w", b"gone")


@each("will_kept", will_retain=(True,))
@each("will_not_kept", no_will_retain=(False,))
def _subscribes_later(talk: Talk, retain: bool) -> None:
    with_will(talk, retain)
    talk.leave("doomed", by_reset=True)
    talk.gets("sub", "w", b"gone", 1, retain=False)
    talk.connect("late")
    talk.subscribe("late", ("w", 1))
    if retain:
        talk.gets("late", "w", b"gone", 1, retain=True)
    talk.gets_not("late", "w", b"gone")


# --- sessions -----------------------------------------------------------------------------


@each("resumed", by_disconnect=(False,), by_reset=(True,))
def _comes_back(talk: Talk, by_reset: bool) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 1))
    talk.leave("a", by_reset=by_reset)
    talk.resume("a", present=True)


@on("session_present_clean")
@on("discarded")
def _starts_clean(talk: Talk) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 1))
    talk.leave("a")
    talk.connect("a")
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 1)
    talk.gets_not("a", "t")


@each("stored", qos_1=(1,), qos_2=(2,))
def _away(talk: Talk, qos: int) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", qos))
    talk.leave("a")
    talk.connect("pub")
    for number in range(3):
        talk.publish("pub", "t", b"%d" % number, qos)
    talk.resume("a", present=True)
    for number in range(3):
        talk.gets("a", "t", b"%d" % number, qos)


@each("expired_session", at_once=(0, 0.2), after_a_second=(1, 4.0))
def _expiry(talk: Talk, seconds: int, pause: float) -> None:
    talk.resume("a", expiry=seconds)
    talk.leave("a")
    talk.pause(pause)
    talk.resume("a")


@each("resent", qos_1=(1,), qos_2=(2,))
def _not_acknowledged(talk: Talk, qos: int) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", qos))
    talk.connect("pub")
    talk.publish("pub", "t", b"x", qos)
    talk.gets("a", "t", qos=qos, ack=False)
    talk.leave("a", by_reset=True)
    talk.resume("a", present=True)
    talk.gets("a", "t", qos=qos, dup=True)


@on("resent")
def _not_completed(talk: Talk) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 2))
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 2)
    key = talk.gets("a", "t", qos=2, ack=False)
    talk.send("a", mqtt.PubRec, key, packet_id=1)
    talk.came("a", "PUBREL", mqtt.PubRel, *key)
    talk.leave("a", by_reset=True)
    talk.resume("a", present=True)
    talk.came("a", "PUBREL", mqtt.PubRel, *key)
    talk.send("a", mqtt.PubComp, key, packet_id=1)


@on("delivered_expired")
def _message_expires(talk: Talk) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 1))
    talk.leave("a")
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 1, properties={"message_expiry_interval": 1})
    talk.publish("pub", "t", b"stays", 1)
    talk.pause(2.5)
    talk.resume("a", present=True)
    talk.gets("a", "t", b"stays", 1)
    talk.gets_not("a", "t")


@on("expiry_kept")
def _message_waits(talk: Talk) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 1))
    talk.leave("a")
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 1, properties={"message_expiry_interval": 100})
    talk.pause(2.1)  # two whole seconds, and a machine under load has most of the third
    talk.resume("a", present=True)
    talk.gets("a", "t", qos=1)
