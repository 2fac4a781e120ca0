"""Stateful stages partitioned by key: the interface between layers and whoever runs them.

Rules of this file:

1. A stage is a function of the records of one key, in their order, and of nothing else. It yields
   facts, which are rows of tables, and keyed records for later stages.
2. The first stage of a chain takes packets. Whoever runs the chain partitions them by its key, and
   the input of every later stage by the keys of its records; where a partition runs, and in which
   order keys come, makes no difference.
3. A stage yields a fact or a record as soon as that is final, and holds no more than the state of
   its key, within caps. How many things a cap dropped it yields too.
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
    "KeyedRecord",
    "Order",
    "Stage",
    "fact_of",
    "keyed_record",
    "run_chain",
]

Rows = TypeVar("Rows")

Key = tuple[str | int | bytes | None, ...]
"""A partition key: the records of one key come to one call."""
Order = tuple[int | str, ...]
"""The place of a record among those of its key; of the same types in all of them."""


class Fact(NamedTuple):
    """A row of a table; columns that it has nothing for may be left out."""

    table: str
    row: Row


class KeyedRecord(NamedTuple):
    """A record for a later stage."""

    stage: str
    key: Key
    order: Order
    record: Any
    """Small, and nothing that changes afterwards: it may be pickled at once or much later."""


fact_of, keyed_record = partial(tuple.__new__, Fact), partial(tuple.__new__, KeyedRecord)
"""`Fact` and `KeyedRecord` of their values, in a third less time, where there are many."""


class Dropped(NamedTuple):
    """How many things a stage dropped because of a cap."""

    cap: str
    things: int


Found = Fact | KeyedRecord | Dropped
Stage = Callable[[Iterator[Any]], Iterator[Found]]
"""The records of one key, in their order -> what follows from them."""
Chain = Mapping[str, Stage]
"""Stages by their names, in the order in which they run; a stage has records for later ones.

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
        The input of the first stage, each with its key; those of a key in their order.
    """
    waiting: dict[str, dict[Key, list[KeyedRecord]]] = {name: {} for name in chain}
    packets_of: dict[Key, list[Row]] = {}
    for key, row in packets:
        packets_of.setdefault(key, []).append(row)
    tables: dict[str, list[Row]] = {}
    dropped: Counter[str] = Counter()
    for place, (name, stage) in enumerate(chain.items()):
        keyed = waiting.pop(name)
        for records in packets_of.values() if place == 0 else map(_records, keyed.values()):
            for found in stage(iter(records)):
                if isinstance(found, KeyedRecord):
                    waiting[found.stage].setdefault(found.key, []).append(found)
                elif isinstance(found, Fact):
                    tables.setdefault(found.table, []).append(found.row)
                else:
                    dropped[found.cap] += found.things
    return Derived(tables, dropped)


def _records(keyed: list[KeyedRecord]) -> list[Any]:
    return [one.record for one in sorted(keyed, key=attrgetter("order"))]
