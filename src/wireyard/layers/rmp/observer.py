"""Captured packets of one sender to messages, reassembled as by a receiver on the same wire.

Rules of this file:

1. A sender is a stream: the packets from one endpoint to one group, in the order of capture.
2. `Reassembly` reassembles them as packets without order. The wire does not show a quality of
   service, and UDP, the transport of captures, keeps no order: a message is whole with the last of
   its packets, even if earlier messages are unfinished.
3. Views are not on the wire. An unfinished message is aborted after a timeout, or at the end of the
   capture.
4. A repeated packet counts once, and breaks no rule; see `Repeats`. A message that its sender sends
   again has the same number (errata R29), so its packets are repeats too.
5. A truncated packet, whose end was not captured, is not used.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.layers.endpoints import endpoint
from wireyard.layers.records import GAP, Position, Violation
from wireyard.layers.rmp.events import Aborted
from wireyard.layers.rmp.limits import NUMBERS, Drop, Drops, Limits
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import Order, QoS
from wireyard.layers.rmp.reassembly import Reassembly, Whole
from wireyard.layers.rmp.violations import CHECKED_FLAGS, RULES, violated_rules

NEEDED: Final = (
    "source", "stream", "offset", "length", "status", "error", "captured_ns", "frame",
    "src_addr", "src_port", "dst_addr", "dst_port", "packet_offset", "message_in_packet",
    "typing", *Fields._fields, "more_follows", "data",
)  # fmt: skip
"""The columns of RMP packets that are read."""

_OK, _BROKEN = "ok", ("malformed", "garbage")
_ANY_PACKET_BYTES: Final = 1
"""The longest packet of a ring is not on the wire, so only the bytes of a message bound it."""
_BOUNDS: Final = MappingProxyType(
    {
        "too_big": "max_message_bytes",
        "too_many": "max_unfinished_of_source",
        "overflow": "max_held_bytes",
    }
)
"""The field of `Limits` that a message exceeds, by the reason why it was aborted."""
_ROOM_BYTES: Final = 1400
"""The longest packet of the ring over UDP: a longer one does not fit into an Ethernet frame."""
_NS_PER_S: Final = 1e9
_fields_of = itemgetter(*Fields._fields)


class Seen(NamedTuple):
    """A whole message."""

    fields: Fields
    """The fields of its first packet."""
    data: bytes
    packets: tuple[Position, ...]
    """Packet 1, then its others in the order of capture."""
    length: int
    """Bytes of all its packets."""


class _Part(NamedTuple):
    """A packet of a message of several packets."""

    at: Position
    length: int
    fields: Fields


class Repeats:
    """The last packets of a sender.

    Rules of this class (errata R27):

    1. An equal packet with a message number is a repeat while its sender may not reuse the number:
       twice the time that receivers wait for the rest of a message.
    2. A number is reused after all others, so no more than `NUMBERS` packets are held.
    3. Packets without a number have no identity. Of two equal ones, the second is a repeat if it
       comes within the time that a sender waits for messages to share a packet, and both would have
       fitted into one packet: their sender would have packed them.
    4. Without times only packets with numbers can be repeats.

    A packet is held as a hash of 64 bits. A different packet with the same hash counts as a repeat:
    with all held packets, the chance is one in 2**48.
    """

    def __init__(self, limits: Limits) -> None:
        self._hold_s = 2 * limits.reassembly_timeout_s
        self._packing_s = limits.max_delay_s
        self._seen: OrderedDict[int, float] = OrderedDict()

    def is_repeat(
        self, packet: Sequence[tuple[Fields, bytes]], size: int, now: float | None
    ) -> bool:
        """Observe a packet; return whether it is a repeat.

        `packet` has the fields and data of its messages, and `size` is its length in bytes. `now`
        is the time in seconds, None if it is unknown.
        """
        numbered = any(fields.message_number is not None for fields, _ in packet)
        if not numbered and (now is None or 2 * size > _ROOM_BYTES):
            return False
        key, at = hash(tuple(packet)), now or 0.0
        seen = self._seen.get(key)
        if seen is not None and at - seen <= (self._hold_s if numbered else self._packing_s):
            return True
        self._seen[key] = at
        self._seen.move_to_end(key)
        if len(self._seen) > NUMBERS:
            self._seen.popitem(last=False)
        return False


class Observer:
    """Reassembles the packets of one sender, with the limits of a receiver."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._drops = Drops(max_counted_sources=0)
        self._reassembly = Reassembly(Order.NONE, "", _ANY_PACKET_BYTES, self._limits, self._drops)
        self._repeats = Repeats(self._limits)
        self._now = 0.0
        self._ns: int | None = None
        self._sender: str | None = None
        """None in a raw stream."""
        self.over_bound: Counter[str] = Counter()
        """The number of messages that exceeded a bound, by the name of the field of `Limits`."""

    @property
    def dropped(self) -> Counter[Drop]:
        """Counts of dropped packets and messages, by the reasons that a receiver has too."""
        return self._drops.counts

    def receive(self, packet: Sequence[Row]) -> list[Seen | Violation]:
        """Observe a packet: the rows of its messages, or the one row of a malformed packet."""
        first = packet[0]
        self._sender = _endpoint(first)
        found = self._advance(first["captured_ns"])
        if first["status"] != _OK:
            self._drops.counts[Drop.MALFORMED] += 1
            text = first["error"]["message"] if first["error"] else RULES["malformed_packet"]
            return [*found, self._violation("malformed_packet", text, Position.of(first))]
        messages = [(Fields._make(_fields_of(row)), row["data"]) for row in packet]
        size = sum(row["length"] for row in packet)
        now = None if first["captured_ns"] is None else self._now
        if self._repeats.is_repeat(messages, size, now):
            self._drops.counts[Drop.REPEAT] += 1
            return found
        for row, (fields, data) in zip(packet, messages, strict=True):
            if row["typing"] & CHECKED_FLAGS:
                found += (self._rule_violation(rule, row) for rule in violated_rules(row, fields))
            if fields.message_number is None:  # a message of one packet
                found.append(Seen(fields, data, (Position.of(row),), row["length"]))
            else:
                part = _Part(Position.of(row), row["length"], fields)
                self._reassembly.receive("", QoS.UNRELIABLE, fields, data, self._now, part)
                found += self._collect(part)
        return found

    def receive_truncated(self, packet: Sequence[Row]) -> Violation:
        """Observe a packet whose end was not captured, and whose content is unknown therefore."""
        self._sender = _endpoint(packet[0])
        return self._rule_violation("cut_packet", packet[0])

    def _rule_violation(self, rule: str, row: Row) -> Violation:
        """Return the violation of a rule by a packet alone."""
        return self._violation(rule, RULES[rule], Position.of(row))

    def _violation(
        self, rule: str, text: str, at: Position, message_key: str | None = None
    ) -> Violation:
        return Violation(rule, text, at, self._sender, None, message_key)

    def finish(self) -> list[Seen | Violation]:
        """Abort unfinished messages at the end of the capture."""
        self._reassembly.view()
        return self._collect(None)

    def _advance(self, ns: int | None) -> list[Seen | Violation]:
        """Advance the time to that of a packet, and return what times out before."""
        if ns is None:
            return []
        if self._ns is not None:  # if the clock was set back, no time has passed
            self._now += max(ns - self._ns, 0) / _NS_PER_S
        self._ns = ns
        if not self._reassembly:
            return []
        self._reassembly.handle_timer(self._now)
        return self._collect(None)

    def _collect(self, part: _Part | None) -> list[Seen | Violation]:
        """Return the output of the reassembly after a packet, or after time has passed."""
        found: list[Seen | Violation] = []
        while self._reassembly.output:
            match self._reassembly.output.popleft():
                case Aborted() as event:
                    found.append(self._abort_violation(event, part))
                case Whole(_, _, fields, data, parts):
                    positions = tuple(each.at for each in parts)
                    length = sum(each.length for each in parts)
                    found.append(Seen(fields, data, positions, length))
        return found

    def _abort_violation(self, event: Aborted, part: _Part | None) -> Violation:
        """Return the violation for an aborted message; `part` is the packet that aborted it."""
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
                self.over_bound[bound] += 1
                rule, text = "over_bound", f"{seen}, and it was over {bound}"
        return self._violation(rule, text, first.at, first.at.key)


def observe(rows: Iterable[Row], observer: Observer) -> Iterator[Seen | Violation]:
    """Yield the messages and violations in one sender's stream, in the order of their ends.

    `rows` are all rows of RMP packets of a stream in order, those of gaps too, with the columns
    `NEEDED`. The observer is a new one.
    """
    packet: list[Row] = []
    for row in rows:
        if packet and _belongs(row, packet):
            packet.append(row)
            continue
        if row["status"] == GAP and packet:
            yield observer.receive_truncated(packet)
        elif packet:
            yield from observer.receive(packet)
        packet = [row] if row["status"] in (_OK, *_BROKEN) else []
    if packet:
        yield from observer.receive(packet)
    yield from observer.finish()


def _endpoint(row: Row) -> str | None:
    return None if row["src_addr"] is None else endpoint(row["src_addr"], row["src_port"])


def _belongs(row: Row, packet: Sequence[Row]) -> bool:
    """Return whether a row is the next message of a packet."""
    first = packet[0]
    place = first["packet_offset"], len(packet)
    is_next = (row["packet_offset"], row["message_in_packet"]) == place
    return is_next and row["status"] == first["status"] == _OK


def _contradiction(name: str, first: Fields, other: Fields) -> tuple[str, str]:
    """Return the rule and the text for a packet that contradicts the first of its message."""
    if other.packet_count != first.packet_count:
        counts = f"{first.packet_count} packets, then {other.packet_count}"
        return "count_changed", f"{name}: says that it has {counts}"
    if other.layer != first.layer:
        return "layer_changed", f"{name}: is for layer {first.layer}, then for {other.layer}"
    return "packet_changed", f"{name}: packet {other.packet_number} came again with other data"
