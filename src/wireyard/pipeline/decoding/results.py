"""Results that tasks of the bronze stage return to the driver: a class for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from wireyard.captures.left_out import LeftOut
from wireyard.captures.records import Context
from wireyard.captures.stream_table import LEDGER
from wireyard.errors import LakeError, LedgerError, SourceError, WireError
from wireyard.lake.ledgers import LedgerSum


@dataclass(slots=True)
class StreamRows:
    """The extent and the counts of the rows of a stream, or of a piece of one."""

    format: str | None = None
    first: int | None = None
    """Offset of the first row; None if nothing that looks like a frame begins in the piece."""
    end: int = 0
    """Offset at which the last row ends."""
    broken_at: int | None = None
    """Offset of the first row that does not begin where the one before ended, which is an error."""
    rows: int = 0
    bytes_ok: int = 0
    bytes_malformed: int = 0
    bytes_garbage: int = 0
    bytes_tail: int = 0
    bytes_gap: int = 0
    packets_ok: int = 0
    packets_malformed: int = 0

    def add(self, more: StreamRows) -> None:
        """Add the rows that follow these."""
        if self.broken_at is None:
            self.broken_at = more.broken_at if more.first == self.end else more.first
        self.end = more.end
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(more, name))


COUNTED: Final = ("rows", *LEDGER[1:], "bytes_gap")
"""The counts of `StreamRows`; those of parts of a stream add up."""


@dataclass(slots=True, kw_only=True)
class PieceResult(StreamRows):
    """A decoded piece of a bare stream. It is valid if no packet crosses its beginning."""

    source: str
    start: int
    """Offset of the piece; its first row may begin later."""
    reached: int = 0
    """Offset up to which the source was read."""
    next_context: int = 0
    """Context of a frame that begins at `end`."""
    file: str
    """Name of the file with its rows, in each of `tables`."""
    tables: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HeadersResult:
    """A piece of a capture file whose headers are written to a file, `path`.

    `piece_start`, `start` and `stop` are the offsets of the piece, of its first record, and of the
    end of its last one. `next_context` is the context behind the last record; None if the file is
    too short for its header. `damage` is why no more could be read, and `unread_bytes` the number
    of bytes that remain.
    """

    source: str
    piece_start: int
    start: int
    stop: int
    packets: int
    next_context: Context | None
    damage: str | None
    unread_bytes: int
    path: str


@dataclass(frozen=True, slots=True)
class FormatResult:
    """The sum of the ledgers of all complete streams of one format."""

    source: str
    format: str
    """Empty for bytes of no format, such as records of a store that hold no packets."""
    ledger: LedgerSum
    part: int = 0
    """The part of a capture that has the streams."""


@dataclass(frozen=True, slots=True)
class FilesResult:
    """A file that has rows of a source, in each of some tables."""

    source: str
    file: str
    tables: Sequence[str]
    part: int = 0
    """The part of a capture that has the rows."""


@dataclass(frozen=True, slots=True)
class EndpointsResult:
    """The endpoints in a part of a capture, for the other parts.

    `opened` and `undecided` are those of `PartEndpoints`: the address, the port and the format of
    each; None if there are too many to list.
    """

    source: str
    part: int
    opened: Sequence[tuple[str, int, str]] | None
    undecided: Sequence[tuple[str, int, str]] | None


@dataclass(frozen=True, slots=True)
class LeftOutResult:
    """Counts of the bytes and streams of a capture, or of a part of it, that are in no row."""

    source: str
    part: int
    counts: LeftOut


@dataclass(frozen=True, slots=True)
class NoteResult:
    """A note on a source for the user."""

    source: str
    message: str
    lost: bool = False
    """Whether bytes of the source are in no row, or were cut off when they were captured."""


@dataclass(frozen=True, slots=True)
class GoneResult:
    """A source that was deleted, or lost a file, since the run began; it has no rows."""

    source: str


@dataclass(frozen=True, slots=True)
class FailureResult:
    """The error of a task; it has no other result."""

    error: str
    """A key of `FAILURES`."""
    message: str

    @classmethod
    def of(cls, error: BaseException | None) -> FailureResult:
        """Return an error that is one of `FAILURES` as a result."""
        kind = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
        return cls(kind, str(error))


Result = (
    PieceResult
    | HeadersResult
    | FormatResult
    | FilesResult
    | EndpointsResult
    | LeftOutResult
    | NoteResult
    | GoneResult
    | FailureResult
)
PartResult = FormatResult | FilesResult | EndpointsResult | LeftOutResult
"""The results of a part of a capture."""
Kind = TypeVar("Kind", bound=Result)

FAILURES: Final[Mapping[str, type[WireError]]] = {
    "read": SourceError,
    "write": LakeError,
    "balance": LedgerError,
}
"""Errors that a task returns as a result instead of failing, so that Spark does not retry a missing
file or a full disk four times, and does not bury the message in a traceback."""


def without_failures(results: Iterable[Any]) -> Iterator[Any]:
    """Yield results.

    The `SourceError`, `LakeError` or `LedgerError` of a task that has failed is raised.
    """
    for result in results:
        if isinstance(result, FailureResult):
            raise FAILURES[result.error](result.message)
        yield result


def of_kind(kind: type[Kind], results: Iterable[Result]) -> list[Kind]:
    """Return the results of one kind, in order."""
    return [result for result in results if isinstance(result, kind)]
