"""Packets of one connection: bytes in, events and bytes out, and the order that packets have.

Rules of this file:

1. All bytes that arrived are read in one pass, and `take` returns all bytes to send as one value.
2. Where packets end is decided by ``frame_size``, and what they are by ``decode``. A PUBLISH with a
   topic that `decode` has accepted before, and without properties, is read here, because there are
   so many. So is an acknowledgement without a reason code.
3. The first violation ends the connection: nothing after it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from wireyard.endpoints.channel import Channel, Ended, Limits, Tap
from wireyard.endpoints.codes import PROTOCOL_ERROR, TOO_LARGE, code_of_error, code_of_rule
from wireyard.endpoints.messages import MQIPDP, Delivery, Message, key_of
from wireyard.errors import DecodeError, LimitExceeded
from wireyard.formats.mqtt.control import Disconnect, Packet, Publish
from wireyard.formats.mqtt.framing import frame_size, next_context
from wireyard.formats.mqtt.layout import (
    AUTH,
    CONNACK,
    CONNECT,
    MAX_PACKET_BYTES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    VERSION_BITS,
)
from wireyard.formats.mqtt.packet import decode
from wireyard.formats.mqtt.writing import encode
from wireyard.layers.mqtt.connection import CONNECTION, connection_event
from wireyard.layers.mqtt.violations import RULES, cite

ERROR: Final = 128
"""The first reason code of an error."""

PLAIN_ACKS: Final = {
    PUBACK << 4: "puback",
    PUBREC << 4: "pubrec",
    PUBREL << 4 | 2: "pubrel",
    PUBCOMP << 4: "pubcomp",
}
"""Events of acknowledgements by first byte; with two bytes behind it they have no reason code."""
_PLAIN_PUBLISH: Final = frozenset(
    PUBLISH << 4 | dup << 3 | qos << 1 | retain
    for dup, qos in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2))
    for retain in (0, 1)
)
"""First bytes of PUBLISH in every version."""
_KNOWN_TOPICS, _KNOWN_BYTES = 4096, 256
"""Topics that are kept, and bytes of each."""
_REASON: Final = 110
"""Characters of a Reason String: some clients cannot read more than 127 bytes of properties."""
_TWO_DIGITS: Final = 130
"""Bytes of a packet from which on its Remaining Length has two digits."""
_SHORT_HEAD: Final = 3
"""Bytes of the longest fixed header that `Burst` knows."""
_WITH_SECRETS: Final = (CONNECT, CONNACK, AUTH)


class Completed(NamedTuple):
    """A message that this side sent was acknowledged; `code` is the reason code."""

    delivery: Delivery
    code: int


class Received(NamedTuple):
    """A message of QoS 2 that this side sent has arrived, by its PUBREC."""

    delivery: Delivery


class Released(NamedTuple):
    """A message of QoS 2 that this side received is not sent again, by its PUBREL."""

    packet_id: int


class Burst(NamedTuple):
    """Packets behind each other at QoS 0 of one topic, as they came: a message each."""

    first: Message
    data: bytes
    ends: list[int]
    """Where each packet ends in the data."""
    version: int

    def messages(self) -> Iterator[Message]:
        """Yield the messages."""
        start, topic = 0, self.first.topic
        size_of_header = len(topic.encode()) + 2 + (self.version == 5)
        for end in self.ends:
            behind = start + (2 if end - start < _TWO_DIGITS else 3) + size_of_header
            message = Message(topic, self.data[behind:end])
            message.encoded[key_of(self.version, 0, False)] = self.data[start:end], b""
            yield message
            start = end


Event = Message | Burst | Completed | Received | Released | Ended | Packet


class PacketEndpoint(Channel[Event]):
    """One side of one connection, apart from its flows.

    `limits` and `tap` are those of `Channel`. `known` are topics that were decoded, which all
    connections of a broker share: of a client of 3.1 it takes only topics of later versions too.
    """

    _FORMAT = "mqtt"
    is_client: ClassVar[bool]
    size_rule: ClassVar[str]
    """The rule about packets that are too large for this side."""

    def __init__(
        self,
        limits: Limits | None = None,
        known: dict[bytes, str] | None = None,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(limits, tap)
        self._known = {} if known is None else known
        self.version = 0
        self.peer_max_packet = MAX_PACKET_BYTES

    # --- bytes in -------------------------------------------------------------------------

    def _read(self, data: bytes, now: float) -> list[Event]:
        events: list[Event] = []
        secret: list[tuple[int, int]] = []
        at, stop = 0, len(data)
        while at < stop and self.ended is None and not self.is_paused:
            most = self.limits.max_packet_bytes
            if self.state == "new":
                most = min(most, self.limits.max_connect_bytes)
                if data[at] >> 4 != CONNECT:
                    self.break_rule("connect_first", events)
                    break
            try:
                size = frame_size(data, at, stop, most, self.context)
            except DecodeError as error:
                self.break_packet(error, data[at:], events)
                break
            self._needed = size or 0
            if size is None or at + size > stop:
                break
            behind = self._read_common(data, at, size, events) if self.state == "open" else 0
            if not behind:
                behind = at + size
                if data[at] >> 4 in _WITH_SECRETS:
                    secret.append((at, behind))
                self._read_packet(data[at:behind], now, events)
            at = behind
        self._leave(data, at, secret)
        return events

    def _read_common(self, data: bytes, at: int, size: int, events: list[Event]) -> int:
        """Read a packet that is like most, and those like it; return where the last one ends.

        Of any other packet nothing is read, and 0 returned.
        """
        first = data[at]
        if self.version == MQIPDP:
            return 0
        if first not in _PLAIN_PUBLISH:
            event = PLAIN_ACKS.get(first)
            if event is None or size != 4:
                return 0
            self.read_ack(event, data[at + 2] << 8 | data[at + 3], 0, events)
            return at + size
        start, stop = at + 2, at + size
        while data[start - 1] > 127:
            start += 1
        if start + 2 > stop:
            return 0
        behind = start + 2 + (data[start] << 8 | data[start + 1])
        topic = self._known.get(data[start + 2 : behind])
        if topic is None or behind > stop:
            return 0
        packet_id = 0
        if first & 6:
            packet_id = int.from_bytes(data[behind : behind + 2], "big")
            behind += 2
            if not packet_id or behind > stop:
                return 0
        if self.version == 5:
            if behind >= stop or data[behind]:
                return 0
            behind += 1
        message = Message(
            topic, data[behind:stop], first >> 1 & 3, bool(first & 1), (), None, packet_id,
            bool(first & 8),
        )  # fmt: skip
        if first == PUBLISH << 4:
            # It may be passed on as it came.
            message.encoded[key_of(self.version, 0, False)] = (data[at:stop], b"")
            is_short = start - at <= _SHORT_HEAD and not self.is_client
            ends = self._ends_of_more(data, stop, data[start:behind]) if is_short else []
            if ends:
                ends = [stop - at, *(end - at for end in ends)]
                last = at + ends[-1]
                events.append(Burst(message, data[at:last], ends, self.version))
                return last
        self.take_message(message, events)
        return stop

    def _ends_of_more(self, data: bytes, at: int, header: bytes) -> list[int]:
        """Return where the next packets end, as long as they are at QoS 0 and have a header."""
        ends: list[int] = []
        most, width, stop = self.limits.max_packet_bytes, len(header), len(data)
        while at + 2 < stop and data[at] == PUBLISH << 4:
            size, start = data[at + 1], at + 2
            if size > 127:
                high = data[start]
                if not 0 < high < 128:
                    break
                size += (high - 1) << 7
                start += 1
            if data[start : start + width] != header or width > size:
                break
            if start + size > stop or start + size - at > most:
                break
            at = start + size
            ends.append(at)
        return ends

    def _read_packet(self, data: bytes, now: float, events: list[Event]) -> None:
        self.context = next_context(data, self.context)
        try:
            packet = decode(data, self.context)
        except DecodeError as error:
            self.break_packet(error, data, events)
            return
        self.version = packet.version_in_force or 4
        code = getattr(packet, "return_code", 0) or 0
        event = connection_event(not self.is_client, packet.packet_type, self.version, code)
        cell = None if event is None else CONNECTION.lookup(self.state, event)
        if cell is None or cell.rule is not None:
            self.break_rule("wrong_side" if cell is None else str(cell.rule), events)
        elif event == "client" and self.state == "asked":
            text = "sends more than AUTH before CONNACK [MQTT-3.1.2-30]"
            self.end_by(PROTOCOL_ERROR, text, events)
        else:
            self.state = cell.state
            self.take_packet(packet, now, events)

    def remember(self, packet: Publish) -> None:
        """Remember the topic of a packet without properties."""
        topic = packet.topic.encode()
        if len(self._known) >= _KNOWN_TOPICS:
            self._known.clear()
        if len(topic) <= _KNOWN_BYTES:
            self._known[topic] = packet.topic

    def read_ack(self, event: str, packet_id: int, code: int, events: list[Event]) -> None:
        """Act on an acknowledgement."""
        raise NotImplementedError

    def take_message(self, message: Message, events: list[Event]) -> None:
        """Act on a message that arrived."""
        raise NotImplementedError

    def take_packet(self, packet: Packet, now: float, events: list[Event]) -> None:
        """Act on any other packet."""
        raise NotImplementedError

    # --- bytes out ------------------------------------------------------------------------

    def write_packet(self, packet: Packet) -> None:
        """Send a packet that has no effect on flows."""
        self.write(encode(packet), packet.packet_type in _WITH_SECRETS)

    # --- ends -----------------------------------------------------------------------------

    def end(self, code: int, text: str, *, by_client: bool = False) -> Ended | None:
        """End the connection; return None if it is over already.

        In 5.0 it ends with a DISCONNECT, unless the other side ended it.
        """
        if self.ended is not None:
            return None
        self.ended = Ended(text, code)
        if self.version == 5 and self.state == "open" and not by_client:
            shown = text
            if len(text) > _REASON:
                shown = f"{text[: _REASON // 2]}…{text[-_REASON // 2 :]}"
            reason = [("reason_string", shown)] if len(shown) + 16 < self.peer_max_packet else []
            self.write_packet(
                Disconnect(
                    return_code=code,
                    properties=reason if code >= ERROR else None,
                    version_in_force=5,
                )
            )
        return self.ended

    def break_packet(self, error: DecodeError, data: bytes, events: list[Event]) -> None:
        """End the connection because of a packet that cannot be decoded, and begins the data."""
        cited = cite(self.size_rule, self.version) if isinstance(error, LimitExceeded) else None
        if cited is not None:
            self.end_by(TOO_LARGE, f"{error} [{cited[0]}]", events)
        else:
            self.end_by(code_of_error(error, self.context & VERSION_BITS), str(error), events)

    def break_rule(self, rule: str, events: list[Event]) -> None:
        """End the connection because of a rule that several packets together break."""
        cited = cite(rule, self.version)
        number = "" if cited is None else f" [{cited[0]}]"
        self.end_by(code_of_rule(rule), f"violates '{RULES[rule].text}'{number}", events)

    def end_by(self, code: int, text: str, events: list[Event]) -> None:
        """End the connection because of what the other side did."""
        ended = self.end(code, text)
        if ended is not None:
            events.append(ended)
