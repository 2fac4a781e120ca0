"""Streams with their formats, as objects."""

from __future__ import annotations

from collections.abc import Sequence

from wireyard.captures.carriers.opening import Carriers
from wireyard.captures.carriers.tls_keys import KeyLog
from wireyard.captures.connections.stream import Stream
from wireyard.captures.detection.assignment import (
    Assigned,
    DecodeAs,
    EndpointEvidence,
    captured_connections,
)
from wireyard.formats import Format

__all__ = ["assign_formats"]


def assign_formats(
    streams: Sequence[Stream],
    rules: Sequence[DecodeAs] = (),
    named: Format | None = None,
    keys: KeyLog | None = None,
) -> list[Assigned]:
    """Return each stream with its format; parameters as for `find_formats`."""
    carriers = Carriers(KeyLog() if keys is None else keys)
    connections, evidence = [*captured_connections(streams, carriers)], EndpointEvidence()
    for connection in connections:
        evidence.add(connection)
    services = evidence.formats()
    return [each for one in connections for each in one.assigned(rules, services, named)]
