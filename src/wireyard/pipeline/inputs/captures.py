"""Captures and stores: find them among the files, and divide them into parts for tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wireyard.captures.signatures import is_capture
from wireyard.errors import SourceError, UsageError
from wireyard.formats import Format, get_format, labels, sniff
from wireyard.pipeline.inputs.listing import FoundFile
from wireyard.pipeline.inputs.options import Options
from wireyard.streams.source import open_source, reading

if TYPE_CHECKING:
    from wireyard.captures.connections.flows import Endpoint
    from wireyard.captures.index import IndexedExtent
    from wireyard.captures.inputs import PartEndpoints
    from wireyard.pipeline.decoding.results import EndpointsResult

    Listed = Sequence[tuple[str, int, str]] | None
    """The address and the port of endpoints, with a format; None if there are too many."""

_HEAD_BYTES = 4
_SNIFFED_BYTES = 1 << 12
_THREADS = 8  # mostly waiting for a store
_SPLITS = 4
"""Factor for the size of parts without an index, as each task walks over the whole capture."""
_MOST_ENDPOINTS: Final = 1 << 12
"""Limit for the endpoints that a part reports: 160 KB, and far more than there are brokers."""

Formats = frozenset[str]
"""Names of formats; may be empty."""


@dataclass(frozen=True, slots=True)
class CapturePart:
    """A part of a capture: the streams of some of its conversations."""

    source: str
    files: tuple[str, ...]
    format: str | None
    """Only streams of this format; of all formats if None."""
    decode_as: tuple[str, ...]
    keylog: tuple[str, ...]
    part: int
    of: int
    size: int
    """Approximate number of its bytes."""
    stored: bool = False
    """Whether it is a file of a store instead of a capture."""
    index: tuple[tuple[str, int], ...] = ()
    """Files with its headers, if they were written: the values of each `IndexedExtent`."""
    opened: tuple[tuple[str, int, str], ...] = ()
    """Endpoints that clients opened in other parts, each with a format, if it needs them."""

    @property
    def bytes(self) -> int:
        """Approximate number of bytes."""
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

    Without an index of the headers every part walks over all packets and keeps its own; so a remote
    capture without one is a single part.
    """
    remote = any("://" in path for path in files)
    of = 1 if remote and not index else count_parts(size, split_bytes, indexed=bool(index))
    whole = source, files, format, decode_as, keylog
    for part in range(of):
        yield CapturePart(*whole, part, of, size // of, index=index)


def count_parts(size: int, split_bytes: int, *, indexed: bool) -> int:
    """Return the number of parts for a capture; `indexed` if its headers were read before."""
    share = split_bytes if indexed else _SPLITS * split_bytes
    return max(-(-size // share), 1)


def describe_endpoints(part: CapturePart, found: PartEndpoints) -> EndpointsResult:
    """Return the endpoints in a part of a capture as a result."""
    from wireyard.pipeline.decoding.results import EndpointsResult  # planning needs no kernels

    return EndpointsResult(part.source, part.part, _listed(found.opened), _listed(found.undecided))


def parts_misled(
    parts: Iterable[CapturePart], results: Sequence[EndpointsResult]
) -> list[CapturePart]:
    """Return the parts of a capture in which streams got a wrong format for lack of other parts.

    Their streams' own bytes show no format, and in other parts clients opened connections to their
    endpoints. These endpoints are in the `opened` of the returned parts. `results` has the
    endpoints of each part; a part without a result has no such streams or connections.
    """
    opened = {each.part: _by_endpoint(_formats(each.opened)) for each in results}
    everywhere = _by_endpoint(
        (end, format) for own in opened.values() for end in own for format in own[end]
    )
    undecided = {
        each.part: _by_endpoint(_formats(each.undecided))
        if each.undecided is not None
        # Endpoints beyond the limit may have any format.
        else dict.fromkeys(everywhere, frozenset(("", *labels())))
        for each in results
    }
    misled = []
    for part in parts:
        assumed, own = undecided.get(part.part, {}), opened.get(part.part, {})
        shown = [end for end in assumed if end in everywhere]
        if any(_is_misled(own.get(end), everywhere[end], assumed[end]) for end in shown):
            formats = ((end, format) for end in shown for format in sorted(everywhere[end]))
            ends = tuple((end.address, end.port, format) for end, format in formats)
            misled.append(replace(part, opened=ends))
    return misled


def _is_misled(own: Formats | None, everywhere: Formats, assumed: Formats) -> bool:
    """Return whether the whole capture gives an endpoint another format than a part assumed.

    `own` and `everywhere` are the formats of connections that clients opened to it, in the part and
    in all parts; `assumed` those that the part assumed for connections whose bytes show none.
    """
    before, after = (formats if len(formats) == 1 else None for formats in (own or (), everywhere))
    return before != after and assumed != after


def _listed(formats: Collection[tuple[Endpoint, str]]) -> Listed:
    if len(formats) > _MOST_ENDPOINTS:
        return None
    return [(end.address, end.port, format) for end, format in formats]


def _formats(listed: Listed) -> Iterator[tuple[Endpoint, str]]:
    """Yield the endpoints of a list and their formats; nothing if there were too many to list."""
    from wireyard.captures.connections.flows import (
        Endpoint,  # loads kernels, which planning does not need
    )

    for address, port, format in listed or ():
        yield Endpoint(address, port), format


def _by_endpoint(pairs: Iterable[tuple[Endpoint, str]]) -> dict[Endpoint, Formats]:
    by_endpoint: defaultdict[Endpoint, set[str]] = defaultdict(set)
    for end, format in pairs:
        by_endpoint[end].add(format)
    return {end: frozenset(formats) for end, formats in by_endpoint.items()}


def find_captures(files: Sequence[FoundFile], options: Options) -> dict[str, int]:
    """Return the captures among the files, with their sizes; 0 for a compressed capture.

    A compressed capture can only be read as a whole.
    """
    if options.input == "stream":
        return {}

    def look(file: FoundFile) -> int | None:
        try:
            _, opened, size = open_source(file.path)
            with opened, reading(file.path):
                head = opened.peek(_HEAD_BYTES)
        except SourceError:
            return None  # its task reports the error
        if options.input != "pcap" and not is_capture(head):
            return None
        return size or 0

    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = pool.map(look, files)
    return {file.path: size for file, size in zip(files, sizes, strict=True) if size is not None}


def format_of(options: Options, files: Sequence[FoundFile], captures: Collection[str]) -> Format:
    """Return the format of the option, or else that of the first file, or of a capture's streams.

    A `UsageError` is raised if all files are empty, or the first one begins like no format, or is a
    capture of several; a `SourceError` if the first file cannot be read.
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
