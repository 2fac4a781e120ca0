"""The page about JMQ conversations, made from their literal tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tools.format_pages import markdown
from tools.layer_pages import state_diagram
from wireyard.layers.jmq.clocks import MAX_DRIFT_PPM, WINDOW_NS
from wireyard.layers.jmq.fact_rules import FACT_RULES
from wireyard.layers.jmq.facts import VERDICTS
from wireyard.layers.jmq.hops import FOLLOWS, HOPS, UNKNOWN
from wireyard.layers.jmq.rules import BROKEN, RULES
from wireyard.layers.jmq.states import (
    DELIVERY,
    DELIVERY_EVENTS,
    ENDED_BY,
    FLOW,
    FLOW_EVENTS,
    OUTCOMES,
    SESSION,
    SESSION_EVENTS,
    TRANSACTION,
    TRANSACTION_EVENTS,
    TRANSACTION_OUTCOMES,
)
from wireyard.layers.states import StateTable
from wireyard.layers.tables import HOPS as HOP_COLUMNS
from wireyard.layers.tables import TRANSACTIONS

__all__ = ["jmq_page"]

_HEAD = """
# JMQ connections, deliveries and hops

`wireyard.layers.jmq` follows the packets of both directions of each connection, and the GPackets
between brokers. It derives logins, requests with their answers, and the outcome of every message
that was delivered to a consumer. It opens no socket and reads no clock.

A message is identified by its SysMessageID: timestamp, address, port and sequence. Requests have
flag A and, in the place of the consumer id, an id that the requester chose; the reply has the same
id. Ids of consumers are another name space. A message that a broker delivers is held until it is
acknowledged or returned. A message that is acknowledged in a transaction is complete when the
transaction is committed.

Nothing is assumed that no packet shows. A broker delivers messages before an application asks for
them, so it is unknown which of the messages with the verdict `left` were read. If a capture begins
in the middle of a connection, nothing that is unknown counts as a violation.

What is concluded is in the [rules of facts](#rules-of-facts), each with a number: where packets are
missing (J-6, J-8, J-9, J-28, J-36, J-40), of replies and packets that are sent again (J-16, J-33,
J-37, J-39), of numbers (J-27, J-29). In `sessions`, the counts of messages in flight and of
pauses are null where packets are missing.

The diagrams show allowed transitions that change something. A capture may begin in any state.
"""
_CONNECTION = """
An event without a transition from the current state changes nothing and breaks a rule: {rules}.
Rules J-4, J-8, J-11, J-12, J-38.
"""
_DELIVERY = """
An acknowledged delivery waits for the broker's reply, if the client asked for one. Acknowledging a
message that the consumer does not hold breaks the rule `acknowledged_nothing`.
Rules J-5, J-9, J-13, J-19 to J-24, J-28, J-32.
"""
_TRANSACTION = """
A transaction that was begun elsewhere, or before the capture, is first seen in the middle. An XA
transaction may be begun on one connection and ended on another. An event without a transition from
the current state breaks the rule `transaction_over`.
Rules J-14, J-18, J-31.
"""
_FLOW = """
A broker sets a flag in the last message that a connection (F) or a consumer (C) has room for. A
client sets it in the last message that its connection (F) or producer (C) may send. A further
message breaks the rule `sent_while_paused`. When a broker stops a producer, messages may still be
in flight. `sessions` counts the pauses of both sides, and their time.
Rule J-25.
"""

_HOPS = """
`hops` has a row for each sighting of a message, in the order of time: where it was, when, which hop
it follows from, and the time since that hop. The packet format has no field for hop timestamps
(open issue 2 of the specification, [errata 37](../errata.md)). Captures have the time of every
packet, without a change of the format. A packet about a message for several consumers is a row for
each consumer.
Rules J-30, J-34.
"""
_FOLLOWS = """
A hop follows from the latest earlier hop of one of these kinds and the same consumer. If that is of
the same kind, it is the same packet at another capture point, or the packet was sent again:
"""
_POINTS = """
Several captures in one lake that were taken at different points, such as both ends of a link, are
joined by the message. Then `took_ns` may also be the time of a packet from one point to the next.
The clocks of the points differ. Packets that both points saw, messages and acknowledgements, bound
the difference, because no packet of either direction takes less than no time. `clock_ahead_ns` is
the middle of the bounds; `clock_error_ns` and `took_error_ns` are the largest possible errors.

- The error is half of the shortest round trip between the points, and {slack_ms} ms for drift. If
  the fastest packets of both directions take equally long, the estimate is much better than that.
  If one direction takes longer, the estimate is off by half of the difference, and no computation
  from the packets can show this. The time that both directions take together is exact.
- Clocks may drift apart by up to {drift} microseconds a second. Bounds are computed for windows of
  {window_s} seconds. Bounds of earlier and later windows count too, widened by the drift in
  between.
- Which point is nearer to the client follows from the times as well.
- Unknown times are never estimated. `took_ns` is null and `unknown` has the reason if packets
  between the points went in one direction only, if bounds contradict each other (a clock was set, a
  timestamp is wrong), or if a stream has no times. A packet that two points saw a different number
  of times is not compared between them. No hop takes less than no time.
- Times within one capture are never changed: the time of a hop by one clock is the difference of
  its timestamps. If the offset changes from one window to the next, two rows of different points
  that are closer to each other than the error may be in the wrong order.
"""


def jmq_page() -> Iterator[str]:
    """Yield the lines of docs/layers/jmq.md."""
    yield from (*_HEAD.strip().splitlines(), "")
    broken = "; ".join(f"{state}: `{rule}`" for state, rule in SESSION.state_rules.items())
    yield from _section("A connection", _CONNECTION.format(rules=broken), SESSION, SESSION_EVENTS)
    yield from markdown(("ended by", "meaning"), _named(ENDED_BY))
    yield from _section("A delivery", _DELIVERY, DELIVERY, DELIVERY_EVENTS)
    yield from ("The last state is the `verdict` of a row:", "")
    yield from markdown(
        ("verdict", "outcome", "meaning"),
        (
            (f"`{state}`", f"`{OUTCOMES[state] or 'null'}`", VERDICTS[state].meaning)
            for state in DELIVERY.states
        ),
    )
    yield from _section("A transaction", _TRANSACTION, TRANSACTION, TRANSACTION_EVENTS)
    yield from markdown(
        ("last state", "outcome"),
        ((state, f"`{outcome}`") for state, outcome in TRANSACTION_OUTCOMES.items()),
    )
    yield from _section("Flow", _FLOW, FLOW, FLOW_EVENTS)
    assert set(FLOW.state_rules.values()) == {"sent_while_paused"}
    yield from ("## Hops", "", *_HOPS.strip().splitlines(), "")
    yield from markdown(("kind", "packet"), _named(HOPS))
    yield from (*_FOLLOWS.strip().splitlines(), "")
    follows = (
        (f"`{kind}`", ", ".join(f"`{one}`" for one in kinds)) for kind, kinds in FOLLOWS.items()
    )
    yield from markdown(("kind", "follows from"), follows)
    points = _POINTS.format(
        slack_ms=WINDOW_NS * MAX_DRIFT_PPM / 1e12, drift=MAX_DRIFT_PPM, window_s=WINDOW_NS // 10**9
    )
    yield from (*points.strip().splitlines(), "")
    yield from markdown(("unknown", "why the time of the hop is not known"), _named(UNKNOWN))
    yield from ("## Rules", "")
    yield from markdown(
        ("violation", "text", "rule of facts"),
        ((f"`{rule}`", text, BROKEN[rule]) for rule, text in RULES.items()),
    )
    yield from ("## Rules of facts", "")
    facts = ((number, rule.sentence, rule.section) for number, rule in FACT_RULES.items())
    yield from markdown(("number", "rule", "section"), facts)
    for columns, name in ((TRANSACTIONS, "transactions"), (HOP_COLUMNS, "hops")):
        yield from (f"## Columns of `{name}`", "")
        rows = ((f"`{one.name}`", one.kind, one.doc) for one in columns)
        yield from markdown(("column", "type", "meaning"), rows)
    yield "The columns of the other tables are those of [MQTT](mqtt.md#columns-of-deliveries)."


def _section(
    title: str, text: str, table: StateTable[str, str, str], events: Mapping[str, str]
) -> Iterator[str]:
    yield from (f"## {title}", "", *text.strip().splitlines(), "")
    yield from state_diagram(table)
    yield from markdown(("event", "meaning"), _named(events))


def _named(words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", text) for name, text in words.items())
