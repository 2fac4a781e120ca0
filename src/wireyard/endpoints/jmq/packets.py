"""Packets of one connection as the broker's side reads and writes them, and logins.

A message is read in place (`RouterView`): properties and body only where a selector asks for them.
Everything else is a `Request`.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import md5
from typing import Any, Final, NamedTuple

from wireyard.errors import DecodeError, Malformed, UnsupportedVersion
from wireyard.formats.base import Row
from wireyard.formats.cursor import Cursor
from wireyard.formats.jmq.layout import (
    FLAGS,
    HEADER_BYTES,
    HEADERS,
    MESSAGE_TYPES,
    SPEC,
    SYS_MESSAGE_ID,
)
from wireyard.formats.jmq.message import JmsMessage
from wireyard.formats.jmq.packet import Packet, encode
from wireyard.formats.jmq.reading import check_sections, read_items, read_properties
from wireyard.formats.jmq.router import RouterView, addressed_head, message_head
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text
from wireyard.formats.properties import Property

VERSION: Final = 301
_HEADER: Final = HEADERS[VERSION]
_OFFSET_AT: Final = _HEADER["property_offset"].offset
_KEY: Final = slice(_HEADER[SYS_MESSAGE_ID[0]].offset, _HEADER[SYS_MESSAGE_ID[-1]].stop)
_ID_AT: Final = _HEADER["consumer_id"].offset
_STAMP: Final = struct.Struct(">" + MESSAGE_ID_CODES)
_ID: Final = struct.Struct(">q")
KEY_BYTES: Final = _STAMP.size
BLOCK: Final = struct.Struct(f">q{KEY_BYTES}s")
"""A consumer id and a SysMessageID, of which the bodies of ACKNOWLEDGE and REDELIVER consist."""
_OWN_FLAGS: Final = ~(FLAGS["R"] | FLAGS["S"] | FLAGS["L"] | FLAGS["F"] | FLAGS["C"] | FLAGS["B"])
"""The flags of a producer that are delivered; the others have a meaning of their own there."""
_LONGS: Final = frozenset(
    {
        "JMQBytes", "JMQConnectionID", "JMQConsumerID", "JMQMaxMsgBytes", "JMQNextTransactionID",
        "JMQProducerID", "JMQSessionID", "JMQTransactionID",
    }
)  # fmt: skip
"""Properties of the type LONG whatever their value; the stock client casts without a check."""

_BASIC: Final = "basic"

Items = dict[bytes, Row]
"""Variable headers that were read before: those of a producer's messages are nearly all equal."""
_MAX_ITEMS: Final = 256
_MAX_ITEM_BYTES: Final = 1024
_MESSAGE_BYTES: Final = 800
"""What a message and its copy take beside its packet."""


Stamp = tuple[int, bytes, int, int]
"""Timestamp, address, port and sequence of a packet."""


class Request(NamedTuple):
    """A packet that is no message: a request of a client, or what a broker replies."""

    packet_type: int
    id: int
    """The id that a reply has to have."""
    wants_reply: bool
    transaction_id: int | None
    properties: Mapping[str, Any]
    """The values of the properties by name."""
    body: bytes

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """Return a property, `default` if it is missing or of another type."""
        value = self.properties.get(name)
        is_kind = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        return value if is_kind else default


class Message:
    """A message as its producer sent it.

    Parameters
    ----------
    packet
        All of its bytes, which are never changed.
    items
        Its variable header.

    Attributes
    ----------
    head, count_at, tail_at
        Those of its `RouterView` with a delivery count.
    size
        Bytes that it takes while it is kept, about.
    key
        The 32 bytes of its SysMessageID.
    order
        Its place among all that arrived.
    number
        Its row in a store; 0 if it has none.
    copies
        The number of its copies that wait or are held, in queues and subscriptions.
    home
        The destination that it is counted in.
    origin
        Whose it is, for consumers that want no messages of their own.
    is_dead
        Whether it is on the dead message queue.
    """

    __slots__ = (
        "_values", "copies", "count_at", "delivery_time", "destination", "expiration", "flags",
        "head", "home", "id", "is_dead", "items", "key", "number", "order", "origin", "packet",
        "packet_type", "priority", "size", "tail_at",
    )  # fmt: skip

    def __init__(self, packet: bytes, header: tuple[Any, ...], items: Row) -> None:
        (_, _, self.packet_type, _, self.expiration, _, _, _, _, _, _, priority, _, flags,
         self.id) = header  # fmt: skip
        self.packet, self.items = packet, items
        self.size = len(packet) + _MESSAGE_BYTES
        self.priority = min(max(priority, 0), 9)
        self.flags = flags
        self.key = packet[_KEY]
        self.destination: str | None = items.get("destination")
        self.delivery_time: int = items.get("delivery_time") or 0
        if items and "delivery_count" not in items:
            self.head, self.count_at = message_head(packet)
            self.tail_at = HEADER_BYTES
        else:
            view = RouterView(packet).replace(delivery_count=0)
            self.head, self.count_at, self.tail_at = view.head, view.count_at, view.tail
        self.order = self.copies = self.number = 0
        self.is_dead = False
        self.home: Any = None
        self.origin: Any = None
        self._values: dict[str, Any] | None = None

    @property
    def is_queue(self) -> bool:
        """Whether its destination is a queue."""
        return bool(self.flags & FLAGS["Q"])

    @property
    def wants_reply(self) -> bool:
        """Whether its producer waits for a reply."""
        return bool(self.flags & FLAGS["A"])

    def parts_for(self, consumer_id: int, flags: int, count: int) -> tuple[bytes, memoryview]:
        """Return the packet of a delivery: only consumer id, flags and delivery count are new."""
        own = self.flags & _OWN_FLAGS
        head = addressed_head(self.head, self.count_at, consumer_id, own | flags, count)
        return head, memoryview(self.packet)[self.tail_at :]

    def values(self) -> Mapping[str, Any]:
        """Return header fields and properties for selectors; read once, none if malformed."""
        if self._values is None:
            try:
                self._values = _values_of(self.packet, self.items)
            except DecodeError:
                self._values = {}
        return self._values


def _values_of(packet: bytes, items: Row) -> dict[str, Any]:
    header: Row = _HEADER.unpack(packet)
    offset, size = header["property_offset"], header["property_size"]
    properties = None
    if size:
        properties = read_properties(VERSION, packet[offset : offset + size], offset)
    text = message_id_text(*(header[name] for name in SYS_MESSAGE_ID))
    message = JmsMessage.of(header | items | {"properties": properties, "sys_message_id": text})
    return {name: entry.value for name, entry in message.properties.items()} | {
        "JMSDeliveryMode": "PERSISTENT" if message.persistent else "NON_PERSISTENT",
        "JMSPriority": message.priority,
        "JMSMessageID": message.jms_message_id,
        "JMSTimestamp": message.timestamp,
        "JMSCorrelationID": message.correlation_id,
        "JMSType": message.message_type,
    }


def read_packet(packet: bytes, known: Items) -> Message | Request:
    """Read one whole packet.

    A `DecodeError` is raised if it has another version, sections that do not fit, or malformed
    items or properties; the properties of a message are not read.
    """
    header = _HEADER.struct.unpack_from(packet)
    _, version, kind, size, _, _, _, _, _, offset, property_size, _, _, flags, id = header
    if version != VERSION:
        problem = f"is {version}, only {VERSION} is served"
        raise UnsupportedVersion("jmq", "version", 4, problem, f"{SPEC}, fixed header")
    sections = {"property_offset": offset, "property_size": property_size, "size": size}
    check_sections(_OFFSET_AT, sections)
    section = packet[HEADER_BYTES:offset]
    items = known.get(section)
    if items is None:
        items = {"version": version}
        read_items(packet, offset, items)
        if len(known) >= _MAX_ITEMS:
            known.clear()
        if len(section) <= _MAX_ITEM_BYTES:
            known[section] = items
    if kind in MESSAGE_TYPES:
        return Message(packet, header, items if section else {})
    properties = {}
    behind = offset + property_size
    if property_size:
        read = read_properties(version, packet[offset:behind], offset)
        properties = {name: entry.value for name, entry in read.items()}
    wants_reply = bool(flags & FLAGS["A"])
    return Request(kind, id, wants_reply, items.get("transaction_id"), properties, packet[behind:])


def addressed_reply(
    packet_type: int,
    id: int,
    stamp: Stamp,
    properties: Mapping[str, Any],
    body: bytes = b"",
) -> bytes:
    """Return a packet of the broker that is no message; `id` is the request's, 0 for none."""
    if body or len(properties) > 1:
        form = _encoded(packet_type, tuple(properties.items()), body)
    else:
        form = _common(packet_type, tuple(properties.items()))
    packet = bytearray(form)
    _STAMP.pack_into(packet, _KEY.start, *stamp)
    _ID.pack_into(packet, _ID_AT, id)
    return bytes(packet)


def _encoded(packet_type: int, properties: tuple[tuple[str, Any], ...], body: bytes) -> bytes:
    typed = with_types(dict(properties))
    return encode(Packet(packet_type=packet_type, properties=typed or None, body=body or None))


def with_types(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with the types that the other side expects."""
    return {
        name: Property("long", value) if name in _LONGS else value
        for name, value in properties.items()
    }


_common = lru_cache(64)(lambda packet_type, properties: _encoded(packet_type, properties, b""))


def blocks_of(body: bytes) -> Iterator[tuple[int, bytes]] | None:
    """Return the consumer ids and SysMessageIDs of a body; None if it is no list of them."""
    return None if len(body) % BLOCK.size else BLOCK.iter_unpack(body)


def keys_of(body: bytes) -> list[bytes] | None:
    """Return the SysMessageIDs that a body lists; None if it is no list of them."""
    if len(body) % KEY_BYTES:
        return None
    return [body[at : at + KEY_BYTES] for at in range(0, len(body), KEY_BYTES)]


# --- logins ---------------------------------------------------------------------------------


class Login(NamedTuple):
    """Who logs in; the password of a login by `basic`, None of any other."""

    user: str
    password: bytes | None


def login_body(kind: str, user: str, password: str, challenge: Request) -> bytes:
    """Return the body by which a client logs in, as a challenge asks for it."""
    secret = b64encode(password.encode()).decode()
    if kind != _BASIC:
        secret = _digest(f"{_digest(f'{user}:{password}')}:{challenge.body.decode()}")
    return b"".join(len(one).to_bytes(2, "big") + one for one in (user.encode(), secret.encode()))


def _digest(text: str) -> str:
    """Return the digest of a text, as Java prints a signed number."""
    data = md5(text.encode(), usedforsecurity=False).digest()
    return f"{int.from_bytes(data, 'big', signed=True):x}"


def read_login(request: Request) -> Login:
    """Read the body of an AUTHENTICATE.

    A `DecodeError` is raised if it is no user and password, or no user and digest.
    """
    cursor = Cursor(request.body, "jmq", 0, f"{SPEC}, AUTHENTICATE")
    user, secret = cursor.text("user name"), cursor.text("password")
    if request.get("JMQAuthType", str) != _BASIC:
        return Login(user, None)
    try:
        # The shipped encoder breaks lines after 76 characters.
        return Login(user, b64decode("".join(secret.split()), validate=True))
    except ValueError:
        raise cursor.fault(Malformed, "password", 0, "is not base64") from None
