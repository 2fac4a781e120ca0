"""The formats of a capture's streams: plain streams in columns, the others one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from wireyard.captures.assignment import Assigned, DecodeAs, EndpointEvidence, assign_formats
from wireyard.captures.earlier import Earlier, find_earlier
from wireyard.captures.flows import Endpoint
from wireyard.captures.plain import Plain, find_plain
from wireyard.captures.read import Capture
from wireyard.captures.stream import Stream
from wireyard.captures.tls_keys import KeyLog
from wireyard.formats import Format

__all__ = ["StreamFormats", "find_formats"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamFormats:
    """The plain streams of a capture's table, and the format of each other one."""

    plain: Plain
    places: Ints
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
    # What shows the formats of endpoints may be in other parts, which need to know of these.
    earlier = Earlier.none() if shared else find_earlier(table, plain)
    places = np.setdiff1d(np.flatnonzero(~plain.there), earlier.places)
    evidence = EndpointEvidence()
    if len(plain.places(None)) < len(table) or shared:
        evidence.add_opened(plain.opened(table))
    evidence.add_opened(opened)

    def assign(places: Ints, guides: Sequence[Stream]) -> list[Assigned]:
        streams = [table.stream(place) for place in places.tolist()]
        return assign_formats(streams, rules, named, guides, keys, evidence)

    assigned = assign(places, capture.guides)
    if len(earlier.places):
        plain = earlier.add_to(plain, table, rules, evidence.formats(), named)
        left = earlier.places[~plain.there[earlier.places]]
        both = zip([*places.tolist(), *left.tolist()], [*assigned, *assign(left, ())], strict=True)
        ordered = sorted(both, key=itemgetter(0))
        places = np.array([place for place, _ in ordered], np.int64)
        assigned = [each for _, each in ordered]
    return StreamFormats(plain, places, assigned, evidence)
