"""The encoder of control packets, the inverse of ``wireyard.formats.mqtt.reading``.

Values that break a rule are written if the wire can represent them; else `EncodeError` names the
field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from wireyard import java
from wireyard.errors import EncodeError
from wireyard.formats.fields import maybe, whole
from wireyard.formats.mqtt.control import (
    Auth,
    ConnAck,
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Reasoned,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from wireyard.formats.mqtt.layout import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    FIXED_FLAGS,
    MAX_REMAINING_LENGTH,
    PINGREQ,
    PINGRESP,
    PROPERTIES_BY_NAME,
    PROTOCOLS,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from wireyard.formats.mqtt.properties import Property
from wireyard.formats.mqtt.reading import ignored_flags

_DUP = 8


class _Writer:
    """Writes the bytes of one packet from left to right."""

    def __init__(self, packet: Packet, version: int) -> None:
        self.data = bytearray()
        self.version = version
        self._word_order = "little" if version == 2 and not packet.msb_first else "big"

    def integer(self, field: str, value: object, size: int) -> None:
        """Write a big-endian integer of `size` bytes."""
        most = (1 << 8 * size) - 1
        self.data += _up_to(most, field, value).to_bytes(size, "big")

    def word(self, field: str, value: object) -> None:
        """Write an integer of 16 bits in the byte order of the version."""
        self.integer(field, value, 2)
        if self._word_order == "little":
            self.data[-2:] = self.data[:-3:-1]

    def variable(self, field: str, value: object, least_bytes: int = 1) -> None:
        """Write a variable byte integer, padded to `least_bytes`."""
        left = _up_to(MAX_REMAINING_LENGTH, field, value)
        digits: list[int] = []
        while not digits or left or len(digits) < least_bytes:
            digits.append(left & 0x7F | 0x80)
            left >>= 7
        digits[-1] &= 0x7F
        self.data += bytes(digits)

    def binary(self, field: str, value: object) -> None:
        """Write bytes after a 16-bit length."""
        if not isinstance(value, bytes) or len(value) > 0xFFFF:
            raise EncodeError(field, value, "bytes, 65535 at most")
        self.data += len(value).to_bytes(2, "big") + value

    def text(self, field: str, value: object) -> None:
        """Write text after a 16-bit length."""
        if not isinstance(value, str):
            raise EncodeError(field, value, "text is needed")
        try:
            raw = value.encode()
        except UnicodeEncodeError:
            raise EncodeError(field, value, "half of a surrogate pair has no UTF-8") from None
        self.binary(field, java.encode_modified(value) if self.version == 2 else raw)

    def properties(self, properties: Sequence[Property], field: str = "properties") -> None:
        """Write Property Length and properties in 5.0; other versions have none."""
        if self.version != 5:
            if properties:
                raise EncodeError(field, properties, "only 5.0 has them")
            return
        before, self.data = self.data, bytearray()
        for name, value in properties:
            self._property(name, value)
        written, self.data = self.data, before
        self.variable("property length", len(written))
        self.data += written

    def _property(self, name: str, value: Any) -> None:
        known = PROPERTIES_BY_NAME[name]
        self.variable("property identifier", known.code)
        match known.kind:
            case "byte":
                self.integer(name, value, 1)
            case "two":
                self.integer(name, value, 2)
            case "four":
                self.integer(name, value, 4)
            case "variable":
                self.variable(name, value)
            case "binary":
                self.binary(name, value)
            case "text":
                self.text(name, value)
            case _:
                if not isinstance(value, tuple) or len(value) != 2:
                    raise EncodeError(name, value, "a pair of texts is needed")
                self.text(name, value[0])
                self.text(name, value[1])


def _up_to(most: int, field: str, value: object) -> int:
    number = whole(field, value)
    if not 0 <= number <= most:
        raise EncodeError(field, value, f"an integer from 0 to {most}")
    return number


def encode(packet: Packet) -> bytes:
    """Encode a packet for its version, or for 3.1.1 if it has none.

    Raises
    ------
    EncodeError
        A value that the wire cannot represent, or the packet's version does not have.
    """
    version = maybe(whole)("version_in_force", packet.version_in_force)
    version = 4 if version is None else version
    if version not in PROTOCOLS or (isinstance(packet, Auth) and version != 5):
        known = (5,) if isinstance(packet, Auth) else PROTOCOLS
        raise EncodeError("version_in_force", version, f"one of {', '.join(map(str, known))}")
    if packet.msb_first and version != 2:
        raise EncodeError("msb_first", True, "only the words of 1999 have two orders")
    body = _Writer(packet, version)
    _WRITERS[packet.packet_type](body, packet)
    head = _Writer(packet, version)
    head.data.append(packet.packet_type << 4 | _flags(packet, version))
    least = maybe(whole)("remaining_length_bytes", packet.remaining_length_bytes)
    if least is not None and not 1 <= least <= 4:
        raise EncodeError("remaining_length_bytes", least, "an integer from 1 to 4")
    head.variable("Remaining Length", len(body.data), 1 if version == 5 else least or 1)
    return bytes(head.data + body.data)


def _flags(packet: Packet, version: int) -> int:
    if isinstance(packet, Publish):
        qos = _up_to(2, "qos", packet.qos)
        return packet.dup << 3 | qos << 1 | packet.retain
    given = packet.flags  # type: ignore[attr-defined]  # all others have them
    flags = FIXED_FLAGS[packet.packet_type] if given is None else _up_to(15, "flags", given)
    if isinstance(packet, PubRel | Subscribe | Unsubscribe):
        if packet.dup and version > 3:
            raise EncodeError("dup", True, f"{packet.packet_type_name} has none from 3.1.1 on")
        if version <= 3:
            flags = flags & ~_DUP | packet.dup << 3
    return flags


# --- CONNECT --------------------------------------------------------------------------------


def _write_connect(out: _Writer, packet: Connect) -> None:
    out.text("protocol_name", PROTOCOLS[out.version])
    out.integer("protocol_version", out.version, 1)
    out.integer("header_flags", _connect_flags(packet, out.version), 1)
    out.word("keep_alive", packet.keep_alive)
    out.properties(packet.properties)
    out.text("client_id", packet.client_id)
    if packet.will_topic is not None:
        out.properties(packet.will_properties, "will_properties")
        out.text("will_topic", packet.will_topic)
        out.binary("will_payload", packet.will_payload)
    if packet.username is not None:
        out.text("username", packet.username)
    if packet.password is not None:
        out.binary("password", packet.password)


def _connect_flags(packet: Connect, version: int) -> int:
    """Return Connect Flags; the bits that 1999 and 3.1 ignore are taken from `header_flags`."""
    flags = packet.clean_start << 1
    if packet.will_topic is not None:
        flags |= 4 | _up_to(3, "will_qos", packet.will_qos) << 3 | bool(packet.will_retain) << 5
    for name, bit in (("username", 0x80), ("password", 0x40)):
        value = getattr(packet, name)
        if value is not None and version == 2:
            raise EncodeError(name, value, "1999 has no logins")
        flags |= bit if value is not None else 0
    given = _header_flags(packet) & ignored_flags(partial(getattr, packet))
    return flags | given if version in (2, 3) else flags


def _header_flags(packet: Connect | ConnAck) -> int:
    given = packet.header_flags
    return 0 if given is None else _up_to(0xFF, "header_flags", given)


# --- the others -----------------------------------------------------------------------------


def _write_connack(out: _Writer, packet: ConnAck) -> None:
    flags = _header_flags(packet)
    if out.version not in (2, 3):
        flags = flags & ~1 | packet.session_present
    elif packet.session_present:
        raise EncodeError("session_present", True, "CONNACK has it from 3.1.1 on")
    out.integer("header_flags", flags, 1)
    out.integer("return_code", packet.return_code, 1)
    out.properties(packet.properties)


def _write_publish(out: _Writer, packet: Publish) -> None:
    out.text("topic", packet.topic)
    if packet.qos:
        out.word("packet_id", packet.packet_id)
    elif packet.packet_id is not None:
        raise EncodeError("packet_id", packet.packet_id, "a PUBLISH of QoS 0 has none")
    out.properties(packet.properties)
    out.data += packet.payload


def _write_acknowledgement(out: _Writer, packet: PubAck | PubRec | PubRel | PubComp) -> None:
    out.word("packet_id", packet.packet_id)
    _write_reason(out, packet)


def _write_reason(out: _Writer, packet: Reasoned) -> None:
    """Write the reason code and properties of 5.0, if they are set."""
    if out.version != 5:
        for name in ("properties", "return_code"):
            if (value := getattr(packet, name)) is not None:
                raise EncodeError(name, value, "only 5.0 has it here")
    if packet.return_code is not None:
        out.integer("return_code", packet.return_code, 1)
    if packet.properties is not None:
        out.properties(packet.properties)


def _write_filters(out: _Writer, packet: Subscribe | Unsubscribe) -> None:
    out.word("packet_id", packet.packet_id)
    out.properties(packet.properties)
    for filter in packet.filters:
        out.text("filters", filter.filter)
        if isinstance(packet, Subscribe):
            out.integer("filters", filter.options, 1)


def _write_codes(out: _Writer, packet: SubAck | UnsubAck) -> None:
    out.word("packet_id", packet.packet_id)
    out.properties(packet.properties)
    if packet.return_codes and isinstance(packet, UnsubAck) and out.version != 5:
        raise EncodeError("return_codes", packet.return_codes, "UNSUBACK has them in 5.0 only")
    for code in packet.return_codes:
        out.integer("return_codes", code, 1)


def _write_nothing(_out: _Writer, _packet: Packet) -> None:
    """Write nothing: PINGREQ and PINGRESP are a fixed header alone."""


_WRITERS: Mapping[int, Callable[[_Writer, Any], None]] = MappingProxyType(
    {
        CONNECT: _write_connect,
        CONNACK: _write_connack,
        PUBLISH: _write_publish,
        **dict.fromkeys((PUBACK, PUBREC, PUBREL, PUBCOMP), _write_acknowledgement),
        **dict.fromkeys((SUBSCRIBE, UNSUBSCRIBE), _write_filters),
        **dict.fromkeys((SUBACK, UNSUBACK), _write_codes),
        **dict.fromkeys((PINGREQ, PINGRESP), _write_nothing),
        **dict.fromkeys((DISCONNECT, AUTH), _write_reason),
    }
)
