"""Conversations about answers and messages."""

from __future__ import annotations

from typing import Any, Final

from wireyard.conform.rules import each, on
from wireyard.conform.talk import Talk
from wireyard.formats.mqtt import control as mqtt

# --- answers ------------------------------------------------------------------------------


@each("accepted", kept=(False,), clean=(True,))
def _session(talk: Talk, is_clean: bool) -> None:
    talk.connect("a", clean_start=is_clean)
    talk.ping("a")


@on("pingresp")
def _pings(talk: Talk) -> None:
    talk.connect("a")
    for _ in range(3):
        talk.ping("a")


@each("suback", qos_0=(0,), qos_1=(1,), qos_2=(2,))
def _subscribes(talk: Talk, qos: int) -> None:
    talk.connect("a")
    talk.subscribe("a", ("t/+/#", qos))


@on("suback_codes")
def _subscribes_to_several_filters(talk: Talk) -> None:
    talk.connect("a")
    talk.subscribe("a", ("1", 1), ("2/#", 0), ("+/3", 2))


@each("unsuback", subscribed=(True,), not_subscribed=(False,))
def _unsubscribes(talk: Talk, has_one: bool) -> None:
    talk.connect("a")
    if has_one:
        talk.subscribe("a", ("t", 1))
    talk.send("a", mqtt.Unsubscribe, packet_id=9, filters=[talk.topic("t")])
    talk.came("a", "UNSUBACK", mqtt.UnsubAck, 9)


@each("answered", qos_1=(1,), qos_2=(2,))
def _publishes(talk: Talk, qos: int) -> None:
    talk.connect("a")
    for size in (0, 1, 200, 70_000):
        talk.publish("a", "t", b"p" * size, qos)


@on("taken_over")
def _connects_again(talk: Talk) -> None:
    talk.connect("a")
    talk.connect("again", client_id=f"{talk.name}a")
    talk.ping("again")
    talk.is_ended("a")


@on("keep_alive")
def _says_nothing(talk: Talk) -> None:
    talk.connect("a", keep_alive=1)
    talk.pause(4)
    talk.is_ended("a")


# --- messages -----------------------------------------------------------------------------


@each(
    "granted",
    **{f"{sent} to {granted}": (sent, granted) for sent in range(3) for granted in range(3)},
)
def _qos(talk: Talk, sent: int, granted: int) -> None:
    talk.pair(("t", granted))
    talk.publish("pub", "t", b"x", sent)
    talk.gets("sub", "t", qos=min(sent, granted), retain=False)
    talk.gets_not("sub", "t")


_MATCHES: Final = (
    ("a/b", "a/b"), ("a/+", "a/b"), ("+/b", "a/b"), ("a/#", "a/b/c"), ("a/#", "a"),
    ("a/+/c", "a/b/c"), ("+/+/+", "a//c"), ("a/+", "a/"), ("a//b", "a//b"), ("#", "a/b"),
    ("+/#", "a/b/c"), ("a/ b", "a/ b"), ("\u00e4/+", "\u00e4/\u65e5"), ("a/$b", "a/$b"),
)  # fmt: skip
_NO_MATCHES: Final = (
    ("a/b", "a"), ("a/+", "a"), ("a/+", "a/b/c"), ("a", "a/"), ("a/", "a"), ("+", "a/b"),
    ("a/#", "ab"), ("+/b", "b"), ("a/b", "A/b"),
)  # fmt: skip


@each("delivered", **{f"{one} to {topic}": (one, topic) for one, topic in _MATCHES})
def _filter(talk: Talk, name: str, topic: str) -> None:
    talk.pair((name, 1))
    talk.publish("pub", topic, b"x", 1)
    talk.gets("sub", topic, qos=1)


@each("delivered", **{str(size): (size,) for size in (0, 1, 127, 128, 16_383, 70_000)})
def _payload_of(talk: Talk, size: int) -> None:
    talk.pair(("t", 1))
    talk.publish("pub", "t", b"p" * size, 1)
    talk.gets("sub", "t", b"p" * size, 1)


@each("matching", **{f"{one} and not {topic}": (one, topic) for one, topic in _NO_MATCHES})
def _filter_matches(talk: Talk, name: str, topic: str) -> None:
    talk.pair((name, 1), ("end", 1))
    talk.publish("pub", topic, b"x", 1)
    talk.publish("pub", "end", b"x", 1)
    talk.gets("sub", "end", qos=1)
    talk.gets_not("sub", topic)


@each("hidden", plus=("+/{}/t",), number_sign=("+/{}/#",))
def _dollar(talk: Talk, name: str) -> None:
    talk.pair((name.format(talk.name), 1))
    for first in "$a":
        talk.publish("pub", f"{first}/{talk.name}/t", b"x", 1)
    talk.gets("sub", f"a/{talk.name}/t", qos=1)
    talk.gets_not("sub", f"$/{talk.name}/t")


@on("exact")
def _composed_characters(talk: Talk) -> None:
    talk.pair(("\u00e9", 1), ("end", 1))
    talk.publish("pub", "e\u0301", b"x", 1)
    talk.publish("pub", "end", b"x", 1)
    talk.gets("sub", "end", qos=1)
    talk.gets_not("sub", "e\u0301")


@on("mark_kept")
def _byte_order_mark(talk: Talk) -> None:
    talk.pair(("+", 1))
    talk.publish("pub", "\ufeffa", b"x", 1)
    talk.gets("sub", "\ufeffa", qos=1)


@each("order", qos_0=(0,), qos_1=(1,), qos_2=(2,))
def _order(talk: Talk, qos: int) -> None:
    talk.pair(("t", qos))
    for number in range(8):
        talk.publish("pub", "t", b"%d" % number, qos)
    talk.ordered = [talk.gets("sub", "t", b"%d" % number, qos) for number in range(8)]


@each("once", twice=(2,), three_times=(3,))
def _qos_2_again(talk: Talk, times: int) -> None:
    talk.pair(("t", 0))
    for nth in range(times):
        talk.send("pub", mqtt.Publish, topic=talk.topic("t"), payload=b"x", qos=2, packet_id=7,
                  dup=nth > 0)  # fmt: skip
        talk.came("pub", "PUBREC", mqtt.PubRec, 7)
    talk.send("pub", mqtt.PubRel, packet_id=7)
    talk.came("pub", "PUBCOMP", mqtt.PubComp, 7)
    talk.gets("sub", "t")
    talk.gets_not("sub", "t")


@on("replaced")
def _subscribes_again(talk: Talk) -> None:
    talk.pair(("t", 2))
    talk.subscribe("sub", ("t", 1))
    talk.publish("pub", "t", b"x", 2)
    talk.gets("sub", "t", qos=1)
    talk.gets_not("sub", "t")


@on("overlapping_qos")
def _overlapping_filters(talk: Talk) -> None:
    talk.pair(("t/+", 0), ("t/#", 2))
    talk.publish("pub", "t/a", b"x", 2)
    talk.pause(1.2)  # for up to a second another copy may come
    talk.ping("sub")


@on("unsubscribed_for_good")
def _publishes_after_unsubscribe(talk: Talk) -> None:
    talk.pair(("t", 1))
    talk.publish("pub", "t", b"x", 1)
    talk.gets("sub", "t", qos=1)
    talk.send("sub", mqtt.Unsubscribe, packet_id=9, filters=[talk.topic("t")])
    talk.came("sub", "UNSUBACK", mqtt.UnsubAck, 9)
    talk.publish("pub", "t", b"x", 1)
    talk.gets_not("sub", "t")


@on("own_message")
def _no_local(talk: Talk) -> None:
    talk.pair(("t", 5))
    talk.publish("sub", "t", b"own", 1)
    talk.publish("pub", "t", b"x", 1)
    talk.gets("sub", "t", qos=1)
    talk.gets_not("sub", "t", b"own")


_PROPERTIES: Final = {
    "format_kept": ("payload_format_indicator", 1),
    "response_kept": ("response_topic", "r"),
    "correlation_kept": ("correlation_data", b"\0\xff"),
    "user_kept": ("user_property", (("b", "2"), ("a", "1"), ("b", "3"))),
    "content_kept": ("content_type", "text/plain"),
}


def _property(talk: Talk, name: str, value: Any) -> None:
    talk.pair(("t", 1))
    values = value if name == "user_property" else (value,)
    properties = [(name, each) for each in values]
    talk.publish("pub", "t", b"x", 1, properties=properties)
    talk.gets("sub", "t", qos=1, properties=properties)


for _name, _arguments in _PROPERTIES.items():
    on(_name, _arguments[0].replace("_", " "), *_arguments)(_property)


@on("identifiers")
def _subscription_identifier(talk: Talk) -> None:
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1), properties={"subscription_identifier": 77})
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 1)
    talk.gets("sub", "t", qos=1, properties=[("subscription_identifier", 77)])


@each("receive_maximum_broker", one=(1,), two=(2,))
def _receive_maximum(talk: Talk, most: int) -> None:
    talk.pair(("t", 1), properties={"receive_maximum": most})
    for number in range(4):
        talk.publish("pub", "t", b"%d" % number, 1)
    held = [talk.gets("sub", "t", b"%d" % number, 1, ack=False) for number in range(most)]
    talk.ping("sub")
    for key in held:
        talk.send("sub", mqtt.PubAck, key, packet_id=1)
    for number in range(most, 4):
        talk.gets("sub", "t", b"%d" % number, 1)


@on("packet_size_broker")
def _maximum_packet_size(talk: Talk) -> None:
    talk.pair(("t", 1), properties={"maximum_packet_size": 60})
    talk.publish("pub", "t", b"p" * 100, 1)
    talk.publish("pub", "t", b"x", 1)
    talk.gets("sub", "t", qos=1)
    talk.gets_not("sub", "t", b"p" * 100)


@each("alias_maximum_broker", none=(0,), one=(1,))
def _topic_alias_maximum(talk: Talk, most: int) -> None:
    talk.pair(("+", 1), properties={"topic_alias_maximum": most} if most else {})
    for number in range(4):
        talk.publish("pub", str(number % 2), b"%d" % number, 1)
        talk.gets("sub", str(number % 2), b"%d" % number, 1)
