"""Chains of stages: the input of each stage, and its order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.layers.partitioned import run_partitioned
from wireyard.layers.rmp.chain import CHAIN as RMP
from wireyard.layers.stages import Chain, Dropped, Fact, Found, KeyedRecord, run_chain


def split(rows: Iterator[dict[str, Any]]) -> Iterator[Found]:
    """Pass each number to the stage of its remainder, the largest first, and to the last stage."""
    many = 0
    for row in rows:
        many += 1
        yield KeyedRecord("count", (row["number"] % 3,), (-row["number"],), row["number"])
        yield KeyedRecord("end", ("all",), (row["number"], row["source"]), row["number"])
    yield Dropped("MAX_ROWS", many)


def count(numbers: Iterator[int]) -> Iterator[Found]:
    found = list(numbers)
    yield Fact("counts", {"numbers": found})
    yield KeyedRecord("end", ("sums",), (sum(found),), sum(found))


def end(numbers: Iterator[int]) -> Iterator[Found]:
    yield Fact("ends", {"numbers": list(numbers)})


THREE: Chain = {"split": split, "count": count, "end": end}
ROWS = [((name,), {"source": name, "number": number}) for number in range(6) for name in "ab"]
COUNTS = [[3, 3, 0, 0], [4, 4, 1, 1], [5, 5, 2, 2]]
ENDS = [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], [6, 10, 14]]


def test_records_come_by_key_and_in_order() -> None:
    tables, dropped = run_chain(THREE, ROWS)
    assert sorted(row["numbers"] for row in tables["counts"]) == COUNTS
    assert sorted(row["numbers"] for row in tables["ends"]) == ENDS
    assert dropped == {"MAX_ROWS": len(ROWS)}


def test_packets_of_a_key_come_to_one_call() -> None:
    calls: list[list[str]] = []

    def see(rows: Iterator[dict[str, Any]]) -> Iterator[Found]:
        calls.append([f"{row['source']}{row['number']}" for row in rows])
        yield from ()

    run_chain({"see": see}, ROWS)
    assert calls == [[f"{name}{number}" for number in range(6)] for name in "ab"]


@pytest.mark.parametrize("stage", ["split", "count", "other"])
def test_records_are_for_later_stages(stage: str) -> None:
    def record(rows: Iterator[Any]) -> Iterator[Found]:
        yield KeyedRecord(stage, (), (), None)

    with pytest.raises(KeyError):
        run_chain({"split": split, "count": record}, ROWS)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_keys_makes_no_difference(seed: int) -> None:
    chain = {name: stage for name, stage in THREE.items() if name != "split"}
    of_tasks = run_partitioned({"split": _quiet, **chain}, ROWS, seed)
    assert sorted(row["numbers"] for row in of_tasks["counts"]) == COUNTS
    assert sorted(row["numbers"] for row in of_tasks["ends"]) == ENDS


def _quiet(rows: Iterator[dict[str, Any]]) -> Iterator[Found]:
    return (found for found in split(rows) if not isinstance(found, Dropped))


def test_nothing_gives_nothing() -> None:
    assert run_chain(RMP, ()) == ({}, {})
    for stage in RMP.values():
        assert not [found for found in stage(iter(())) if not isinstance(found, Dropped)]
