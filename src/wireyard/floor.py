"""Who of several threads that share work runs Python.

The interpreter runs one thread at a time, and every call that lets go of it for a microsecond lets
another thread in; the first then sleeps until it is woken, which takes longer than most such calls
and leaves its cache cold. So threads that share work agree on more: one of them has the floor, and
leaves it to the others only while it does what takes long and needs no interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, local
from typing import Final, ParamSpec, TypeVar

__all__ = ["Floor", "aside"]

P = ParamSpec("P")
R = TypeVar("R")

_HELD: Final = local()


class Floor:
    """What one of several threads has at a time."""

    def __init__(self) -> None:
        self._lock = Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the floor and have it, but for what is done `aside`."""
        self._lock.acquire()
        _HELD.lock = self._lock
        try:
            yield
        finally:
            # An interrupt may have kept it from coming back from aside.
            if _HELD.lock is not None:
                _HELD.lock = None
                self._lock.release()


def aside(function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Call what takes long and needs no interpreter; others may have the floor meanwhile."""
    lock = getattr(_HELD, "lock", None)
    if lock is None:
        return function(*args, **named)
    _HELD.lock = None
    lock.release()
    try:
        return function(*args, **named)
    finally:
        lock.acquire()
        _HELD.lock = lock
