"""What of a capture's streams is in no row, in counts to which those of its parts can be added.

Sentences about a capture come from these counts alone, so they are the same whether one reader has
all of its conversations or many have some each. What is named goes by the frame it begins in.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from typing import Final, NamedTuple

from wireyard.captures.assignment import Assigned, count_proxies
from wireyard.captures.stream import Stream

__all__ = ["LeftOut", "Placed", "problems_of"]

_SHOWN: Final = 3
_MOST_PORTS: Final = 256
"""Servers' ports that are counted, the most frequent ones."""
_MOST_PROBLEMS: Final = 64
_NO_FRAME: Final = 1 << 62
"""Of a stream of which no byte was captured."""


class Placed(NamedTuple):
    """A text, and the frame it is about."""

    frame: int
    text: str


class ServerPort(NamedTuple):
    """A port that servers of streams without a format have."""

    protocol: str
    port: int
    connections: int
    frame: int
    """Where the first of them is."""


class ProxyHeaders(NamedTuple):
    """Headers of proxies of one name and size."""

    name: str
    size: int
    connections: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What of the streams of a capture, or of a part of it, is in no row."""

    streams: int = 0
    """How many have no format."""
    size: int = 0
    """How many bytes those have."""
    names: Sequence[Placed] = ()
    """The first of them."""
    ports: Sequence[ServerPort] = ()
    closed: int = 0
    """How many streams are of carriers that were not opened, or not to the end."""
    closed_bytes: int = 0
    carriers: Sequence[Placed] = ()
    """The first of those carriers, and one more than are shown."""
    reasons: Sequence[Placed] = ()
    """Why the first of them was not opened."""
    locked: bool = False
    """Whether a key log would open some."""
    problems: int = 0
    """How many carriers of streams that have a format were not read whole."""
    reported: Sequence[Placed] = ()
    """The first of those problems."""
    proxies: Sequence[ProxyHeaders] = ()

    @classmethod
    def of(
        cls,
        unknown: Sequence[Assigned],
        problems: Iterable[Placed],
        proxies: Mapping[tuple[str, int], int],
        *,
        keyed: bool,
    ) -> LeftOut:
        """Count what is left out.

        Parameters
        ----------
        unknown
            The streams without a format that are no answers of port mappers.
        problems
            Why bytes inside TLS or WebSocket were not read, of streams that have a format, each
            once.
        proxies
            What `count_proxies` takes.
        keyed
            Whether there are key logs.
        """
        plain = [each.stream for each in unknown if not each.closed and each.stream.size]
        # A handshake of TLS that failed, and nothing else, has nothing that was not read.
        carried = [
            each
            for each in unknown
            if any(one.problem for one in each.carriers)
            or (each.closed and each.carriers[-1].name != "tls")
        ]
        found = [*problems]
        return cls(
            len(plain),
            sum(stream.size for stream in plain),
            _first((Placed(_frame(one), one.name) for one in plain), _SHOWN),
            _most_common(_server_ports(plain)),
            len(carried),
            sum(each.captured.size for each in carried),
            _first(
                _distinct(
                    Placed(_frame(each.captured), " in ".join(map(str, each.carriers[::-1])))
                    for each in carried
                ),
                _SHOWN + 1,
            ),
            _first(
                (
                    Placed(_frame(each.captured), one.problem)
                    for each in carried
                    for one in each.carriers
                    if one.problem
                ),
                1,
            ),
            not keyed and any(each.closed and each.carriers[-1].is_locked for each in carried),
            len(found),
            _first(found, _MOST_PROBLEMS),
            [ProxyHeaders(*header, count) for header, count in proxies.items()],
        )

    @classmethod
    def total(cls, parts: Sequence[LeftOut]) -> LeftOut:
        """Add what is left out of the parts of a capture."""
        every = chain.from_iterable
        headers: Counter[tuple[str, int]] = Counter()
        for name, size, count in every(each.proxies for each in parts):
            headers[name, size] += count
        return cls(
            sum(each.streams for each in parts),
            sum(each.size for each in parts),
            _first(every(each.names for each in parts), _SHOWN),
            _most_common(every(each.ports for each in parts)),
            sum(each.closed for each in parts),
            sum(each.closed_bytes for each in parts),
            _first(_distinct(every(each.carriers for each in parts)), _SHOWN + 1),
            _first(every(each.reasons for each in parts), 1),
            any(each.locked for each in parts),
            sum(each.problems for each in parts),
            _first(_distinct(every(each.reported for each in parts)), _MOST_PROBLEMS),
            [ProxyHeaders(*header, count) for header, count in headers.items()],
        )

    @classmethod
    def load(cls, text: str) -> LeftOut:
        """Return what `dump` wrote."""
        known = json.loads(text)
        for name, kind in _LISTED.items():
            known[name] = [kind(*each) for each in known[name]]
        return cls(**known)

    def dump(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    def lines(self) -> list[str]:
        """Return all that is to be said."""
        return [*filter(None, (self.headers, *self.describe_closed(), self.unread))]

    @property
    def headers(self) -> str | None:
        """A line about headers of proxies, None if there are none."""
        return count_proxies({(name, size): count for name, size, count in self.proxies})

    def describe_closed(self) -> Iterator[str]:
        """Yield lines about what carries streams that were not opened, and how to open it."""
        if not self.closed:
            return
        why = f" ({self.reasons[0].text})" if self.reasons else ""
        yield f"{self.closed} streams, {self.closed_bytes} bytes, are {_listed(self.carriers)}{why}"
        if self.locked:
            yield "a key log opens TLS: --keylog FILE"

    @property
    def unknown(self) -> str:
        """Which streams have no format, in parentheses, and what to do; empty if all have one."""
        if not self.streams:
            return ""
        shown = _listed(self.names, more=self.streams > _SHOWN)
        return f" ({shown}): unknown format; {self._suggest_decode_as()}"

    @property
    def unread(self) -> str | None:
        """The bytes that are in no row, and why; None if all are in one."""
        found = [each.text for each in self.reported]
        if self.streams:
            found.insert(0, f"{self.streams} streams, {self.size} bytes{self.unknown}")
        if (more := self.problems - len(self.reported)) > 0:
            found.append(f"{more} more such problems")
        return "; ".join(found) or None

    def _suggest_decode_as(self) -> str:
        """Return how streams of unknown format are decoded, by the port that most servers have."""
        protocol, port, *_ = self.ports[0]
        format = "mqtt" if protocol == "tcp" else "rmp"
        return f"to decode it as {format.upper()}: --decode-as {protocol}.port=={port},{format}"


_LISTED: Final = {
    "names": Placed,
    "ports": ServerPort,
    "carriers": Placed,
    "reasons": Placed,
    "reported": Placed,
    "proxies": ProxyHeaders,
}


def problems_of(assigned: Iterable[Assigned]) -> list[Placed]:
    """Return what is wrong with the carriers of streams that have a format, each once."""
    return [
        *_distinct(
            Placed(_frame(each.captured), carrier.problem)
            for each in assigned
            if each.format is not None
            for carrier in each.carriers
            if carrier.problem
        )
    ]


def _frame(stream: Stream) -> int:
    records = stream.runs.records
    return int(records[0]) if len(records) else _NO_FRAME


def _first(placed: Iterable[Placed], count: int) -> list[Placed]:
    """Return the first of some texts by their frames; in their order those of one frame."""
    return sorted(placed, key=lambda each: each.frame)[:count]


def _distinct(placed: Iterable[Placed]) -> Iterator[Placed]:
    """Yield each text once, with its first frame."""
    frames: dict[str, int] = {}
    for frame, text in placed:
        frames[text] = min(frame, frames.get(text, frame))
    return (Placed(frame, text) for text, frame in frames.items())


def _listed(placed: Sequence[Placed], *, more: bool = False) -> str:
    shown = ", ".join(each.text for each in placed[:_SHOWN])
    return f"{shown}, .." if more or len(placed) > _SHOWN else shown


def _server_ports(streams: Sequence[Stream]) -> Iterator[ServerPort]:
    for _, both in groupby(streams, key=lambda stream: stream.connection):
        directions = list(both)
        frame = min(map(_frame, directions))
        yield ServerPort(directions[0].protocol, _server_port(directions), 1, frame)


def _server_port(directions: Sequence[Stream]) -> int:
    """Return the port of who was connected to, by who began, else the port below the other."""
    first = directions[0]
    if first.begun and len(directions) > 1:
        return first.dst.port
    return min(first.src.port, first.dst.port)


def _most_common(ports: Iterable[ServerPort]) -> list[ServerPort]:
    """Return each port once: of TCP before those of UDP, and what most servers have before."""
    found: dict[tuple[str, int], ServerPort] = {}
    for one in ports:
        key = one.protocol, one.port
        known = found.get(key, one._replace(connections=0))
        frame = min(known.frame, one.frame)
        found[key] = ServerPort(*key, known.connections + one.connections, frame)
    order = sorted(found.values(), key=lambda one: (one.protocol, -one.connections, one.frame))
    return order[:_MOST_PORTS]
