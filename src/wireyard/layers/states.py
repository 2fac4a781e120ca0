"""State tables, states x events: the one form of the rules of all layers.

A table is data. Scalar machines look cells up in it, kernels index it as an array (`transitions`),
tests check it cell by cell, and the documents draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

State = TypeVar("State")
Event = TypeVar("Event")
Effect = TypeVar("Effect")

_NO_RULES: Final[Mapping[Any, str]] = MappingProxyType({})


class Cell(NamedTuple, Generic[State, Effect]):
    """A transition: the result of an event in a state."""

    state: State
    """The next state."""
    effect: Effect | None = None
    """The result or action of the transition."""
    rule: str | None = None
    """The rule that the event violates; the transition is made all the same."""


class StateTable(dict[tuple[State, Event], Cell[State, Effect]], Generic[State, Event, Effect]):
    """The cells of a state machine by state and event; never changed.

    In `rows`, a bare next state is short for a cell without effect. `events` are the names of all
    events, or a mapping from name to description. `event_rules` and `state_rules` have the rule
    that an event violates where it has no cell, by event or by state; the state stays as it is.
    Where there is neither, the event cannot happen in that state, or has no effect.
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
        """The initial state first, states without cells last."""
        self.events: tuple[Event, ...] = tuple(events)
        self.event_rules, self.state_rules = event_rules, state_rules

    def row(self, state: State) -> dict[Event, Cell[State, Effect]]:
        """Return the cells of a state by event."""
        return {event: self[state, event] for event in self.events if (state, event) in self}

    def lookup(self, state: State, event: Event) -> Cell[State, Effect]:
        """Return the cell of an event; where it has none, one with the rule that this violates."""
        cell = self.get((state, event))
        if cell is None:
            rule = self.event_rules.get(event) or self.state_rules.get(state)
            return Cell(state, None, rule)
        return cell


# --- arrays for kernels ---------------------------------------------------------------------

NEXT, EFFECT, RULE = range(3)
"""The parts of a cell."""
NONE: Final = -1


def transitions(
    table: StateTable[Any, Any, Any], effects: Sequence[Any] = (), rules: Sequence[str] = ()
) -> npt.NDArray[np.int32]:
    """Return a state table as an array of indices.

    The shape is (state, event, 3). The last axis has the next state, the effect and the rule: the
    index in `table.states`, `effects` and `rules`, or `NONE`. Without a cell the next state is
    `NONE` and the rule is the one that the event violates.
    """
    import numpy as np

    cells = np.full((len(table.states), len(table.events), 3), NONE, np.int32)
    for state, row in zip(table.states, cells, strict=True):
        for event, cell in zip(table.events, row, strict=True):
            following, effect, rule = table.lookup(state, event)
            if (state, event) in table:
                cell[NEXT] = table.states.index(following)
            if effect in effects:
                cell[EFFECT] = effects.index(effect)
            if rule in rules:
                cell[RULE] = rules.index(rule)
    return cells
