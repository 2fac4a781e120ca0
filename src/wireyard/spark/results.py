"""What tasks of the bronze stage report to the driver: a type for each kind of result.

They travel as rows of a manifest, which has a column for each kind and in each row one result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final, TypeVar

import pyarrow as pa

__all__ = [
    "MANIFEST",
    "EndpointsResult",
    "FailureResult",
    "FilesResult",
    "FormatResult",
    "GoneResult",
    "HeadersResult",
    "LeftOutResult",
    "NoteResult",
    "PartResult",
    "PieceResult",
    "Result",
    "StreamRows",
    "make_manifest",
    "of_kind",
    "read_manifest",
]


@dataclass(slots=True)
class StreamRows:
    """The rows written of a stream, or of a piece of one: where they lie, and their counts."""

    format: str | None = None
    first: int | None = None
    """Where the first row begins; None if nothing that looks like a frame begins in the piece."""
    end: int = 0
    """Where the last row ends."""
    broken_at: int | None = None
    """Where a row first does not begin where the one before ended, which must not be."""
    rows: int = 0
    bytes_ok: int = 0
    bytes_malformed: int = 0
    bytes_garbage: int = 0
    bytes_tail: int = 0
    bytes_gap: int = 0
    packets_ok: int = 0
    packets_malformed: int = 0


@dataclass(slots=True, kw_only=True)
class PieceResult(StreamRows):
    """A piece of a bare stream, decoded. It counts if no packet lies across its beginning."""

    source: str
    start: int
    """Where the piece begins, which its first row may not."""
    reached: int = 0
    """How far the source was read."""
    next_context: int = 0
    """Context of a frame that begins at `end`."""
    file: str
    """Name of the file that its rows are in, in each of `tables`."""
    tables: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HeadersResult:
    """A piece of a file of a capture, whose headers are written down.

    Attributes
    ----------
    source
        The file.
    piece_start, start, stop
        Where the piece begins, the first record in it, and what follows the last.
    next_context
        The `Context` behind the last record, in JSON.
    damage, unread_bytes
        Why no more could be read, and how many bytes of the file are behind that.
    path
        Where the headers are written.
    """

    source: str
    piece_start: int
    start: int
    stop: int
    packets: int
    next_context: str
    damage: str | None
    unread_bytes: int
    path: str


@dataclass(frozen=True, slots=True)
class FormatResult:
    """Whole streams of one format: their ledgers, added."""

    source: str
    format: str
    """Empty for what is of no format, such as records of a store that hold no packets."""
    ledger: Sequence[int]
    """The numbers of a `LedgerSum`."""
    part: int = 0
    """Which part of a capture the streams are of."""


@dataclass(frozen=True, slots=True)
class FilesResult:
    """Rows of a source are in this file of each of these tables."""

    source: str
    file: str
    tables: Sequence[str]
    part: int = 0
    """Which part of a capture the rows are of."""


@dataclass(frozen=True, slots=True)
class EndpointsResult:
    """What a part of a capture shows of endpoints, and what others may show it.

    Attributes
    ----------
    opened, undecided
        Those of `PartEndpoints`, in JSON: the address, the port and the format of each.
        None for more than are listed.
    """

    source: str
    part: int
    opened: str | None
    undecided: str | None


@dataclass(frozen=True, slots=True)
class LeftOutResult:
    """What of a capture's streams, or of those of a part of it, is in no row."""

    source: str
    part: int
    counts: str
    """A `LeftOut`, in JSON."""


@dataclass(frozen=True, slots=True)
class NoteResult:
    """A sentence about a source for the user."""

    source: str
    message: str


@dataclass(frozen=True, slots=True)
class GoneResult:
    """A source, or a file of one, that was there when the run began; nothing of it is written."""

    source: str


@dataclass(frozen=True, slots=True)
class FailureResult:
    """Why a task has no other result."""

    error: str
    """A key of `wireyard.spark.bronze.FAILURES`."""
    message: str


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

_KINDS: Final[dict[str, type[Result]]] = {
    "piece": PieceResult,
    "headers": HeadersResult,
    "format": FormatResult,
    "files": FilesResult,
    "endpoints": EndpointsResult,
    "left_out": LeftOutResult,
    "note": NoteResult,
    "gone": GoneResult,
    "failure": FailureResult,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_TYPES: Final = {
    "int": pa.int64(),
    "str": pa.string(),
    "Sequence[int]": pa.list_(pa.int64()),
    "Sequence[str]": pa.list_(pa.string()),
}


def _struct_of(kind: type[Result]) -> pa.StructType:
    return pa.struct(
        [(each.name, _TYPES[str(each.type).removesuffix(" | None")]) for each in fields(kind)]
    )


MANIFEST: Final = pa.schema([(name, _struct_of(kind)) for name, kind in _KINDS.items()])
"""A column for each kind of result; all but one are null in a row."""


def make_manifest(results: Iterable[Result]) -> pa.RecordBatch:
    """Return results as rows of `MANIFEST`."""
    return pa.RecordBatch.from_pylist(
        [{_NAMES[type(one)]: asdict(one)} for one in results], MANIFEST
    )


def read_manifest(manifest: pa.Table | pa.RecordBatch) -> Iterator[Result]:
    """Yield the results in rows of `MANIFEST`."""
    for row in manifest.to_pylist():
        for name, values in row.items():
            if values is not None:
                yield _KINDS[name](**values)


def of_kind(kind: type[Kind], results: Iterable[Result]) -> list[Kind]:
    """Return the results of one kind, in their order."""
    return [one for one in results if isinstance(one, kind)]
