"""Threads that share work: order, bounds, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from wireyard.streams.turns import in_turns

THREADS = [1, 2, 3, 8]


@pytest.mark.parametrize("threads", THREADS)
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    rng = Random(5)
    pauses = [rng.choice([0, 0, 0.001, 0.004]) for _ in range(100)]

    def work(number: int) -> int:
        time.sleep(pauses[number])
        return number * number

    assert list(in_turns(work, range(100), threads)) == [number**2 for number in range(100)]


def test_the_caller_is_one_of_the_threads() -> None:
    def work(_number: int) -> int:
        time.sleep(0.002)
        return threading.get_ident()

    assert set(in_turns(work, range(20), 1)) == {threading.get_ident()}
    both = set(in_turns(work, range(20), 2))
    assert threading.get_ident() in both
    assert len(both) == 2


@pytest.mark.parametrize("threads", THREADS)
def test_few_items_are_ahead_of_what_the_caller_asked_for(threads: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(60):
            taken += 1
            yield number

    most = 0
    for number, _ in enumerate(in_turns(lambda number: number, items(), threads)):
        time.sleep(0.001)  # time for others to run ahead
        most = max(most, taken - number)
    assert most <= threads + 1


@pytest.mark.parametrize("threads", THREADS)
def test_one_thread_at_a_time_asks_for_an_item(threads: int) -> None:
    inside = threading.Lock()

    def items() -> Iterator[int]:
        for number in range(50):
            assert inside.acquire(blocking=False)
            time.sleep(0.0005)
            inside.release()
            yield number

    assert list(in_turns(lambda number: number, items(), threads)) == list(range(50))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("fails", ["work", "items"])
def test_a_failure_comes_where_it_belongs(threads: int, fails: str) -> None:
    def items() -> Iterator[int]:
        for number in range(30):
            if fails == "items" and number == 10:
                raise ValueError("at 10")
            yield number

    def work(number: int) -> int:
        if fails == "work" and number in (10, 11, 12):
            raise ValueError(f"at {number}")
        return number

    found = []
    with pytest.raises(ValueError, match=r"at 10$"):
        for number in in_turns(work, items(), threads):
            found.append(number)
    assert found == list(range(10))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("fails", ["work", "items"])
def test_what_is_no_ordinary_failure_comes_too(threads: int, fails: str) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        if fails == "items":
            raise SystemExit(3)
        yield from range(5, 30)

    def work(number: int) -> int:
        time.sleep(0.001)
        if number == 5:
            raise SystemExit(3)
        return number

    with pytest.raises(SystemExit):
        list(in_turns(work, items(), threads))


@pytest.mark.parametrize("threads", THREADS)
def test_work_that_lets_an_iterator_run_out_is_not_the_end(threads: int) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(in_turns(lambda _: next(iter([])), range(3), threads))


@pytest.mark.parametrize("threads", THREADS)
def test_nothing_goes_on_behind_the_end(threads: int) -> None:
    working, closed = set[int](), False

    def items() -> Iterator[int]:
        nonlocal closed
        try:
            yield from range(1000)
        finally:
            closed = True

    def work(number: int) -> int:
        working.add(number)
        time.sleep(0.002)
        working.remove(number)
        return number

    results = in_turns(work, items(), threads)
    assert next(results) == 0
    results.close()
    assert not working
    assert closed
