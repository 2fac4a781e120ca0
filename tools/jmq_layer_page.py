"""The page about JMQ conversations, made from their literal tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tools.format_pages import markdown
from tools.layer_pages import state_diagram
from wireyard.layers.jmq.clocks import MAX_DRIFT_PPM, WINDOW_NS
from wireyard.layers.jmq.delivery import DELIVERY, DELIVERY_EVENTS, OUTCOMES, VERDICTS
from wireyard.layers.jmq.flow import FLOW, FLOW_EVENTS
from wireyard.layers.jmq.hops import FOLLOWS, HOPS, UNKNOWN
from wireyard.layers.jmq.records import RULES
from wireyard.layers.jmq.session import ENDED_BY, SESSION, SESSION_EVENTS
from wireyard.layers.jmq.transaction import TRANSACTION, TRANSACTION_EVENTS, TRANSACTION_OUTCOMES
from wireyard.layers.states import StateTable
from wireyard.layers.tables import HOPS as HOP_COLUMNS
from wireyard.layers.tables import TRANSACTIONS

__all__ = ["jmq_page"]

_HEAD = """
# What JMQ packets do

`wireyard.layers.jmq` follows the packets of both directions of each connection, and the GPackets
between brokers, and says who logged in, what was asked and answered, and what became of every
message that was delivered to a consumer. It opens no socket and reads no clock.

A message is what its SysMessageID says: timestamp, address, port and sequence. Requests have flag A
and an id of the requester's choice in the place of the consumer id; the reply has the same id, and
ids of consumers are another name space. What a broker delivers stays held until it is acknowledged
or returned, and what is acknowledged in a transaction is complete when that is committed.

What a packet does not say is not made up. A broker delivers messages before an application asks
for them, so of those that are `left` it is unknown which were read. Where a capture begins in the
middle of a connection, what is unknown is held against nobody.

Diagrams show what is allowed, without what changes nothing. A capture may begin in any state.
"""
_CONNECTION = """
An event that a state has no way out for changes nothing, and breaks a rule: {rules}.
"""
_DELIVERY = """
A delivery that is acknowledged waits for the broker's word, if the client asked for it. What no
consumer holds cannot be acknowledged; that breaks the rule `acknowledged_nothing`.
"""
_TRANSACTION = """
One that was begun elsewhere, or before the capture, is met in the middle. An XA transaction may be
begun on one connection and ended on another. What has no way out breaks the rule
`transaction_over`.
"""
_FLOW = """
A broker marks the last message that a connection (F) or a consumer (C) has room for; a client marks
the last one that its connection (F) or producer (C) may send. One behind it breaks the rule
`sent_while_paused`. Messages may be under way when a broker stops a producer. `sessions`
counts the pauses of both sides, and their time.
"""

_HOPS = """
`hops` has a row for each time that a message was seen, in the order of time: where it was, when,
which hop it follows from, and what that took. The packet format has no room for timestamps (open
issue 2 of the specification, [errata 37](../errata.md)); captures have them, of every packet and
without a change of format. A packet about a message for several consumers is a row for each.
"""
_FOLLOWS = """
A hop follows from the latest one before it, of these kinds and the same consumer; one of the same
kind is the same packet at another capture point, or sent again:
"""
_POINTS = """
Several captures in one lake that were taken at different points, such as both ends of a link, are
joined by the message: `took_ns` is then also what a packet took from one point to the next. Their
clocks differ. How much is bounded by the packets that both points saw, the messages and the
acknowledgements: none takes less than no time, in either direction. `clock_ahead_ns` is the middle
of the bounds, `clock_error_ns` and `took_error_ns` are how wrong it can be.

- The error is half of the shortest round trip between the points, and {slack_ms} ms for drift. The
  estimate is much better than that where the fastest packets of both directions take equally long.
  Where one direction takes longer, the estimate is off by half of the difference; packets do not
  show that, whatever is computed from them. The time that both directions take together is exact.
- Clocks may drift apart by up to {drift} microseconds a second. Bounds are those of {window_s}
  seconds; earlier and later ones count too, wider by the drift in between.
- Which point is nearer to the client follows from the times as well.
- Nothing is shown that is not known. Where packets went one way only, where bounds contradict each
  other (a clock was set, a timestamp is wrong), or where a stream has no times, `took_ns` is null
  and `unknown` has the reason. What two points saw differently often is compared with nothing. No
  hop takes less than no time.
- Times of one capture are never changed: what a hop took by one clock is the difference of its
  timestamps. Where the offset changes from one window to the next, two rows of different points
  that are closer to each other than the error may change places.
"""


def jmq_page() -> Iterator[str]:
    """Yield the lines of docs/layers/jmq.md."""
    yield from (*_HEAD.strip().splitlines(), "")
    broken = "; ".join(f"{state}: `{rule}`" for state, rule in SESSION.state_rules.items())
    yield from _section("A connection", _CONNECTION.format(rules=broken), SESSION, SESSION_EVENTS)
    yield from markdown(("ended by", "what happened"), _named(ENDED_BY))
    yield from _section("A delivery", _DELIVERY, DELIVERY, DELIVERY_EVENTS)
    yield from ("The last state is the `verdict` of a row:", "")
    yield from markdown(
        ("verdict", "outcome", "where the message went"),
        ((f"`{state}`", f"`{OUTCOMES[state]}`", text) for state, text in VERDICTS.items()),
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
    yield from markdown(("unknown", "why it is not known what a hop took"), _named(UNKNOWN))
    yield from ("## Rules", "")
    yield from markdown(("rule", "what was done"), _named(RULES))
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
    yield from markdown(("event", "what it is"), _named(events))


def _named(words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", text) for name, text in words.items())
