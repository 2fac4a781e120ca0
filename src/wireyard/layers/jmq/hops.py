"""The hops of a message: every packet that shows it, in order, with the time since the hop before.

Packets have no field for timestamps of hops (open issue 2 of the specification, errata 37);
captures have them. A message in several captures, taken at different points, is one message: its
hops get one order once the clock offsets between the points are estimated (``clocks.py``). The
stages, each with its key:

1. ``hops``, key: message, across all sources. Messages with times of one clock become rows at once.
2. ``spans``, key: capture points and window. The differences of the times of the same packets.
3. ``clocks``, key: capture points. Clock offsets from the bounds of all windows.
4. ``windows``, key: capture points and window. Each sighting gets the clocks of its window.
5. ``paths``, key: message. The rows of messages with times of several clocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.layers.jmq.clocks import (
    CONTRADICTION,
    ONE_WAY,
    WINDOW_NS,
    Clocks,
    Spans,
    Track,
    Window,
    clocks,
    separate_clocks,
    widened,
)
from wireyard.layers.records import Position
from wireyard.layers.stages import Dropped, Found, Key, KeyedRecord, Stage, fact_of, keyed_record

__all__ = [
    "FOLLOWS",
    "HOPS",
    "HOP_STAGES",
    "MAX_POINTS",
    "MAX_SIGHTINGS",
    "OF_MESSAGE",
    "UNKNOWN",
    "Sighting",
    "hop_record",
]

HOPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sent": "from the producer to its broker",
        "accepted": "SEND_REPLY with status 200, from that broker to the producer",
        "relayed": "G_MESSAGE_DATA from broker to broker, for a consumer there",
        "delivered": "from a broker to a consumer",
        "acknowledged": "ACKNOWLEDGE from the consumer to its broker",
        "relay_acknowledged": "G_MESSAGE_ACK from broker to broker: consumed, or to be consumed"
        " with a transaction",
    }
)
"""Each kind of hop, in the order in which they happen."""

FOLLOWS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sent": ("sent",),
        "accepted": ("accepted", "sent"),
        "relayed": ("relayed", "sent"),
        "delivered": ("delivered", "relayed", "sent"),
        "acknowledged": ("acknowledged", "delivered"),
        "relay_acknowledged": ("relay_acknowledged", "acknowledged", "delivered", "relayed"),
    }
)
"""The kinds of hops that a hop may follow from: it follows the latest one of its consumer."""

UNKNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "first": "nothing was seen that it follows from",
        "untimed": "its stream has no times",
        ONE_WAY: "what it follows from has another clock, and packets between both capture points"
        " were seen in one direction only, or none",
        CONTRADICTION: "the same, and the times of packets in both directions contradict each"
        " other: a clock was set, or a timestamp is wrong",
    }
)
"""The reasons why the time of a hop is unknown."""

MAX_SIGHTINGS: Final = 1 << 16
"""The most sightings of one message: enough for a topic with ten thousand consumers."""
MAX_POINTS: Final = 8
"""The most capture points of one message whose clocks are compared: the first ones by name."""
MAX_WINDOWS: Final = 1 << 17
"""The most windows of a set of capture points that get clocks: three days without a pause at one
point, some 100 MB for two points."""
MAX_SPANS: Final = 1 << 18
"""The most spans of a set of capture points that are used, some 50 MB."""

OF_MESSAGE: Final = ("sent", "accepted")
"""Kinds of hops that belong to no consumer."""
_TOWARDS_BROKER: Final = ("sent", "acknowledged")
_RANK: Final = {kind: rank for rank, kind in enumerate(HOPS)}
_ONE_CLOCK: Final = separate_clocks(1)
_CLOCKS, _SIGHTING = range(2)
"""Order in ``windows``: the clocks, then the sightings that need them."""


class Sighting(NamedTuple):
    """One packet that shows a message."""

    kind: str
    consumer_id: int | None
    delivery_count: int | None
    sender: str
    receiver: str
    at: Position


class Timed(NamedTuple):
    """A sighting, and the clocks of all capture points of its message at that time."""

    message_key: str
    sighting: Sighting
    point: int
    clocks: Clocks


class Waiting(NamedTuple):
    """A sighting that waits for the clocks of its window."""

    message_key: str
    sighting: Sighting
    point: int


class PointWindow(NamedTuple):
    """A window of the clock of one capture point, in a set of points with the same messages."""

    points: tuple[str, ...]
    point: int
    number: int

    @property
    def key(self) -> Key:
        """The window as a partition key."""
        return (*self.points, self.point, self.number)


# --- one message ----------------------------------------------------------------------------


def hop_record(message_key: str, seen: Sequence[Sighting]) -> KeyedRecord:
    """Return a record for stage ``hops``: a packet that shows a message, and its reply if any."""
    first = seen[0]
    order = first.at.source, *first.at.order, first.consumer_id or 0
    return keyed_record(("hops", (message_key,), order, (message_key, seen)))


def _hops(records: Iterator[tuple[str, Sequence[Sighting]]]) -> Iterator[Found]:
    """Yield the rows of a message with times of one source; pass on the sightings of any other."""
    sightings: list[Sighting] = []
    message_key, dropped = "", 0
    for record in records:
        message_key, new = record
        if len(sightings) < MAX_SIGHTINGS:
            sightings += new
        else:
            dropped += len(new)
    if dropped:
        yield Dropped("MAX_SIGHTINGS", dropped)
    points = tuple(sorted({seen.at.source for seen in sightings if seen.at.ns is not None}))
    if len(points) > MAX_POINTS:
        points = points[:MAX_POINTS]
        yield Dropped("MAX_POINTS", sum(seen.at.source not in points for seen in sightings))
        sightings = [seen for seen in sightings if seen.at.source in points]
    if len(points) > 1:
        yield from _to_windows(message_key, sightings, points)
    else:
        yield from _rows([Timed(message_key, seen, 0, _ONE_CLOCK) for seen in sightings])


def _to_windows(
    message_key: str, sightings: Sequence[Sighting], points: tuple[str, ...]
) -> Iterator[Found]:
    """Pass sightings on to their windows, and those without a time to the last stage."""
    differences = _differences(points, sightings)
    for ordinal, seen in enumerate(sightings):
        if seen.at.ns is None:
            timed = Timed(message_key, seen, 0, _ONE_CLOCK)
            yield KeyedRecord("paths", (message_key,), (ordinal,), timed)
            continue
        point = points.index(seen.at.source)
        window = PointWindow(points, point, seen.at.ns // WINDOW_NS)
        yield KeyedRecord("spans", window.key, (), (window, differences.get(seen, {})))
        waiting = Waiting(message_key, seen, point)
        yield KeyedRecord("windows", window.key, (_SIGHTING, message_key, ordinal), waiting)


# --- clocks ---------------------------------------------------------------------------------


def _differences(points: Sequence[str], seen: Iterable[Sighting]) -> Mapping[Sighting, Spans]:
    """Return the time differences between points of the same packet.

    Packets with the same kind, consumer and delivery count are the same packet. If two points have
    equally many of them, they correspond in order; otherwise one point missed some, and it is
    unknown which, so they are not compared.
    """
    packets: defaultdict[tuple[object, ...], list[list[Sighting]]]
    packets = defaultdict(lambda: [[] for _ in points])
    for sighting in sorted(seen, key=lambda sighting: sighting.at.order):
        if sighting.at.ns is not None:
            packet = sighting.kind, sighting.consumer_id, sighting.delivery_count
            packets[packet][points.index(sighting.at.source)].append(sighting)
    differences: dict[Sighting, dict[Track, tuple[int, int]]] = {}
    for at_points in packets.values():
        for i, j in combinations(range(len(points)), 2):
            if len(at_points[i]) == len(at_points[j]):
                for at_i, at_j in zip(at_points[i], at_points[j], strict=True):
                    difference = (at_j.at.ns or 0) - (at_i.at.ns or 0)
                    tracks = differences.setdefault(at_i, {})
                    tracks[Track(i, j, *_link(at_i))] = difference, difference
    return differences


def _link(sighting: Sighting) -> tuple[tuple[str, str], bool]:
    """Return the two ends of a packet's link, and whether it is sent to the second.

    The ends are the hosts of a client and its broker, or the endpoints of two brokers.
    """
    sender, receiver = sighting.sender, sighting.receiver
    if sighting.kind in ("relayed", "relay_acknowledged"):
        first, second = sorted((sender, receiver))
        return (first, second), sender == first
    forward = sighting.kind in _TOWARDS_BROKER
    ends = (sender, receiver) if forward else (receiver, sender)
    client, broker = (end.rpartition(":")[0] for end in ends)
    return (client, broker), forward


def _spans(records: Iterator[tuple[PointWindow, Spans]]) -> Iterator[Found]:
    """Combine the time differences of a window to spans."""
    combined: dict[Track, tuple[int, int]] = {}
    key: PointWindow | None = None
    for window, spans in records:
        key = window
        for track, span in spans.items():
            combined[track] = widened(combined.get(track), span)
    if key is not None:
        yield KeyedRecord("clocks", key.points, (key.number, key.point), (key, combined))


def _clocks(records: Iterator[tuple[PointWindow, Spans]]) -> Iterator[Found]:
    """Yield the clock offsets of every window."""
    windows: dict[Window, Spans] = {}
    points: tuple[str, ...] = ()
    total = 0
    dropped: Counter[str] = Counter()
    for window, spans in records:
        points = window.points
        if len(windows) == MAX_WINDOWS:
            dropped["MAX_WINDOWS"] += 1
            unknown = separate_clocks(len(points), ONE_WAY)
            yield KeyedRecord("windows", window.key, (_CLOCKS, "", 0), unknown)
            continue
        total += len(spans)
        if total > MAX_SPANS:
            dropped["MAX_SPANS"] += len(spans)
            spans = {}
        windows[window.point, window.number] = spans
    for cap, things in dropped.items():
        yield Dropped(cap, things)
    for (point, number), of_window in clocks(len(points), windows).items():
        key = PointWindow(points, point, number).key
        yield KeyedRecord("windows", key, (_CLOCKS, "", 0), of_window)


def _windows(records: Iterator[Clocks | Waiting]) -> Iterator[Found]:
    """Pass the sightings of a window on to their messages, with the clocks of the window."""
    clocks = next(records, None)
    assert clocks is None or isinstance(clocks, Clocks), "clocks come first"
    for ordinal, waiting in enumerate(records):
        if clocks is not None and isinstance(waiting, Waiting):
            yield KeyedRecord("paths", (waiting.message_key,), (ordinal,), Timed(*waiting, clocks))


# --- rows -----------------------------------------------------------------------------------


class Hop(NamedTuple):
    """A sighting with its place in the order of its message."""

    order: tuple[bool, int, int, int, int, int, int, str, int, int]
    ns: int
    """Its time by the clock of the reference."""
    reference: int | None
    timed: Timed

    @property
    def ahead_ns(self) -> int:
        """The offset of the clock of its point from that of the reference."""
        return (self.timed.sighting.at.ns or 0) - self.ns


def _rows(seen: Iterable[Timed]) -> Iterator[Found]:
    """Yield the rows of one message, reference by reference in the order of time."""
    hops = sorted(_on_one_clock(seen), key=itemgetter(0))
    comparable = len({hop.reference for hop in hops} - {None}) < 2
    latest: dict[tuple[int | None, str, int | None], tuple[int, Hop]] = {}
    for ordinal, hop in enumerate(hops, 1):
        kind, consumer_id, *_ = hop.timed.sighting
        before = None
        for followed in FOLLOWS[kind]:
            of = None if followed in OF_MESSAGE else consumer_id
            candidate = latest.get((hop.reference, followed, of))
            if candidate is not None and (before is None or candidate[0] > before[0]):
                before = candidate
        latest[hop.reference, kind, consumer_id] = ordinal, hop
        unknown = None
        if hop.reference is None:
            unknown = "untimed"
        elif before is None:
            unknown = "first" if comparable else hop.timed.clocks.reason
        yield fact_of(("hops", _row(ordinal, hop, before, unknown)))


def _on_one_clock(seen: Iterable[Timed]) -> Iterator[Hop]:
    """Yield sightings with times by the clock of their reference.

    Each window has its own clock offset. Where the offset changes, the time of a point stands still
    instead of going back.
    """
    latest: dict[tuple[int | None, int], int] = {}
    for timed in sorted(seen, key=lambda timed: timed.sighting.at.order):
        sighting, point = timed.sighting, timed.point
        at = sighting.at
        reference = None if at.ns is None else timed.clocks.reference[point]
        captured = at.ns or 0
        ns = captured - timed.clocks.ahead_ns[point]
        latest[reference, point] = ns = max(ns, latest.get((reference, point), ns))
        order = (
            reference is None, reference or 0, ns, captured, _RANK[sighting.kind], point,
            at.frame or 0, at.stream, at.offset, sighting.consumer_id or 0,
        )  # fmt: skip
        yield Hop(order, ns, reference, timed)


def _row(ordinal: int, hop: Hop, before: tuple[int, Hop] | None, unknown: str | None) -> Row:
    message_key, sighting, point, clocks = hop.timed
    at, reference = sighting.at, hop.reference
    took = error = ahead_error = None
    if before is not None and unknown is None:
        other = before[1]
        took, error = hop.ns - other.ns, 0
        if other.timed.point == point:
            took = (at.ns or 0) - (other.timed.sighting.at.ns or 0)
        else:
            error = clocks.error_ns(other.timed.point, point, hop.ahead_ns - other.ahead_ns)
    if reference is not None:
        ahead_error = clocks.error_ns(reference, point, hop.ahead_ns)
    return {
        "message_key": message_key,
        "hop": ordinal,
        "kind": sighting.kind,
        "sender": sighting.sender or None,
        "receiver": sighting.receiver or None,
        "consumer_id": sighting.consumer_id,
        "captured_ns": at.ns,
        "frame": at.frame,
        "follows": before and before[0],
        "took_ns": took,
        "took_error_ns": error,
        "unknown": unknown,
        "clock_ahead_ns": None if reference is None else hop.ahead_ns,
        "clock_error_ns": ahead_error,
        **at.lead,
    }


HOP_STAGES: Final[Mapping[str, Stage]] = MappingProxyType(
    {"hops": _hops, "spans": _spans, "clocks": _clocks, "windows": _windows, "paths": _rows}
)
"""The stages by name, in their order."""
