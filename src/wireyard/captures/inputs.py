"""What somebody asked to be read: a bare stream, a capture, a store; opened as streams."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from wireyard.captures.magic import PCAPNG, is_capture
from wireyard.errors import SourceError, UnknownFormat, UsageError
from wireyard.formats import Format, names, sniff
from wireyard.streams.blocks import DirectedStream, StreamBundle, each_stream
from wireyard.streams.scan import OpenedStream, open_windows
from wireyard.streams.source import Source

if TYPE_CHECKING:
    from wireyard.captures.assignment import Assigned
    from wireyard.captures.flows import Endpoint
    from wireyard.captures.index import IndexedExtent
    from wireyard.captures.left_out import LeftOut
    from wireyard.captures.read import FrameSpan

__all__ = [
    "Input",
    "PartEndpoints",
    "Readable",
    "begins_store",
    "describe_unknown",
    "name_the_format",
    "no_format",
    "open_captures",
    "open_input",
    "shown_format",
]

_SNIFFED_BYTES: Final = 1 << 16
_SHOWN_BYTES: Final = 16


class Readable(NamedTuple):
    """A stream and its format."""

    format: Format
    opened: DirectedStream


class PartEndpoints(NamedTuple):
    """Endpoints of a part of a capture, each with the formats of its connections."""

    opened: Collection[tuple[Endpoint, str]]
    """Those that clients opened connections to."""
    undecided: Collection[tuple[Endpoint, str]]
    """Those of connections whose own bytes show no format: with the format that was taken for
    theirs, empty if none was. What clients in other parts opened may show another."""


@dataclass(frozen=True)
class Input:
    """A source, opened: its streams in order."""

    name: str
    captured: bool
    """Whether it is a capture, so that its rows have times, frames and endpoints."""
    readables: Sequence[Readable]
    """Its streams in order; small ones that follow each other may be one `StreamBundle`."""
    unknown: Sequence[Assigned] = ()
    """The streams of a capture that have no format, and are no answer of a port mapper."""
    damage: str | None = None
    """Why a capture was not read to its end."""
    frames_unread: str | None = None
    """The frames of a capture that are in no stream, by name."""
    files: Sequence[npt.NDArray[np.uint8]] = ()
    """The bytes of the files of a capture."""
    port_mapper: Sequence[Assigned] = ()
    """The streams of a capture that are of a connection to a port mapper."""
    problems: Sequence[str] = ()
    """Why some bytes inside TLS or WebSocket were not read, of streams that have a format."""
    spans: Sequence[FrameSpan] = ()
    """Which frames are in which file of a capture."""
    endpoints: PartEndpoints | None = None
    """Of a part of a capture."""
    left_out: LeftOut | None = None
    """What of a capture's streams is in no row."""

    @cached_property
    def streams(self) -> list[Readable]:
        """Each of its streams by itself."""
        return [
            Readable(format, one)
            for format, opened in self.readables
            for one in each_stream([opened])
        ]

    def streams_named(self, names: Collection[str]) -> Iterator[Readable]:
        """Yield each stream by itself that has one of some names; none of the others is made."""
        for format, opened in self.readables:
            if isinstance(opened, StreamBundle):
                own = (at for at, name in enumerate(opened.names()) if name in names)
                yield from (Readable(format, one) for one in opened.pick(own))
            elif opened.stream in names:
                yield Readable(format, opened)

    def stream_names(self) -> Iterator[str]:
        """Yield the names of all streams."""
        for _, opened in self.readables:
            yield from opened.names() if isinstance(opened, StreamBundle) else [opened.stream]

    def one_format(self) -> Format:
        """Return the format of its streams, of which a table holds one.

        Raises
        ------
        UsageError
            There are several, or none.
        """
        found = {stream.format.name for stream in self.readables}
        if len(found) == 1:
            return self.readables[0].format
        if found:
            held = " and ".join(sorted(found))
            raise UsageError(f"{self.name}: holds {held}; name one of them, as format")
        unknown = "" if self.left_out is None else self.left_out.unknown
        problem = f"no stream in it begins like any format{unknown}"
        raise UnknownFormat("; ".join([f"{self.name}: {problem}", *self.closed]))

    @property
    def unread(self) -> str | None:
        """The bytes of a capture's streams that are in no row, and why; None if all are in one."""
        return None if self.left_out is None else self.left_out.unread

    @property
    def notes(self) -> list[str]:
        """What of a capture is in no stream, and no loss: frames by name, headers of proxies."""
        headers = None if self.left_out is None else self.left_out.headers
        return [*filter(None, (self.frames_unread, headers))]

    @property
    def closed(self) -> list[str]:
        """What carries streams that were not opened: TLS without its keys, HTTP."""
        return [] if self.left_out is None else list(self.left_out.describe_closed())

    def close(self) -> None:
        """Close the source."""
        for one in self.readables:
            one.opened.close()


def open_input(
    source: Source,
    named: Format | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str | os.PathLike[str]] = (),
) -> Input:
    """Open a source, and find the formats of its streams.

    Parameters
    ----------
    source
        What `open_source` takes.
    named
        The format of a bare stream, or whose streams of a capture are wanted; by the first bytes
        if None.
    decode_as
        What ports of a capture are for, as in ``tcp.port==1884,mqtt``.
    keylog
        Key logs with the secrets of a capture's TLS connections.

    Raises
    ------
    SourceError
        It cannot be read, or is empty and nothing says what it would hold.
    UsageError
        A bare stream that begins like no format, or a key log that is none.

    Limits
    ------
    The files of a store are in memory.
    """
    path = os.fspath(source) if isinstance(source, str | os.PathLike) and source != "-" else None
    if path is not None and os.path.isdir(path):
        return _open_store(path, named)
    opened = open_windows(source)
    try:
        head = bytes(opened.first.view[:_SNIFFED_BYTES])
        captured = is_capture(head)
        shown = None if captured else shown_format(head, named)
        stored = not captured and shown is None and path is not None and begins_store(head)
        if not (captured or stored):
            format = shown or named or no_format(opened.name, head)
            return Input(opened.name, False, [Readable(format, opened)])
        if path is None:
            return open_captures([opened], named, decode_as, keylog=keylog)
    except BaseException:
        opened.close()
        raise
    opened.close()
    if stored:
        return _open_store(path, named)
    return open_captures([path], named, decode_as, keylog=keylog)


def shown_format(head: bytes, named: Format | None) -> Format | None:
    """Return the format that a stream's first bytes show, or the named one if they show that."""
    if named is None:
        return sniff(head)
    return named if named.begins(head) else None


def begins_store(head: bytes) -> bool:
    """Return whether first bytes that show no format are those of a file of a store."""
    if not head:
        return False
    from wireyard.captures.stores.kinds import is_store_file

    return is_store_file(head)


def _open_store(path: str, named: Format | None) -> Input:
    from wireyard.captures.stores.read import read_store

    streams, damage = [], None
    for file in read_store(path):
        damage = damage or file.failure
        opened = file.stream
        if opened is not None and (named is None or _is(named, opened.format)):
            streams.append(Readable(opened.format, opened))
    return Input(path, False, streams, damage=str(damage) if damage else None)


def no_format(name: str, head: bytes) -> NoReturn:
    """Say that a bare stream begins like no format.

    Raises
    ------
    SourceError
        It is empty.
    UnknownFormat
        It is not.
    """
    if not head:
        raise SourceError(f"{name}: is empty; {name_the_format()}")
    shown = head[:_SHOWN_BYTES].hex(" ")
    raise UnknownFormat(f"{name}: begins like no format ({shown}); {name_the_format()}")


def name_the_format() -> str:
    """Return what to do about bytes that begin like no format."""
    known = f"{', '.join(names())} or a dialect such as mqtt/5.0"
    return f"--format NAME, in Python format=NAME, says what it is: {known}"


def open_captures(
    sources: Sequence[Source | OpenedStream],
    named: Format | None = None,
    decode_as: Sequence[str] = (),
    part: tuple[int, int] | None = None,
    name: str | None = None,
    index: Sequence[IndexedExtent] = (),
    keylog: Sequence[str | os.PathLike[str]] = (),
    opened: Iterable[tuple[Endpoint, str]] = (),
) -> Input:
    """Open the files of one capture.

    Parameters
    ----------
    named, decode_as, keylog
        Those of `open_input`.
    part
        Which of how many parts of the conversations to open; all if None.
    name
        What rows call the source; what they call its first file if None.
    index
        Where the headers of the capture are, if they were written down for as many parts; the
        sources are paths then, in the order of their packets.
    opened
        The endpoints that clients opened in other parts, each with a format.

    Raises
    ------
    SourceError
        A file cannot be read, or is no capture.
    """
    # A bare stream is there before all this is loaded.
    from wireyard.captures.assignment import (
        PORT_MAPPER_PORT,
        parse_decode_as,
        proxies_of,
    )
    from wireyard.captures.bundled import bundle_streams
    from wireyard.captures.directed import CapturedStream
    from wireyard.captures.left_out import LeftOut, problems_of
    from wireyard.captures.read import read_captures
    from wireyard.captures.stream_formats import find_formats
    from wireyard.captures.tls_keys import embedded_secrets, read_key_logs
    from wireyard.captures.tray import Tray
    from wireyard.captures.units import Share
    from wireyard.captures.unread import describe_unread

    rules = [parse_decode_as(text) for text in decode_as]
    share = None if part is None else Share(*part, PORT_MAPPER_PORT)
    files: Iterable[npt.NDArray[np.uint8]]
    if index and share is not None:
        from wireyard.captures.index import read_indexed

        paths = [str(path) for path in sources]
        capture = read_indexed(paths, index, share)
        # Only the pages with packets of the share are known to be there.
        files = _with_secrets(paths)
    else:
        capture = read_captures(sources, share=share)
        files = capture.files
    keys = read_key_logs(keylog, lambda: embedded_secrets(files))
    formats = find_formats(capture, rules, named, keys, opened, shared=share is not None)
    plain, assigned, evidence = formats.plain, formats.assigned, formats.evidence
    there = [each for each in assigned if each.stream.size or each.carriers]
    unknown = [each for each in there if each.format is None and each.port_mapper is None]
    mappers = [each for each in there if each.format is None and each.port_mapper is not None]
    wanted = [each for each in assigned if named is None or _is(named, each.format)]
    places = plain.places(named)
    size = sum(each.stream.size for each in wanted) + int(capture.table.sizes[places].sum())
    name = name or capture.name
    problems = problems_of(wanted)
    left_out = LeftOut.of(unknown, problems, proxies_of(assigned), keyed=bool(keylog))
    tray = Tray()
    carried = [each for each in wanted if each.stream.size]  # what is inside may be nothing
    readables = [
        Readable(each.format, CapturedStream(name, each.stream, each.context, size, tray))
        for each in carried
        if each.format is not None
    ]
    if len(places):
        given = zip(assigned, formats.places.tolist(), strict=True)
        place_of = {each.captured.name: place for each, place in given}
        at = [place_of[each.captured.name] for each in carried if each.format is not None]
        others = np.array(at, np.int64)
        found = bundle_streams(name, capture.table, plain, places, others, tray, size)
        placed = [(place, Readable(plain.format_at(place), one)) for place, one in found]
        placed += zip(at, readables, strict=True)
        readables = [one for _, one in sorted(placed, key=itemgetter(0))]
    return Input(
        name,
        True,
        readables,
        unknown,
        f"{capture.damage}; {capture.unread_bytes} bytes are not read" if capture.damage else None,
        describe_unread(capture.unread),
        capture.files,
        mappers,
        [each.text for each in problems],
        capture.spans,
        None if share is None else PartEndpoints(evidence.opened, _undecided(assigned)),
        left_out,
    )


def _with_secrets(paths: Iterable[str]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of the files that may hold secrets; of other remote ones none is fetched."""
    from wireyard.streams.mapped import map_bytes

    for path in paths:
        head = map_bytes(path, 0, 0)
        if head is None or head[: len(PCAPNG)].tobytes() != PCAPNG:
            continue
        if (data := map_bytes(path)) is not None:
            yield data


def describe_unknown(
    name: str,
    unknown: Sequence[Assigned],
    endings: Mapping[int, int],
    proxies: Mapping[tuple[str, int], int],
    damage: str | None,
    problems: Sequence[str],
    *,
    keyed: bool,
) -> Input:
    """Return what is said of a capture at its end, as an input without streams.

    Parameters
    ----------
    unknown, damage, problems
        Those of the input.
    endings, proxies
        What `name_unread` and `count_proxies` take.
    keyed
        Whether there are key logs.
    """
    from wireyard.captures.left_out import LeftOut, Placed
    from wireyard.captures.unread import describe_unread, name_unread

    placed = [Placed(0, problem) for problem in problems]
    left_out = LeftOut.of(unknown, placed, proxies, keyed=keyed)
    frames = describe_unread(name_unread(endings))
    return Input(name, True, [], unknown, damage, frames, problems=problems, left_out=left_out)


def _undecided(assigned: Iterable[Assigned]) -> set[tuple[Endpoint, str]]:
    """Return the endpoints that decided the formats of streams, each with those formats."""
    return {
        (end, "" if each.format is None else each.format.name)
        for each in assigned
        if each.by_endpoint and each.stream.size
        for end in (each.stream.src, each.stream.dst)
    }


def _is(named: Format, format: Format | None) -> bool:
    return format is not None and format.name == named.name
