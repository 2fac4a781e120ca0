"""Captured packets of one sender to messages, as a receiver on the same wire puts them together.

Rules of this file:

1. A sender is a stream: what one endpoint sent to one group, in the order of capture.
2. `Reassembly` decides, as it does for packets without order. Nothing on the wire shows a quality
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
from wireyard.layers.endpoints import endpoint
from wireyard.layers.records import Position, Violation
from wireyard.layers.rmp.counters import Drop, Drops
from wireyard.layers.rmp.events import Aborted
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.rmp.packet_row import PacketRow, as_packet
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.reassembly import Reassembly, Whole
from wireyard.layers.rmp.repeats import Repeats
from wireyard.layers.rmp.violations import RULES, TELLING, broken_by

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


class Seen(NamedTuple):
    """A whole message."""

    fields: Fields
    """What its first packet says."""
    data: bytes
    packets: tuple[Position, ...]
    """As they came; the first is packet 1."""
    length: int
    """Bytes of all of them."""


class _Part(NamedTuple):
    """What is remembered of a packet that is part of a message."""

    at: Position
    length: int
    fields: Fields


class _Orphans(NamedTuple):
    """Packets of one message that follow each other, without its first."""

    number: int | None
    first: Position
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
        self._sender: str | None = None
        """Null in a raw stream."""
        self.forgotten: Counter[str] = Counter()
        """How many messages were over a bound, by its name among `Limits`."""

    @property
    def dropped(self) -> Counter[Drop]:
        """How much counts for nothing, by reason; a receiver has the same reasons."""
        return self._drops.counts

    def receive(self, packet: Sequence[PacketRow]) -> list[Seen | Violation]:
        """Observe a packet: the rows of its messages, or the one row of a packet that is broken."""
        first = packet[0]
        self._sender = _endpoint(first)
        found = self._pass(first["captured_ns"])
        if first["status"] != _OK:
            self._drops.counts[Drop.MALFORMED] += 1
            said = first["error"]["message"] if first["error"] else RULES["malformed_packet"]
            return [*found, self._violation("malformed_packet", said, Position.of(first))]
        messages = [(Fields._make(_fields_of(row)), row["data"]) for row in packet]
        size = sum(row["length"] for row in packet)
        now = None if first["captured_ns"] is None else self._now
        if self._repeats.again(messages, size, now):
            self._drops.counts[Drop.REPEAT] += len(packet)
            return [*found, self._broken("repeated_packet", first)]
        for row, (fields, data) in zip(packet, messages, strict=True):
            if row["typing"] & TELLING:
                found += (self._broken(rule, row) for rule in broken_by(row, fields))
            if fields.message_number is None:  # it waits for nothing
                found.append(Seen(fields, data, (Position.of(row),), row["length"]))
            else:
                found += self._part(_Part(Position.of(row), row["length"], fields), data)
        return found

    def cut(self, packet: Sequence[PacketRow]) -> Violation:
        """Observe a packet of which the end was not captured: what it says cannot be known."""
        self._sender = _endpoint(packet[0])
        return self._broken("cut_packet", packet[0])

    def _broken(self, rule: str, row: PacketRow) -> Violation:
        """Return that a packet breaks a rule by itself."""
        return self._violation(rule, RULES[rule], Position.of(row))

    def _violation(
        self, rule: str, text: str, at: Position, message_key: str | None = None
    ) -> Violation:
        return Violation(rule, text, at, self._sender, None, message_key)

    def finish(self) -> list[Seen | Violation]:
        """Give up what is unfinished: the capture ends."""
        found = self._end_orphans()
        self._reassembly.view()
        return found + self._collect(None)

    def _pass(self, ns: int | None) -> list[Seen | Violation]:
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

    def _part(self, part: _Part, data: bytes) -> list[Seen | Violation]:
        """Observe a packet of a message that has a number."""
        number, orphans = part.fields.message_number, self._drops.counts[Drop.ORPHAN]
        self._reassembly.receive("", QoS.UNRELIABLE, part.fields, data, self._now, part)
        stray = self._drops.counts[Drop.ORPHAN] > orphans and not self._reassembly.found
        found: list[Seen | Violation] = []
        if self._orphans and not (stray and self._orphans.number == number):
            found = self._end_orphans()
        if stray:
            known = self._orphans or _Orphans(number, part.at, 0)
            self._orphans = known._replace(packets=known.packets + 1)
        return found + self._collect(part)

    def _collect(self, part: _Part | None) -> list[Seen | Violation]:
        """Return what follows from the last packet, or from time."""
        found: list[Seen | Violation] = []
        while self._reassembly.found:
            match self._reassembly.found.popleft():
                case Aborted() as event:
                    found.append(self._given_up(event, part))
                case Whole(_, _, fields, data, places):
                    packets = tuple(one.at for one in places)
                    found.append(Seen(fields, data, packets, sum(one.length for one in places)))
        return found

    def _end_orphans(self) -> list[Seen | Violation]:
        if self._orphans is None:
            return []
        number, at, packets = self._orphans
        self._orphans = None
        many = f"{packets} packet{'s' * (packets != 1)}"
        text = f"message {number}: {many}, and its first was not seen before"
        return [self._violation("orphan", text, at)]

    def _given_up(self, event: Aborted, part: _Part | None) -> Violation:
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
        return self._violation(rule, text, first.at, first.at.key)


def observe(rows: Iterable[Row], observer: Observer) -> Iterator[Seen | Violation]:
    """Yield what the rows of one sender's stream show, in the order in which it is known.

    Parameters
    ----------
    rows
        All rows of RMP packets of a stream in order, those of gaps too, with the columns `NEEDED`.
    observer
        A new one.
    """
    packet: list[PacketRow] = []
    for row in map(as_packet, rows):
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


def _endpoint(row: PacketRow) -> str | None:
    return None if row["src_addr"] is None else endpoint(row["src_addr"], row["src_port"])


def _belongs(row: PacketRow, packet: Sequence[PacketRow]) -> bool:
    """Return whether a row is the next message of a packet."""
    first = packet[0]
    place = first["packet_offset"], len(packet)
    is_next = (row["packet_offset"], row["message_in_packet"]) == place
    return is_next and row["status"] == first["status"] == _OK


def _contradiction(name: str, first: Fields, other: Fields) -> tuple[str, str]:
    """Return which rule a packet breaks that contradicts the first of its message, and how."""
    if other.packet_count != first.packet_count:
        said = f"{first.packet_count} packets, then {other.packet_count}"
        return "count_changed", f"{name}: says that it has {said}"
    if other.layer != first.layer:
        return "layer_changed", f"{name}: is for layer {first.layer}, then for {other.layer}"
    return "packet_changed", f"{name}: packet {other.packet_number} came again with other data"
