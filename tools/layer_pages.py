"""Pages about the layers, made from their literal tables."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from tools.format_pages import markdown
from wireyard.layers.mqtt.connection import CONNECTION, WILL
from wireyard.layers.mqtt.directions import EVIDENCE
from wireyard.layers.mqtt.facts import VERDICTS
from wireyard.layers.mqtt.qos import FACTS, RECEIVER, SENDER, UNASKED
from wireyard.layers.mqtt.rules import FACT_RULES, NUMBERS, VERDICT_RULES
from wireyard.layers.mqtt.violations import RULES
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
# MQTT deliveries and sessions

`wireyard.layers.mqtt` follows the packets of both directions of each connection and derives the
outcome of every message. It opens no socket and reads no clock, so the same state machines serve an
endpoint and a capture.

State belongs to the client id, not to the connection: after a lost connection a PUBREL may come
without its PUBLISH, and a session may outlive a restart of the broker. A capture shows packets on
the wire: an acknowledgement in it was not necessarily read by its receiver, so a flow that was
complete may begin again. DUP has the meaning that the page of 1999 gives it, and no broker forwards
it. RETAIN in a PUBLISH to a broker asks it to keep the message as the last known good value of its
topic. RETAIN in a PUBLISH to a client marks a value that was there before the subscription or, with
Retain As Published of 5.0, repeats the publisher's flag. No packet identifies the message that is
delivered: topic and payload do, in order.

The diagrams show allowed transitions. The table under each has the transitions that break a rule.
Most of these take effect too, because brokers and clients accept much that the standard forbids. A
packet that is in neither changes nothing.
"""
_SECTIONS = (
    (
        "The sender of a message",
        "`publish_1` is a PUBLISH at QoS 1, `dup_1` is one with DUP, and `_error` is a reason code"
        " of 128 or more. `resumed` is a new connection that continues the session, `discarded` is"
        " one that does not.",
        SENDER,
    ),
    ("The receiver of a message", "", RECEIVER),
    (
        "A connection",
        "`client` and `server` are all other packets of that side. After a refusal or a"
        " DISCONNECT, packets that are in flight still arrive.",
        CONNECTION,
    ),
    (
        "A will",
        "`back` is a new connection of its client before the delay is over. A take-over drops the"
        " old connection; the next event depends on whether the session is continued.",
        WILL,
    ),
)
_VERDICTS = """
`deliveries` has a row for every message and subscriber whose subscription matches, and one more for
each further copy. Nothing that a capture leaves open counts against a broker: events
between a packet and its answer may have happened in either order. The verdict
`not_forwarded` needs a later packet on the subscriber's own connection that shows that the message
was passed over (errata M31 and M32). So a verdict does not depend on where a capture ends, except
those of messages that wait: `in_flight`, `queued`, `unaccepted`, `unreleased` and `undecided`.
"""


_SIDES = """
A row names its client and its server. The first evidence of this list that the capture has decides
which stream of a connection is the client's. Evidence from other connections counts only within the
same source. If there is no evidence, as in a raw stream with nothing but PUBLISH, no rows are
derived from the connection, and its messages are in `messages` with `producer` and `first_seen`
null.
"""
_OLDER = """
For a connection without its CONNECT, and for a session that is older than the capture, nothing is
concluded from packets that are missing:

- Without the CONNECT a client has no client id. `opened_ns`, `opened_frame`, `version`, `user` and
  `keep_alive` of its session are null, and so are the counts of messages in flight; `ended_by` is
  null if nothing of the client was captured. A message that such a client did not get is
  `undecided`, because its window and its Maximum Packet Size are not known. A message that it had
  not acknowledged when it left is `undecided` too, because it may be sent again to a client id.
- An answer, an acknowledgement or a topic alias breaks no rule if its request, message or topic may
  have been before the capture or in bytes that were not captured. A resend breaks no rule if a
  connection to its broker is older than the capture: it may belong to a session that was over
  before.
- If a connection to the broker is older than the capture, or a client comes back to an older
  session, not all subscriptions are known. Then a message that no subscription matches is
  `undecided` and not `no_subscriber`, and so is a message that no member of a shared subscription
  got. Deliveries that no subscription explains are assigned to the messages with their topic and
  payload; a delivery that is left over is of a message from before the capture (`origin` is
  `broker`).
- Equal messages may be paired with their deliveries in several ways, if one of either was not
  captured. A delivery is of a message only if it is so in every pairing in order that leaves as few
  of both as possible without a partner. Else the message is `undecided`, without a time and a
  consumer, and the delivery has no message (`origin` is `broker`). Where each message was delivered
  before the next equal one, those before a lost message are open, and those after a lost delivery.
- The first copy of a message that is first seen with DUP may be elsewhere: `sent_ns` and
  `sent_frame` are null, and it is `undecided`, unless a delivery at QoS 2 shows otherwise.
- A message of a client without a client id may be answered, and released, in another connection.
- `subscription` is null if no captured subscription grants the QoS that a message came with, and
  another one may not have been captured.
- `retained` is null in 5.0 if a subscription that was not captured may have Retain As Published.
- The version of packets without a CONNECT is 5.0 if they keep its rules (erratum M33).
- A delivery that was captured up to 5 ms before its message, as by several queues or taps, is of
  that message if it has no other. It has the time of the message, and a note says how many there
  are.
- A slice, as `wireyard slice` writes it, leaves connections out. They count as older than it.

## Packets lost within the capture

A gap may have had any packets that fit into it, and nothing is concluded from their absence:

- A value that comes again is no duplicate, if a subscription of the client may be in a gap.
- A request is not called unanswered after the last captured packet of its connection, if any bytes
  of the capture are missing.
- A connection whose CONNACK was lost counts as open; `status` and `resumed` of its session are
  null, and what waited for the client is `undecided` unless it asked for a clean start.
- A connection whose CONNECT was lost may be any client's. So it may be the next connection of a
  client whose last packet was before it, unless that client has a known connection in between. Then
  the state of that client's session is unknown from its last packet on, as that of a session that
  is older than the capture: what waited for the client, and what it had not acknowledged, is
  `undecided`.
- A gap of 5 bytes or more on any connection of the broker may have had subscriptions and messages.
  From there on the rules are those for a broker with a connection that is older than the capture.
- Acknowledgements, resends and PUBREL break no rule on a connection with a gap.
- A delivery whose acknowledgement may be in a gap is `undecided`, and its `outcome` and
  `redelivered` are null. The counts of messages in flight are null for a session with a gap.
- A message in a gap of a client may have changed a retained value. So a value that was set before
  the gap and ended after it has neither `to_ns` nor `ended_by`, and a new subscription need not get
  it.
- If the last bytes of either side were lost, `ended_by` is null and no will is published: the
  client may have sent DISCONNECT, or the broker may have refused it.
- A message whose answer may be in a gap, on any connection of its session, is `undecided` and not
  `unaccepted`.
- A direction of which nothing was captured, as with a one-way mirror port or a slice, is a gap from
  its beginning to its end. `why`, `slow`, `trace` and the report begin with a line on how many
  connections have one direction only, and `trace` names the packets that an `undecided` message
  lacks. A side that sent nothing, but of which TCP packets were captured, is not such a gap.
"""

_FACT_RULES = """
All that follows from packets follows from these rules, whose numbers never change. Rules C are on
what a capture can show. Sections are those of 5.0, if no version is given; E is an erratum. The
violations are those of the next table.
"""
_LATER = """
A message that the broker accepted and had not forwarded when the capture ended is `undecided`:
nothing shows whether it was forwarded a moment later or never. No rule can decide this. The shorter
a capture, the larger is the share of such messages. 20 recordings were truncated at 20 random
points each. Of 113,586 rows 593 are `undecided`, 0.5 %. Of these messages, 556 were delivered after
the end, within 118 frames, one of them to another member of a shared subscription; 37 are
`undecided` in the whole recording too. If a capture ends early, one such message may be a quarter
of all rows.
"""


def state_diagram(table: StateTable[Any, Any, Any]) -> Iterator[str]:
    """Yield a table's allowed transitions as a Mermaid diagram, one line for each pair of states.

    Transitions that change nothing are left out, unless the states are members of an enumeration:
    such tables have none.
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
    yield from ("An acknowledgement without a transition from the current state breaks a rule:", "")
    yield from markdown(
        ("event", "rule"), ((f"`{key}`", _numbered(value)) for key, value in UNASKED.items())
    )
    yield from ("## Client and server", "", *_SIDES.strip().splitlines(), "")
    yield from markdown(("", "evidence"), enumerate(EVIDENCE, 1))
    yield from ("## State from before the capture", "", *_OLDER.strip().splitlines(), "")
    yield from ("## Messages at the end of a capture", "", *_LATER.strip().splitlines(), "")
    yield from ("## Facts", "")
    yield from markdown(("fact", "meaning"), FACTS.items())
    yield from ("## Verdicts", "", *_VERDICTS.strip().splitlines(), "")
    yield from markdown(
        ("verdict", "outcome of the message", "by the rules"),
        ((f"`{name}`", verdict.meaning, VERDICT_RULES[name]) for name, verdict in VERDICTS.items()),
    )
    yield from ("## Rules of facts", "", *_FACT_RULES.strip().splitlines(), "")
    yield from markdown(
        ("number", "rule", "sections", "violations"),
        (
            (one.number, one.text.replace("|", "\\|"), one.sections, one.breaks.replace(" ", ", "))
            for one in FACT_RULES.values()
        ),
    )
    yield from ("## Rules", "", "Each version has the number of its statement or section.", "")
    cited = (
        (rule.name, rule.text, *(rule.cited.get(version, "") for version in (2, 3, 4, 5)))
        for rule in RULES.values()
    )
    yield from markdown(("rule", "requirement", "1999", "3.1", "3.1.1", "5.0"), cited)
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


def _numbered(rule: str) -> str:
    """Return a violation with the number of the rule of facts that it is against."""
    return f"{rule} ({NUMBERS[rule]})"


def _broken(table: StateTable[str, str, str]) -> Iterator[str]:
    """Yield the transitions that break a rule, one line for each outcome."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for (state, event), cell in table.items():
        if cell.rule is not None:
            target = cell.state if cell.state != state else ""
            found.setdefault((event, target, cell.rule), []).append(state)
    if found:
        yield from markdown(
            ("event", "in the states", "leads to", "breaks the rule"),
            ((f"`{event}`", ", ".join(states), target, _numbered(rule))
             for (event, target, rule), states in found.items()),
        )  # fmt: skip
