"""Pieces of streams grouped into tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = ["group_into_tasks"]

_OPEN_BYTES = 1 << 20
"""Bytes that opening a file counts as, so that no task gets thousands of files."""


class Sized(Protocol):
    """A piece of input with a size."""

    @property
    def size(self) -> int:
        """Approximate number of bytes to read."""


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
