"""The inputs that a run has to read, its report, and the receiver of its progress.

A module of its own, because the imports of the job take longer than a run that has nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wireyard.errors import WireError
from wireyard.lake import read_lake
from wireyard.lake.records import Commit
from wireyard.lake.writer import Input, Lake
from wireyard.pipeline.inputs.finding import (
    FoundInput,
    distinct,
    identity_of,
    is_replaced,
    is_unchanged,
)


class Watch(Protocol):
    """The receiver of a run's progress."""

    def stage(self, name: str) -> None:
        """Receive the name of the next stage."""

    def at(self, done_bytes: int, total_bytes: int) -> None:
        """Receive the number of bytes that are in rows, and of all bytes to read."""


@dataclass(slots=True)
class Report:
    """The result of a run."""

    added: list[Input] = field(default_factory=list)
    """The inputs that were read, with their ledgers."""
    replaced: int = 0
    """How many of them replace an older state in the lake."""
    grown: int = 0
    """How many of them were continued from a state in the lake."""
    held_bytes: int = 0
    """How many of their bytes were in the lake before."""
    unchanged: int = 0
    repaired: int = 0
    """Number of pieces that were decoded twice, because a wrong guess took bytes within a packet
    for one, or because another part of a capture shows the format of a stream."""
    notes: list[str] = field(default_factory=list)
    """Notes on inputs for the user: damage, streams of unknown format."""
    lost: bool = False
    """Whether bytes of inputs are in no row: files are damaged, packets were cut off when they were
    captured, or nothing could be read."""


def new_inputs(lake: Lake, found: Sequence[FoundInput]) -> tuple[list[FoundInput], list[str]]:
    """Return the inputs that are new to a lake or have changed, and notes on duplicates.

    A file that the lake holds under another name, or that has two names, is read once. If that
    name has other bytes by now, the rows under it will go, so they do not count.
    """
    new = [each for each in found if not _is_held(lake, each)]
    changed = {each.path for each in new}
    identities = {identity_of(each.stamp) for each in new} - {None}
    known = {
        identity: each.source
        for each in lake.inputs.values()
        if each.source not in changed
        and (identity := identity_of(each.stamp)) in identities
        and not is_replaced(each.source, each.stamp)
    }
    return distinct(new, known, lake.inputs.keys())


def held_commit(url: str) -> Commit | None:
    """Return the newest commit of a lake; None if it cannot be read, or is not there."""
    try:
        return read_lake(url, check=False).record
    except WireError:
        return None  # opening it for writing reports the error


def _is_held(lake: Lake, found: FoundInput) -> bool:
    held = lake.inputs.get(found.path)
    return (
        held is not None and is_unchanged(found.stamp, held.stamp) and held.format == found.format
    )
