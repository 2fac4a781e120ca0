"""The formats of a capture's streams: plain streams in columns, the others one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from wireyard.arrays import Ints
from wireyard.captures.carriers.tls_keys import KeyLog
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.stream import Stream
from wireyard.captures.detection.assignment import (
    Assigned,
    DecodeAs,
    EndpointEvidence,
    assign_formats,
)
from wireyard.captures.detection.earlier import Earlier, find_earlier
from wireyard.captures.detection.plain import Plain, find_plain
from wireyard.captures.read import Capture
from wireyard.formats import Format

__all__ = ["StreamFormats", "find_formats"]


@dataclass(frozen=True)
class StreamFormats:
    """The plain streams of a capture's table, and the formats of the other streams."""

    plain: Plain
    indexes: Ints
    """Indexes in the table of the other streams, ascending."""
    assigned: Sequence[Assigned]
    """The other streams with their formats, in the same order."""
    evidence: EndpointEvidence


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

    Parameters
    ----------
    rules, named, keys
        As for `assign_formats`.
    opened
        The endpoints that clients opened connections to in other parts of the capture, each with a
        format.
    shared
        Whether the evidence is also for the readers of other parts.
    """
    table = capture.table
    plain = find_plain(table, rules, named)
    # Other parts of the capture may have evidence on the endpoints, and need that of this part.
    earlier = Earlier.none() if shared else find_earlier(table, plain)
    indexes = np.setdiff1d(np.flatnonzero(~plain.is_plain), earlier.indexes)
    evidence = EndpointEvidence()
    if len(plain.indexes(None)) < len(table) or shared:
        evidence.add_opened(plain.opened(table))
    evidence.add_opened(opened)

    def assign(indexes: Ints, guides: Sequence[Stream]) -> list[Assigned]:
        streams = [table.stream(index) for index in indexes.tolist()]
        return assign_formats(streams, rules, named, guides, keys, evidence)

    assigned = assign(indexes, capture.guides)
    if len(earlier.indexes):
        plain = earlier.add_to(plain, table, rules, evidence.formats(), named)
        rest = earlier.indexes[~plain.is_plain[earlier.indexes]]
        both = zip([*indexes.tolist(), *rest.tolist()], [*assigned, *assign(rest, ())], strict=True)
        ordered = sorted(both, key=itemgetter(0))
        indexes = np.array([index for index, _ in ordered], np.int64)
        assigned = [each for _, each in ordered]
    return StreamFormats(plain, indexes, assigned, evidence)
