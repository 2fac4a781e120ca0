"""Open an input, a bare stream, a capture or a store, as streams of known formats."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np

from wireyard.arrays import Bytes
from wireyard.captures.records import describe_damage
from wireyard.captures.signatures import (
    PCAPNG,
    SNIFFED_BYTES,
    STATED_BYTES,
    is_capture,
    stated_columns,
)
from wireyard.errors import SourceError, UnknownFormat, UsageError
from wireyard.formats import Format, names, sniff
from wireyard.streams.blocks import DirectedStream, StreamBundle, each_stream
from wireyard.streams.scan import OpenedStream, open_windows
from wireyard.streams.source import Source, unsupported_compression
from wireyard.streams.urls import shown_url

if TYPE_CHECKING:
    from wireyard.captures.connections.flows import Endpoint
    from wireyard.captures.detection.assignment import Assigned
    from wireyard.captures.index import IndexedExtent
    from wireyard.captures.left_out import LeftOut
    from wireyard.captures.packets.headers import Tally
    from wireyard.captures.read import FrameSpan
    from wireyard.captures.repairs import Repairs

_SHOWN_BYTES: Final = 4


class Readable(NamedTuple):
    """A stream and its format."""

    format: Format
    opened: DirectedStream


class PartEndpoints(NamedTuple):
    """Endpoints of a part of a capture, each with the formats of its connections."""

    opened: Collection[tuple[Endpoint, str]]
    """Endpoints that clients opened connections to."""
    undecided: Collection[tuple[Endpoint, str]]
    """Endpoints of connections whose own bytes show no format, with the format that was assumed,
    empty if none was. Connections in other parts may show a different one."""


@dataclass(frozen=True)
class Input:
    """An open source, and its streams."""

    name: str
    captured: bool
    """Whether it is a capture, so that its rows have times, frames and endpoints."""
    readables: Sequence[Readable]
    """Its streams in order; consecutive small ones may be in one `StreamBundle`."""
    unknown: Sequence[Assigned] = ()
    """The streams of a capture of unknown format, except answers of a port mapper."""
    broken: str | None = None
    """The reason why a capture or a store was not read to its end."""
    frames_unread: str | None = None
    """A note on the frames of a capture that are in no stream, by name."""
    files: Sequence[Bytes] = ()
    """The bytes of the files of a capture."""
    port_mapper: Sequence[Assigned] = ()
    """The streams of a capture to and from port mappers."""
    problems: Sequence[str] = ()
    """Reasons why bytes inside TLS or WebSocket were not read, for streams of known format."""
    spans: Sequence[FrameSpan] = ()
    """The frames in each file of a capture."""
    endpoints: PartEndpoints | None = None
    """The endpoints of a part of a capture."""
    left_out: LeftOut | None = None
    """Counts of the streams of a capture that are in no row."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the table ``streams`` that a capture states itself."""
    is_cut: bool = False
    """Whether packets were cut off when they were captured (snaplen)."""

    @property
    def damage(self) -> str | None:
        """The reason why it was not read to its end; of a bare stream, once that is read."""
        for _, opened in self.readables:
            if isinstance(opened, OpenedStream) and (damage := opened.damage) is not None:
                return describe_damage(damage, damage.unread_bytes)
        return self.broken

    @cached_property
    def streams(self) -> list[Readable]:
        """All streams, those in bundles one by one."""
        return [
            Readable(format, stream)
            for format, opened in self.readables
            for stream in each_stream([opened])
        ]

    def streams_named(self, names: Collection[str]) -> Iterator[Readable]:
        """Yield the streams with these names one by one, without creating the others."""
        for format, opened in self.readables:
            if isinstance(opened, StreamBundle):
                own = (at for at, name in enumerate(opened.names()) if name in names)
                yield from (Readable(format, stream) for stream in opened.pick(own))
            elif opened.stream in names:
                yield Readable(format, opened)

    def stream_names(self) -> Iterator[str]:
        """Yield the names of all streams."""
        for _, opened in self.readables:
            yield from opened.names() if isinstance(opened, StreamBundle) else [opened.stream]

    def one_format(self) -> Format:
        """Return the format of its streams, as a table has rows of one format only.

        `UsageError` is raised if there are several formats, or none.
        """
        formats = {stream.format.name for stream in self.readables}
        if len(formats) == 1:
            return self.readables[0].format
        if formats:
            held = " and ".join(sorted(formats))
            raise UsageError(f"{self.name}: holds {held}; name one of them, as format")
        unknown = "" if self.left_out is None else self.left_out.unknown
        problem = f"no stream in it begins like any format{unknown}"
        raise UnknownFormat("; ".join([f"{self.name}: {problem}", *self.closed]))

    @property
    def unread(self) -> str | None:
        """The note on bytes of a capture's streams that are in no row; None if there are none."""
        return None if self.left_out is None else self.left_out.unread

    def is_lossy(self, *, any_read: bool) -> bool:
        """Return whether bytes are in no row; of streams that were not opened, if none was read."""
        is_closed = self.left_out is not None and self.left_out.has_closed
        return bool(self.unread or self.damage) or (is_closed and not any_read)

    @property
    def notes(self) -> list[str]:
        """Notes on a capture that are about no loss: frames, proxy headers, repairs."""
        notes = [] if self.left_out is None else self.left_out.notes
        return [*filter(None, [self.frames_unread]), *notes]

    @property
    def closed(self) -> list[str]:
        """Notes on streams that were not opened: TLS without keys, HTTP."""
        return [] if self.left_out is None else list(self.left_out.describe_closed())

    def close(self) -> None:
        """Close the source."""
        for readable in self.readables:
            readable.opened.close()


def open_input(
    source: Source,
    named: Format | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str | os.PathLike[str]] = (),
) -> Input:
    """Open a source, and detect the formats of its streams.

    `source` is as for `open_source`. `named` is the format of a bare stream, detected by the first
    bytes if None, or of the streams of a capture to read; all if None. `decode_as` are rules for
    the formats of ports in a capture, such as ``tcp.port==1884,mqtt``, and `keylog` key logs with
    the secrets of its TLS connections. `SourceError` is raised if the source cannot be read, or is
    empty and no format is named; `UsageError` if a bare stream is of unknown format, or a key log
    is not one. The files of a store are in memory.
    """
    path = _path(source)
    if path is not None and os.path.isdir(path):
        return _open_store(path, named)
    opened = open_windows(source, accepts_damage=True)
    try:
        head = bytes(opened.first.view[:SNIFFED_BYTES])
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


def _path(source: Source) -> str | None:
    """Return the path of a source that can be opened again, so not of a pipe."""
    if not isinstance(source, str | os.PathLike) or source == "-":
        return None
    path = os.fspath(source)
    return path if "://" in path or os.path.isdir(path) or os.path.isfile(path) else None


def shown_format(head: bytes, named: Format | None) -> Format | None:
    """Return the format of a stream by its first bytes; if one is named, that one or None."""
    if named is None:
        return sniff(head)
    return named if named.evidence.begins(head) else None


def begins_store(head: bytes) -> bool:
    """Return whether the first bytes, which are of no format, are those of a file of a store."""
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
    return Input(path, False, streams, broken=str(damage) if damage else None)


def no_format(name: str, head: bytes) -> NoReturn:
    """Raise the error for a bare stream of unknown format.

    It is `SourceError` if the stream is empty, and `UnknownFormat` otherwise.
    """
    if not head:
        raise SourceError(f"{name}: is empty; {name_the_format()}")
    if packed := unsupported_compression(head):
        raise UnknownFormat(f"{name}: {packed}")
    shown = head[:_SHOWN_BYTES].hex(" ")
    raise UnknownFormat(f"{name}: begins like no format ({shown}); {name_the_format()}")


def name_the_format() -> str:
    """Return the advice in errors about bytes of unknown format."""
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

    `named`, `decode_as` and `keylog` are as for `open_input`. `part` is the number of the part of
    the conversations to open, and the number of parts; all if None. `name` is the value of the
    column `source`; the name of the first file if None. `index` are the index files of the capture,
    if they were written for as many parts; the sources are then paths, in the order of their
    packets. `opened` are the endpoints that clients opened connections to in other parts, each with
    a format. `SourceError` is raised if a file cannot be read, or is no capture.
    """
    # Imported here, so that a bare stream opens without them.
    from wireyard.captures.bundled import bundle_streams
    from wireyard.captures.carriers.tls_keys import embedded_secrets, read_key_logs
    from wireyard.captures.connections.stream import BufferPool
    from wireyard.captures.detection.assignment import PORT_MAPPER_PORT, parse_decode_as, proxies_of
    from wireyard.captures.detection.stream_formats import find_formats
    from wireyard.captures.directed import CapturedStream
    from wireyard.captures.left_out import LeftOut, problems_of
    from wireyard.captures.packets.units import Share
    from wireyard.captures.packets.unread import describe_unread
    from wireyard.captures.read import read_captures

    rules = [parse_decode_as(text) for text in decode_as]
    share = None if part is None else Share(*part, PORT_MAPPER_PORT)
    files: Iterable[Bytes]
    heads: Iterable[bytes]
    if index and share is not None:
        from wireyard.captures.index import read_indexed

        paths = [str(path) for path in sources]
        capture = read_indexed(paths, index, share)
        # Key logs may be in any page of a file, not only in those with packets of the share.
        files = _with_secrets(paths)
        heads = map(_head_of, paths)
    else:
        capture = read_captures(sources, share=share)
        files = capture.files
        heads = (data[:STATED_BYTES].tobytes() for data in files)
    keys = read_key_logs(keylog, lambda: embedded_secrets(files))
    is_shared = share is not None and share.of > 1
    formats = find_formats(capture, rules, named, keys, opened, shared=is_shared)
    known, assigned = formats.known, formats.apart.values()
    filled = [each for each in assigned if each.stream.size or each.carriers]
    unknown = [each for each in filled if each.format is None and each.port_mapper is None]
    mappers = [each for each in filled if each.format is None and each.port_mapper is not None]
    wanted = {
        index: each
        for index, each in formats.apart.items()
        if named is None or _is(named, each.format)
    }
    indexes = known.indexes(named)
    size = sum(each.stream.size for each in wanted.values())
    size += int(capture.table.sizes[indexes].sum())
    name = shown_url(name or capture.name)
    problems = problems_of(wanted.values())
    proxies = proxies_of(assigned)
    left_out = LeftOut.of(unknown, problems, proxies, capture.repairs, keyed=bool(keylog))
    pool = BufferPool()
    carried = {
        index: Readable(each.format, CapturedStream(name, each.stream, each.context, size, pool))
        for index, each in wanted.items()
        if each.format is not None and each.stream.size  # TLS may carry no bytes
    }
    others = np.array([*carried], np.int64)
    bundles = bundle_streams(name, capture.table, known, indexes, others, pool, size)
    ordered = [(index, Readable(known.format_at(index), each)) for index, each in bundles]
    readables = [one for _, one in sorted([*ordered, *carried.items()], key=itemgetter(0))]
    return Input(
        name,
        True,
        readables,
        unknown,
        describe_damage(capture.damage, capture.unread_bytes) if capture.damage else None,
        describe_unread(capture.unread, capture.cut),
        capture.files,
        mappers,
        [each.text for each in problems],
        capture.spans,
        None
        if share is None
        else PartEndpoints(formats.evidence.opened, formats.undecided(capture.table)),
        left_out,
        stated_columns(heads),
        capture.cut.packets > 0,
    )


def _head_of(path: str) -> bytes:
    from wireyard.streams.mapped import map_bytes

    head = map_bytes(path, 0, STATED_BYTES)
    return b"" if head is None else head[:STATED_BYTES].tobytes()


def _with_secrets(paths: Iterable[str]) -> Iterator[Bytes]:
    """Yield the bytes of the pcapng files, which may contain secrets; others are not fetched."""
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
    tally: Tally,
    proxies: Mapping[tuple[str, int], int],
    repairs: Repairs,
    damage: str | None,
    problems: Sequence[str],
    *,
    keyed: bool,
) -> Input:
    """Return the notes on a live capture at its end, as an `Input` without streams.

    `unknown`, `damage` and `problems` are as in `Input`, and `proxies` as for `count_proxies`.
    `tally` has the counts of its packets. `keyed` shows whether there are key logs.
    """
    from wireyard.captures.left_out import LeftOut
    from wireyard.captures.packets.unread import describe_unread, name_unread
    from wireyard.captures.records import Placed

    placed = [Placed(0, problem) for problem in problems]
    left_out = LeftOut.of(unknown, placed, proxies, repairs, keyed=keyed)
    frames = describe_unread(name_unread(tally.endings), tally.cut)
    return Input(name, True, [], unknown, damage, frames, problems=problems, left_out=left_out)


def _is(named: Format, format: Format | None) -> bool:
    return format is not None and format.name == named.name
