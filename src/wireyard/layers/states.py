"""State tables: states x events, the one form in which layers write their rules.

A table is data. Scalar machines look cells up in it, kernels index what `transitions` of
``state_arrays`` makes of it, tests walk it cell by cell, and the documents draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

__all__ = ["Cell", "StateTable"]

State = TypeVar("State")
Event = TypeVar("Event")
Effect = TypeVar("Effect")

_NO_RULES: Final[Mapping[Any, str]] = MappingProxyType({})


class Cell(NamedTuple, Generic[State, Effect]):
    """What an event does in a state."""

    state: State
    """The next state."""
    effect: Effect | None = None
    """What follows, or what is done."""
    rule: str | None = None
    """The rule that is broken; the cell counts all the same."""


class StateTable(dict[tuple[State, Event], Cell[State, Effect]], Generic[State, Event, Effect]):
    """The cells of a state machine by state and event; it does not change.

    Parameters
    ----------
    rows
        By state, the cells of its events; the next state alone stands for a cell with nothing else.
    events
        All events, each with what it is, or their names.
    event_rules, state_rules
        The rule that is broken, by the event or by the state, where there is no cell. The state
        then stays as it is. Where there is neither, such a pair cannot happen, or means nothing.
    """

    def __init__(
        self,
        rows: Mapping[State, Mapping[Event, Cell[State, Effect] | State]],
        events: Iterable[Event],
        *,
        event_rules: Mapping[Event, str] = _NO_RULES,
        state_rules: Mapping[State, str] = _NO_RULES,
    ) -> None:
        cells = {
            (state, event): cell if isinstance(cell, Cell) else Cell(cell)
            for state, row in rows.items()
            for event, cell in row.items()
        }
        super().__init__(cells)
        ends = (cell.state for cell in cells.values())
        self.states: tuple[State, ...] = tuple(dict.fromkeys((*rows, *ends)))
        """The first state first, those that nothing leads out of last."""
        self.events: tuple[Event, ...] = tuple(events)
        self.event_rules, self.state_rules = event_rules, state_rules

    def row(self, state: State) -> dict[Event, Cell[State, Effect]]:
        """Return the cells of a state by event."""
        return {event: self[state, event] for event in self.events if (state, event) in self}

    def lookup(self, state: State, event: Event) -> Cell[State, Effect]:
        """Return the cell of an event; where it has none, one that breaks the rule for that."""
        cell = self.get((state, event))
        if cell is None:
            rule = self.event_rules.get(event) or self.state_rules.get(state)
            return Cell(state, None, rule)
        return cell
