"""How a kernel leaves the floor to other threads, and waits for it: the other half of `floor`.

A thread that comes back to Python while another runs it asks for the interpreter, is put to sleep,
and is woken by every short call that lets go of it. One that has the floor first finds it free.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import I64, array, kernel, piece
from wireyard.memory import Ints, swap_word

__all__ = ["enter_floor", "leave_floor", "wait_for_floor"]


_PATIENCE: Final = 1 << 17
"""How often the floor is asked for: in about a millisecond, longer than a turn needs it."""


@piece
def leave_floor(word: Ints, thread: int) -> None:
    """Leave the floor to others, if the thread has it."""
    swap_word(word, thread, 0)


@piece
def enter_floor(word: Ints, thread: int) -> bool:
    """Wait for the floor; return whether the thread has it now."""
    tries = 0
    while swap_word(word, 0, thread) != 0 and tries < _PATIENCE:
        tries += 1
    return tries < _PATIENCE


@kernel(I64(array("int64"), I64))
def wait_for_floor(word: Ints, thread: int) -> int:
    """Wait for the floor; return whether the thread has it now."""
    return enter_floor(word, thread)
