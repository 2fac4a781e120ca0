"""The conversations played to a broker, and what was not as it has to be.

Rules of this file:

1. What has to come is judged by the packets that came; what a broker must not send also by the
   violations and verdicts that wireyard derives from the record of all conversations.
2. A packet against a rule has to end the connection. In 5.0 a refusal by a reason code does too,
   since the standard has such codes for topics and filters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from wireyard.answers import open_tables
from wireyard.client.address import Address
from wireyard.conform.conversations import Conversation, conversations
from wireyard.conform.rules import place_of, text_of
from wireyard.conform.talk import Talk
from wireyard.errors import SourceError, UsageError
from wireyard.formats.mqtt.control import ConnAck, Publish, Subscribe
from wireyard.layers.mqtt.facts import VERDICTS
from wireyard.replay.player import Played, run

_ERROR: Final = 128
_SECONDS_FOR_VERSION: Final = 0.3
_PATIENCE_S: Final = 3.0
_VERSION: Final = "$SYS/broker/version"
_FOUND: Final = """
SELECT regexp_extract(client_id, '^wy[0-9]+') AS talk, rule, text FROM violations
WHERE protocol = 'mqtt' AND client IN (SELECT server FROM sessions)
UNION ALL
SELECT regexp_extract(consumer_client_id, '^wy[0-9]+'), NULL, verdict FROM deliveries
WHERE protocol = 'mqtt' AND verdict IN ('not_forwarded', 'not_kept')
"""
"""The violations by the broker, and the messages that it did not deliver."""


class Failure(NamedTuple):
    """What was not as it has to be."""

    number: str
    """The rule."""
    text: str


class Result(NamedTuple):
    """What became of a conversation."""

    conversation: Conversation
    failures: list[Failure]


@dataclass(slots=True)
class Tally:
    """What became of the conversations on a rule."""

    version: int
    number: str
    """The number of the rule, or its section where it has none."""
    text: str
    """The rule in words."""
    of: int = 0
    kept: int = 0
    failures: list[str] = field(default_factory=list)
    """How it was not kept, also in conversations on other rules."""

    @property
    def order(self) -> tuple[int, list[int], str]:
        """Where it stands in a list."""
        return self.version, [int(part) for part in re.findall("[0-9]+", self.number)], self.text


class Judged(NamedTuple):
    """What became of all conversations with a broker."""

    version: str | None
    """What the broker calls itself, if it does."""
    results: list[Result]

    def tallies(self) -> list[Tally]:
        """Return what became of each rule, by version and number."""
        found: dict[tuple[int, str, str], Tally] = {}
        for one, failures in self.results:
            key = one.talk.version, one.number, one.text
            tally = found.setdefault(key, Tally(*key))
            tally.of += 1
            tally.kept += all(failure.number != one.number for failure in failures)
            for number, text in failures:
                if number != one.number:
                    key = one.talk.version, number, text_of(number, one.talk.version) or text
                found.setdefault(key, Tally(*key)).failures.append(f"{one.name}: {text}")
        return sorted(found.values(), key=lambda tally: tally.order)


def judge(address: Address, *, rules: str = "*", record: str | None = None) -> Judged:
    """Have conversations with a broker, of each version that it accepts.

    `rules` is a pattern with the wildcards of a shell: only conversations on rules whose numbers
    match it take place. `record` is the folder in which what passes is written as a capture. A
    `SourceError` is raised if the broker accepts no client, a `UsageError` if no rule matches.
    """
    lines: list[str] = []
    greetings = [_greeting(version) for version in (4, 5)]
    greeted = run([talk.script for talk in greetings], {None: address}, lines.append, speed=None)
    versions = [
        talk.version
        for talk, played in zip(greetings, greeted, strict=True)
        if not [*_failures("", talk, played)]
    ]
    if not versions:
        raise SourceError(f"{address}: accepts no client: {lines[0] if lines else 'no answer'}")
    made = [one for one in conversations(versions) if fnmatchcase(one.number, rules)]
    if not made:
        raise UsageError(f"no conversation is on a rule with the number {rules}")
    with TemporaryDirectory(prefix="wireyard-") as temporary:
        folder = record or temporary
        scripts = [each.talk.script for each in made]
        played = run(scripts, {None: address}, lines.append, speed=None, record=folder,
                     patience_s=_PATIENCE_S)  # fmt: skip
        results = {
            each.talk.name: Result(each, [*_failures(each.number, each.talk, one)])
            for each, one in zip(made, played, strict=True)
        }
        _add_found(results, folder)
    return Judged(_version_of(greeted[0]), [*results.values()])


def _greeting(version: int) -> Talk:
    """Connect, and ask the broker for its version."""
    talk = Talk(version, "wy0")
    talk.connect(f"v{version}")
    talk.send(f"v{version}", Subscribe, packet_id=1, filters=[(_VERSION, 0)])
    talk.pause(_SECONDS_FOR_VERSION)
    return talk


def _failures(number: str, talk: Talk, played: Played) -> Iterator[Failure]:
    """Yield what did not come, came otherwise, or must not have come."""
    for key, about, fields in talk.wanted:
        packet = played.came.get(key)
        if packet is None:
            yield Failure(number, f"no {about}")
            return  # what follows may need it
        for name, value in fields.items():
            if not _is_equal(found := getattr(packet, name), value):
                yield Failure(number, f"{about} with {name} {_shown(found)}, not {_shown(value)}")
    for recorded in talk.ends:
        if recorded not in played.ended and not _is_refused(talk, recorded.number, played):
            yield Failure(number, "the connection is not ended")
    for key, about in talk.unwanted:
        if key in played.came:
            yield Failure(number, about)
    came = [key for key in played.came if key in talk.ordered]
    if came != talk.ordered:
        yield Failure(number, "messages in another order")


def _is_equal(found: Any, value: object) -> bool:
    """Compare a field; of properties only those with the names of the wanted ones."""
    if not isinstance(value, list):
        return bool(found == value)
    names = {name for name, _ in value}
    return [(one.name, one.value) for one in found if one.name in names] == value


def _is_refused(talk: Talk, number: int, played: Played) -> bool:
    """Return whether the broker answered with an error, which 5.0 has for each request."""
    answers = [packet for key, packet in played.came.items() if key[0] == number]
    codes = [
        code
        for packet in answers
        if not isinstance(packet, ConnAck)
        for code in (getattr(packet, "return_code", None), *getattr(packet, "return_codes", ()))
    ]
    return talk.version == 5 and any(code is not None and code >= _ERROR for code in codes)


def _add_found(results: dict[str, Result], folder: str) -> None:
    """Add what the facts of the record say against the broker."""
    with open_tables([folder]) as tables:
        for row in tables.rows(_FOUND):
            if (result := results.get(row["talk"])) is not None:
                version, number = result.conversation.talk.version, result.conversation.number
                text = VERDICTS[row["text"]].meaning if row["rule"] is None else row["text"]
                if row["rule"] is not None:
                    number = place_of(row["rule"], version)
                if all(number != failure.number for failure in result.failures):
                    result.failures.append(Failure(number, text))


def _version_of(played: Played) -> str | None:
    for packet in played.came.values():
        if isinstance(packet, Publish) and packet.topic == _VERSION:
            return packet.payload.decode(errors="replace")
    return None


def _shown(value: object) -> str:
    return (
        "/".join(f"{one[0]}={one[1]}" for one in value) if isinstance(value, list) else str(value)
    )
