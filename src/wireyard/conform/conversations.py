"""The conversations by which a broker is judged, each for one rule.

Rules of this file:

1. Rules that packets can break are those of ``formats.mqtt.rules`` and ``layers.mqtt.violations``;
   `_STATEMENTS` has only statements on what a broker has to do, which no packet breaks.
2. Where the standard leaves a choice to the broker, no conversation depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from string import ascii_letters
from types import MappingProxyType
from typing import Any, Final

from wireyard.conform.packets import CASES, connect, numbered, packet, publish, verdict_of
from wireyard.conform.talk import Talk
from wireyard.formats.mqtt import control as mqtt
from wireyard.formats.mqtt import rules as packet_rules
from wireyard.formats.mqtt.layout import CONNACK, CONNECT, PINGRESP, SUBACK, UNSUBACK
from wireyard.formats.mqtt.rules import Rule
from wireyard.layers.mqtt import violations

__all__ = ["Conversation", "conversations", "place_of", "text_of"]

_STATEMENTS: Final = (
    # Name, then its number in: 3.1.1, 5.0.
    ("accepted", "MQTT-3.1.4-4", "MQTT-3.1.4-5", "a CONNECT is acknowledged with CONNACK"),
    ("taken_over", "MQTT-3.1.4-2", "MQTT-3.1.4-3",
     "a second connection of a client id ends the first"),
    ("keep_alive", "MQTT-3.1.2-24", "MQTT-3.1.2-22",
     "a connection ends after one and a half times its Keep Alive without a packet"),
    ("pingresp", "MQTT-3.12.4-1", "MQTT-3.12.4-1", "PINGREQ is answered"),
    ("suback", "MQTT-3.8.4-1", "MQTT-3.8.4-1", "SUBSCRIBE is answered"),
    ("suback_codes", "MQTT-3.8.4-5", "MQTT-3.8.4-6", "SUBACK has a code for each filter"),
    ("replaced", "MQTT-3.8.4-3", "MQTT-3.8.4-3",
     "a subscription with the same filter replaces the one before"),
    ("granted", "MQTT-3.8.4-6", "MQTT-3.8.4-8",
     "a message comes with the lower of the QoS of its publisher and the one granted"),
    ("unsuback", "MQTT-3.10.4-5", "MQTT-3.10.4-5",
     "UNSUBSCRIBE is answered, also where there was no subscription"),
    ("unsubscribed_for_good", "MQTT-3.10.4-2", "MQTT-3.10.4-2",
     "no message is added for a filter that was unsubscribed"),
    ("answered", "MQTT-3.3.4-1", "MQTT-3.3.4-1", "a PUBLISH is answered according to its QoS"),
    ("once", "MQTT-4.3.3-2", "MQTT-4.3.3-10",
     "until PUBREL, a PUBLISH with the same identifier is answered and not delivered again"),
    ("delivered", "MQTT-4.5.0-1", "MQTT-4.5.0-1",
     "a message is for every session with a matching subscription"),
    ("matching", "MQTT-3.3.2-3", "MQTT-3.3.2-3", "the topic of a message matches the filter"),
    ("hidden", "MQTT-4.7.2-1", "MQTT-4.7.2-1",
     "a filter that begins with a wildcard does not match topics that begin with $"),
    ("exact", "MQTT-4.7.3-4", "MQTT-4.7.3-4", "topics are not normalized when they are matched"),
    ("mark_kept", "MQTT-1.5.3-3", "MQTT-1.5.4-3", "U+FEFF is a character of a topic, and stays"),
    ("order", "MQTT-4.6.0-6", "MQTT-4.6.0-6", "messages of a topic come in their order"),
    ("cleared", "MQTT-3.3.1-10", "MQTT-3.3.1-6",
     "a retained message without a payload deletes the retained value"),
    ("not_kept", "MQTT-3.3.1-12", "MQTT-3.3.1-8",
     "a message without RETAIN is not kept, and replaces no retained value"),
    ("outlives", "MQTT-3.1.2-7", "", "retained values outlive the session of their publisher"),
    ("will", "MQTT-3.1.2-8", "MQTT-3.1.2-8",
     "the will is published when a connection ends without DISCONNECT"),
    ("will_deleted", "MQTT-3.1.2-10", "MQTT-3.1.2-10", "DISCONNECT deletes the will"),
    ("will_kept", "MQTT-3.1.2-17", "MQTT-3.1.2-15", "a will with Will Retain is kept"),
    ("will_not_kept", "MQTT-3.1.2-16", "MQTT-3.1.2-14", "a will without Will Retain is not kept"),
    ("will_delay", "", "MQTT-3.1.3-9",
     "a client that is back within the Will Delay Interval has no will published"),
    ("resumed", "MQTT-3.2.2-2", "MQTT-3.2.2-3", "CONNACK says that a session is there"),
    ("discarded", "MQTT-3.1.2-6", "MQTT-3.1.2-4", "a clean start discards the session before"),
    ("stored", "MQTT-3.1.2-5", "MQTT-3.1.2-23",
     "the session of a client that is away gets messages"),
    ("expired_session", "", "MQTT-4.1.0-2",
     "a session ends when its Session Expiry Interval has passed"),
    ("resent", "MQTT-4.4.0-1", "MQTT-4.4.0-1",
     "what is not acknowledged is sent again when the session is resumed"),
    ("format_kept", "", "MQTT-3.3.2-4", "the Payload Format Indicator is passed on"),
    ("response_kept", "", "MQTT-3.3.2-15", "the Response Topic is passed on"),
    ("correlation_kept", "", "MQTT-3.3.2-16", "the Correlation Data is passed on"),
    ("user_kept", "", "MQTT-3.3.2-17", "User Properties are passed on, in their order"),
    ("content_kept", "", "MQTT-3.3.2-20", "the Content Type is passed on"),
    ("identifiers", "", "MQTT-3.3.4-3", "a message has the Subscription Identifier"),
)  # fmt: skip


def _rule(name: str, v311: str, v5: str, text: str) -> Rule:
    cited = {version: place for version, place in ((4, v311), (5, v5)) if place}
    return Rule(name, text, MappingProxyType(cited))


_RULES: Final[Mapping[str, Rule]] = {
    **packet_rules.RULES,
    **violations.RULES,
    **{row[0]: _rule(*row) for row in _STATEMENTS},
}
Act = Callable[[Talk], None]


def place_of(rule: str, version: int) -> str:
    """Return the number of a rule in a version, or its section; a number stays as it is."""
    return _RULES[rule].cited[version] if rule in _RULES else rule


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, and the rule that it is about."""

    number: str
    """The number of the rule, or its section where it has none."""
    text: str
    """The rule in words."""
    name: str
    talk: Talk


_MADE: list[tuple[str, str, Act]] = []


def _on(rule: str, name: str = "", *arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Take a function for a conversation on a rule."""

    def take(act: Callable[..., None]) -> Callable[..., None]:
        title = name or act.__name__.strip("_").replace("_", " ")
        _MADE.append((rule, title, lambda talk: act(talk, *arguments)))
        return act

    return take


def _each(rule: str, **cases: tuple[Any, ...]) -> Callable[[Callable[..., None]], Any]:
    """Take a function for several conversations on a rule, by name with its arguments."""

    def take(act: Callable[..., None]) -> Callable[..., None]:
        for name, arguments in cases.items():
            _on(rule, f"{act.__name__.strip('_')} {name}".replace("_", " "), *arguments)(act)
        return act

    return take


def text_of(number: str, version: int) -> str | None:
    """Return the first rule with a number in words."""
    rules = (rule.text for rule in _RULES.values() if rule.cited.get(version) == number)
    return next(rules, None)


def conversations(versions: Collection[int] = (4, 5)) -> Iterator[Conversation]:
    """Yield all conversations of some versions, anew.

    Those with broken packets come last: a broker may not survive them.
    """
    for version in versions:
        for name, title, act in _MADE:
            if _RULES[name].holds(version):
                yield _made(name, title, version, act)
    for version in versions:
        for case in CASES:
            data = case.make(version)
            rule = _RULES[case.rule]
            if data is None or not rule.holds(version) or (version, case.rule) in _FREE:
                continue
            if data[0] >> 4 not in _ANSWERS and verdict_of(data, version) is not None:
                sends = _sends_first if data[0] >> 4 == CONNECT else _sends_second
                yield _made(case.rule, case.name, version, partial(sends, data=data))


_ANSWERS: Final = (CONNACK, SUBACK, UNSUBACK, PINGRESP)
_FREE: Final = ((4, "protocol_name"),)
"""Rules against which a broker may go on with other protocols."""
_COUNT = iter(range(1, 1 << 31))


def _made(name: str, title: str, version: int, act: Act) -> Conversation:
    rule = _RULES[name]
    talk = Talk(version, f"wy{next(_COUNT)}")
    act(talk)
    cited = rule.cited[version]
    return Conversation(cited, rule.text, title, talk)


def _sends_first(talk: Talk, data: bytes) -> None:
    """Begin with a packet that has to end the connection.

    A CONNECT gets a client id of its own, since one that is accepted would be taken over.
    """
    own = ascii_letters[int(talk.name[2:]) % len(ascii_letters)]
    data = data.replace(b"\0\1c", b"\0\1" + own.encode(), 1)
    talk.open("a")
    talk.send_bytes("a", data)
    talk.is_ended("a")


def _sends_second(talk: Talk, data: bytes) -> None:
    """Send a packet that has to end the connection, behind CONNECT."""
    talk.connect("a")
    talk.send_bytes("a", data)
    talk.is_ended("a")


# --- answers ------------------------------------------------------------------------------


@_each("accepted", kept=(False,), clean=(True,))
def _session(talk: Talk, is_clean: bool) -> None:
    talk.connect("a", clean_start=is_clean)
    talk.ping("a")


@_on("pingresp")
def _pings(talk: Talk) -> None:
    talk.connect("a")
    for _ in range(3):
        talk.ping("a")


@_each("suback", qos_0=(0,), qos_1=(1,), qos_2=(2,))
def _subscribes(talk: Talk, qos: int) -> None:
    talk.connect("a")
    talk.subscribe("a", ("t/+/#", qos))


@_on("suback_codes")
def _subscribes_to_several_filters(talk: Talk) -> None:
    talk.connect("a")
    talk.subscribe("a", ("1", 1), ("2/#", 0), ("+/3", 2))


@_each("unsuback", subscribed=(True,), not_subscribed=(False,))
def _unsubscribes(talk: Talk, has_one: bool) -> None:
    talk.connect("a")
    if has_one:
        talk.subscribe("a", ("t", 1))
    talk.send("a", mqtt.Unsubscribe, packet_id=9, filters=[talk.topic("t")])
    talk.came("a", "UNSUBACK", mqtt.UnsubAck, 9)


@_each("answered", qos_1=(1,), qos_2=(2,))
def _publishes(talk: Talk, qos: int) -> None:
    talk.connect("a")
    for size in (0, 1, 200, 70_000):
        talk.publish("a", "t", b"p" * size, qos)


@_on("taken_over")
def _connects_again(talk: Talk) -> None:
    talk.connect("a")
    talk.connect("again", client_id=f"{talk.name}a")
    talk.ping("again")
    talk.is_ended("a")


@_on("keep_alive")
def _says_nothing(talk: Talk) -> None:
    talk.connect("a", keep_alive=1)
    talk.pause(4)
    talk.is_ended("a")


# --- messages -----------------------------------------------------------------------------


def _pair(talk: Talk, *filters: tuple[str, int], **fields: Any) -> None:
    """Connect a subscriber and a publisher."""
    talk.connect("sub", **fields)
    talk.subscribe("sub", *filters)
    talk.connect("pub")


@_each(
    "granted",
    **{f"{sent} to {granted}": (sent, granted) for sent in range(3) for granted in range(3)},
)
def _qos(talk: Talk, sent: int, granted: int) -> None:
    _pair(talk, ("t", granted))
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


@_each("delivered", **{f"{one} to {topic}": (one, topic) for one, topic in _MATCHES})
def _filter(talk: Talk, name: str, topic: str) -> None:
    _pair(talk, (name, 1))
    talk.publish("pub", topic, b"x", 1)
    talk.gets("sub", topic, qos=1)


@_each("delivered", **{str(size): (size,) for size in (0, 1, 127, 128, 16_383, 70_000)})
def _payload_of(talk: Talk, size: int) -> None:
    _pair(talk, ("t", 1))
    talk.publish("pub", "t", b"p" * size, 1)
    talk.gets("sub", "t", b"p" * size, 1)


@_each("matching", **{f"{one} and not {topic}": (one, topic) for one, topic in _NO_MATCHES})
def _filter_matches(talk: Talk, name: str, topic: str) -> None:
    _pair(talk, (name, 1), ("end", 1))
    talk.publish("pub", topic, b"x", 1)
    talk.publish("pub", "end", b"x", 1)
    talk.gets("sub", "end", qos=1)
    talk.gets_not("sub", topic)


@_each("hidden", plus=("+/{}/t",), number_sign=("+/{}/#",))
def _dollar(talk: Talk, name: str) -> None:
    _pair(talk, (name.format(talk.name), 1))
    for first in "$a":
        talk.publish("pub", f"{first}/{talk.name}/t", b"x", 1)
    talk.gets("sub", f"a/{talk.name}/t", qos=1)
    talk.gets_not("sub", f"$/{talk.name}/t")


@_on("exact")
def _composed_characters(talk: Talk) -> None:
    _pair(talk, ("\u00e9", 1), ("end", 1))
    talk.publish("pub", "e\u0301", b"x", 1)
    talk.publish("pub", "end", b"x", 1)
    talk.gets("sub", "end", qos=1)
    talk.gets_not("sub", "e\u0301")


@_on("mark_kept")
def _byte_order_mark(talk: Talk) -> None:
    _pair(talk, ("+", 1))
    talk.publish("pub", "\ufeffa", b"x", 1)
    talk.gets("sub", "\ufeffa", qos=1)


@_each("order", qos_0=(0,), qos_1=(1,), qos_2=(2,))
def _order(talk: Talk, qos: int) -> None:
    _pair(talk, ("t", qos))
    for number in range(8):
        talk.publish("pub", "t", b"%d" % number, qos)
    talk.ordered = [talk.gets("sub", "t", b"%d" % number, qos) for number in range(8)]


@_each("once", twice=(2,), three_times=(3,))
def _qos_2_again(talk: Talk, times: int) -> None:
    _pair(talk, ("t", 0))
    for nth in range(times):
        talk.send("pub", mqtt.Publish, topic=talk.topic("t"), payload=b"x", qos=2, packet_id=7,
                  dup=nth > 0)  # fmt: skip
        talk.came("pub", "PUBREC", mqtt.PubRec, 7)
    talk.send("pub", mqtt.PubRel, packet_id=7)
    talk.came("pub", "PUBCOMP", mqtt.PubComp, 7)
    talk.gets("sub", "t")
    talk.gets_not("sub", "t")


@_on("replaced")
def _subscribes_again(talk: Talk) -> None:
    _pair(talk, ("t", 2))
    talk.subscribe("sub", ("t", 1))
    talk.publish("pub", "t", b"x", 2)
    talk.gets("sub", "t", qos=1)
    talk.gets_not("sub", "t")


@_on("overlapping_qos")
def _overlapping_filters(talk: Talk) -> None:
    _pair(talk, ("t/+", 0), ("t/#", 2))
    talk.publish("pub", "t/a", b"x", 2)
    talk.pause(0.2)
    talk.ping("sub")


@_on("unsubscribed_for_good")
def _publishes_after_unsubscribe(talk: Talk) -> None:
    _pair(talk, ("t", 1))
    talk.publish("pub", "t", b"x", 1)
    talk.gets("sub", "t", qos=1)
    talk.send("sub", mqtt.Unsubscribe, packet_id=9, filters=[talk.topic("t")])
    talk.came("sub", "UNSUBACK", mqtt.UnsubAck, 9)
    talk.publish("pub", "t", b"x", 1)
    talk.gets_not("sub", "t")


@_on("own_message")
def _no_local(talk: Talk) -> None:
    _pair(talk, ("t", 5))
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
    _pair(talk, ("t", 1))
    values = value if name == "user_property" else (value,)
    properties = [(name, each) for each in values]
    talk.publish("pub", "t", b"x", 1, properties=properties)
    talk.gets("sub", "t", qos=1, properties=properties)


for _name, _arguments in _PROPERTIES.items():
    _on(_name, _arguments[0].replace("_", " "), *_arguments)(_property)


@_on("identifiers")
def _subscription_identifier(talk: Talk) -> None:
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1), properties={"subscription_identifier": 77})
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 1)
    talk.gets("sub", "t", qos=1, properties=[("subscription_identifier", 77)])


@_each("receive_maximum_broker", one=(1,), two=(2,))
def _receive_maximum(talk: Talk, most: int) -> None:
    _pair(talk, ("t", 1), properties={"receive_maximum": most})
    for number in range(4):
        talk.publish("pub", "t", b"%d" % number, 1)
    held = [talk.gets("sub", "t", b"%d" % number, 1, ack=False) for number in range(most)]
    talk.ping("sub")
    for key in held:
        talk.send("sub", mqtt.PubAck, key, packet_id=1)
    for number in range(most, 4):
        talk.gets("sub", "t", b"%d" % number, 1)


@_on("packet_size_broker")
def _maximum_packet_size(talk: Talk) -> None:
    _pair(talk, ("t", 1), properties={"maximum_packet_size": 60})
    talk.publish("pub", "t", b"p" * 100, 1)
    talk.publish("pub", "t", b"x", 1)
    talk.gets("sub", "t", qos=1)
    talk.gets_not("sub", "t", b"p" * 100)


@_each("alias_maximum_broker", none=(0,), one=(1,))
def _topic_alias_maximum(talk: Talk, most: int) -> None:
    _pair(talk, ("+", 1), properties={"topic_alias_maximum": most} if most else {})
    for number in range(4):
        talk.publish("pub", str(number % 2), b"%d" % number, 1)
        talk.gets("sub", str(number % 2), b"%d" % number, 1)


# --- retained values ----------------------------------------------------------------------


def _kept(talk: Talk, payload: bytes = b"x", qos: int = 1) -> None:
    """Publish a retained value."""
    talk.connect("pub")
    talk.publish("pub", "t", payload, qos, retain=True)


@_each("retained_missing", exact=("t",), plus=("+",), number_sign=("#",))
def _retained(talk: Talk, name: str) -> None:
    _kept(talk)
    talk.connect("sub")
    talk.subscribe("sub", (name, 1))
    talk.gets("sub", "t", qos=1, retain=True)


@_on("retained_unmarked")
def _retained_value_has_retain(talk: Talk) -> None:
    _retained(talk, "t")


@_each("retained_qos", **{f"{a} to {b}": (a, b) for a in range(3) for b in range(3)})
def _retained_with_qos(talk: Talk, sent: int, granted: int) -> None:
    _kept(talk, qos=sent)
    talk.ping("pub")
    talk.connect("sub")
    talk.subscribe("sub", ("t", granted))
    talk.gets("sub", "t", qos=min(sent, granted), retain=True)


@_on("retained_stale")
def _retained_value_is_the_latest(talk: Talk) -> None:
    _kept(talk, b"old")
    talk.publish("pub", "t", b"new", 1, retain=True)
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1))
    talk.gets("sub", "t", b"new", 1, retain=True)
    talk.gets_not("sub", "t", b"old")


@_each("cleared", qos_0=(0,), qos_1=(1,), qos_2=(2,))
def _empty_retained_message(talk: Talk, qos: int) -> None:
    _kept(talk)
    talk.publish("pub", "t", b"", qos, retain=True)
    talk.ping("pub")
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1))
    talk.gets_not("sub", "t")
    talk.gets_not("sub", "t", b"")


@_on("not_kept")
def _not_retained(talk: Talk) -> None:
    _kept(talk)
    talk.publish("pub", "t", b"passing", 1)
    talk.publish("pub", "other", b"passing", 1)
    talk.connect("sub")
    talk.subscribe("sub", ("+", 1))
    talk.gets("sub", "t", qos=1, retain=True)
    talk.gets_not("sub", "other", b"passing")


@_on("outlives")
def _publisher_leaves(talk: Talk) -> None:
    _kept(talk)
    talk.leave("pub")
    talk.connect("sub")
    talk.subscribe("sub", ("t", 1))
    talk.gets("sub", "t", qos=1, retain=True)


@_on("retained_live")
def _retained_while_subscribed(talk: Talk) -> None:
    _pair(talk, ("t", 1))
    talk.publish("pub", "t", b"x", 1, retain=True)
    talk.gets("sub", "t", qos=1, retain=False)


@_each("retained_unpublished", with_retain=(True,), without=(False,))
def _retain_as_published(talk: Talk, retain: bool) -> None:
    _pair(talk, ("t", 9))
    talk.publish("pub", "t", b"x", 1, retain=retain)
    talk.gets("sub", "t", qos=1, retain=retain)


@_on("retained_unwanted")
def _retain_handling_2(talk: Talk) -> None:
    _kept(talk)
    talk.connect("sub")
    talk.subscribe("sub", ("t", 0x21))
    talk.gets_not("sub", "t")


@_on("retained_existing")
def _retain_handling_1(talk: Talk) -> None:
    _kept(talk)
    talk.connect("sub")
    talk.subscribe("sub", ("t", 0x11))
    talk.gets("sub", "t", qos=1, retain=True)
    talk.subscribe("sub", ("t", 0x11))
    talk.gets_not("sub", "t")


# --- wills --------------------------------------------------------------------------------


def _with_will(talk: Talk, retain: bool = False, delay: int = 0, qos: int = 1) -> None:
    """Connect a client with a will, and a subscriber to it."""
    talk.connect("sub")
    talk.subscribe("sub", ("w", qos))
    delayed: dict[str, Any] = {"will_properties": {"will_delay_interval": delay}} if delay else {}
    will: dict[str, Any] = {"will_topic": talk.topic("w"), "will_payload": b"gone", "will_qos": qos}
    talk.resume("doomed", will_retain=retain, **will, **delayed)


@_each("will", **{f"qos {qos}": (qos,) for qos in range(3)})
def _will(talk: Talk, qos: int) -> None:
    _with_will(talk, qos=qos)
    talk.leave("doomed", by_reset=True)
    talk.gets("sub", "w", b"gone", qos, retain=False)


@_on("will_delay")
def _back_within_the_delay(talk: Talk) -> None:
    _with_will(talk, delay=5)
    talk.leave("doomed", by_reset=True)
    talk.resume("doomed", present=True)
    talk.pause(0.2)
    talk.gets_not("sub", "w", b"gone")


@_on("will_deleted")
def _disconnects(talk: Talk) -> None:
    _with_will(talk)
    talk.leave("doomed")
    talk.pause(0.2)
    talk.gets_not("sub", "w", b"gone")


@_each("will_kept", will_retain=(True,))
@_each("will_not_kept", no_will_retain=(False,))
def _subscribes_later(talk: Talk, retain: bool) -> None:
    _with_will(talk, retain)
    talk.leave("doomed", by_reset=True)
    talk.gets("sub", "w", b"gone", 1, retain=False)
    talk.connect("late")
    talk.subscribe("late", ("w", 1))
    if retain:
        talk.gets("late", "w", b"gone", 1, retain=True)
    talk.gets_not("late", "w", b"gone")


# --- sessions -----------------------------------------------------------------------------


@_each("resumed", by_disconnect=(False,), by_reset=(True,))
def _comes_back(talk: Talk, by_reset: bool) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 1))
    talk.leave("a", by_reset=by_reset)
    talk.resume("a", present=True)


@_on("session_present_clean")
@_on("discarded")
def _starts_clean(talk: Talk) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 1))
    talk.leave("a")
    talk.connect("a")
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 1)
    talk.gets_not("a", "t")


@_each("stored", qos_1=(1,), qos_2=(2,))
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


@_each("expired_session", at_once=(0, 0.2), after_a_second=(1, 4.0))
def _expiry(talk: Talk, seconds: int, pause: float) -> None:
    talk.resume("a", expiry=seconds)
    talk.leave("a")
    talk.pause(pause)
    talk.resume("a")


@_each("resent", qos_1=(1,), qos_2=(2,))
def _not_acknowledged(talk: Talk, qos: int) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", qos))
    talk.connect("pub")
    talk.publish("pub", "t", b"x", qos)
    talk.gets("a", "t", qos=qos, ack=False)
    talk.leave("a", by_reset=True)
    talk.resume("a", present=True)
    talk.gets("a", "t", qos=qos, dup=True)


@_on("resent")
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


@_on("delivered_expired")
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


@_on("expiry_kept")
def _message_waits(talk: Talk) -> None:
    talk.resume("a")
    talk.subscribe("a", ("t", 1))
    talk.leave("a")
    talk.connect("pub")
    talk.publish("pub", "t", b"x", 1, properties={"message_expiry_interval": 100})
    talk.pause(2.5)
    talk.resume("a", present=True)
    talk.gets("a", "t", qos=1)


# --- what a client must not do ------------------------------------------------------------


@_each(
    "connect_first",
    pingreq=(packet(0xC0),), publish=(publish(4),), disconnect=(packet(0xE0),),
    pubrel=(numbered(4, 0x62),),
)  # fmt: skip
def _begins_with(talk: Talk, data: bytes) -> None:
    _sends_first(talk, data)


@_each("wrong_side", connack=(0x20, 2), suback=(0x90, 3), unsuback=(0xB0, 2), pingresp=(0xD0, 0))
def _answers(talk: Talk, first: int, size: int) -> None:
    _sends_second(talk, packet(first, bytes(size + (talk.version == 5 and size > 0))))


@_on("connect_twice")
def _connects_twice(talk: Talk) -> None:
    _sends_second(talk, connect(talk.version, client=f"{talk.name}a"))


@_each("alias_unknown", qos_0=(0, None), qos_1=(1, 1))
def _alias_without_topic(talk: Talk, qos: int, number: int | None) -> None:
    talk.connect("a")
    talk.send("a", mqtt.Publish, topic="", qos=qos, packet_id=number, properties={"topic_alias": 1})
    talk.is_ended("a")


@_on("subscription_identifier")
def _publishes_with_subscription_identifier(talk: Talk) -> None:
    talk.connect("a")
    identifier = {"subscription_identifier": 1}
    talk.send("a", mqtt.Publish, topic=talk.topic("t"), properties=identifier)
    talk.is_ended("a")


@_on("will")
def _will_after_a_protocol_error(talk: Talk) -> None:
    _with_will(talk)
    talk.send_bytes("doomed", packet(0x36, b"\0\1a\0\1"))
    talk.gets("sub", "w", b"gone", 1)
