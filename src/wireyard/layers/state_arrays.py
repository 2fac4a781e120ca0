"""State tables as arrays, for kernels to index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wireyard.layers.states import StateTable

__all__ = ["EFFECT", "NEXT", "NONE", "RULE", "transitions"]

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
