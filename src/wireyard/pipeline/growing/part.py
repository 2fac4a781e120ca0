"""Parts of growing inputs: a part is a task, from the state of its input to the next state.

A task restores the states of some inputs, reads their new bytes, and stages final rows, provisional
rows (as if the inputs ended there), facts of the newest packets, and the states for the next parts.
So any process can read any part, and those of all growing inputs are read as tasks of one stage, as
many as run at once. The parts of a task share its files, and the facts of their newest packets are
derived together: most of the cost of a small part does not depend on its size.

A part replaces the rows of its input in provisional files (`OPEN_PREFIX`), except for facts that it
does not make anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from wireyard.lake.ledgers import (
    LedgerSum,
)
from wireyard.layers.tables import all_tables
from wireyard.pipeline.growing.sessions import ALL_PREFIX
from wireyard.pipeline.replacing import is_provisional

__all__ = [
    "NONE_MADE",
    "FactsMade",
    "NewestTask",
    "Part",
    "StagedPart",
    "provisional_facts",
]


class FactsMade(NamedTuple):
    """How far the facts of all packets of an input are made."""

    position: int
    """Bytes of the input that they follow from."""
    seconds: float
    """How long that took."""
    until_ns: Mapping[str, int]
    """By protocol: the rows of messages sent up to this time stay until they are made again; empty
    for a bare stream."""


NONE_MADE: Final = FactsMade(-1, 0.0, {})


class NewestTask(NamedTuple):
    """How a part makes facts of the newest packets."""

    most: int
    """The most packets of a protocol that are kept."""
    open_sessions: tuple[str, ...]
    """Files with the sessions that are open in the lake."""
    closed_sessions: tuple[str, ...] | None
    """Files with those that are closed; None if the state has them."""
    held: Mapping[str, tuple[str, ...]]
    """The other final files of the input, by table, if its state may lack the newest packets."""


class Part(NamedTuple):
    """The next part of an input: the task that reads it."""

    path: str
    format: str | None
    files: tuple[str, ...]
    states: tuple[str, ...]
    """Files with the state of the input; none to begin anew."""
    stop: int = sys.maxsize
    """Byte of the input up to which it is read."""
    ends: bool = True
    """Whether to write the rest as if the input had ended, if all of it was read."""
    facts: FactsMade = NONE_MADE
    makes_facts: bool = True
    """Whether facts of all packets are made as of this part."""
    facts_come: bool = True
    """Whether these are committed with it, and not made in the background."""
    newest: NewestTask | None = None
    unread_bytes: int = 0
    """About how many bytes it has."""


class StagedPart(NamedTuple):
    """A part that is read and staged, for the commit."""

    source: str
    format: str | None
    is_whole: bool
    """Whether it begins at the beginning, and replaces all that the lake has of the input."""
    stamp: str
    """The stamp of the input, in JSON."""
    ledger: dict[str, LedgerSum]
    """By format, that of the input as far as it was read."""
    files: dict[str, list[str]]
    """The staged files, by table."""
    position: int
    """Bytes of the input that were read."""
    unread_bytes: int
    ended: bool
    """Whether its rows are written as if the input had ended."""
    now_ns: int | None
    """Time of its last packet; None for a bare stream."""
    facts: FactsMade
    has_newest: bool
    """Whether it has facts of the newest packets, which replace those of the part before."""
    producers: tuple[str, ...]
    """The producers of JMS messages among these."""
    notes: tuple[str, ...]

    def replaces(self, table: str, name: str) -> bool:
        """Return whether this part replaces a file of the input in the lake."""
        has_newer = table not in all_tables() or self.has_newest
        return is_provisional(name) and has_newer


def provisional_facts(files: Mapping[str, Iterable[str]]) -> set[str]:
    """Return an input's provisional files with facts of its newest packets.

    There is at least one if its last part has such facts.

    Parameters
    ----------
    files
        All files of the input, by table.
    """
    facts = {
        name for table in all_tables() for name in files.get(table, ()) if is_provisional(name)
    }
    return {name for name in facts if not name.rpartition("/")[2].startswith(ALL_PREFIX)}
