"""Writing control packets: the reverse of ``wireyard.formats.mqtt.reading``.

What has a form on the wire is written, a rule broken or not; what has none is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from wireyard import java
from wireyard.errors import EncodeError
from wireyard.formats.mqtt.layout import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    FIXED_FLAGS,
    MAX_REMAINING_LENGTH,
    PACKET_TYPES,
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
from wireyard.formats.mqtt.packet import Packet
from wireyard.formats.mqtt.properties import Property
from wireyard.formats.mqtt.reading import ignored_flags

__all__ = ["encode"]


class _Writer:
    """Bytes of one packet, from left to right."""

    def __init__(self, packet: Packet, version: int) -> None:
        self.data = bytearray()
        self.version = version
        self._word_order = "little" if version == 2 and not packet.msb_first else "big"

    def integer(self, field: str, value: object, size: int) -> None:
        """Write a big-endian integer of `size` bytes."""
        most = (1 << 8 * size) - 1
        if not isinstance(value, int) or not 0 <= value <= most:
            raise EncodeError(field, value, f"an integer from 0 to {most}")
        self.data += value.to_bytes(size, "big")

    def word(self, field: str, value: object) -> None:
        """Write an integer of 16 bits in the byte order of the version."""
        self.integer(field, value, 2)
        if self._word_order == "little":
            self.data[-2:] = self.data[:-3:-1]

    def variable(self, field: str, value: object, least_bytes: int = 1) -> None:
        """Write a variable byte integer in at least so many bytes."""
        if not isinstance(value, int) or not 0 <= value <= MAX_REMAINING_LENGTH:
            raise EncodeError(field, value, f"an integer from 0 to {MAX_REMAINING_LENGTH}")
        digits: list[int] = []
        while not digits or value or len(digits) < least_bytes:
            digits.append(value & 0x7F | 0x80)
            value >>= 7
        digits[-1] &= 0x7F
        self.data += bytes(digits)

    def binary(self, field: str, value: object) -> None:
        """Write bytes behind their length."""
        if not isinstance(value, bytes) or len(value) > 0xFFFF:
            raise EncodeError(field, value, "bytes, 65535 at most")
        self.data += len(value).to_bytes(2, "big") + value

    def text(self, field: str, value: object) -> None:
        """Write text behind its length."""
        if not isinstance(value, str):
            raise EncodeError(field, value, "text is needed")
        try:
            raw = value.encode()
        except UnicodeEncodeError:
            raise EncodeError(field, value, "half of a surrogate pair has no UTF-8") from None
        self.binary(field, java.encode_modified(value) if self.version == 2 else raw)

    def properties(self, properties: Sequence[Property] | None) -> None:
        """Write Property Length and properties, if the version has them."""
        if self.version != 5:
            if properties:
                raise EncodeError("properties", properties, "only 5.0 has them")
            return
        before, self.data = self.data, bytearray()
        for name, value in properties or ():
            self._property(name, value)
        written, self.data = self.data, before
        self.variable("property length", len(written))
        self.data += written

    def _property(self, name: str, value: Any) -> None:
        known = PROPERTIES_BY_NAME.get(name)
        if known is None:
            raise EncodeError("property", name, "no name of the standard")
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


def encode(packet: Packet) -> bytes:
    """Encode a packet for its version, 3.1.1 if that is not known.

    Raises
    ------
    EncodeError
        A value that has no form on the wire, or that the type needs and is not there.
    """
    version = packet.version_in_force or 4
    if version not in PROTOCOLS:
        raise EncodeError("version_in_force", version, f"one of {', '.join(map(str, PROTOCOLS))}")
    if packet.packet_type not in PACKET_TYPES or (packet.packet_type == AUTH and version != 5):
        raise EncodeError("packet_type", packet.packet_type, "no type of the version")
    body = _Writer(packet, version)
    _WRITERS[packet.packet_type](body, packet)
    head = _Writer(packet, version)
    head.data.append(packet.packet_type << 4 | _flags(packet))
    least = 1 if version == 5 else min(packet.remaining_length_bytes or 1, 4)
    head.variable("Remaining Length", len(body.data), least)
    return bytes(head.data + body.data)


def _flags(packet: Packet) -> int:
    if packet.packet_type != PUBLISH:
        flags = FIXED_FLAGS[packet.packet_type] if packet.flags is None else packet.flags
    else:
        qos = packet.qos or 0
        if qos not in (0, 1, 2):
            raise EncodeError("qos", qos, "0, 1 or 2")
        flags = bool(packet.dup) << 3 | qos << 1 | bool(packet.retain)
    if not isinstance(flags, int) or not 0 <= flags <= 15:
        raise EncodeError("flags", flags, "an integer from 0 to 15")
    return flags


# --- CONNECT --------------------------------------------------------------------------------


def _write_connect(out: _Writer, packet: Packet) -> None:
    level = out.version if packet.protocol_version is None else packet.protocol_version
    out.text("protocol_name", packet.protocol_name or PROTOCOLS[out.version])
    out.integer("protocol_version", level, 1)
    out.integer("header_flags", _connect_flags(packet, out.version), 1)
    out.word("keep_alive", packet.keep_alive or 0)
    if out.version == 5:
        out.properties(packet.properties)
    out.text("client_id", packet.client_id or "")
    if packet.will_topic is not None:
        if out.version == 5:
            out.properties(packet.will_properties)
        out.text("will_topic", packet.will_topic)
        out.binary("will_payload", packet.will_payload or b"")
    if packet.username is not None:
        out.text("username", packet.username)
    if packet.password is not None:
        out.binary("password", packet.password)


def _connect_flags(packet: Packet, version: int) -> int:
    """Compose Connect Flags; bits that 1999 and 3.1 do not look at are as they were."""
    if version == 2 and (packet.username is not None or packet.password is not None):
        raise EncodeError("username", packet.username, "1999 has no logins")
    flags = bool(packet.clean_start) << 1
    if packet.will_topic is not None:
        qos = packet.will_qos or 0
        if not isinstance(qos, int) or not 0 <= qos <= 3:
            raise EncodeError("will_qos", qos, "0, 1 or 2")
        flags |= 4 | qos << 3 | bool(packet.will_retain) << 5
    flags |= (packet.username is not None) << 7 | (packet.password is not None) << 6
    if version in (2, 3) and isinstance(packet.header_flags, int):
        held = {name: getattr(packet, name) for name in ("will_topic", "username", "password")}
        flags |= packet.header_flags & ignored_flags(held)
    return flags


# --- the others -----------------------------------------------------------------------------


def _write_connack(out: _Writer, packet: Packet) -> None:
    flags = packet.header_flags or 0
    if out.version not in (2, 3) and packet.session_present is not None:
        flags = flags & ~1 | packet.session_present
    out.integer("header_flags", flags, 1)
    out.integer("return_code", packet.return_code or 0, 1)
    out.properties(packet.properties)


def _write_publish(out: _Writer, packet: Packet) -> None:
    out.text("topic", packet.topic)
    if packet.qos:
        out.word("packet_id", packet.packet_id)
    out.properties(packet.properties)
    payload = packet.payload or b""
    if not isinstance(payload, bytes):
        raise EncodeError("payload", payload, "a payload is bytes")
    out.data += payload


def _write_acknowledgement(out: _Writer, packet: Packet) -> None:
    out.word("packet_id", packet.packet_id)
    _write_reason(out, packet)


def _write_reason(out: _Writer, packet: Packet) -> None:
    """Write reason code and properties of 5.0, as far as they are told."""
    if out.version == 5 and (packet.return_code is not None or packet.properties is not None):
        out.integer("return_code", packet.return_code or 0, 1)
        if packet.properties is not None:
            out.properties(packet.properties)


def _write_auth(out: _Writer, packet: Packet) -> None:
    if packet.return_code is not None or packet.properties is not None:
        out.integer("return_code", packet.return_code or 0, 1)
        out.properties(packet.properties)


def _write_filters(out: _Writer, packet: Packet) -> None:
    out.word("packet_id", packet.packet_id)
    out.properties(packet.properties)
    for one in packet.filters or ():
        out.text("filter", one.filter)
        if packet.packet_type == SUBSCRIBE:
            out.integer("subscription options", one.options, 1)


def _write_codes(out: _Writer, packet: Packet) -> None:
    out.word("packet_id", packet.packet_id)
    out.properties(packet.properties)
    for code in packet.return_codes or ():
        out.integer("return_codes", code, 1)


def _write_nothing(_out: _Writer, _packet: Packet) -> None:
    """PINGREQ and PINGRESP are a fixed header alone."""


_WRITERS: Mapping[int, Callable[[_Writer, Packet], None]] = MappingProxyType(
    {
        CONNECT: _write_connect,
        CONNACK: _write_connack,
        PUBLISH: _write_publish,
        **dict.fromkeys((PUBACK, PUBREC, PUBREL, PUBCOMP), _write_acknowledgement),
        **dict.fromkeys((SUBSCRIBE, UNSUBSCRIBE), _write_filters),
        **dict.fromkeys((SUBACK, UNSUBACK), _write_codes),
        **dict.fromkeys((PINGREQ, PINGRESP), _write_nothing),
        DISCONNECT: _write_reason,
        AUTH: _write_auth,
    }
)
