"""Threads that share work: order, bounds, errors, and who has the floor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.make import packet
from tests.readings import JMQ
from wireyard import floor_kernels
from wireyard.accelerate import COMPILED
from wireyard.floor import Floor, aside, floor
from wireyard.formats.jmq.columns import ColumnDecoder, scan_frames
from wireyard.streams.turns import in_turns

THREADS = [1, 2, 3, 8]


@pytest.mark.parametrize("threads", THREADS)
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    rng = Random(5)
    pauses = [rng.choice([0, 0, 0.001, 0.004]) for _ in range(100)]

    def work(number: int) -> int:
        aside(time.sleep, pauses[number])
        return number * number

    assert list(in_turns(work, range(100), threads)) == [number**2 for number in range(100)]


def test_the_caller_is_one_of_the_threads() -> None:
    def work(_number: int) -> int:
        aside(time.sleep, 0.002)
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
            aside(time.sleep, 0.0005)
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
        aside(time.sleep, 0.001)
        if number == 5:
            raise SystemExit(3)
        return number

    with pytest.raises(SystemExit):
        list(in_turns(work, items(), threads))


@pytest.mark.parametrize("threads", THREADS)
def test_work_that_lets_an_iterator_run_out_is_not_the_end(threads: int) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(in_turns(lambda _: next(iter([])), range(3), threads))


def test_whoever_is_interrupted_on_the_way_back_does_not_have_the_floor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobodys = floor()

    def interrupt(_word: Any, _thread: int) -> int:
        raise KeyboardInterrupt

    shared = Floor()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), shared.held():
        patch.setattr(floor_kernels, "wait_for_floor", interrupt)
        aside(time.sleep, 0)
    assert shared._word[0] == 0 and floor() == nobodys
    with shared.held():
        aside(time.sleep, 0)
        assert shared._word[0] == threading.get_ident()
    assert shared._word[0] == 0


def test_nobody_waits_long_for_the_floor() -> None:
    """It is no lock: who has it may be busy, or gone."""
    shared = Floor()
    shared._word[0] = 1
    start = time.perf_counter()
    with shared.held():
        aside(time.sleep, 0)
        assert shared._word[0] == 1
    assert shared._word[0] == 1  # that of another is not given away
    assert time.perf_counter() - start < 1.0


@pytest.mark.skipif(not COMPILED, reason="only compiled kernels leave the interpreter to others")
def test_a_kernel_leaves_the_floor_and_waits_for_it() -> None:
    word = np.zeros(1, np.int64)
    assert floor_kernels.wait_for_floor(word, 7) and word[0] == 7
    assert not floor_kernels.wait_for_floor(word, 8) and word[0] == 7
    data = np.frombuffer(packet(), np.uint8)
    starts, sizes, contexts = scan_frames(data, 0, len(data), len(data), 1 << 20, 0)
    decoder = ColumnDecoder(JMQ.columns, True, {})
    decode = partial(decoder.decode, data, len(data), starts, sizes, contexts[:-1], starts)
    decode()  # which may have to be compiled
    shared = Floor()
    until = time.monotonic() + 20

    def take_it() -> None:
        while not floor_kernels.wait_for_floor(shared._word, 2) and time.monotonic() < until:
            pass

    with shared.held():
        other = threading.Thread(target=take_it)
        other.start()
        while other.is_alive():
            decode()
        assert shared._word[0] == 2


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
        aside(time.sleep, 0.002)
        working.remove(number)
        return number

    results = in_turns(work, items(), threads)
    assert next(results) == 0
    results.close()
    assert not working
    assert closed


def test_one_thread_has_the_floor_and_leaves_it_for_what_is_done_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patiently = floor_kernels.wait_for_floor

    def wait(word: Any, thread: int) -> int:
        while not patiently(word, thread):
            pass
        return 1

    monkeypatch.setattr(floor_kernels, "wait_for_floor", wait)
    speaking = 0
    away, counting = [0], threading.Lock()

    def stay_away() -> None:
        with counting:
            away.append(away[-1] + 1)
        time.sleep(0.005)
        with counting:
            away.append(away[-1] - 1)

    def work(_number: int) -> None:
        nonlocal speaking
        for _ in range(2):
            before = speaking
            time.sleep(0.00005)  # the interpreter may go to others, the floor does not
            speaking = before + 1
            aside(stay_away)

    assert len(list(in_turns(work, range(100), 2))) == 100
    assert speaking == 200
    assert max(away) == 2
