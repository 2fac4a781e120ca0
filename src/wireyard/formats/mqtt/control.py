"""The control packets as frozen values: one class for each packet type.

`Packet` is their base class. Fields are keyword arguments with the names of the columns; they
accept text, bytes and dicts where the wire has another form. `encode` rejects a field that the
version of the packet does not have.

Fields that ``repr`` and ``==`` ignore hold bits and lengths that a sender may choose freely, so
that a decoded packet is encoded to the same bytes; if they are None, `encode` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final

from wireyard.errors import EncodeError
from wireyard.formats.fields import (
    PlainFields,
    Takes,
    flag,
    maybe,
    octets_or_text,
    whole,
)
from wireyard.formats.mqtt import layout
from wireyard.formats.mqtt.filters import Filter, subscribed, unsubscribed
from wireyard.formats.mqtt.layout import PACKET_TYPES, PROTOCOLS
from wireyard.formats.mqtt.properties import (
    SECRET_PROPERTY,
    PlainProperties,
    Property,
    plain_properties,
)

Properties = tuple[Property, ...]


def _codes(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise EncodeError(name, value, "a sequence of integers is needed")
    return tuple(whole(name, code) for code in value)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Packet(PlainFields):
    """Base of all control packets, with the fields that each has."""

    packet_type: ClassVar[int]
    version_in_force: int | None = 4
    """Protocol level to decode and encode by: 2 (1999), 3 (3.1), 4 (3.1.1), 5 (5.0)."""
    msb_first: Takes[bool, bool] = Takes(flag, False)
    """Whether words of version 2 are big-endian, against the page of 1999 (errata M12)."""
    remaining_length_bytes: int | None = field(default=None, compare=False, repr=False)
    """Bytes of the Remaining Length field, which versions before 5.0 may pad."""

    @property
    def packet_type_name(self) -> str:
        """Name of the packet type."""
        return PACKET_TYPES[self.packet_type]

    def _is_secret(self, name: str) -> bool:
        return name == "password"

    def _shown(self, name: str, value: Any) -> str:
        if name == "properties" and value:
            value = tuple(
                entry._replace(value=...) if entry.name == SECRET_PROPERTY else entry
                for entry in value
            )
        return PlainFields._shown(self, name, value)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Other(Packet):
    """Every packet but PUBLISH."""

    flags: int | None = field(default=None, compare=False, repr=False)
    """The low nibble."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Connect(_Other):
    """CONNECT; it has a will if `will_topic` is set."""

    packet_type: ClassVar[int] = layout.CONNECT
    header_flags: int | None = field(default=None, compare=False, repr=False)
    """Connect Flags, for the bits that no other field determines."""
    client_id: str = ""
    clean_start: Takes[bool, bool] = Takes(flag, True)
    keep_alive: int = 0
    will_topic: str | None = None
    will_payload: Takes[bytes | str | None, bytes | None] = Takes(maybe(octets_or_text), None)
    will_qos: int | None = None
    will_retain: Takes[bool | None, bool | None] = Takes(maybe(flag), None)
    will_properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())
    username: str | None = None
    password: Takes[bytes | str | None, bytes | None] = Takes(maybe(octets_or_text), None)
    properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())

    def __post_init__(self) -> None:
        """Convert the arguments; set the version and the fields of a will that were left out."""
        PlainFields.__post_init__(self)
        if self.version_in_force is None:
            object.__setattr__(self, "version_in_force", 4)
        for name, default in (("will_payload", b""), ("will_qos", 0), ("will_retain", False)):
            value = getattr(self, name)
            if self.will_topic is None and value is not None:
                raise EncodeError(name, value, "a will has a will_topic")
            if self.will_topic is not None and value is None:
                object.__setattr__(self, name, default)
        if self.will_topic is None and self.will_properties:
            raise EncodeError("will_properties", self.will_properties, "a will has a will_topic")

    @property
    def protocol_name(self) -> str | None:
        """Protocol name of the version, None for an unknown version."""
        return PROTOCOLS.get(self.version_in_force or 0)

    @property
    def protocol_version(self) -> int | None:
        """Protocol level: the version in force."""
        return self.version_in_force


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConnAck(_Other):
    """CONNACK."""

    packet_type: ClassVar[int] = layout.CONNACK
    header_flags: int | None = field(default=None, compare=False, repr=False)
    """Connect Acknowledge Flags, for the bits that no other field determines."""
    session_present: Takes[bool, bool] = Takes(flag, False)
    return_code: int = 0
    properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Publish(Packet):
    """PUBLISH; it has a packet identifier at QoS 1 and 2."""

    packet_type: ClassVar[int] = layout.PUBLISH
    topic: str
    payload: Takes[bytes | str, bytes] = Takes(octets_or_text, b"")
    qos: int = 0
    retain: Takes[bool, bool] = Takes(flag, False)
    dup: Takes[bool, bool] = Takes(flag, False)
    packet_id: int | None = None
    properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reasoned(_Other):
    """Base of packets that may end with a reason code and properties in 5.0; None omits them."""

    return_code: int | None = None
    properties: Takes[PlainProperties | None, Properties | None] = Takes(
        maybe(plain_properties), None
    )

    def __post_init__(self) -> None:
        """Convert the arguments; properties without a reason code get reason code 0."""
        PlainFields.__post_init__(self)
        if self.properties is not None and self.return_code is None:
            object.__setattr__(self, "return_code", 0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PubAck(Reasoned):
    """PUBACK."""

    packet_type: ClassVar[int] = layout.PUBACK
    packet_id: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PubRec(Reasoned):
    """PUBREC."""

    packet_type: ClassVar[int] = layout.PUBREC
    packet_id: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PubRel(Reasoned):
    """PUBREL; before 3.1.1 it may have DUP."""

    packet_type: ClassVar[int] = layout.PUBREL
    packet_id: int
    dup: Takes[bool, bool] = Takes(flag, False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PubComp(Reasoned):
    """PUBCOMP."""

    packet_type: ClassVar[int] = layout.PUBCOMP
    packet_id: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Subscribe(_Other):
    """SUBSCRIBE; a filter is a text (QoS 0), a pair of text and QoS, or a `Filter`."""

    packet_type: ClassVar[int] = layout.SUBSCRIBE
    packet_id: int
    filters: Takes[Sequence[str | tuple[str, int] | Filter], tuple[Filter, ...]] = Takes(
        subscribed, ()
    )
    properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())
    dup: Takes[bool, bool] = Takes(flag, False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SubAck(_Other):
    """SUBACK: a return code for each filter."""

    packet_type: ClassVar[int] = layout.SUBACK
    packet_id: int
    return_codes: Takes[Sequence[int], tuple[int, ...]] = Takes(_codes, ())
    properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Unsubscribe(_Other):
    """UNSUBSCRIBE; a filter is a text."""

    packet_type: ClassVar[int] = layout.UNSUBSCRIBE
    packet_id: int
    filters: Takes[Sequence[str | Filter], tuple[Filter, ...]] = Takes(unsubscribed, ())
    properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())
    dup: Takes[bool, bool] = Takes(flag, False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UnsubAck(_Other):
    """UNSUBACK; in 5.0 a reason code for each filter."""

    packet_type: ClassVar[int] = layout.UNSUBACK
    packet_id: int
    return_codes: Takes[Sequence[int], tuple[int, ...]] = Takes(_codes, ())
    properties: Takes[PlainProperties, Properties] = Takes(plain_properties, ())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PingReq(_Other):
    """PINGREQ."""

    packet_type: ClassVar[int] = layout.PINGREQ


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PingResp(_Other):
    """PINGRESP."""

    packet_type: ClassVar[int] = layout.PINGRESP


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Disconnect(Reasoned):
    """DISCONNECT."""

    packet_type: ClassVar[int] = layout.DISCONNECT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Auth(Reasoned):
    """AUTH, of 5.0 only; without a reason code it has no properties either."""

    packet_type: ClassVar[int] = layout.AUTH
    version_in_force: int | None = 5

    def __post_init__(self) -> None:
        """Convert the arguments; a reason code is always followed by properties."""
        Reasoned.__post_init__(self)
        if self.return_code is not None and self.properties is None:
            object.__setattr__(self, "properties", ())


CONTROL_PACKETS: Final[Mapping[int, type[Packet]]] = MappingProxyType(
    {
        packet.packet_type: packet
        for packet in (
            Connect,
            ConnAck,
            Publish,
            PubAck,
            PubRec,
            PubRel,
            PubComp,
            Subscribe,
            SubAck,
            Unsubscribe,
            UnsubAck,
            PingReq,
            PingResp,
            Disconnect,
            Auth,
        )
    }
)
"""The class of each packet type, by its code."""
