"""Pieces of streams grouped into tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = ["group_into_tasks"]

_OPEN_BYTES = 1 << 20
"""Opening a file counts as reading this much, so that no task gets thousands of them."""


class Sized(Protocol):
    """What takes some bytes to read."""

    @property
    def size(self) -> int:
        """About how many."""


P = TypeVar("P", bound=Sized)


def group_into_tasks(pieces: Iterable[P], task_bytes: int) -> list[list[P]]:
    """Return the pieces as tasks of about `task_bytes`, in order; a larger one is a task alone."""
    tasks: list[list[P]] = []
    room = 0
    for piece in pieces:
        if not tasks or piece.size > room:
            tasks.append([])
            room = task_bytes
        tasks[-1].append(piece)
        room -= piece.size + _OPEN_BYTES
    return tasks
