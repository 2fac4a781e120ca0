"""A runner of chains like Spark's tasks: keys in any order, records pickled between stages."""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from wireyard.formats.base import Row
from wireyard.layers.stages import Chain, Dropped, Fact, Key, KeyedRecord

Rows = dict[str, list[Row]]


def run_partitioned(chain: Chain, packets: Iterable[tuple[Key, Row]], seed: int) -> Rows:
    """Return the facts of a chain; the keys of every stage are shuffled."""
    dice = random.Random(seed)
    first, *rest = chain
    records: dict[str, dict[Key, list[tuple[Any, bytes]]]] = defaultdict(lambda: defaultdict(list))
    for place, (key, row) in enumerate(packets):
        records[first][key].append(((place,), pickle.dumps(row)))
    tables: Rows = defaultdict(list)
    for name in (first, *rest):
        keys = list(records[name])
        dice.shuffle(keys)
        for key in keys:
            packed = records[name][key]
            dice.shuffle(packed)
            for found in chain[name](_unpacked(packed)):
                match found:
                    case Fact(table, row):
                        tables[table].append(row)
                    case KeyedRecord(step, other, order, record):
                        assert list(chain).index(step) > list(chain).index(name)
                        records[step][other].append((order, pickle.dumps(record)))
                    case Dropped():
                        raise AssertionError(found)
    return tables


def _unpacked(packed: list[tuple[Any, bytes]]) -> Iterator[Any]:
    # By the order alone: records that have the same are in any.
    for _, data in sorted(packed, key=lambda one: one[0]):
        yield pickle.loads(data)
