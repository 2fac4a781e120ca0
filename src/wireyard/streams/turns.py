"""Work that several threads share, and whose results come in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, Generic, TypeVar

__all__ = ["in_turns"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_END: Final[Any] = object()
"""What becomes of a turn that finds nothing left to do."""
_NOBODYS: Final = -1
"""The number of no item."""


def in_turns(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield what `work` makes of each item, in order; several threads do it at the same time.

    The caller's thread is one of them: it takes a turn itself rather than wait for that of another.
    One thread at a time asks for an item. No more than one item a thread, and one, is ahead of what
    the caller has asked for.
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
                    found, made = turns.done.get()
                    ready[found] = made
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
                helper.result()  # it may still be reading


class _Turns(Generic[Item, Result]):
    """Items for threads to take: whoever takes one works on it, and has it in its own cache.

    Parameters
    ----------
    work, items
        What is done, and with what.
    most
        How many items are taken at most from the one that is wanted on.
    """

    def __init__(self, work: Callable[[Item], Result], items: Iterator[Item], most: int) -> None:
        self.done: SimpleQueue[tuple[int, Result | BaseException]] = SimpleQueue()
        """Numbers of items that were taken, and what became of them; of the end too."""
        self.wanted = 0
        """The number of the item that the caller waits for."""
        self._work = work
        self._items = items
        self._most = most
        self._taken = 0
        self._taking = Lock()

    def take_all(self) -> None:
        """Take items until there are no more, or enough ahead of what is wanted."""
        while self.take():
            pass

    def take(self) -> bool:
        """Take the next item if that is not too far ahead; return whether work on it went well."""
        number = _NOBODYS
        try:
            with self._taking:
                if self._taken >= self.wanted + self._most:
                    return False
                number = self._taken
                self._taken += 1
                item = next(self._items, _END)
            outcome = item if item is _END else self._work(item)
        except BaseException as error:
            self.done.put((number, error))  # or the caller would wait for it for ever
            if isinstance(error, Exception):
                return False
            raise
        self.done.put((number, outcome))
        return outcome is not _END

    def end(self) -> None:
        """See to it that no more items are taken, and let go of them."""
        with self._taking:
            self._items = iter(())


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return threads that help; kept, for the memory they have touched is worth as much."""
    return ThreadPoolExecutor(threads)


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not come along
