"""The protocols whose facts are derived: the registry, and what a protocol declares.

A protocol is a folder of `layers` with a module `facts`, which has a `Facts`, and a line here.
Code above the layers sees a protocol as its `Facts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from wireyard.layers.symptoms import Symptom
from wireyard.layout import Column

if TYPE_CHECKING:
    import pyarrow as pa

    from wireyard.layers.newest import NewestRules

_MODULES = [
    "wireyard.layers.mqtt.facts",
    "wireyard.layers.jmq.facts",
    "wireyard.layers.rmp.facts",
]
"""The modules with a `Facts` each."""

Condition = Literal["bad", "warn", "unknown", "good"]
CONDITIONS: Final[tuple[Condition, ...]] = ("bad", "warn", "unknown", "good")
"""From worst to best: a message was lost; it waits, or something is odd; the capture does not show
what became of it; it was delivered."""


class Verdict(NamedTuple):
    """What became of a message and one consumer."""

    condition: Condition
    meaning: str


class PacketFile(NamedTuple):
    """A file of packets of one format."""

    number: int
    """Unique among the files that are read together."""
    format: str
    batches: Callable[[Sequence[str]], Iterable[pa.Table]]
    """Names of columns -> tables of successive packets, with those columns that the file has."""
    footer: Callable[[str, pa.Schema], pa.Table | None] = lambda _name, _schema: None
    """Name and schema of a table -> the table in the file's metadata; None if there is none."""

    @classmethod
    def in_memory(cls, number: int, format: str, tables: Sequence[pa.Table]) -> PacketFile:
        """Return tables of packets in memory as a file."""

        def batches(columns: Sequence[str]) -> Iterable[pa.Table]:
            return (
                table.select([name for name in columns if name in table.column_names])
                for table in tables
            )

        return cls(number, format, batches)


class DerivedFiles(NamedTuple):
    """The tables that follow from files of packets."""

    tables: Iterator[tuple[str, pa.Table]]
    """Parts of tables by name, with the columns of ``wireyard.layers.tables``. Those of `messages`
    may be derived while they are iterated."""
    dropped: Counter[str]
    """Counts of what exceeded a limit, by limit."""


Derive = Callable[[Sequence[PacketFile], "pa.Table", Collection[str]], DerivedFiles]


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a protocol.

    `derive` derives the tables of some inputs in memory from all files that have packets of them
    and may have packets of other inputs too. Its second argument has the columns ``source, stream,
    format, opened, begun, ended, ended_frame, ended_ns`` of the table ``streams``, for the captured
    streams of the inputs. With `shares_messages`, several inputs may show the same message, so its
    key is the same in all. `verdicts` are those on deliveries, those of one condition from worst to
    best. `tables` has the columns of tables that it has alone, each with ``source, stream,
    offset``. `symptoms` are the problems that ``wireyard why`` looks for in its tables. `newest`
    returns the rules for the newest packets of inputs that grow; without it they have no facts
    until the facts of all packets are made.
    """

    protocol: str
    formats: tuple[str, ...]
    derive: Derive
    shares_messages: bool
    verdicts: Mapping[str, Verdict]
    symptoms: tuple[Symptom, ...]
    tables: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    newest: Callable[[], NewestRules] | None = None


def registered() -> tuple[Facts, ...]:
    """Return the facts of all protocols."""
    return tuple(import_module(name).FACTS for name in _MODULES)


def facts_of(protocol: str) -> Facts | None:
    """Return the facts of a protocol; None if it is not registered."""
    return next((facts for facts in registered() if facts.protocol == protocol), None)
