"""What a run has to do, what it did, and who gets the report.

Apart from the job, whose imports take longer than a run that has nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wireyard.errors import WireError
from wireyard.lake import read_lake
from wireyard.lake.commits import Commit
from wireyard.spark.inputs import FoundInput, distinct, identity_of, is_as_it_was
from wireyard.spark.lake import Input, Lake

__all__ = ["Report", "Watch", "held_commit", "new_inputs"]


class Watch(Protocol):
    """The receiver of a run's progress."""

    def stage(self, name: str) -> None:
        """Hear what is done next."""

    def at(self, done_bytes: int, total_bytes: int) -> None:
        """Hear how many of the bytes to be read are in rows."""


@dataclass(slots=True)
class Report:
    """What a run did."""

    added: list[Input] = field(default_factory=list)
    """The inputs that were read, with their ledgers."""
    replaced: int = 0
    """How many of them were in the lake before, as they were then."""
    grown: int = 0
    """How many of them were in the lake before, and were read on."""
    held_bytes: int = 0
    """How many of their bytes the lake had already."""
    unchanged: int = 0
    repaired: int = 0
    """How many pieces were decoded twice, because a packet lay in another at a cut, or because
    another part of a capture shows the format of a stream."""
    notes: list[str] = field(default_factory=list)
    """What is to be said about inputs: damage, streams whose format nothing shows."""


def new_inputs(lake: Lake, found: Sequence[FoundInput]) -> tuple[list[FoundInput], list[str]]:
    """Return the inputs that a lake does not hold as they are now, and notes on the others.

    A file that the lake holds by another name, or that is there by two, is read once.
    """
    new = [each for each in found if not _is_held(lake, each)]
    changed = {each.path for each in new}
    known = {
        identity: each.source
        for each in lake.inputs.values()
        if each.source not in changed and (identity := identity_of(each.stamp)) is not None
    }
    return distinct(new, known)


def held_commit(url: str) -> Commit | None:
    """Return the newest commit of a lake; None if it cannot be read, or is not there."""
    try:
        return read_lake(url, check=False).record
    except WireError:
        return None  # what opens it to write says why


def _is_held(lake: Lake, found: FoundInput) -> bool:
    held = lake.inputs.get(found.path)
    return (
        held is not None and is_as_it_was(found.stamp, held.stamp) and held.format == found.format
    )
