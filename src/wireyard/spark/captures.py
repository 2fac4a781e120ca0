"""Captures and stores among the files that are read, and the parts of them that tasks take."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wireyard.captures.magic import is_capture
from wireyard.errors import SourceError, UsageError
from wireyard.formats import Format, get_format, labels, sniff
from wireyard.spark.files import FoundFile
from wireyard.spark.options import Options
from wireyard.spark.results import EndpointsResult
from wireyard.streams.source import open_source, reading

if TYPE_CHECKING:
    from wireyard.captures.flows import Endpoint
    from wireyard.captures.index import IndexedExtent
    from wireyard.captures.inputs import PartEndpoints

__all__ = [
    "CapturePart",
    "count_parts",
    "cut_capture",
    "describe_endpoints",
    "find_captures",
    "format_of",
    "parts_misled",
]

_HEAD_BYTES = 4
_SNIFFED_BYTES = 1 << 12
_THREADS = 8  # what is waited for is mostly a store's answer
_SPLITS = 4
"""How much more a task takes of a capture without an index: each walks over all of its packets."""
_MOST_ENDPOINTS: Final = 1 << 12
"""Endpoints that a part reports: 160 KB, and far more than there are brokers."""

Formats = frozenset[str]
"""Names of formats, empty for none."""


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
    opened: tuple[tuple[Endpoint, str], ...] = ()
    """The endpoints that clients opened in other parts, each with a format, if it needs them."""

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


def describe_endpoints(part: CapturePart, found: PartEndpoints) -> EndpointsResult:
    """Return what a part of a capture shows of endpoints, as a result."""
    return EndpointsResult(part.source, part.part, _listed(found.opened), _listed(found.undecided))


def parts_misled(
    parts: Iterable[CapturePart], results: Sequence[EndpointsResult]
) -> list[CapturePart]:
    """Return the parts of a capture in which streams have other formats than in all of it.

    Those are streams whose own bytes show none, and whose endpoints clients opened in other parts.
    They are in the `opened` of the parts that are returned.

    Parameters
    ----------
    results
        Those of the parts; a part without one has no such stream, and its clients opened nothing.
    """
    opened = {each.part: _by_endpoint(_formats(each.opened)) for each in results}
    everywhere = _by_endpoint(
        (end, format) for own in opened.values() for end in own for format in own[end]
    )
    undecided = {
        each.part: _by_endpoint(_formats(each.undecided))
        if each.undecided is not None
        # More than are listed may have any format.
        else dict.fromkeys(everywhere, frozenset(("", *labels())))
        for each in results
    }
    misled = []
    for part in parts:
        taken, own = undecided.get(part.part, {}), opened.get(part.part, {})
        shown = [end for end in taken if end in everywhere]
        if any(_misleads(own.get(end), everywhere[end], taken[end]) for end in shown):
            pairs = ((end, format) for end in shown for format in sorted(everywhere[end]))
            misled.append(replace(part, opened=tuple(pairs)))
    return misled


def _misleads(own: Formats | None, everywhere: Formats, taken: Formats) -> bool:
    """Return whether an endpoint has another format in all of a capture than in a part of it.

    Parameters
    ----------
    own, everywhere
        The formats of connections that clients opened to it, in the part and in all of them.
    taken
        The formats taken for those of connections whose bytes show none.
    """
    before, after = (formats if len(formats) == 1 else None for formats in (own or (), everywhere))
    return before != after and taken != after


def _listed(formats: Collection[tuple[Endpoint, str]]) -> str | None:
    if len(formats) > _MOST_ENDPOINTS:
        return None
    return json.dumps([[end.address, end.port, format] for end, format in formats])


def _formats(listed: str | None) -> Iterator[tuple[Endpoint, str]]:
    """Yield endpoints and their formats; none of those that are too many to be listed."""
    from wireyard.captures.flows import Endpoint  # with kernels, which planning does without

    for address, port, format in json.loads(listed or "[]"):
        yield Endpoint(address, port), format


def _by_endpoint(pairs: Iterable[tuple[Endpoint, str]]) -> dict[Endpoint, Formats]:
    found: defaultdict[Endpoint, set[str]] = defaultdict(set)
    for end, format in pairs:
        found[end].add(format)
    return {end: frozenset(formats) for end, formats in found.items()}


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
