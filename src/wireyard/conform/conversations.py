"""All conversations by which a broker is judged.

Where the standard leaves a choice to the broker, no conversation depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from string import ascii_letters
from typing import Final

from wireyard.conform import messages, sessions  # noqa: F401  # they define conversations
from wireyard.conform.packets import CASES, connect, numbered, packet, publish, verdict_of
from wireyard.conform.rules import MADE, RULES, Act, each, on
from wireyard.conform.talk import Talk
from wireyard.formats.mqtt import control as mqtt
from wireyard.formats.mqtt.layout import CONNACK, CONNECT, PINGRESP, SUBACK, UNSUBACK


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, and the rule that it is about."""

    number: str
    """The number of the rule, or its section where it has none."""
    text: str
    """The rule in words."""
    name: str
    talk: Talk


def conversations(versions: Collection[int] = (4, 5)) -> Iterator[Conversation]:
    """Yield all conversations of some versions.

    Those with broken packets come last: a broker may not survive them.
    """
    planned = *_on_behaviour(versions), *_on_packets(versions)
    for number, (name, title, version, act) in enumerate(planned, 1):
        talk = Talk(version, f"wy{number}")
        act(talk)
        rule = RULES[name]
        yield Conversation(rule.cited[version], rule.text, title, talk)


_Plan = tuple[str, str, int, Act]
_ANSWERS: Final = (CONNACK, SUBACK, UNSUBACK, PINGRESP)
_FREE: Final = ((4, "protocol_name"),)
"""Rules against which a broker may go on with other protocols."""


def _on_behaviour(versions: Collection[int]) -> Iterator[_Plan]:
    for version in versions:
        for name, title, act in MADE:
            if RULES[name].holds(version):
                yield name, title, version, act


def _on_packets(versions: Collection[int]) -> Iterator[_Plan]:
    for version in versions:
        for case in CASES:
            data = case.make(version)
            if data is None or verdict_of(data, version) is None:
                continue
            if data[0] >> 4 not in _ANSWERS and (version, case.rule) not in _FREE:
                sends = _sends_first if data[0] >> 4 == CONNECT else _sends_second
                yield case.rule, case.name, version, partial(sends, data=data)


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


# --- what a client must not do ------------------------------------------------------------


@each(
    "connect_first",
    pingreq=(packet(0xC0),), publish=(publish(4),), disconnect=(packet(0xE0),),
    pubrel=(numbered(4, 0x62),),
)  # fmt: skip
def _begins_with(talk: Talk, data: bytes) -> None:
    _sends_first(talk, data)


@each("wrong_side", connack=(0x20, 2), suback=(0x90, 3), unsuback=(0xB0, 2), pingresp=(0xD0, 0))
def _answers(talk: Talk, first: int, size: int) -> None:
    _sends_second(talk, packet(first, bytes(size + (talk.version == 5 and size > 0))))


@on("connect_twice")
def _connects_twice(talk: Talk) -> None:
    _sends_second(talk, connect(talk.version, client=f"{talk.name}a"))


@each("alias_unknown", qos_0=(0, None), qos_1=(1, 1))
def _alias_without_topic(talk: Talk, qos: int, number: int | None) -> None:
    talk.connect("a")
    talk.send("a", mqtt.Publish, topic="", qos=qos, packet_id=number, properties={"topic_alias": 1})
    talk.is_ended("a")


@on("subscription_identifier")
def _publishes_with_subscription_identifier(talk: Talk) -> None:
    talk.connect("a")
    identifier = {"subscription_identifier": 1}
    talk.send("a", mqtt.Publish, topic=talk.topic("t"), properties=identifier)
    talk.is_ended("a")


@on("will")
def _will_after_a_protocol_error(talk: Talk) -> None:
    sessions.with_will(talk)
    talk.send_bytes("doomed", packet(0x36, b"\0\1a\0\1"))
    talk.gets("sub", "w", b"gone", 1)
