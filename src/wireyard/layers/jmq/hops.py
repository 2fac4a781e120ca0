"""Where the time of a message went: each time that it was seen, in order.

The wire has no room for timestamps (open issue 2 of the specification, errata 37); captures have
them. A message that several captures show, taken at different points, is one message: its hops are
put in one order, once it is known how far the clocks of the points differ (``clocks.py``). These
are the stages, each with its key:

1. ``hops``, key: message, of all sources. What one clock has timed makes rows at once.
2. ``spans``, key: capture points and window. How much the times of packets differ that two saw.
3. ``clocks``, key: capture points. Bounds of all windows become clocks.
4. ``windows``, key: capture points and window. Each sighting gets its clocks.
5. ``paths``, key: message. Rows of what several clocks have timed.
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
from wireyard.layers.jmq.records import Delivery, Relay, Sending
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
    "seen",
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
"""The kinds of hop that one follows from: the latest before it, of the same consumer."""

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
"""Why it is not known what a hop took."""

MAX_SIGHTINGS: Final = 1 << 16
"""Sightings of one message that are put in order: a topic with ten thousand consumers has some."""
MAX_POINTS: Final = 8
"""Capture points of one message whose clocks are compared: the first ones by name."""
MAX_WINDOWS: Final = 1 << 17
"""Windows of a set of capture points that get clocks: three days without a pause at one point, some
100 MB for two points."""
MAX_SPANS: Final = 1 << 18
"""Spans of a set of capture points that are considered, some 50 MB."""

OF_MESSAGE: Final = ("sent", "accepted")
"""Kinds that no consumer has to do with."""
_TOWARDS_BROKER: Final = ("sent", "acknowledged")
_RANK: Final = {kind: rank for rank, kind in enumerate(HOPS)}
_ONE_CLOCK: Final = separate_clocks(1)
_CLOCKS, _SIGHTING = range(2)
"""What is known of clocks goes before the sightings that need it."""


class Sighting(NamedTuple):
    """A message seen once."""

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
    """A sighting whose clocks are not known yet."""

    message_key: str
    sighting: Sighting
    point: int


class PointWindow(NamedTuple):
    """A window of the clock of one capture point, among those that saw the same messages."""

    points: tuple[str, ...]
    point: int
    number: int

    @property
    def key(self) -> Key:
        """The window as the key of a stage."""
        return (*self.points, self.point, self.number)


# --- one message ----------------------------------------------------------------------------


def seen(record: Sending | Relay | Delivery) -> KeyedRecord:
    """Leave a record for the hops of its message."""
    at = record.at
    consumer_id = 0 if isinstance(record, Sending) else record.consumer_id
    order = at.source, *at.order, consumer_id
    return keyed_record(("hops", (record.message_key,), order, record))


def _hops(records: Iterator[Sending | Relay | Delivery]) -> Iterator[Found]:
    """Yield the rows of a message that one source shows; pass on the sightings of any other."""
    seen: list[Sighting] = []
    message_key, dropped = "", 0
    for record in records:
        message_key = record.message_key
        found = list(_sightings(record))
        if len(seen) < MAX_SIGHTINGS:
            seen += found
        else:
            dropped += len(found)
    if dropped:
        yield Dropped("MAX_SIGHTINGS", dropped)
    points = tuple(sorted({one.at.source for one in seen if one.at.ns is not None}))
    if len(points) > MAX_POINTS:
        points = points[:MAX_POINTS]
        yield Dropped("MAX_POINTS", sum(one.at.source not in points for one in seen))
        seen = [one for one in seen if one.at.source in points]
    if len(points) > 1:
        yield from _pass_on(message_key, seen, points)
    else:
        yield from _rows([Timed(message_key, one, 0, _ONE_CLOCK) for one in seen])


def _pass_on(
    message_key: str, seen: Sequence[Sighting], points: tuple[str, ...]
) -> Iterator[Found]:
    """Pass sightings on to their windows, and those without a time to the last stage."""
    differences = _differences(points, seen)
    for ordinal, one in enumerate(seen):
        if one.at.ns is None:
            timed = Timed(message_key, one, 0, _ONE_CLOCK)
            yield KeyedRecord("paths", (message_key,), (ordinal,), timed)
            continue
        point = points.index(one.at.source)
        window = PointWindow(points, point, one.at.ns // WINDOW_NS)
        yield KeyedRecord("spans", window.key, (), (window, differences.get(one, {})))
        waiting = Waiting(message_key, one, point)
        yield KeyedRecord("windows", window.key, (_SIGHTING, message_key, ordinal), waiting)


def _sightings(record: Sending | Relay | Delivery) -> Iterator[Sighting]:
    match record:
        case Sending(producer=client, server=server, at=at, accepted=accepted):
            yield Sighting("sent", None, None, client, server, at)
            if accepted is not None:
                yield Sighting("accepted", None, None, server, client, accepted)
        case Relay(kind=kind, consumer_id=consumer_id, sender=sender, receiver=receiver):
            yield Sighting(kind, consumer_id, None, sender, receiver, record.at)
        case Delivery(consumer=client, server=server, at=at, acknowledged=acknowledged):
            which = record.consumer_id, record.delivery_count
            yield Sighting("delivered", *which, server, client, at)
            if acknowledged is not None:
                yield Sighting("acknowledged", *which, client, server, acknowledged)


# --- clocks ---------------------------------------------------------------------------------


def _differences(points: Sequence[str], seen: Iterable[Sighting]) -> Mapping[Sighting, Spans]:
    """Return how much later or earlier than one point others saw the same packet.

    A packet is the same where kind, consumer and delivery count are; of several, the first is the
    first, if two points saw equally many. Otherwise one of them missed some, and which is unknown.
    """
    packets: defaultdict[tuple[object, ...], list[list[Sighting]]]
    packets = defaultdict(lambda: [[] for _ in points])
    for one in sorted(seen, key=lambda one: one.at.order):
        if one.at.ns is not None:
            packet = one.kind, one.consumer_id, one.delivery_count
            packets[packet][points.index(one.at.source)].append(one)
    found: dict[Sighting, dict[Track, tuple[int, int]]] = {}
    for at_points in packets.values():
        for i, j in combinations(range(len(points)), 2):
            if len(at_points[i]) == len(at_points[j]):
                for one, other in zip(at_points[i], at_points[j], strict=True):
                    difference = (other.at.ns or 0) - (one.at.ns or 0)
                    tracks = found.setdefault(one, {})
                    tracks[Track(i, j, *_link(one))] = difference, difference
    return found


def _link(one: Sighting) -> tuple[tuple[str, str], bool]:
    """Return the two ends that a packet goes between, and whether it goes to the second.

    The ends are hosts: a client and its broker; of brokers, which are equals, endpoints.
    """
    if one.kind in ("relayed", "relay_acknowledged"):
        first, second = sorted((one.sender, one.receiver))
        return (first, second), one.sender == first
    forward = one.kind in _TOWARDS_BROKER
    ends = (one.sender, one.receiver) if forward else (one.receiver, one.sender)
    client, broker = (end.rpartition(":")[0] for end in ends)
    return (client, broker), forward


def _spans(records: Iterator[tuple[PointWindow, Spans]]) -> Iterator[Found]:
    """Put the differences of a window together."""
    found: dict[Track, tuple[int, int]] = {}
    of_key = None
    for window, spans in records:
        of_key = window
        for track, span in spans.items():
            found[track] = widened(found.get(track), span)
    if of_key is not None:
        order = of_key.number, of_key.point
        yield KeyedRecord("clocks", of_key.points, order, (of_key, found))


def _clocks(records: Iterator[tuple[PointWindow, Spans]]) -> Iterator[Found]:
    """Yield for every window how far the clocks of its capture points are ahead of each other."""
    windows: dict[Window, Spans] = {}
    points: tuple[str, ...] = ()
    spans = 0
    dropped: Counter[str] = Counter()
    for window, found in records:
        points = window.points
        if len(windows) == MAX_WINDOWS:
            dropped["MAX_WINDOWS"] += 1
            unknown = separate_clocks(len(points), ONE_WAY)
            yield KeyedRecord("windows", window.key, (_CLOCKS, "", 0), unknown)
            continue
        spans += len(found)
        if spans > MAX_SPANS:
            dropped["MAX_SPANS"] += len(found)
            found = {}
        windows[window.point, window.number] = found
    for cap, things in dropped.items():
        yield Dropped(cap, things)
    for (point, number), known in clocks(len(points), windows).items():
        key = PointWindow(points, point, number).key
        yield KeyedRecord("windows", key, (_CLOCKS, "", 0), known)


def _windows(records: Iterator[Clocks | Waiting]) -> Iterator[Found]:
    """Pass the sightings of a window on to their messages, with its clocks."""
    known = next(records, None)
    assert known is None or isinstance(known, Clocks), "clocks come first"
    for ordinal, waiting in enumerate(records):
        if known is not None and isinstance(waiting, Waiting):
            yield KeyedRecord("paths", (waiting.message_key,), (ordinal,), Timed(*waiting, known))


# --- rows -----------------------------------------------------------------------------------


class Hop(NamedTuple):
    """A sighting in the order of all of its message."""

    order: tuple[bool, int, int, int, int, int, int, str, int, int]
    ns: int
    """When it was, by the clock of the reference."""
    reference: int | None
    timed: Timed

    @property
    def ahead_ns(self) -> int:
        """How far the clock of its point is taken to be ahead."""
        return (self.timed.sighting.at.ns or 0) - self.ns


def _rows(seen: Iterable[Timed]) -> Iterator[Found]:
    """Yield the rows of one message: in the order of time, those of each reference together."""
    hops = sorted(_on_one_clock(seen), key=itemgetter(0))
    comparable = len({hop.reference for hop in hops} - {None}) < 2
    latest: dict[tuple[int | None, str, int | None], tuple[int, Hop]] = {}
    for ordinal, hop in enumerate(hops, 1):
        kind, consumer_id, *_ = hop.timed.sighting
        before = None
        for followed in FOLLOWS[kind]:
            of = None if followed in OF_MESSAGE else consumer_id
            found = latest.get((hop.reference, followed, of))
            if found is not None and (before is None or found[0] > before[0]):
                before = found
        latest[hop.reference, kind, consumer_id] = ordinal, hop
        unknown = None
        if hop.reference is None:
            unknown = "untimed"
        elif before is None:
            unknown = "first" if comparable else hop.timed.clocks.reason
        yield fact_of(("hops", _row(ordinal, hop, before, unknown)))


def _on_one_clock(seen: Iterable[Timed]) -> Iterator[Hop]:
    """Yield sightings with times of their references.

    The offset of a clock is one of each window; where it changes, the time of a point stands still
    rather than going back.
    """
    latest: dict[tuple[int | None, int], int] = {}
    for one in sorted(seen, key=lambda one: one.sighting.at.order):
        at, point = one.sighting.at, one.point
        reference = None if at.ns is None else one.clocks.reference[point]
        shown = at.ns or 0
        ns = shown - one.clocks.ahead_ns[point]
        latest[reference, point] = ns = max(ns, latest.get((reference, point), ns))
        order = (
            reference is None, reference or 0, ns, shown, _RANK[one.sighting.kind], point,
            at.frame or 0, at.stream, at.offset, one.sighting.consumer_id or 0,
        )  # fmt: skip
        yield Hop(order, ns, reference, one)


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
"""The stages, which end the chain of JMQ packets."""
