"""The formats of a capture's streams: plain streams in columns, the others one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wireyard.captures.assignment import Assigned, DecodeAs, EndpointEvidence, assign_formats
from wireyard.captures.bundled import Plain, find_plain
from wireyard.captures.flows import Endpoint
from wireyard.captures.read import Capture
from wireyard.captures.tls_keys import KeyLog
from wireyard.formats import Format

__all__ = ["StreamFormats", "find_formats"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamFormats:
    """The plain streams of a capture's table, and the format of each other one."""

    plain: Plain | None
    """None if no stream is plain."""
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
    # The rules of a caller for ports, or for a dialect, are applied to each stream.
    plain = None if rules or (named is not None and named.dialect) else find_plain(table)
    places = np.arange(len(table)) if plain is None else np.flatnonzero(~plain.there)
    streams = capture.streams if plain is None else [table.stream(at) for at in places.tolist()]
    evidence = EndpointEvidence()
    if plain is not None and (streams or shared):
        evidence.add_opened(plain.opened(table).items())
    evidence.add_opened(opened)
    assigned = assign_formats(streams, rules, named, capture.guides, keys, evidence)
    return StreamFormats(plain, places, assigned, evidence)
