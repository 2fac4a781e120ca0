"""Stateful stages partitioned by key: the interface between layers and their runners.

Rules of this file:

1. A stage is a function of the records of one key, in their order, and of nothing else. It yields
   facts, which are rows of tables, and keyed records for later stages.
2. The input of the first stage of a chain is packets. The runner partitions them by the key of that
   stage, and the input of every later stage by the keys of its records. The result must not depend
   on where a partition runs, nor on the order of the keys.
3. A stage yields a fact or a record as soon as it is final, and holds no more than the state of its
   key, within caps. It also yields how many items a cap dropped (`Dropped`).
4. Orders are compared within a key only. If two records of a key have equal orders, the result must
   not depend on which comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from wireyard.formats.base import Row

Rows = TypeVar("Rows")

Key = tuple[str | int | bytes | None, ...]
"""A partition key: all records of one key are the input of one call."""
Order = tuple[int | str, ...]
"""The sort key of a record among those of its partition key, which all have the same types."""


class Fact(NamedTuple):
    """A row of a table; columns that are null may be left out."""

    table: str
    row: Row


class KeyedRecord(NamedTuple):
    """A record for a later stage."""

    stage: str
    key: Key
    order: Order
    record: Any
    """A small value that never changes afterwards: it may be written at once or much later."""


fact_of, keyed_record = partial(tuple.__new__, Fact), partial(tuple.__new__, KeyedRecord)
"""Faster constructors of `Fact` and `KeyedRecord` from a tuple: they take a third less time."""


class Dropped(NamedTuple):
    """The number of items that a stage dropped because of a cap."""

    cap: str
    things: int


Found = Fact | KeyedRecord | Dropped
Stage = Callable[[Iterator[Any]], Iterator[Found]]
"""The records of one key, in their order -> facts and records.

Its annotation has the type of the records, as which a runner reads them from files.
"""
Chain = Mapping[str, Stage]
"""Stages by name, in the order in which they run; a stage yields records for later ones only.

The input of the first stage is rows: first one for each stream of its key, without an `offset`,
which describes the stream, then the packets.
"""


class Derived(NamedTuple, Generic[Rows]):
    """The tables that follow from packets."""

    tables: dict[str, Rows]
    """The rows by the name of the table."""
    dropped: Counter[str]
    """The number of items that are missing, by the name of the cap that dropped them."""


def run_chain(chain: Chain, packets: Iterable[tuple[Key, Row]]) -> Derived[list[Row]]:
    """Run a chain in memory.

    `packets` is the input of the first stage, each row with its key; the rows of a key are in
    order.
    """
    waiting: dict[str, dict[Key, list[KeyedRecord]]] = {name: {} for name in chain}
    packets_of: dict[Key, list[Row]] = {}
    for key, row in packets:
        packets_of.setdefault(key, []).append(row)
    tables: dict[str, list[Row]] = {}
    dropped: Counter[str] = Counter()
    for index, (name, stage) in enumerate(chain.items()):
        keyed = waiting.pop(name)
        for records in packets_of.values() if index == 0 else map(_in_order, keyed.values()):
            for found in stage(iter(records)):
                if isinstance(found, KeyedRecord):
                    waiting[found.stage].setdefault(found.key, []).append(found)
                elif isinstance(found, Fact):
                    tables.setdefault(found.table, []).append(found.row)
                else:
                    dropped[found.cap] += found.things
    return Derived(tables, dropped)


def _in_order(records: list[KeyedRecord]) -> list[Any]:
    return [keyed.record for keyed in sorted(records, key=attrgetter("order"))]
