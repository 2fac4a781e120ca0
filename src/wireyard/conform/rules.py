"""The rules that conversations are about, and those conversations as they are defined.

Rules that packets can break are those of ``formats.mqtt.rules`` and ``layers.mqtt.violations``;
`_STATEMENTS` has only statements on what a broker has to do, which no packet breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from wireyard.conform.talk import Talk
from wireyard.formats.mqtt import rules as packet_rules
from wireyard.formats.mqtt.rules import Rule
from wireyard.layers.mqtt import violations

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


RULES: Final[Mapping[str, Rule]] = {
    **packet_rules.RULES,
    **violations.RULES,
    **{row[0]: _rule(*row) for row in _STATEMENTS},
}


def place_of(rule: str, version: int) -> str:
    """Return the number of a rule in a version, or its section; a number stays as it is."""
    return RULES[rule].cited[version] if rule in RULES else rule


def text_of(number: str, version: int) -> str | None:
    """Return the first rule with a number in words."""
    rules = (rule.text for rule in RULES.values() if rule.cited.get(version) == number)
    return next(rules, None)


Act = Callable[[Talk], None]
MADE: Final[list[tuple[str, str, Act]]] = []
"""The conversations that functions make: the rule, the name, and the function."""


def on(rule: str, name: str = "", *arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Take a function for a conversation on a rule."""

    def take(act: Callable[..., None]) -> Callable[..., None]:
        title = name or act.__name__.strip("_").replace("_", " ")
        MADE.append((rule, title, lambda talk: act(talk, *arguments)))
        return act

    return take


def each(rule: str, **cases: tuple[Any, ...]) -> Callable[[Callable[..., None]], Any]:
    """Take a function for several conversations on a rule, by name with its arguments."""

    def take(act: Callable[..., None]) -> Callable[..., None]:
        for name, arguments in cases.items():
            on(rule, f"{act.__name__.strip('_')} {name}".replace("_", " "), *arguments)(act)
        return act

    return take
