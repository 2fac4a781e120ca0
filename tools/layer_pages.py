"""Pages about the layers, made from their literal tables."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from tools.format_pages import markdown
from wireyard.layers.mqtt.connection import CONNECTION
from wireyard.layers.mqtt.deliveries import VERDICTS
from wireyard.layers.mqtt.directions import EVIDENCE
from wireyard.layers.mqtt.qos import FACTS, RECEIVER, SENDER, UNASKED
from wireyard.layers.mqtt.violations import RULES
from wireyard.layers.mqtt.will import WILL
from wireyard.layers.states import StateTable
from wireyard.layers.tables import (
    CONVERSATIONS,
    DELIVERIES,
    LATENCIES,
    RETAINED,
    SESSIONS,
    VIOLATIONS,
)

__all__ = ["mqtt_page", "state_diagram"]

_MQTT_HEAD = """
# What MQTT packets do

`wireyard.layers.mqtt` follows packets of both directions and says what became of every message. It
opens no socket and reads no clock, so the same machines serve an endpoint and a capture.

State follows the client id, not the connection: after a cut a PUBREL comes without its PUBLISH, and
a session outlives the broker's restart. What a capture shows is the wire: an acknowledgement that
arrived was not always read, so a flow that was complete may begin again. DUP is what the page of
1999 means by it, and no broker passes it on. RETAIN on the way to a broker asks it to keep the
message as the last known good value of its topic; on the way to a client it marks a value that was
there before the subscription, or, with Retain As Published of 5.0, says what the publisher said.
No packet says which message was delivered: topic and payload do, in order.

Diagrams show what is allowed. What breaks a rule is in the table under each, and most of it has an
effect all the same, because brokers and clients take much that the standard forbids. A packet that
is in neither changes nothing.
"""
_SECTIONS = (
    (
        "The side that publishes",
        "`publish_1` is a PUBLISH at QoS 1, `dup_1` one with DUP; an error is a reason code of 128"
        " or more. `resumed` and `discarded` are a new connection on which the session goes on, or"
        " does not.",
        SENDER,
    ),
    ("The side that is published to", "", RECEIVER),
    (
        "A connection",
        "`client` and `server` are all other packets of that side. After a refusal or a"
        " DISCONNECT, what was under way still comes.",
        CONNECTION,
    ),
    (
        "A will",
        "`back` is its client before the delay is over. A take-over drops the connection; what"
        " follows depends on whether the session goes on.",
        WILL,
    ),
)
_VERDICTS = """
`deliveries` has a row for every message and subscriber whose subscription matches, and one more for
each further copy. Nothing is held against a broker that a capture leaves open: what lies between a
packet and its answer may have been either way round. A broker did not forward a message where a
later packet on the subscriber's own connection shows that it was passed over (errata M31 and M32);
so a verdict holds wherever a capture ends, but for those that wait: `in_flight`, `queued`,
`unaccepted` and `undecided`.
"""


_SIDES = """
A row names its client and its server. Which stream of a connection is the client's is decided by
the first evidence of this list that the capture has. Evidence from other connections is that of the
same source. Where there is none, as in a raw stream with nothing but PUBLISH, no row follows from
the connection, and its messages are in `messages` with `producer` and `first_seen` null.
"""
_OLDER = """
Of a connection without its CONNECT, and of a session that is older than the capture, nothing is
concluded from packets that are missing:

- Without the CONNECT a client has no client id. `opened_ns`, `opened_frame`, `version`, `user` and
  `keep_alive` of its session are null, and so are the counts of messages in flight; `ended_by` is,
  where nothing of the client was captured. What such a client missed is `undecided`: its window and
  its Maximum Packet Size are not known. So is a message that it had not acknowledged when it left,
  because it may come again to a client id.
- An answer, an acknowledgement or a topic alias breaks no rule of those whose request, message or
  topic may have been before the capture or in bytes that were not captured. What is sent again
  breaks none where a connection to its broker is older than the capture: it may be of a session
  that was over before.
- Where a connection to the broker is older than the capture, or a session that a client comes back
  to, not all subscriptions are known: a message that none matches is `undecided` and not
  `no_subscriber`, and so is what no member of a shared subscription got. Deliveries that no
  subscription accounts for are of the messages with their topic and payload from the last one back,
  so one that is left over is of before the capture (`origin` is `broker`).
- A message at QoS 1 that is first seen with DUP may have been delivered before: `undecided`.
- `retained` is null in 5.0 where a subscription that was not captured may have Retain As
  Published.
- The version of packets without a CONNECT is 5.0 where they keep its rules (erratum M33).

## What was lost amid the capture

A gap may have been any packets that it has room for, and nothing is concluded from those either:

- A connection whose CONNACK was lost counts as open; `status` and `resumed` of its session are
  null, and what waited for the client is `undecided` unless it asked for a clean start.
- Subscriptions and messages may have been in a gap of 5 bytes or more on any connection of the
  broker. From there on what matches nothing, or is left over, is taken as where a connection is
  older than the capture.
- What answers, is sent again or releases a message breaks no rule on a connection with a gap.
- Where the last bytes of either side were lost, `ended_by` is null and no will follows: the client
  may have said goodbye, or the broker refused it.
"""

_LATER = """
A message that the broker accepted and had not forwarded when the capture ended is `undecided`:
nothing shows whether it came a moment later or never. No rule can decide it, and it is a larger
share of a shorter capture. 20 recordings were cut at 20 random ends each. Of 113,586 rows 593 are
`undecided`, 0.5 %. 556 of these messages were delivered behind the end, within 118 frames, one of
them to another member of a shared subscription, and 37 are `undecided` in the whole recording too.
Where an end is early, one such message may be a quarter of all rows.
"""


def state_diagram(table: StateTable[Any, Any, Any]) -> Iterator[str]:
    """Yield a table's allowed transitions as a Mermaid diagram, those of the same ends in one line.

    Events that leave everything as it is are not in it. Where states are members of an enumeration,
    all cells are: it has none of that kind.
    """
    yield from ("```mermaid", "stateDiagram-v2")
    named = isinstance(table.states[0], StrEnum)
    if named:
        yield from (f'    state "{state.value}" as {state.name}' for state in table.states)
    yield f"    [*] --> {_name(table.states[0])}"
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), cell in table.items():
        if cell.rule is None and (named or cell.state != state or cell.effect):
            arrows.setdefault((_name(state), _name(cell.state)), []).append(str(event))
    for (start, stop), events in arrows.items():
        yield f"    {start} --> {stop}: {('<br>' if named else ', ').join(events)}"
    yield from ("```", "")


def _name(state: str) -> str:
    return state.name if isinstance(state, StrEnum) else state


def mqtt_page() -> Iterator[str]:
    """Yield the lines of docs/layers/mqtt.md."""
    yield from (*_MQTT_HEAD.strip().splitlines(), "")
    for title, text, table in _SECTIONS:
        yield from (f"## {title}", "", *([text, ""] if text else []))
        yield from state_diagram(table)
        yield from _broken(table)
    yield from ("An acknowledgement that no cell has is one that nobody asked for:", "")
    yield from markdown(("event", "rule"), ((f"`{key}`", value) for key, value in UNASKED.items()))
    yield from ("## Client and server", "", *_SIDES.strip().splitlines(), "")
    yield from markdown(("", "evidence"), enumerate(EVIDENCE, 1))
    yield from ("## What began before the capture", "", *_OLDER.strip().splitlines(), "")
    yield from ("## What comes after the capture", "", *_LATER.strip().splitlines(), "")
    yield from ("## Facts", "")
    yield from markdown(("fact", "what happened"), FACTS.items())
    yield from ("## Verdicts", "", *_VERDICTS.strip().splitlines(), "")
    yield from markdown(("verdict", "where the message went"), VERDICTS.items())
    yield from ("## Rules", "", "Cited by version: a number is that of a statement.", "")
    cited = (
        (rule.name, rule.text, *(rule.cited.get(version, "") for version in (2, 3, 4, 5)))
        for rule in RULES.values()
    )
    yield from markdown(("rule", "what it asks for", "1999", "3.1", "3.1.1", "5.0"), cited)
    for columns, name in (
        (DELIVERIES, "deliveries"),
        (SESSIONS, "sessions"),
        (RETAINED, "retained"),
        (VIOLATIONS, "violations"),
        (CONVERSATIONS, "conversations"),
        (LATENCIES, "latencies"),
    ):
        yield from (f"## Columns of `{name}`", "")
        rows = ((f"`{one.name}`", one.kind, one.doc) for one in columns)
        yield from markdown(("column", "type", "meaning"), rows)


def _broken(table: StateTable[str, str, str]) -> Iterator[str]:
    """Yield the transitions that break a rule, those with the same outcome in one line."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for (state, event), cell in table.items():
        if cell.rule is not None:
            target = cell.state if cell.state != state else ""
            found.setdefault((event, target, cell.rule), []).append(state)
    if found:
        yield from markdown(
            ("event", "in the states", "leads to", "breaks the rule"),
            ((f"`{event}`", ", ".join(states), target, rule)
             for (event, target, rule), states in found.items()),
        )  # fmt: skip
