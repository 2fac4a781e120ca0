"""The formats of a capture's streams: in columns, but for those that are not as the table has them.

Only these are objects: what is inside TLS or WebSocket or behind the header of a proxy, datagrams,
answers of port mappers, and streams of unknown format. All other connections are made from the
table some thousand at a time, and released once their formats are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np

from wireyard.arrays import Bools, Ints
from wireyard.captures.carriers.opening import Carriers
from wireyard.captures.carriers.tls_keys import KeyLog
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.table import StreamTable
from wireyard.captures.detection.assignment import (
    Assigned,
    CapturedConnection,
    DecodeAs,
    EndpointEvidence,
    captured_connections,
)
from wireyard.captures.detection.plain import Earlier, Known, find_earlier, find_plain
from wireyard.captures.read import Capture
from wireyard.formats import Format

_AT_ONCE: Final = 1 << 12
"""Connections that are made at once."""
_MOST_HELD: Final = 1 << 15
"""Connections that are held, at 2 KB each, until the evidence of all is there; the others are made
again."""


@dataclass(frozen=True)
class StreamFormats:
    """The formats of the streams of a capture's table."""

    known: Known
    apart: Mapping[int, Assigned]
    """The other streams by their indexes in the table, ascending."""
    by_endpoint: Bools
    """Whether the format of a stream comes from its endpoints. Shapes: (t)."""
    evidence: EndpointEvidence

    def undecided(self, table: StreamTable) -> set[tuple[Endpoint, str]]:
        """Return the endpoints that decided formats, each with the format, empty if unknown."""
        found = {
            (end, "" if each.format is None else each.format.name)
            for each in self.apart.values()
            if each.by_endpoint and each.stream.size
            for end in (each.stream.src, each.stream.dst)
        }
        for number, format in enumerate(self.known.formats):
            rows = np.flatnonzero(self.by_endpoint & (self.known.numbers == number))
            for way in (0, 1):
                ends = table.flows.unlike(table.conversations[rows], table.ways[rows] ^ way)
                found |= {(end, format.name) for end in ends}
        return found


def find_formats(
    capture: Capture,
    rules: Sequence[DecodeAs],
    named: Format | None = None,
    keys: KeyLog | None = None,
    opened: Iterable[tuple[Endpoint, str]] = (),
    *,
    shared: bool = False,
) -> StreamFormats:
    """Find the format of each stream of a capture.

    `rules` are the caller's rules for ports, and `named` is the format that the caller wants to
    read. Its dialect is used for its streams. If it is a format of datagrams, whose bytes do not
    show it, it is that of all UDP streams without a rule. TLS connections are decrypted only with
    `keys`. `opened` are the endpoints that clients opened connections to in other parts of the
    capture, each with a format. With `shared`, the evidence is also for the readers of other parts.
    """
    table = capture.table
    plain = find_plain(table, rules, named)
    # Other parts of the capture may have evidence on the endpoints, and need that of this part.
    earlier = Earlier.none() if shared else find_earlier(table, plain)
    indexes = np.setdiff1d(np.flatnonzero(~plain.is_known), earlier.indexes)
    evidence = EndpointEvidence()
    if len(plain.indexes(None)) < len(table) or shared:
        evidence.add_opened(plain.opened(table))
    evidence.add_opened(opened)
    carriers = Carriers(KeyLog() if keys is None else keys)
    found = _Found(table)
    held: list[tuple[Sequence[int], CapturedConnection]] = []
    waiting: list[Sequence[int]] = []
    for own, connection in _connections(table, indexes, carriers):
        evidence.add(connection)
        if not connection.needs_services(rules):
            found.add(own, connection.assigned(rules, {}, named))
        elif len(held) < _MOST_HELD:
            held.append((own, connection))
        else:
            waiting.append(own)
    for guide in captured_connections(capture.guides, carriers):
        evidence.add(guide)
    services = evidence.formats()
    if len(earlier.indexes):
        plain = earlier.add_to(plain, table, rules, services, named)
        waiting.append(earlier.indexes[~plain.is_known[earlier.indexes]].tolist())
    left = np.sort(np.fromiter(chain.from_iterable(waiting), np.int64))
    for own, connection in chain(held, _connections(table, left, carriers)):
        found.add(own, connection.assigned(rules, services, named))
    apart = dict(sorted(found.apart.items()))
    return StreamFormats(found.added_to(plain), apart, found.by_endpoint, evidence)


def _connections(
    table: StreamTable, indexes: Ints, carriers: Carriers
) -> Iterator[tuple[Sequence[int], CapturedConnection]]:
    """Yield the connections of streams, each with the indexes of these."""
    begins = np.flatnonzero(np.diff(table.connections[indexes], prepend=-1))
    for first in range(0, len(begins), _AT_ONCE):
        stop = begins[first + _AT_ONCE] if first + _AT_ONCE < len(begins) else len(indexes)
        own = indexes[begins[first] : stop].tolist()
        at = 0
        for connection in captured_connections([table.stream(one) for one in own], carriers):
            yield own[at : at + len(connection.heads)], connection
            at += len(connection.heads)


class _Found:
    """The formats of the connections that are examined one by one."""

    def __init__(self, table: StreamTable) -> None:
        self.apart: dict[int, Assigned] = {}
        self.by_endpoint = np.zeros(len(table), np.bool_)
        self._formats: list[Format] = []
        self._rows: list[tuple[int, int, int]] = []
        """Index in the table, number of the format and context of each stream."""

    def add(self, indexes: Sequence[int], assigned: Sequence[Assigned]) -> None:
        """Add the streams of a connection."""
        format = assigned[0].format
        is_as_captured = all(
            each.stream is each.captured and each.captured.proxy is None for each in assigned
        )
        if format is None or not is_as_captured or assigned[0].stream.protocol != "tcp":
            self.apart.update(zip(indexes, assigned, strict=True))
            return
        if format not in self._formats:
            self._formats.append(format)
        number = self._formats.index(format)
        self._rows += [
            (index, number, each.context) for index, each in zip(indexes, assigned, strict=True)
        ]
        if assigned[0].by_endpoint:
            self.by_endpoint[indexes] = True

    def added_to(self, plain: Known) -> Known:
        """Return all known formats, given those of plain streams."""
        if not self._rows:
            return plain
        rows, numbers, contexts = np.array(self._rows, np.int64).T
        formats = [*plain.formats]
        formats += [each for each in self._formats if each not in formats]
        ours = np.array([formats.index(each) for each in self._formats])
        columns = plain.numbers.copy(), plain.firsts.copy(), plain.alone.copy()
        for column, values in zip(columns, (ours[numbers], contexts, True), strict=True):
            column[rows] = values
        return replace(
            plain, formats=formats, numbers=columns[0], firsts=columns[1], alone=columns[2]
        )
