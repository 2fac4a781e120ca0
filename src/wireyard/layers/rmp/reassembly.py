"""Reassembly of messages from their packets, each at the place of its first packet.

Rules of this file:

1. A message's place is that of its first packet. It is delivered when it is complete and nothing
   unfinished is before it; where there is no order, when it is complete.
2. A view is the cut: what is unfinished then is dropped, of all sources, what is complete is
   delivered before the view, and the numbers mean nothing afterwards. All members see the view at
   the same place, so all do the same.
3. Where there is an order, nothing here depends on time or on what this process alone has: every
   bound is a function of the packets in that order. What stalls is reported only (errata R30).
4. Where there is no room left, an order aborts the message that began last: its source sends it
   again, and the one before all others is still completed. Without order nothing is sent again, and
   the oldest is aborted, as most of it is likely to be lost.
5. A message may be delivered in pieces while it is first in the order. That changes what is
   delivered early, and nothing of what is kept, counted or aborted (errata R31).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from wireyard.layers.rmp.counters import Drop, Drops
from wireyard.layers.rmp.events import Aborted, Stalled
from wireyard.layers.rmp.limits import MESSAGE_OVERHEAD_BYTES, PACKET_OVERHEAD_BYTES, Limits
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.states import ABORT_REASONS, ARRIVING, Arrival, Arriving, Step

__all__ = ["Part", "Reassembly", "Whole"]


class Whole(NamedTuple):
    """A message with all its data, at its place."""

    source: str
    qos: QoS
    fields: Fields
    """Those of its first packet."""
    data: bytes
    places: tuple[Any, ...]
    """Where its packets were seen, as they came; the first is that of its first packet."""


class Part(NamedTuple):
    """The next data of a message that was still arriving when its turn came."""

    source: str
    qos: QoS
    fields: Fields
    """Those of its first packet."""
    offset: int
    data: bytes
    last: bool


class _Entry:
    """A message at its place."""

    __slots__ = (
        "data",
        "data_bytes",
        "delivered_bytes",
        "delivered_packets",
        "fields",
        "in_pieces",
        "parts",
        "places",
        "qos",
        "reported",
        "since",
        "size",
        "source",
    )

    def __init__(
        self, source: str, qos: QoS, fields: Fields, data: bytes, now: float, place: Any
    ) -> None:
        self.source = source
        self.qos = qos
        self.fields = fields
        self.parts = {1: data}
        self.places = [place]
        self.data_bytes = len(data)
        self.size = len(data) + MESSAGE_OVERHEAD_BYTES
        self.since = now
        self.data: bytes | None = None
        """None while packets are missing."""
        self.reported = False
        self.in_pieces = False
        self.delivered_packets = 0
        """How many packets were delivered in pieces already, and their bytes."""
        self.delivered_bytes = 0


_Key = tuple[str, int]


def _never(_fields: Fields) -> bool:
    return False


class Reassembly:
    """Messages that wait for each other: those of one ring, or of one of its sources.

    Parameters
    ----------
    order
        Which messages wait for each other; of `Order.SOURCE` only those of one source come here.
    ring
        Name of the ring, for events.
    max_packet_bytes
        Longest packet of the ring, the same at all members.
    drops
        Where dropped packets and messages are counted.
    wants_pieces
        Whether a message with these fields is delivered in pieces.
    """

    def __init__(
        self,
        order: Order,
        ring: str,
        max_packet_bytes: int,
        limits: Limits,
        drops: Drops,
        wants_pieces: Callable[[Fields], bool] = _never,
    ) -> None:
        self.found: deque[Whole | Part | Aborted | Stalled] = deque()
        """What follows from the packets, views and timers so far, in this order."""
        self.order = order
        self._ring = ring
        self._max_packets = limits.max_message_bytes // max_packet_bytes
        self._limits = limits
        self._drops = drops
        self._wants_pieces = wants_pieces
        self._open: OrderedDict[_Key, _Entry] = OrderedDict()
        self._open_of: Counter[str] = Counter()
        self._line: OrderedDict[_Entry, None] = OrderedDict()
        """Messages in their order, from the first unfinished one on; none without order."""
        self._held_bytes = 0

    def __len__(self) -> int:
        """Return how many messages are unfinished."""
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        """Bytes of what is kept, with what keeping it costs."""
        return self._held_bytes

    @property
    def idle(self) -> bool:
        """Whether nothing is kept, so that a whole message is delivered at once."""
        return not self._held_bytes

    # --- what happens -----------------------------------------------------------------------

    def receive(
        self, source: str, qos: QoS, fields: Fields, data: bytes, now: float, place: Any = None
    ) -> None:
        """Add a whole message or a packet of one; `place` is where it was seen."""
        if fields.message_number is None:
            self._whole(source, qos, fields, data, place)
            return
        key = source, fields.message_number
        entry = self._open.get(key)
        arrival = self._arrival(entry, source, qos, fields, data)
        state = Arriving.ABSENT if entry is None else Arriving.OPEN
        for step in ARRIVING[state, arrival].effect or ():
            match step:
                case Step.KEEP:
                    assert entry is not None
                    self._keep(entry, fields, data, place)
                case Step.COMPLETE:
                    self._complete(key)
                case Step.BEGIN:
                    self._begin(key, _Entry(source, qos, fields, data, now, place))
                case Step.WHOLE:
                    self._whole(source, qos, fields, data, place)
                case Step.ABORT:
                    self._abort(key, arrival)
                case Step.ORPHAN:
                    self._drops.counts[Drop.ORPHAN] += 1
                case Step.IGNORE:
                    self._drops.counts[Drop.REPEAT] += 1
                case Step.REFUSE:
                    self._refuse(source, fields, place)
        self._make_room()

    def view(self) -> None:
        """Cut: abort what is unfinished, release what is complete."""
        for key in list(self._open):
            self._abort(key, Arrival.VIEW)

    def get_timer(self) -> float | None:
        """Return when something will have taken too long, None if nothing can."""
        if not self._open:
            return None
        oldest = next(iter(self._open.values()))
        if self.order is Order.NONE:
            return oldest.since + self._limits.reassembly_timeout_s
        return None if oldest.reported else oldest.since + self._limits.stall_after_s

    def handle_timer(self, now: float) -> None:
        """Abort what has taken too long; where there is an order, report it."""
        while (due := self.get_timer()) is not None and due <= now:
            key, entry = next(iter(self._open.items()))
            if self.order is Order.NONE:
                self._abort(key, Arrival.EXPIRY)
            else:
                entry.reported = True
                self.found.append(Stalled(self._ring, *key))

    # --- what a packet is -------------------------------------------------------------------

    def _arrival(
        self, entry: _Entry | None, source: str, qos: QoS, fields: Fields, data: bytes
    ) -> Arrival:
        number, count = fields.packet_number, fields.packet_count
        assert number is not None and count is not None
        if number == 1 and not (entry and self._is_repeat_of_first(entry, fields, data)):
            if count == 1:
                return Arrival.ONLY
            if count > self._max_packets or self._too_many(entry, source):
                return Arrival.REFUSED
            return Arrival.FIRST
        if entry is None:
            return Arrival.LATER
        first = entry.fields
        if count != first.packet_count or fields.layer != first.layer or qos is not entry.qos:
            return Arrival.CONFLICT
        kept = entry.parts.get(number)
        if kept is not None:
            return Arrival.REPEAT if kept == data else Arrival.CONFLICT
        if self.order is not Order.NONE and number > len(entry.parts) + 1:
            return Arrival.GAP
        if entry.data_bytes + len(data) > self._limits.max_message_bytes:
            return Arrival.OVERSIZE
        return Arrival.LAST if len(entry.parts) + 1 == count else Arrival.NEXT

    def _is_repeat_of_first(self, entry: _Entry, fields: Fields, data: bytes) -> bool:
        """Return whether a first packet comes again because the network doubled it.

        A ring that keeps an order does not double packets, so there its sender began anew.
        """
        return self.order is Order.NONE and fields == entry.fields and data == entry.parts[1]

    def _too_many(self, entry: _Entry | None, source: str) -> bool:
        others = self._open_of[source] - (entry is not None)
        return others >= self._limits.max_unfinished_of_source

    def _refuse(self, source: str, fields: Fields, place: Any) -> None:
        assert fields.message_number is not None and fields.packet_count is not None
        too_big = fields.packet_count > self._max_packets
        self._drops.counts[Drop.TOO_BIG if too_big else Drop.TOO_MANY] += 1
        reason = "too_big" if too_big else "too_many"
        self.found.append(Aborted(self._ring, source, fields.message_number, reason, 1, place))

    # --- keeping ----------------------------------------------------------------------------

    def _begin(self, key: _Key, entry: _Entry) -> None:
        self._open[key] = entry
        self._open_of[entry.source] += 1
        self._held_bytes += entry.size
        entry.in_pieces = self._wants_pieces(entry.fields)
        if self.order is not Order.NONE:
            self._line[entry] = None
        self._deliver_early(entry)

    def _keep(self, entry: _Entry, fields: Fields, data: bytes, place: Any) -> None:
        assert fields.packet_number is not None
        entry.parts[fields.packet_number] = data
        entry.places.append(place)
        entry.data_bytes += len(data)
        entry.size += len(data) + PACKET_OVERHEAD_BYTES
        self._held_bytes += len(data) + PACKET_OVERHEAD_BYTES
        if entry.in_pieces and len(entry.parts) != fields.packet_count:
            self._deliver_early(entry)

    def _whole(self, source: str, qos: QoS, fields: Fields, data: bytes, place: Any) -> None:
        if not self._line:
            self.found.append(Whole(source, qos, fields, data, (place,)))
            return
        entry = _Entry(source, qos, fields, data, 0.0, place)
        entry.data = data
        self._held_bytes += entry.size
        self._line[entry] = None
        self._make_room()

    def _complete(self, key: _Key) -> None:
        entry = self._close(key)
        entry.data = b"".join(entry.parts[number] for number in range(1, len(entry.parts) + 1))
        entry.parts.clear()
        self._held_bytes -= entry.size
        entry.size = len(entry.data) + MESSAGE_OVERHEAD_BYTES
        self._held_bytes += entry.size
        if self.order is Order.NONE:
            self._release(entry)
        else:
            self._advance()

    def _abort(self, key: _Key, arrival: Arrival) -> None:
        entry = self._close(key)
        packets = len(entry.parts)
        self._drops.counts[Drop.ABORTED] += packets
        reason = ABORT_REASONS[arrival]
        self.found.append(Aborted(self._ring, *key, reason, packets, entry.places[0]))
        self._held_bytes -= entry.size
        if self.order is not Order.NONE:
            del self._line[entry]
            self._advance()

    def _close(self, key: _Key) -> _Entry:
        entry = self._open.pop(key)
        self._open_of[entry.source] -= 1
        if not self._open_of[entry.source]:
            del self._open_of[entry.source]
        return entry

    # --- releasing --------------------------------------------------------------------------

    def _advance(self) -> None:
        """Release what nothing unfinished is before any more."""
        while self._line:
            first = next(iter(self._line))
            if first.data is None:
                self._deliver_early(first)
                return
            del self._line[first]
            self._release(first)

    def _release(self, entry: _Entry) -> None:
        assert entry.data is not None
        self._held_bytes -= entry.size
        said = entry.source, entry.qos, entry.fields
        if entry.delivered_bytes:
            rest = entry.data[entry.delivered_bytes :]
            self.found.append(Part(*said, entry.delivered_bytes, rest, True))
        else:
            self.found.append(Whole(*said, entry.data, tuple(entry.places)))

    def _deliver_early(self, entry: _Entry) -> None:
        """Deliver what has arrived of an unfinished message without a gap, if it may be now."""
        if not entry.in_pieces or (self._line and next(iter(self._line)) is not entry):
            return
        packets = []
        while (data := entry.parts.get(entry.delivered_packets + 1)) is not None:
            packets.append(data)
            entry.delivered_packets += 1
        data = b"".join(packets)
        if data:
            said = entry.source, entry.qos, entry.fields
            self.found.append(Part(*said, entry.delivered_bytes, data, False))
            entry.delivered_bytes += len(data)

    def _make_room(self) -> None:
        """Abort unfinished messages until what is kept is under its bounds."""
        limits = self._limits
        while self._held_bytes > limits.max_held_bytes or len(self._open) > limits.max_unfinished:
            oldest_first = self.order is Order.NONE
            key = next(iter(self._open) if oldest_first else reversed(self._open))
            self._abort(key, Arrival.OVERFLOW)
