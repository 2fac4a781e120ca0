"""What was repaired while a capture was read, or would change what it shows: counts and notes.

Readers of parts of a capture have counts that can be added up to those of the whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from wireyard.captures.records import Placed

_SHOWN: Final = 3
_UNITS: Final = ((3_600_000_000_000, "h"), (1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))


@dataclass(frozen=True, slots=True)
class Repairs:
    """What was repaired in a capture, or in a part of it."""

    copies: int = 0
    """Connections that were captured again, whose bytes count once."""
    copied: Sequence[Placed] = ()
    """The first of them."""
    differing: int = 0
    """Segments with bytes that were sent before, but others."""
    different: Sequence[Placed] = ()
    """The first of them."""
    moved_ns: int = 0
    """Largest change of the time of a packet that came out of order."""
    stepped_ns: int = 0
    """Largest step by which the clock went back."""

    @classmethod
    def load(cls, fields: Mapping[str, Any]) -> Self:
        """Return what `dataclasses.asdict` made."""
        listed = ("copied", "different")
        placed = {name: [Placed(*each) for each in fields[name]] for name in listed}
        return cls(**{**fields, **placed})

    @classmethod
    def total(cls, parts: Sequence[Repairs]) -> Self:
        """Add up the repairs of the parts of a capture."""
        return cls(
            sum(each.copies for each in parts),
            first_of([one for each in parts for one in each.copied], _SHOWN),
            sum(each.differing for each in parts),
            first_of([one for each in parts for one in each.different], _SHOWN),
            max((each.moved_ns for each in parts), default=0),
            max((each.stepped_ns for each in parts), default=0),
        )

    def lines(self) -> Iterator[str]:
        """Yield a note for each kind of repair."""
        if self.copies:
            how = " was captured again and counts"
            if self.copies > 1:
                how = "s were captured again and count"
            shown = _listed(self.copied, self.copies)
            yield f"{self.copies} connection{how} once: {shown}"
        if self.differing:
            several = "s bring" if self.differing > 1 else " brings"
            shown = _listed(self.different, self.differing)
            yield (
                f"{self.differing} segment{several} other bytes than were sent before; "
                f"the first ones count: {shown}"
            )
        if self.moved_ns:
            yield (
                f"packets were captured out of order by up to {_duration(self.moved_ns)}; "
                "their times are those of the order in which they were sent"
            )
        if self.stepped_ns:
            yield (
                f"the clock went back by {_duration(self.stepped_ns)} while packets were captured; "
                "times continue from before"
            )


NO_REPAIRS: Final = Repairs()


def differing_segment(record: int, stream: str) -> Placed:
    """Return the entry of a segment with other bytes than were sent before."""
    return Placed(record, f"frame {record + 1} of {stream}")


def first_of(placed: Iterable[Placed], count: int = _SHOWN) -> list[Placed]:
    """Return the first texts by frame; those of the same frame keep their order."""
    return sorted(placed, key=lambda each: each.frame)[:count]


def _listed(placed: Sequence[Placed], count: int) -> str:
    more = ", .." if count > len(placed) else ""
    return ", ".join(each.text for each in placed) + more


def _duration(ns: int) -> str:
    factor, unit = next((each for each in _UNITS if ns >= each[0]), (1, "ns"))
    return f"{ns / factor:.4g} {unit}"
