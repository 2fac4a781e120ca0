"""The page about JMQ conversations, generated from their state tables."""

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
between brokers. It derives logins, requests with their replies, and the outcome of every message
that was delivered to a consumer. It opens no socket and reads no clock.

A message is identified by its SysMessageID: timestamp, address, port and sequence. Requests have
flag A, and an id chosen by the requester in the field of the consumer id; the reply has the same
id. Ids of consumers are a separate name space. A delivered message is held until it is acknowledged
or returned. If it is acknowledged in a transaction, it is complete when the transaction is
committed.

Nothing is concluded beyond what packets show. A broker delivers messages before an application
reads them, so it is unknown which messages with the verdict `left` were read. If a capture begins
in the middle of a connection, unknown state is no violation.

Diagrams show allowed transitions that change something. A capture may begin in any state.
"""
_CONNECTION = """
An event without a transition from the current state changes nothing, and is a violation: {rules}.
"""
_DELIVERY = """
An acknowledged delivery waits for the broker's reply, if the client requested one. To acknowledge a
message that the consumer does not hold is the violation `acknowledged_nothing`.
"""
_TRANSACTION = """
A transaction may have begun elsewhere, or before the capture. An XA transaction may begin on one
connection and end on another. An event without a transition is the violation `transaction_over`.
"""
_FLOW = """
A broker marks the last message that a connection (F) or a consumer (C) has room for; a client marks
the last one that its connection (F) or producer (C) may send. A message after that is the violation
`sent_while_paused`, except those that were already under way when a broker stopped a producer.
`sessions` counts the pauses of both sides, and their time.
"""

_HOPS = """
`hops` has a row for each packet that shows a message, in the order of time: its sender and
receiver, its time, the hop that it follows from, and the time between them. The packet format has
no room for timestamps (open issue 2 of the specification, [errata 37](../errata.md)); captures have
them for every packet, without a change of the format. A packet about a message for several
consumers has a row for each.
"""
_FOLLOWS = """
A hop follows from the latest earlier hop of these kinds with the same consumer; a hop of the same
kind is the same packet at another capture point, or sent again:
"""
_POINTS = """
Captures in one lake that were taken at different points, such as both ends of a link, are joined by
message: `took_ns` is then also the time from one point to the next. The clocks of the points
differ. The packets that both points saw, messages and acknowledgements, give bounds of the
difference, because no packet takes negative time, in either direction. `clock_ahead_ns` is the
middle of the bounds; `clock_error_ns` and `took_error_ns` are the largest possible errors.

- The error is half of the shortest round trip between the points, and {slack_ms} ms for drift. The
  estimate is much better than that where the fastest packets of both directions take equally long.
  Where one direction takes longer, the estimate is off by half of the difference; packets do not
  show that, whatever is computed from them. The time that both directions take together is exact.
- Clocks may drift apart by up to {drift} microseconds a second. Bounds are those of {window_s}
  seconds; earlier and later ones count too, wider by the drift in between.
- Which point is nearer to the client follows from the times as well.
- If packets went in one direction only, if bounds contradict each other (a clock was set, a
  timestamp is wrong), or if a stream has no times, `took_ns` is null and `unknown` has the reason.
  Packets that two points saw a different number of times are not used. No hop takes negative time.
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
    yield from markdown(("unknown", "why the time of a hop is unknown"), _named(UNKNOWN))
    yield from ("## Rules", "")
    yield from markdown(("rule", "violation"), _named(RULES))
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
