"""A layer as a chain of steps: what becomes of packets, cut so that it can be dealt out.

Rules of this file:

1. A step is a function of the records of one key, in their order, and of nothing else. It yields
   facts, which are rows of tables, and notes, which are records for a step behind it.
2. The first step of a chain takes packets. Whoever runs the chain deals them by its key, and every
   later step by the keys of the notes; what runs where, and in which order keys come, says nothing.
3. A step yields what it found as soon as that is final, and holds no more than the state of its
   key, within caps. What a cap made it forget it yields too, counted.
4. An order is compared within a key only. Two records of a key that have the same order must be
   such that their order does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from wireyard.formats.base import Row

__all__ = [
    "Chain",
    "Derived",
    "Dropped",
    "Fact",
    "Found",
    "Key",
    "Note",
    "Order",
    "Step",
    "fact_of",
    "note_of",
    "run_chain",
]

Rows = TypeVar("Rows")

Key = tuple[str | int | bytes | None, ...]
"""A partition key: the records of one key come to one call."""
Order = tuple[int | str, ...]
"""Where a record stands among those of its key; the same kinds in all of them."""


class Fact(NamedTuple):
    """A row of a table; columns that it has nothing for may be left out."""

    table: str
    row: Row


class Note(NamedTuple):
    """What a step leaves for a later one."""

    step: str
    key: Key
    order: Order
    record: Any
    """Small, and nothing that changes afterwards: it may be pickled at once or much later."""


fact_of, note_of = partial(tuple.__new__, Fact), partial(tuple.__new__, Note)
"""`Fact` and `Note` of their values, in a third less time, where there are many."""


class Dropped(NamedTuple):
    """How many things a cap made a step forget."""

    cap: str
    things: int


Found = Fact | Note | Dropped
Step = Callable[[Iterator[Any]], Iterator[Found]]
"""The records of one key, in their order -> what follows from them."""
Chain = Mapping[str, Step]
"""Steps by their names, in the order in which they run; a step leaves notes for those behind it.

The first takes rows: first what is known of the streams of its key, which are rows without an
`offset`, then their packets.
"""


class Derived(NamedTuple, Generic[Rows]):
    """The tables that follow from packets."""

    tables: dict[str, Rows]
    """By name."""
    dropped: Counter[str]
    """How much is not in them, by the cap that it was above."""


def run_chain(chain: Chain, packets: Iterable[tuple[Key, Row]]) -> Derived[list[Row]]:
    """Run a chain in memory.

    Parameters
    ----------
    packets
        What the first step takes, with its key; those of a key in their order.
    """
    waiting: dict[str, dict[Key, list[Note]]] = {name: {} for name in chain}
    dealt: dict[Key, list[Row]] = {}
    for key, row in packets:
        dealt.setdefault(key, []).append(row)
    tables: dict[str, list[Row]] = {}
    dropped: Counter[str] = Counter()
    for place, (name, step) in enumerate(chain.items()):
        notes = waiting.pop(name)
        for records in dealt.values() if place == 0 else map(_records, notes.values()):
            for found in step(iter(records)):
                if isinstance(found, Note):
                    waiting[found.step].setdefault(found.key, []).append(found)
                elif isinstance(found, Fact):
                    tables.setdefault(found.table, []).append(found.row)
                else:
                    dropped[found.cap] += found.things
    return Derived(tables, dropped)


def _records(notes: list[Note]) -> list[Any]:
    return [note.record for note in sorted(notes, key=attrgetter("order"))]
