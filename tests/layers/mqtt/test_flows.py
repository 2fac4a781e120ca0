"""The tables of QoS 1 and 2, cell by cell, and what they say of whole exchanges."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from wireyard.layers.mqtt.qos import (
    EVENTS,
    FACTS,
    IN_FLIGHT,
    RECEIVER,
    SENDER,
    UNASKED,
)
from wireyard.layers.mqtt.violations import RULES
from wireyard.layers.states import Cell, StateTable

Table = StateTable[str, str, str]
TABLES: list[Table] = [SENDER, RECEIVER]
CELLS = [
    pytest.param(table, state, event, id=f"{name}-{state}-{event}")
    for name, table in zip(("sender", "receiver"), TABLES, strict=True)
    for state in table.states
    for event in EVENTS
]
CONNECTIONS = {"resumed": True, "discarded": False}


class Flows:
    """The flows of one role in one direction of a session, packet by packet."""

    def __init__(self, table: Table, known: bool = True) -> None:
        self._table, self._first = table, "free" if known else "unknown"
        self._states: dict[int, str] = {}

    def state(self, packet_id: int) -> str:
        return self._states.get(packet_id, self._first)

    def step(self, packet_id: int, event: str) -> Cell[str, str]:
        """Apply an event to a flow; return the cell of the transition."""
        cell = self._table.lookup(self.state(packet_id), event)
        self._states[packet_id] = cell.state
        return cell

    def connect(self, kept: bool) -> None:
        """Begin a new connection, which resumes the session or not."""
        event = "resumed" if kept else "discarded"
        self._first = self._first if kept else "free"
        self._states = {one: self._table[at, event].state for one, at in self._states.items()}

    def in_flight(self) -> Iterator[int]:
        """Yield the packet identifiers of the messages in flight."""
        return (one for one, state in self._states.items() if state in IN_FLIGHT)


def take(flows: Flows, event: str) -> Cell[str, str] | None:
    """Apply an event to packet identifier 1."""
    if event in CONNECTIONS:
        flows.connect(CONNECTIONS[event])
        return None
    return flows.step(1, event)


def path_to(table: Table, state: str) -> list[str]:
    """Return the fewest events that lead to a state, from a session's beginning."""
    paths: dict[str, list[str]] = {"free": []}
    waiting = deque(["free"])
    while waiting:
        at = waiting.popleft()
        for event, cell in table.row(at).items():
            if cell.state not in paths:
                paths[cell.state] = [*paths[at], event]
                waiting.append(cell.state)
    return paths[state]


def flows_in(table: Table, state: str) -> Flows:
    if state == "unknown":
        return Flows(table, known=False)
    flows = Flows(table)
    for event in path_to(table, state):
        take(flows, event)
    return flows


@pytest.mark.parametrize(("table", "state", "event"), CELLS)
def test_every_cell(table: Table, state: str, event: str) -> None:
    """Every state can be reached, and every event does there what the table says, or breaks its
    rule and changes nothing."""
    flows = flows_in(table, state)
    assert flows.state(1) == state
    cell = table.get((state, event))
    taken = take(flows, event)
    if cell is None:
        assert taken == Cell(state, None, UNASKED[event])
        assert flows.state(1) == state
    else:
        assert taken in (cell, None)
        assert flows.state(1) == cell.state
    assert list(flows.in_flight()) == ([1] if flows.state(1) in IN_FLIGHT else [])


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_closed(table: Table) -> None:
    for state in table.states:
        assert table.row(state).keys() | UNASKED.keys() == set(EVENTS), state
    for (_, event), cell in table.items():
        assert event in EVENTS and cell.state in table.states
        assert cell.rule is None or cell.rule in RULES
    assert set(UNASKED.values()) <= RULES.keys()
    assert {state for one in TABLES for state in one.states} >= IN_FLIGHT


def test_every_fact_has_a_meaning() -> None:
    effects = {cell.effect for table in TABLES for cell in table.values()}
    assert effects - {None} | {"in_flight"} == FACTS.keys()


def facts_of(table: Table, *events: str) -> list[str | None]:
    flows = Flows(table)
    cells = [take(flows, event) for event in events]
    assert not [cell for cell in cells if cell and cell.rule]
    return [cell.effect for cell in cells if cell]


def rules_of(table: Table, *events: str) -> list[str]:
    flows = Flows(table)
    cells = [take(flows, event) for event in events]
    return [cell.rule for cell in cells if cell and cell.rule]


def test_qos_1_as_it_should_be() -> None:
    assert facts_of(SENDER, "publish_1", "puback") == ["sent", "acknowledged"]
    assert facts_of(RECEIVER, "publish_1", "puback") == ["delivered", "acknowledged"]


def test_qos_2_as_it_should_be() -> None:
    events = ("publish_2", "pubrec", "pubrel", "pubcomp")
    assert facts_of(SENDER, *events) == ["sent", "received", "released", "acknowledged"]
    assert facts_of(RECEIVER, *events) == ["delivered", "received", "released", "acknowledged"]


def test_a_packet_identifier_is_used_again() -> None:
    again = ("publish_1", "puback", "publish_2", "pubrec", "pubrel", "pubcomp")
    over = ["sent", "acknowledged", "sent", "received", "released", "acknowledged"]
    assert facts_of(SENDER, *again) == over
    assert facts_of(SENDER, "publish_2", "pubrec_error", "publish_1") == ["sent", "refused", "sent"]
    assert rules_of(SENDER, "publish_2", "pubrec", "publish_1") == ["id_in_use"]


def test_qos_1_resent_after_a_cut_arrives_twice() -> None:
    assert facts_of(SENDER, "publish_1", "resumed", "dup_1") == ["sent", "repeated"]
    assert facts_of(RECEIVER, "publish_1", "resumed", "dup_1") == ["delivered", "duplicate"]
    assert rules_of(SENDER, "publish_1", "resumed", "publish_1") == ["dup_missing"]
    assert rules_of(SENDER, "publish_1", "dup_1") == ["resend_unasked"]


def test_an_acknowledgement_that_was_not_read() -> None:
    assert facts_of(SENDER, "publish_1", "puback", "resumed", "dup_1", "puback") == [
        "sent", "acknowledged", "lost_ack", "acknowledged",
    ]  # fmt: skip
    # Once more, and nobody can have missed it.
    assert rules_of(SENDER, "publish_1", "puback", "resumed", "resumed", "dup_1") == ["dup_first"]


@pytest.mark.parametrize("cut", range(1, 5))
def test_qos_2_is_handed_over_once_wherever_it_is_cut(cut: int) -> None:
    """After a cut the sender goes on where it was, or from the beginning if it knows no better."""
    exchange = ("publish_2", "pubrec", "pubrel", "pubcomp")
    again = {1: ("dup_2", *exchange[1:]), 2: exchange[2:], 3: exchange[2:], 4: exchange[2:]}[cut]
    for rest in {again, again if cut != 2 else ("dup_2", *exchange[1:])}:
        events = (*exchange[:cut], "resumed", *rest)
        assert facts_of(SENDER, *events)[-1] == "acknowledged"
        assert facts_of(RECEIVER, *events).count("delivered") == 1


def test_qos_2_sent_twice_in_one_connection() -> None:
    events = ("publish_2", "pubrec", "dup_2", "pubrec", "pubrel", "pubcomp")
    assert rules_of(SENDER, *events) == ["resend_unasked"]
    assert facts_of(RECEIVER, *events).count("delivered") == 1


def test_a_session_that_is_over_takes_its_messages_along() -> None:
    assert rules_of(SENDER, "publish_1", "discarded", "dup_1") == ["session_over"]
    assert rules_of(SENDER, "publish_2", "pubrec", "discarded", "pubrel") == ["session_over"]
    assert facts_of(RECEIVER, "publish_2", "pubrec", "discarded", "publish_2")[-1] == "delivered"


def test_acknowledgements_for_nothing() -> None:
    for event, rule in UNASKED.items():
        if event != "pubrel":
            assert rules_of(SENDER, event) == rules_of(RECEIVER, event) == [rule]
    # PUBREL for nothing is answered all the same, so it is the sender's fault alone.
    assert rules_of(SENDER, "pubrel", "pubcomp") == ["pubrel_unasked"]
    assert rules_of(RECEIVER, "pubrel", "pubcomp") == []


def test_acknowledgements_of_the_wrong_kind() -> None:
    for table in TABLES:
        assert rules_of(table, "publish_1", "pubrec") == ["pubrec_unasked"]
        assert rules_of(table, "publish_2", "puback") == ["puback_unasked"]
        assert rules_of(table, "publish_2", "pubcomp") == ["pubcomp_unasked"]
