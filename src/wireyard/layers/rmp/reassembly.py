"""Reassembly of messages from their packets, in the order of their first packets.

Rules of this file:

1. A message has the place of its first packet in the order. It is delivered when it is complete and
   no unfinished message is before it; without order, when it is complete, in whichever order its
   packets came.
2. At a view all unfinished messages are dropped, complete ones are delivered before the view, and
   message numbers start to mean new messages. All members see the view at the same point in the
   order, so all do the same.
3. With an order, nothing here depends on time or on state of this process alone: every bound is a
   function of the packets in that order. A stalled message is only reported (errata R30).
4. If there is no room left, with an order the message that began last is aborted: its source sends
   it again, and the first one can still be completed. Without order messages are not sent again,
   and the oldest is aborted, because most of it is likely to be lost.
5. A message may be delivered in pieces while it is first in the order. This makes its delivery
   earlier, but does not change what is held, counted or aborted (errata R31).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from wireyard.layers.rmp.events import Aborted, Stalled
from wireyard.layers.rmp.limits import (
    MESSAGE_OVERHEAD_BYTES,
    PACKET_OVERHEAD_BYTES,
    Drop,
    Drops,
    Limits,
)
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.states import ABORT_REASONS, ARRIVING, Arrival, Arriving, Step


class Whole(NamedTuple):
    """A message with all its data, in the order of messages."""

    source: str
    qos: QoS
    fields: Fields
    """The fields of its first packet."""
    data: bytes
    places: tuple[Any, ...]
    """The `place` of each packet as passed to `receive`: packet 1, then the others as they came."""


class Part(NamedTuple):
    """The next data of a message that was still arriving when its turn came."""

    source: str
    qos: QoS
    fields: Fields
    """The fields of its first packet."""
    offset: int
    data: bytes
    last: bool


class _Entry:
    """A message in the order of messages, complete or not."""

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
        """Those of packet 1; without order, those of another packet until that has arrived."""
        self.parts = {fields.packet_number or 1: data}
        self.places = [place]
        self.data_bytes = len(data)
        self.size = len(data) + MESSAGE_OVERHEAD_BYTES
        self.since = now
        self.data: bytes | None = None
        """None while packets are missing."""
        self.reported = False
        self.in_pieces = False
        self.delivered_packets = 0
        """The number of packets that were delivered in pieces already, and their bytes."""
        self.delivered_bytes = 0


_Key = tuple[str, int]


def _never(_fields: Fields) -> bool:
    return False


class Reassembly:
    """The messages that wait for each other: those of one ring, or of one of its sources.

    `order` is the order of delivery; with `Order.SOURCE` all packets are of one source. `ring` is
    the name of the ring, for events, and `max_packet_bytes` its longest packet, the same at all
    members. `drops` counts dropped packets and messages. `wants_pieces` returns whether a message
    with these fields is delivered in pieces.
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
        self.output: deque[Whole | Part | Aborted | Stalled] = deque()
        """The output that follows from packets, views and timers, in their order."""
        self.order = order
        self._ring = ring
        self._max_packets = limits.max_message_bytes // max_packet_bytes
        self._limits = limits
        self._drops = drops
        self._wants_pieces = wants_pieces
        self._open: OrderedDict[_Key, _Entry] = OrderedDict()
        self._open_of: Counter[str] = Counter()
        self._ordered: OrderedDict[_Entry, None] = OrderedDict()
        """Messages in their order, from the first unfinished one on; empty without order."""
        self._held_bytes = 0

    def __len__(self) -> int:
        """Return the number of unfinished messages."""
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        """Bytes of the messages that are held, with their overhead."""
        return self._held_bytes

    @property
    def idle(self) -> bool:
        """Whether no messages are held, so that a whole message is delivered at once."""
        return not self._held_bytes

    # --- input ------------------------------------------------------------------------------

    def receive(
        self, source: str, qos: QoS, fields: Fields, data: bytes, now: float, place: Any = None
    ) -> None:
        """Add a packet: a whole message or a part of one; `place` is returned with the message."""
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
        """Abort unfinished messages at a view, and release complete ones."""
        for key in list(self._open):
            self._abort(key, Arrival.VIEW)

    def get_timer(self) -> float | None:
        """Return the time at which a message will have taken too long, None if there is none."""
        if not self._open:
            return None
        oldest = next(iter(self._open.values()))
        if self.order is Order.NONE:
            return oldest.since + self._limits.reassembly_timeout_s
        return None if oldest.reported else oldest.since + self._limits.stall_after_s

    def handle_timer(self, now: float) -> None:
        """Abort messages that have taken too long; with an order, report them."""
        while (due := self.get_timer()) is not None and due <= now:
            key, entry = next(iter(self._open.items()))
            if self.order is Order.NONE:
                self._abort(key, Arrival.EXPIRY)
            else:
                entry.reported = True
                self.output.append(Stalled(self._ring, *key))

    # --- kinds of packets -------------------------------------------------------------------

    def _arrival(
        self, entry: _Entry | None, source: str, qos: QoS, fields: Fields, data: bytes
    ) -> Arrival:
        number, count = fields.packet_number, fields.packet_count
        assert number is not None and count is not None
        if entry is None and number > 1 and self.order is not Order.NONE:
            return Arrival.LATER
        if entry is None or (number == 1 and self._begins_again(entry, qos, fields, data)):
            if count == 1:
                return Arrival.ONLY
            if count > self._max_packets or self._too_many(entry, source):
                return Arrival.REFUSED if number == 1 else Arrival.LATER
            return Arrival.FIRST if number == 1 else Arrival.OVERTAKING
        if self._contradicts(entry, qos, fields):
            return Arrival.CONFLICT
        kept = entry.parts.get(number)
        if kept is not None:
            return Arrival.REPEAT if kept == data else Arrival.CONFLICT
        if self.order is not Order.NONE and number > len(entry.parts) + 1:
            return Arrival.GAP
        if entry.data_bytes + len(data) > self._limits.max_message_bytes:
            return Arrival.OVERSIZE
        return Arrival.LAST if len(entry.parts) + 1 == count else Arrival.NEXT

    def _begins_again(self, entry: _Entry, qos: QoS, fields: Fields, data: bytes) -> bool:
        """Return whether a packet 1 is not that of the unfinished message with its number.

        The network may duplicate or reorder packets only where a ring keeps no order: elsewhere the
        sender began anew.
        """
        if 1 not in entry.parts:
            return self._contradicts(entry, qos, fields)
        is_repeat = fields == entry.fields and data == entry.parts[1]
        return self.order is not Order.NONE or not is_repeat

    @staticmethod
    def _contradicts(entry: _Entry, qos: QoS, fields: Fields) -> bool:
        known = entry.fields
        return (
            fields.packet_count != known.packet_count
            or fields.layer != known.layer
            or qos is not entry.qos
        )

    def _too_many(self, entry: _Entry | None, source: str) -> bool:
        others = self._open_of[source] - (entry is not None)
        return others >= self._limits.max_unfinished_of_source

    def _refuse(self, source: str, fields: Fields, place: Any) -> None:
        assert fields.message_number is not None and fields.packet_count is not None
        too_big = fields.packet_count > self._max_packets
        self._drops.counts[Drop.TOO_BIG if too_big else Drop.TOO_MANY] += 1
        reason = "too_big" if too_big else "too_many"
        self.output.append(Aborted(self._ring, source, fields.message_number, reason, 1, place))

    # --- holding ----------------------------------------------------------------------------

    def _begin(self, key: _Key, entry: _Entry) -> None:
        self._open[key] = entry
        self._open_of[entry.source] += 1
        self._held_bytes += entry.size
        entry.in_pieces = 1 in entry.parts and self._wants_pieces(entry.fields)
        if self.order is not Order.NONE:
            self._ordered[entry] = None
        self._deliver_early(entry)

    def _keep(self, entry: _Entry, fields: Fields, data: bytes, place: Any) -> None:
        assert fields.packet_number is not None
        entry.parts[fields.packet_number] = data
        if fields.packet_number == 1:
            entry.fields = fields
            entry.places.insert(0, place)
            entry.in_pieces = self._wants_pieces(fields)
        else:
            entry.places.append(place)
        entry.data_bytes += len(data)
        entry.size += len(data) + PACKET_OVERHEAD_BYTES
        self._held_bytes += len(data) + PACKET_OVERHEAD_BYTES
        if entry.in_pieces and len(entry.parts) != fields.packet_count:
            self._deliver_early(entry)

    def _whole(self, source: str, qos: QoS, fields: Fields, data: bytes, place: Any) -> None:
        if not self._ordered:
            self.output.append(Whole(source, qos, fields, data, (place,)))
            return
        entry = _Entry(source, qos, fields, data, 0.0, place)
        entry.data = data
        self._held_bytes += entry.size
        self._ordered[entry] = None
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
        self.output.append(Aborted(self._ring, *key, reason, packets, entry.places[0]))
        self._held_bytes -= entry.size
        if self.order is not Order.NONE:
            del self._ordered[entry]
            self._advance()

    def _close(self, key: _Key) -> _Entry:
        entry = self._open.pop(key)
        self._open_of[entry.source] -= 1
        if not self._open_of[entry.source]:
            del self._open_of[entry.source]
        return entry

    # --- releasing --------------------------------------------------------------------------

    def _advance(self) -> None:
        """Release the messages that no unfinished one is before."""
        while self._ordered:
            first = next(iter(self._ordered))
            if first.data is None:
                self._deliver_early(first)
                return
            del self._ordered[first]
            self._release(first)

    def _release(self, entry: _Entry) -> None:
        assert entry.data is not None
        self._held_bytes -= entry.size
        common = entry.source, entry.qos, entry.fields
        if entry.delivered_bytes:
            rest = entry.data[entry.delivered_bytes :]
            self.output.append(Part(*common, entry.delivered_bytes, rest, True))
        else:
            self.output.append(Whole(*common, entry.data, tuple(entry.places)))

    def _deliver_early(self, entry: _Entry) -> None:
        """Deliver the contiguous data of an unfinished message, if it is the first in order."""
        if not entry.in_pieces or (self._ordered and next(iter(self._ordered)) is not entry):
            return
        packets = []
        while (data := entry.parts.get(entry.delivered_packets + 1)) is not None:
            packets.append(data)
            entry.delivered_packets += 1
        data = b"".join(packets)
        if data:
            self.output.append(
                Part(entry.source, entry.qos, entry.fields, entry.delivered_bytes, data, False)
            )
            entry.delivered_bytes += len(data)

    def _make_room(self) -> None:
        """Abort unfinished messages until those that are held are within the bounds."""
        limits = self._limits
        while self._held_bytes > limits.max_held_bytes or len(self._open) > limits.max_unfinished:
            oldest_first = self.order is Order.NONE
            key = next(iter(self._open) if oldest_first else reversed(self._open))
            self._abort(key, Arrival.OVERFLOW)
