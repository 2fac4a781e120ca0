"""State tables: what they look up, and what kernels index."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from wireyard.layers.jmq.states import DELIVERY, FLOW, SESSION, TRANSACTION
from wireyard.layers.mqtt import grids
from wireyard.layers.mqtt.connection import CONNECTION, WILL
from wireyard.layers.mqtt.kernels import deliveries, expected
from wireyard.layers.mqtt.qos import RECEIVER, SENDER
from wireyard.layers.states import EFFECT, NEXT, NONE, RULE, Cell, StateTable, transitions

DOOR: StateTable[str, str, str] = StateTable(
    {
        "shut": {"open": Cell("ajar", "creaks"), "lock": "locked"},
        "ajar": {"shut": "shut", "lock": Cell("ajar", None, "bolt_out")},
    },
    ("open", "shut", "lock", "knock"),
    event_rules={"open": "no_key"},
    state_rules={"locked": "is_locked"},
)


def test_a_state_that_nothing_leads_out_of_is_one() -> None:
    assert DOOR.states == ("shut", "ajar", "locked")
    assert DOOR.row("locked") == {}


def test_an_event_without_a_cell_breaks_its_rule_or_that_of_the_state() -> None:
    assert DOOR.lookup("ajar", "shut") == Cell("shut")
    assert DOOR.lookup("ajar", "lock") == Cell("ajar", None, "bolt_out")
    assert DOOR.lookup("locked", "open") == Cell("locked", None, "no_key")
    assert DOOR.lookup("locked", "knock") == Cell("locked", None, "is_locked")
    assert DOOR.lookup("shut", "knock") == Cell("shut")
    with pytest.raises(KeyError):
        DOOR["shut", "knock"]


@pytest.mark.parametrize(
    "table", [DOOR, SENDER, RECEIVER, CONNECTION, WILL, DELIVERY, FLOW, SESSION, TRANSACTION]
)
def test_an_array_has_what_the_table_has(table: StateTable[Any, Any, Any]) -> None:
    effects = sorted({cell.effect for cell in table.values() if cell.effect})
    rules = sorted({rule for pair in all_pairs(table) if (rule := table.lookup(*pair).rule)})
    found = transitions(table, effects, rules)
    for place, state in enumerate(table.states):
        for number, event in enumerate(table.events):
            cell, row = table.lookup(state, event), found[place, number].tolist()
            assert (row[NEXT] != NONE) == ((state, event) in table)
            assert row[NEXT] in (NONE, table.states.index(cell.state))
            assert row[EFFECT] == (effects.index(cell.effect) if cell.effect else NONE)
            assert row[RULE] == (rules.index(cell.rule) if cell.rule else NONE)


def all_pairs(table: StateTable[Any, Any, Any]) -> list[tuple[Any, Any]]:
    return [(state, event) for state in table.states for event in table.events]


def test_the_columns_of_grids_are_numbered_without_gaps() -> None:
    """A kernel writes to a column by its number, and a grid has as many as there are names."""
    bits = {grids.Flag, grids.Status}
    kinds = [
        kind
        for module in (grids, expected, deliveries)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, IntEnum) and len(kind) and kind not in bits
    ]
    assert len(kinds) > 10
    for kind in kinds:
        assert [*kind] == [*range(len(kind))], kind
