"""Who of several threads that share work runs Python.

The interpreter runs one thread at a time, and every call that lets go of it for a microsecond lets
another thread in; the first then sleeps until it is woken, which takes longer than most such calls
and leaves its cache cold. So threads that share work agree on more: one of them has the floor, and
leaves it to the others only while it does what takes long and needs no interpreter.

1. The floor is good manners, no lock: whoever has waited for about a millisecond goes on without,
   and the interpreter settles it.
2. A kernel leaves the floor when it has let go of the interpreter and waits for it before it comes
   back, without going to sleep (``wireyard.floor_kernels``). Until such kernels are loaded there is
   nothing to leave the floor for, and nobody asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident, local
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

__all__ = ["Floor", "aside", "floor"]

P = ParamSpec("P")
R = TypeVar("R")
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Place = tuple[Ints, int]

_KERNELS: Final = "wireyard.floor_kernels"
_NOBODYS: Final[Place] = np.zeros(1, np.int64), 0
_HELD: Final = local()


class Floor:
    """What one of several threads has at a time."""

    def __init__(self) -> None:
        self._word: Ints = np.zeros(1, np.int64)
        """The number of the thread that has the floor, 0 if none has."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the floor and have it, but for what is done aside."""
        if _KERNELS not in sys.modules:
            yield
            return
        before, place = floor(), (self._word, get_ident())
        try:
            _HELD.floor = place
            _wait_for(place)
            yield
        finally:
            _HELD.floor = before
            _leave(place)


def floor() -> Place:
    """Return what a kernel has to know to leave the floor and to wait for it, if need be."""
    place: Place = getattr(_HELD, "floor", _NOBODYS)
    return place


def aside(function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Call what takes long and needs no interpreter; others may have the floor meanwhile."""
    place = floor()
    if place is _NOBODYS:
        return function(*args, **named)
    _leave(place)
    try:
        return function(*args, **named)
    finally:
        _wait_for(place)


def _wait_for(place: Place) -> None:
    kernels: Any = sys.modules[_KERNELS]
    kernels.wait_for_floor(*place)


def _leave(place: Place) -> None:
    word, thread = place
    if word[0] == thread:
        word[0] = 0
