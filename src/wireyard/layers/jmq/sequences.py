"""Gaps in what a sender numbered: every packet that it writes has the next number.

A program numbers all its packets with one counter, whatever connection they go to, and other
programs on its host begin anew. So a number is missing where a connection goes on behind it, and no
connection of the same host has it. The key of this step is the host, and its side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.jmq.facts import Place, place_of

__all__ = ["MAX_RUNS", "Gap", "Sequences"]

MAX_RUNS: Final = 1 << 18
"""Runs of numbers without a gap that are remembered; connections that share a counter break up
each other's runs, so there may be as many as packets."""

_BITS: Final = 32
_HALF: Final = 1 << (_BITS - 1)


class Gap(NamedTuple):
    """Numbers ``[start, stop)`` that a sender did not use, before the packet at `place`."""

    sender: str
    start: int
    stop: int
    place: Place


@dataclass(slots=True)
class _Run:
    start: int
    stop: int
    place: Place


@dataclass(slots=True)
class _Stream:
    runs: list[_Run] = field(default_factory=list)
    address: Any = None


class Sequences:
    """The numbers of all senders."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._of_host: defaultdict[tuple[str, bool], list[tuple[str, _Stream]]] = defaultdict(list)
        self._incomplete: set[tuple[str, bool]] = set()
        self._runs = 0
        self.dropped = 0

    def take(
        self, row: Row, key: tuple[str, str], host: str, sender: str, from_client: bool
    ) -> None:
        """Take the row of a packet, the source and name of its stream, and who sent it.

        The sender is an endpoint of the host.
        """
        stream = self._streams.get(key)
        if stream is None:
            if self._runs >= MAX_RUNS:
                self._drop(host, from_client)
                return
            stream = self._streams[key] = _Stream()
            self._of_host[host, from_client].append((sender, stream))
        if not from_client and not _own(row, stream):
            return
        runs, sequence = stream.runs, row["sequence"]
        if runs:
            run = runs[-1]
            ahead = (sequence - run.stop + _HALF) % (1 << _BITS) - _HALF
            if ahead == 0:
                run.stop += 1
                return
            if ahead < 0:  # Sent again as it was.
                return
            sequence = run.stop + ahead
        if self._runs >= MAX_RUNS:
            self._drop(host, from_client)
            return
        self._runs += 1
        runs.append(_Run(sequence, sequence + 1, place_of(row)))

    def _drop(self, host: str, from_client: bool) -> None:
        self._incomplete.add((host, from_client))
        self.dropped += 1

    def gaps(self) -> Iterator[Gap]:
        """Yield what is missing; nothing of hosts of which runs were dropped."""
        for host, streams in self._of_host.items():
            if host in self._incomplete:
                continue
            runs = sorted(
                ((run, sender) for sender, stream in streams for run in stream.runs),
                key=lambda found: found[0].start,
            )
            spans = sorted((one.runs[0].start, one.runs[-1].stop) for _, one in streams if one.runs)
            yield from _missing(runs, spans)


def _missing(runs: list[tuple[_Run, str]], spans: list[tuple[int, int]]) -> Iterator[Gap]:
    """Yield the gaps between runs that lie within the span of a connection."""
    seen = reach = runs[0][0].start if runs else 0
    opened = 0
    for run, sender in runs:
        while opened < len(spans) and spans[opened][0] <= seen:
            reach = max(reach, spans[opened][1])
            opened += 1
        if run.start > seen and reach > run.start:
            yield Gap(sender, seen, run.start, run.place)
        seen = max(seen, run.stop)


def _own(row: Row, stream: _Stream) -> bool:
    """Tell whether a broker numbered a packet: messages have the number of who sent them to it."""
    address = row["source_ip"], row["source_port"]
    if row["packet_type"] not in MESSAGE_TYPES:
        stream.address = address
        return True
    return bool(address == stream.address)
