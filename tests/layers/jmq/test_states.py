"""The tables of states: what they promise."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import pytest

from wireyard.layers.jmq.facts import VERDICTS
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
    assert allowed == {"new", "open", "dismissed"}


def test_what_has_an_end_stays_there() -> None:
    ends = {state for state in DELIVERY.states if not DELIVERY.row(state)}
    assert ends == SETTLED - {"in_transaction"}
    for state in ("committed", "rolled_back"):
        assert set(TRANSACTION.row(state).values()) == {Cell(state)}
