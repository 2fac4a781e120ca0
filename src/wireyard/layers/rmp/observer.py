"""Captured packets of one sender to messages, as a receiver on the same wire puts them together.

Rules of this file:

1. A sender is a stream: what one endpoint sent to one group, in the order of capture.
2. `Reassembly` decides, as it does for packets without order. Nothing on the wire tells a quality
   of service, and the transport of captures, UDP, keeps none: a message is whole with the last of
   its packets, whatever is unfinished before it.
3. No view is on the wire. What is unfinished is given up when its time is over or the capture ends.
4. A packet that came again is one packet; see `Repeats`. So are those of a message that its sender
   sends again, for that has its number still (errata R29): the message is there once.
5. A packet of which the capture has only the beginning counts for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.layers.rmp.breaches import RULES, TELLING, Breach, Place, broken_by
from wireyard.layers.rmp.counters import Drop, Drops
from wireyard.layers.rmp.events import Aborted
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.reassembly import Reassembly, Whole
from wireyard.layers.rmp.repeats import Repeats

__all__ = ["NEEDED", "Observer", "Seen", "observe"]

NEEDED: Final = (
    "source", "stream", "offset", "length", "status", "error", "captured_ns", "frame",
    "src_addr", "src_port", "dst_addr", "dst_port", "packet_offset", "message_in_packet",
    "typing", *Fields._fields, "more_follows", "data",
)  # fmt: skip
"""The columns of RMP packets that are looked at."""

_OK, _GAP, _BROKEN = "ok", "gap", ("malformed", "garbage")
_ANY_PACKET_BYTES: Final = 1
"""How long packets of a ring may be is not on the wire: messages are bounded by their bytes."""
_BOUNDS: Final = MappingProxyType(
    {
        "too_big": "max_message_bytes",
        "too_many": "max_unfinished_of_source",
        "overflow": "max_held_bytes",
    }
)
"""Which of the `Limits` a message is over, by why it was given up."""
_NS_PER_S: Final = 1e9
_fields_of = itemgetter(*Fields._fields)
_place_in = itemgetter("offset", "length", "frame", "captured_ns")


class Seen(NamedTuple):
    """A whole message."""

    fields: Fields
    """What its first packet says."""
    data: bytes
    places: tuple[Place, ...]
    """Those of its packets, as they came; the first is that of its first packet, and its own."""


class _Part(NamedTuple):
    """What is remembered of a packet that is part of a message."""

    place: Place
    fields: Fields


class _Orphans(NamedTuple):
    """Packets of one message that follow each other, without its first."""

    number: int | None
    first: Place
    packets: int


class Observer:
    """Puts the packets of one sender together.

    Parameters
    ----------
    limits
        Those of a receiver.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._drops = Drops(max_counted_sources=0)
        self._reassembly = Reassembly(Order.NONE, "", _ANY_PACKET_BYTES, self._limits, self._drops)
        self._repeats = Repeats(self._limits)
        self._orphans: _Orphans | None = None
        self._now = 0.0
        self._ns: int | None = None
        self.forgotten: Counter[str] = Counter()
        """How many messages were over a bound, by its name among `Limits`."""

    @property
    def dropped(self) -> Counter[Drop]:
        """How much counts for nothing, by reason; a receiver has the same reasons."""
        return self._drops.counts

    def receive(self, packet: Sequence[Row]) -> list[Seen | Breach]:
        """Take a packet: the rows of its messages, or the one row of a packet that is broken."""
        first = packet[0]
        found = self._pass(first["captured_ns"])
        if first["status"] != _OK:
            self._drops.counts[Drop.MALFORMED] += 1
            said = first["error"]["message"] if first["error"] else RULES["malformed_packet"]
            return [*found, Breach("malformed_packet", said, _place_of(first))]
        messages = [(Fields._make(_fields_of(row)), row["data"]) for row in packet]
        size = sum(row["length"] for row in packet)
        now = None if first["captured_ns"] is None else self._now
        if self._repeats.again(messages, size, now):
            self._drops.counts[Drop.REPEAT] += len(packet)
            return [*found, Breach("repeated_packet", RULES["repeated_packet"], _place_of(first))]
        for row, (fields, data) in zip(packet, messages, strict=True):
            place = _place_of(row)
            if row["typing"] & TELLING:
                found += broken_by(row, fields, place)
            if fields.message_number is None:  # it waits for nothing
                found.append(Seen(fields, data, (place,)))
            else:
                found += self._part(_Part(place, fields), data)
        return found

    def cut(self, packet: Sequence[Row]) -> Breach:
        """Take a packet of which the end was not captured: what it says cannot be known."""
        return Breach("cut_packet", RULES["cut_packet"], _place_of(packet[0]))

    def finish(self) -> list[Seen | Breach]:
        """Give up what is unfinished: the capture ends."""
        found = self._tell_orphans()
        self._reassembly.view()
        return found + self._collect(None)

    def _pass(self, ns: int | None) -> list[Seen | Breach]:
        """Let time pass until a packet comes."""
        if ns is None:
            return []
        if self._ns is not None:  # a clock may be set back, and goes on from there
            self._now += max(ns - self._ns, 0) / _NS_PER_S
        self._ns = ns
        if not self._reassembly:
            return []
        self._reassembly.handle_timer(self._now)
        return self._collect(None)

    def _part(self, part: _Part, data: bytes) -> list[Seen | Breach]:
        """Take a packet of a message that has a number."""
        number, orphans = part.fields.message_number, self._drops.counts[Drop.ORPHAN]
        self._reassembly.receive("", QoS.UNRELIABLE, part.fields, data, self._now, part)
        stray = self._drops.counts[Drop.ORPHAN] > orphans and not self._reassembly.found
        found: list[Seen | Breach] = []
        if self._orphans and not (stray and self._orphans.number == number):
            found = self._tell_orphans()
        if stray:
            known = self._orphans or _Orphans(number, part.place, 0)
            self._orphans = known._replace(packets=known.packets + 1)
        return found + self._collect(part)

    def _collect(self, part: _Part | None) -> list[Seen | Breach]:
        """Return what follows from the last packet, or from time."""
        found: list[Seen | Breach] = []
        while self._reassembly.found:
            match self._reassembly.found.popleft():
                case Aborted() as event:
                    found.append(self._given_up(event, part))
                case Whole(_, _, fields, data, places):
                    found.append(Seen(fields, data, tuple(one.place for one in places)))
        return found

    def _tell_orphans(self) -> list[Seen | Breach]:
        if self._orphans is None:
            return []
        number, place, packets = self._orphans
        self._orphans = None
        many = f"{packets} packet{'s' * (packets != 1)}"
        text = f"message {number}: {many}, and its first was not seen before"
        return [Breach("orphan", text, place)]

    def _given_up(self, event: Aborted, part: _Part | None) -> Breach:
        """Return what a message is that will not be whole; `part` is the packet that ended it."""
        first: _Part = event.place
        name = f"message {event.number}"
        seen = f"{name}: {event.packets} of {first.fields.packet_count} packets"
        match event.reason:
            case "timeout":
                rule = "incomplete"
                text = f"{seen} within {self._limits.reassembly_timeout_s:g} s"
            case "view":
                rule, text = "incomplete", f"{seen} when the capture ends"
            case "restarted":
                rule, text = "restarted", f"{seen} when its number was that of another message"
            case "inconsistent" if part is not None:
                rule, text = _contradiction(name, first.fields, part.fields)
            case reason:
                bound = _BOUNDS[reason]
                self.forgotten[bound] += 1
                rule, text = "over_bound", f"{seen}, and it was over {bound}"
        return Breach(rule, text, first.place, of_message=True)


def observe(rows: Iterable[Row], observer: Observer) -> Iterator[Seen | Breach]:
    """Yield what the rows of one sender's stream show, in the order in which it is known.

    Parameters
    ----------
    rows
        All rows of RMP packets of a stream in order, those of gaps too, with the columns `NEEDED`.
    observer
        A new one.
    """
    packet: list[Row] = []
    for row in rows:
        if packet and _belongs(row, packet):
            packet.append(row)
            continue
        if row["status"] == _GAP and packet:
            yield observer.cut(packet)
        elif packet:
            yield from observer.receive(packet)
        packet = [row] if row["status"] in (_OK, *_BROKEN) else []
    if packet:
        yield from observer.receive(packet)
    yield from observer.finish()


def _belongs(row: Row, packet: Sequence[Row]) -> bool:
    """Return whether a row is the next message of a packet."""
    first = packet[0]
    place = first["packet_offset"], len(packet)
    is_next = (row["packet_offset"], row["message_in_packet"]) == place
    return is_next and row["status"] == first["status"] == _OK


def _place_of(row: Row) -> Place:
    return Place._make(_place_in(row))


def _contradiction(name: str, first: Fields, other: Fields) -> tuple[str, str]:
    """Return which rule a packet breaks that contradicts the first of its message, and how."""
    if other.packet_count != first.packet_count:
        said = f"{first.packet_count} packets, then {other.packet_count}"
        return "count_changed", f"{name}: says that it has {said}"
    if other.layer != first.layer:
        return "layer_changed", f"{name}: is for layer {first.layer}, then for {other.layer}"
    return "packet_changed", f"{name}: packet {other.packet_number} came again with other data"
