"""Captures and stores among the files that are read, and the parts of them that tasks take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireyard.captures.magic import is_capture
from wireyard.errors import SourceError, UsageError
from wireyard.formats import Format, get_format, labels, sniff
from wireyard.spark.files import FoundFile
from wireyard.spark.options import Options
from wireyard.streams.source import open_source, reading

if TYPE_CHECKING:
    from wireyard.captures.index import IndexedExtent

__all__ = ["CapturePart", "count_parts", "cut_capture", "find_captures", "format_of"]

_HEAD_BYTES = 4
_SNIFFED_BYTES = 1 << 12
_THREADS = 8  # what is waited for is mostly a store's answer
_SPLITS = 4
"""How much more a task takes of a capture without an index: each walks over all of its packets."""


@dataclass(frozen=True, slots=True)
class CapturePart:
    """The streams of the conversations of a capture that fall to one of several parts."""

    source: str
    files: tuple[str, ...]
    format: str | None
    """Only streams of this format; of all if None."""
    decode_as: tuple[str, ...]
    keylog: tuple[str, ...]
    part: int
    of: int
    size: int
    """Bytes of the capture that fall to it, about."""
    stored: bool = False
    """Whether it is no capture, but a file of a store."""
    index: tuple[IndexedExtent, ...] = ()
    """Where its headers are, if they were written down."""

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return self.size


def cut_capture(
    source: str,
    files: tuple[str, ...],
    size: int,
    *,
    format: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    split_bytes: int,
    index: tuple[IndexedExtent, ...] = (),
) -> Iterator[CapturePart]:
    """Yield the parts of a capture, each with some of its conversations.

    Without an index of its headers every part walks over all packets and keeps what is its own; so
    a remote capture without one is one part.
    """
    remote = any("://" in path for path in files)
    of = 1 if remote and not index else count_parts(size, split_bytes, indexed=bool(index))
    whole = source, files, format, decode_as, keylog
    for part in range(of):
        yield CapturePart(*whole, part, of, size // of, index=index)


def count_parts(size: int, split_bytes: int, *, indexed: bool) -> int:
    """Return how many parts a capture is put together in, `indexed` if its headers were read."""
    share = split_bytes if indexed else _SPLITS * split_bytes
    return max(-(-size // share), 1)


def find_captures(files: Sequence[FoundFile], options: Options) -> dict[str, int]:
    """Return those of the files that are captures, and what they take when nothing is compressed.

    A compressed capture counts as nothing, because it is only read as a whole.
    """
    if options.input == "stream":
        return {}

    def look(file: FoundFile) -> int | None:
        try:
            _, opened, size = open_source(file.path)
            with opened, reading(file.path):
                head = opened.peek(_HEAD_BYTES)
        except SourceError:
            return None  # the task that reads it says so
        if options.input != "pcap" and not is_capture(head):
            return None
        return size or 0

    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = pool.map(look, files)
    return {file.path: size for file, size in zip(files, sizes, strict=True) if size is not None}


def format_of(options: Options, files: Sequence[FoundFile], captures: Collection[str]) -> Format:
    """Return the format that was named, or that the first file shows: of a capture, its streams.

    Raises
    ------
    UsageError
        There is no file with anything in it, or it begins like no format, or is a capture of
        several.
    SourceError
        That file cannot be read.
    """
    if options.protocol is not None:
        return get_format(options.protocol)
    known = ", ".join(labels())
    path = next((file.path for file in files if file.size), None)
    if path is None:
        raise UsageError(f"no bytes show the protocol; set option 'protocol': {known}")
    if path in captures:
        from wireyard.captures.inputs import open_captures

        found = open_captures([path], decode_as=options.decode_as, keylog=options.keylog)
        return found.one_format()
    _, file, _ = open_source(path)
    with file, reading(path):
        sniffed = sniff(file.peek(_SNIFFED_BYTES))
    if sniffed is None:
        raise UsageError(f"{path}: begins like no format; set option 'protocol': {known}")
    return sniffed
