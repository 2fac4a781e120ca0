"""A parallel map over an iterator, with results in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END: Final[Any] = object()
"""Outcome of a turn after the last item."""
_NO_ITEM: Final = -1
"""Number of an error before an item was taken."""


def in_turns(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield the result of `work` for each item, in order, computed by several threads.

    The caller's thread is one of them: it works on an item itself rather than wait for another. One
    thread at a time takes an item from the iterator. At most ``threads + 1`` items are taken from
    the one that the caller waits for on.
    """
    if threads <= 1:
        for item in items:
            yield work(item)
        return
    pool = _pool(threads - 1)
    turns = _Turns(work, iter(items), threads + 1)
    helpers = [pool.submit(turns.take_all) for _ in range(threads - 1)]
    ready: dict[int, Result | BaseException] = {}
    try:
        for number in count():
            turns.wanted = number
            for place, helper in enumerate(helpers):
                if helper.done():
                    helpers[place] = pool.submit(turns.take_all)
            while number not in ready:
                if not turns.done.empty() or not turns.take():
                    done, result = turns.done.get()
                    ready[done] = result
            outcome = ready.pop(number)
            if outcome is _END:
                return
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        turns.end()
        for helper in helpers:
            if not helper.cancel():
                helper.result()  # wait: it may still be reading


class _Turns(Generic[Item, Result]):
    """A queue of items; the thread that takes one also works on it, while it is in its cache.

    At most `most` items are taken from the wanted one on.
    """

    def __init__(self, work: Callable[[Item], Result], items: Iterator[Item], most: int) -> None:
        self.done: SimpleQueue[tuple[int, Result | BaseException]] = SimpleQueue()
        """Number and outcome of each item that was taken; the outcome after the last is `_END`."""
        self.wanted = 0
        """Number of the item that the caller waits for."""
        self._work = work
        self._items = items
        self._most = most
        self._taken = 0
        self._taking = Lock()

    def take_all(self) -> None:
        """Take items until there are no more, or enough are taken ahead of the wanted one."""
        while self.take():
            pass

    def take(self) -> bool:
        """Work on the next item, unless it is too far ahead; return whether that succeeded."""
        number = _NO_ITEM
        try:
            with self._taking:
                if self._taken >= self.wanted + self._most:
                    return False
                number = self._taken
                self._taken += 1
                item = next(self._items, _END)
            outcome = item if item is _END else self._work(item)
        except BaseException as error:
            self.done.put((number, error))  # else the caller would wait for ever
            if isinstance(error, Exception):
                return False
            raise
        self.done.put((number, outcome))
        return outcome is not _END

    def end(self) -> None:
        """Take no more items, and drop the iterator."""
        with self._taking:
            self._items = iter(())


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads; it is kept because their scratch memory is worth reusing."""
    return ThreadPoolExecutor(threads)


os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork does not copy threads
