"""The tables of states, cell by cell: what they promise, and that the observer keeps to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.layers.jmq.make import Talk
from tests.reference.jmq_chain.consumers import Consumer, Consumers
from tests.reference.jmq_chain.flow import Flow
from tests.reference.jmq_chain.records import Output, Report, Use
from tests.reference.jmq_chain.session import Session
from tests.reference.jmq_chain.transaction import Transaction
from wireyard.formats.base import Row
from wireyard.layers.jmq.facts import VERDICTS
from wireyard.layers.jmq.packet_row import as_packet
from wireyard.layers.jmq.records import Delivery
from wireyard.layers.jmq.rules import RULES
from wireyard.layers.jmq.states import (
    DELIVERY,
    DELIVERY_EVENTS,
    ENDED_BY,
    FLOW,
    FLOW_EVENTS,
    OUTCOMES,
    SESSION,
    SESSION_EVENTS,
    SETTLED,
    TRANSACTION,
    TRANSACTION_EVENTS,
    TRANSACTION_OUTCOMES,
)
from wireyard.layers.records import Position
from wireyard.layers.states import Cell, StateTable

Table = StateTable[str, str, str]

TABLES = {
    "session": (SESSION, SESSION_EVENTS, {"new"}),
    "delivery": (DELIVERY, DELIVERY_EVENTS, {"held", "browsed", "no_ack_wanted"}),
    "transaction": (TRANSACTION, TRANSACTION_EVENTS, {"unseen"}),
    "flow": (FLOW, FLOW_EVENTS, {"flowing"}),
}


def cells(table: Table, events: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(state, event) for state in table.states for event in events]


def paths(table: Table, first: str) -> dict[str, list[str]]:
    """Return the shortest way to each state, in events."""
    found: dict[str, list[str]] = {first: []}
    line = deque([first])
    while line:
        state = line.popleft()
        for event, cell in table.row(state).items():
            if cell.state not in found:
                found[cell.state] = [*found[state], event]
                line.append(cell.state)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_whole(name: str) -> None:
    """Every state can be reached, every event happens somewhere, and both have their words."""
    table, events, firsts = TABLES[name]
    assert {event for _, event in table} == set(events)
    assert {state for first in firsts for state in paths(table, first)} == set(table.states)


def test_every_state_has_its_word() -> None:
    assert set(VERDICTS) == set(OUTCOMES) == set(DELIVERY.states)
    assert set(OUTCOMES.values()) == {
        "acknowledged", "unacknowledged", "rolled_back", "committed", "expired", "dead",
        "no_ack_wanted", None,
    }  # fmt: skip
    assert set(TRANSACTION_OUTCOMES) == set(TRANSACTION.states)
    assert set(TRANSACTION_OUTCOMES.values()) == {"committed", "rolled_back", "prepared", "open"}
    assert set(ENDED_BY) == {"client", "server", "dropped", "refused", "open"}


def test_what_is_not_allowed_breaks_a_rule() -> None:
    for table, events in ((SESSION, SESSION_EVENTS), (FLOW, FLOW_EVENTS)):
        illegal = {state for state, event in cells(table, events) if (state, event) not in table}
        assert illegal == set(table.state_rules)
        assert set(table.state_rules.values()) < set(RULES)
    assert set(TRANSACTION.event_rules.values()) == {"transaction_over"} < set(RULES)


def test_a_logged_in_client_may_do_everything_and_one_that_is_not_next_to_nothing() -> None:
    allowed = {state for state in SESSION.states if (state, "client_packet") in SESSION}
    assert allowed == {"new", "open"}


def test_what_has_an_end_stays_there() -> None:
    ends = {state for state in DELIVERY.states if not DELIVERY.row(state)}
    assert ends == SETTLED - {"in_transaction"}
    for state in ("committed", "rolled_back"):
        assert set(TRANSACTION.row(state).values()) == {Cell(state)}


# --- sessions -------------------------------------------------------------------------------

SESSION_PACKETS: dict[str, Callable[[Talk], Row]] = {
    "hello": lambda talk: talk.tell("HELLO"),
    "hello_accepted": lambda talk: talk.reply("HELLO_REPLY"),
    "hello_refused": lambda talk: talk.reply("HELLO_REPLY", 505),
    "challenge": lambda talk: talk.packet("AUTHENTICATE_REQUEST", False),
    "login": lambda talk: talk.tell("AUTHENTICATE"),
    "login_accepted": lambda talk: talk.reply("AUTHENTICATE_REPLY"),
    "login_refused": lambda talk: talk.reply("AUTHENTICATE_REPLY", 413),
    "client_goodbye": lambda talk: talk.tell("GOODBYE"),
    "server_goodbye": lambda talk: talk.packet("GOODBYE", False),
    "goodbye_reply": lambda talk: talk.reply("GOODBYE_REPLY"),
    "client_packet": lambda talk: talk.tell("START"),
    "server_packet": lambda talk: talk.packet("INFO", False),
}


@pytest.mark.parametrize(("state", "event"), cells(SESSION, SESSION_EVENTS))
def test_sessions_walk_their_table(state: str, event: str) -> None:
    facts = Output()
    session = Session(Report("c", "s", facts))
    talk = Talk()
    for step in (*paths(SESSION, "new")[state], event):
        row = as_packet(SESSION_PACKETS[step](talk))
        before = session.login.state if session.login else "new"
        session.observe(row, Position.of(row), row["src_port"] == talk.client[1])
    assert before == state and session.login is not None
    assert session.login.state == SESSION.lookup(state, event).state
    rules = [violation.rule for violation in facts.violations]
    assert rules == ([] if (state, event) in SESSION else [SESSION.state_rules[state]])


@pytest.mark.parametrize("state", SESSION.states)
@pytest.mark.parametrize("from_client", [True, False])
def test_pings_are_allowed_always(state: str, from_client: bool) -> None:
    facts = Output()
    session = Session(Report("c", "s", facts))
    talk = Talk()
    for step in paths(SESSION, "new")[state]:
        row = as_packet(SESSION_PACKETS[step](talk))
        session.observe(row, Position.of(row), row["src_port"] == talk.client[1])
    for name in ("PING", "PING_REPLY"):
        row = as_packet(talk.packet(name, from_client))
        session.observe(row, Position.of(row), from_client)
    assert session.login and session.login.state == state and not facts.violations


# --- deliveries -----------------------------------------------------------------------------

AT = Position(2, 1, "b", 0, 2, 1, "a")


def delivery(state: str = "held") -> Delivery:
    return Delivery("m", "p", "q", "c", "s", 1, None, None, False, 1, AT, state)


AT_THE_END = {"committed", "rolled_back"}
"""Events that come from the end of a transaction, and the states behind them."""


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (state, event)
        for state, event in cells(DELIVERY, DELIVERY_EVENTS)
        if not AT_THE_END & {state, event} and state in paths(DELIVERY, "held")
    ],
)
def test_deliveries_walk_their_table(state: str, event: str) -> None:
    facts = Output()
    consumers = Consumers(facts)
    consumers.add(1, Consumer(session_id=5))
    one = delivery()
    assert consumers.deliver(1, (7,), one)
    for step in paths(DELIVERY, "held")[state]:
        happen(consumers, step)
    assert one.state == state
    happen(consumers, event)
    settled = state in SETTLED
    assert one.state == (state if settled else DELIVERY.lookup(state, event).state)
    is_over = one.state in SETTLED or event == "close"
    assert facts.deliveries == ([one] if is_over else [])
    assert consumers.held == (not is_over)


def happen(consumers: Consumers, event: str) -> None:
    if event == "close":
        consumers.close_session(5)
    elif event == "close_unheld":
        consumers.delete(1, None)
    else:
        consumers.apply(1, (7,), event)


@pytest.mark.parametrize("outcome", sorted(AT_THE_END))
def test_transactions_decide_about_what_was_acknowledged_in_them(outcome: str) -> None:
    """The last cells are taken by the join; `test_connection` sees it."""
    assert {state for state, event in DELIVERY if event == outcome} == {"in_transaction"}
    assert DELIVERY["in_transaction", outcome] == Cell(outcome)


# --- transactions ---------------------------------------------------------------------------


def use(event: str) -> Use:
    return Use("s", 1, event, 3, "c", None, AT)


@pytest.mark.parametrize(("state", "event"), cells(TRANSACTION, TRANSACTION_EVENTS))
def test_transactions_walk_their_table(state: str, event: str) -> None:
    transaction = Transaction(use("start"))
    for step in paths(TRANSACTION, "unseen")[state]:
        assert transaction.apply(use(step))
    assert transaction.state == state
    counts = transaction.sent, transaction.acknowledged
    allowed = transaction.apply(use(event))
    assert allowed == ((state, event) in TRANSACTION)
    assert transaction.state == TRANSACTION.lookup(state, event).state
    change = {
        "send": (3, 0),
        "deny_send": (-3, 0),
        "acknowledge": (0, 3),
        "deny_acknowledge": (0, -3),
    }
    by = change.get(event, (0, 0)) if allowed else (0, 0)
    assert (transaction.sent, transaction.acknowledged) == (counts[0] + by[0], counts[1] + by[1])


# --- flow -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), cells(FLOW, FLOW_EVENTS))
@pytest.mark.parametrize("who", [None, 4])
def test_flow_walks_its_table(state: str, event: str, who: int | None) -> None:
    facts = Output()
    flow = Flow(Report("c", "s", facts))
    talk = Talk()
    for step in (*paths(FLOW, "flowing")[state], event):
        assert not facts.violations
        take(flow, talk, step, who)
    following = FLOW.lookup(state, event).state
    rules = [violation.rule for violation in facts.violations]
    assert rules == ([] if (state, event) in FLOW else [FLOW.state_rules[state]])
    assert flow.state(who) == following
    assert flow.state(5) == "flowing"


def take(flow: Flow, talk: Talk, event: str, who: int | None) -> None:
    flag: dict[str, Any] = {"flags": "F" if who is None else "C"} if event == "send_last" else {}
    row = as_packet(talk.send(**flag))
    if event.startswith("send"):
        flow.send(who, row, Position.of(row))
    else:
        flow.resume(who, row, Position.of(row), stop=event == "stop")
