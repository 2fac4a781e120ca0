"""A view of a packet for routers, which forward it with a few fields changed.

Properties and body are neither decoded nor copied. The fields that change are in a small head that
is copied for each delivery; the bytes after it are one view that all deliveries share. The
specification plans it like this (closed issue 8): an immutable value, with the changes as
arguments.

The consumer id changes for every receiver, and some flags with it. The delivery count is an item
that clients never send, so it is added to a packet once, on arrival. A router that sends packets as
its own also sets the SysMessageID. All other fields belong to the sender.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import MappingProxyType

from wireyard.errors import EncodeError, UsageError
from wireyard.formats.base import Row
from wireyard.formats.jmq.items import ItemSpan, destination_hash, item_value, walk_items
from wireyard.formats.jmq.layout import (
    FLAGS,
    FLAGS_OF_103,
    HEADER_BYTES,
    HEADERS,
    ITEMS_BY_NAME,
    SYS_MESSAGE_ID,
)
from wireyard.formats.jmq.reading import check_sections, read_prefix

ROUTER_FIELDS = ("consumer_id", *SYS_MESSAGE_ID)
"""Header fields that `RouterView.replace` can change."""

ROUTER_FLAGS = MappingProxyType(
    {
        "redelivered": FLAGS["R"],
        "selectors_processed": FLAGS["S"],
        "reply_wanted": FLAGS["A"],
        "last": FLAGS["L"],
        "connection_paused": FLAGS["F"],
        "consumer_paused": FLAGS["C"],
        "made_by_server": FLAGS["B"],
    }
)
"""Flags that `RouterView.replace` can change; the others describe the message."""

_PLACES = {
    version: {
        field.name: (field.offset, struct.Struct(f">{field.code}")) for field in header.fields
    }
    for version, header in HEADERS.items()
}
"""Offset and `struct` of each header field, by version and name."""

_SECTIONS = {
    version: (header["property_offset"].offset, struct.Struct(">ii"))
    for version, header in HEADERS.items()
}
"""Offset of the property offset and of the property size behind it, by version."""

_ADDRESS_AT = HEADERS[301]["bit_flags"].offset
_ADDRESS = struct.Struct(">H" + HEADERS[301]["consumer_id"].code)
"""The flags and the consumer id behind them, which a delivery changes."""

_COUNT = ITEMS_BY_NAME["delivery_count"]
_COUNT_FORM = struct.Struct(">i")
_SIZE = struct.Struct(">i")
_COUNT_ITEM = struct.pack(">HHi", _COUNT.code, 4, 0)
_LIST_END = bytes(4)
"""Type 0, and the padding to the next 32-bit boundary."""


@dataclass(frozen=True, slots=True, eq=False)
class RouterView:
    """One framed packet, read in place.

    Parameters
    ----------
    view
        The whole packet. It is not copied: do not change it while the view is in use.

    Raises
    ------
    DecodeError
        A wrong magic, size or version, or sections that do not fit into the packet.
    """

    view: bytes | bytearray | memoryview
    head: bytes = b""
    """The fixed header to send, and the items that are copied with it."""
    tail: int = HEADER_BYTES
    """Offset in `view` of the bytes to send after the head."""
    count_at: int = 0
    """Offset in `head` of the delivery count; 0 if it is not in the head."""

    def __post_init__(self) -> None:
        if self.head:
            return
        view = memoryview(self.view)
        at, form = _SECTIONS[read_prefix(view, {})]
        offset, size = form.unpack_from(view, at)
        check_sections(at, {"property_offset": offset, "property_size": size, "size": len(view)})
        object.__setattr__(self, "head", bytes(view[:HEADER_BYTES]))

    @property
    def version(self) -> int:
        """Version of the packet: 103, 200 or 301."""
        return self.head[4] << 8 | self.head[5]

    @property
    def header_bytes(self) -> bytes:
        """The 72 bytes of the fixed header to send."""
        return self.head[:HEADER_BYTES]

    @property
    def message_key(self) -> bytes:
        """The 32 bytes of the SysMessageID, which identifies the message."""
        layout = HEADERS[self.version]
        return self.head[layout["timestamp"].offset : layout["sequence"].stop]

    @property
    def destination(self) -> str | None:
        """Name of the destination; None if the packet has none."""
        name = self.item("destination")
        return None if name is None else str(name)

    @property
    def destination_hash(self) -> int | None:
        """Number of the destination to dispatch by (errata 36); None if the packet has none.

        Two destinations may have the same number, so `destination` has to be compared too.
        """
        name = self.destination
        return None if name is None else destination_hash(name, self.header()["bit_flags"])

    def header(self) -> Row:
        """Return every field of the fixed header by name."""
        header: Row = HEADERS[self.version].unpack(self.head)
        if self.version == 103:
            header["bit_flags"] &= FLAGS_OF_103  # 2.0 clients left garbage above (errata 27).
        return header

    def item(self, name: str) -> int | str | bytes | None:
        """Return the value of the item of that name, None if there is none; the last one counts.

        The other items are skipped by their lengths.

        Raises
        ------
        DecodeError
            An item that does not fit, or whose value does not belong to its type.
        """
        if name == _COUNT.name and self.count_at:
            count: int = _COUNT_FORM.unpack_from(self.head, self.count_at)[0]
            return count
        if name in HEADERS[self.version]:
            value: int = self.header()[name]  # the transaction id of 103 (errata 2)
            return value
        view = memoryview(self.view)
        span = self._find(name)
        return item_value(view, span) if span else None

    def replace(self, *, delivery_count: int | None = None, **changes: int | bytes) -> RouterView:
        """Return the packet with some fields changed.

        Parameters
        ----------
        delivery_count
            Value of the packet's item, or of a new one, with which the packet grows by 8 bytes, by
            12 if it had no items.
        changes
            `ROUTER_FIELDS` by name, and `ROUTER_FLAGS` by name as true or false.

        Raises
        ------
        EncodeError
            A value that does not fit the packet's version.
        UsageError
            A field that a router must not change.
        DecodeError
            A malformed list of items, to which no delivery count can be added.
        """
        base = self if delivery_count is None or self.count_at else self._with_count()
        head = bytearray(base.head)
        places = _PLACES[self.version]
        for name, value in changes.items():
            if name in ROUTER_FLAGS:
                self._set_flag(head, name, bool(value))
            elif name in ROUTER_FIELDS:
                _put(head, name, places[name], value)
            else:
                known = ", ".join(("delivery_count", *ROUTER_FIELDS, *ROUTER_FLAGS))
                raise UsageError(f"a router does not change '{name}', only {known}")
        if delivery_count is not None:
            _put(head, _COUNT.name, (base.count_at, _COUNT_FORM), delivery_count)
        return RouterView(self.view, bytes(head), base.tail, base.count_at)

    def parts(self) -> tuple[bytes, memoryview]:
        """Return the head and a view of the bytes after it, for a gather write."""
        return self.head, memoryview(self.view)[self.tail :].toreadonly()

    def _list_stop(self) -> int:
        """Return the end of the items in `view`, without those added to the head."""
        offset, form = _PLACES[self.version]["property_offset"]
        stop: int = form.unpack_from(self.view, offset)[0]
        return stop

    def _find(self, name: str) -> ItemSpan | None:
        last = None
        code = ITEMS_BY_NAME[name].code
        for span in walk_items(memoryview(self.view), HEADER_BYTES, self._list_stop()):
            if span.code == code:
                last = span
        return last

    def _with_count(self) -> RouterView:
        """Return the packet with a delivery count in the head: its own one, or 0."""
        view = memoryview(self.view)
        span = self._find(_COUNT.name)
        if span:
            item_value(view, span)  # raises unless it has four bytes
            copied = bytes(view[HEADER_BYTES : span.stop])
            return RouterView(self.view, self.head + copied, span.stop, span.value)
        added = _COUNT_ITEM if self._list_stop() > HEADER_BYTES else _COUNT_ITEM + _LIST_END
        head = bytearray(self.head)
        for name in ("size", "property_offset"):
            offset, form = _PLACES[self.version][name]
            value = form.unpack_from(head, offset)[0] + len(added)
            _put(head, name, (offset, form), value)
        return RouterView(self.view, bytes(head) + added, HEADER_BYTES, HEADER_BYTES + 4)

    def _set_flag(self, head: bytearray, name: str, on: bool) -> None:
        bit = ROUTER_FLAGS[name]
        if self.version == 103 and bit > FLAGS_OF_103:
            # The other bits are garbage in 103 and are not changed.
            if on:
                raise EncodeError(name, on, "version 103 has the flags Q to F only")
            return
        offset, form = _PLACES[self.version]["bit_flags"]
        flags = form.unpack_from(head, offset)[0]
        form.pack_into(head, offset, flags | bit if on else flags & ~bit)


def message_head(view: bytes) -> tuple[bytes, int]:
    """Return ``RouterView(view).replace(delivery_count=0).head``, without reading the items.

    The packet is of version 200 or 301, its sections fit, and it has items, but no count. The
    results, `head` and `count_at`, are as of a `RouterView`; the bytes to send after the head begin
    behind the fixed header.
    """
    size, offset = _SIZE.unpack_from(view, 8)[0], _SIZE.unpack_from(view, 52)[0]
    sizes = _SIZE.pack(size + len(_COUNT_ITEM)), _SIZE.pack(offset + len(_COUNT_ITEM))
    parts = view[:8], sizes[0], view[12:52], sizes[1], view[56:HEADER_BYTES], _COUNT_ITEM
    return b"".join(parts), HEADER_BYTES + 4


def addressed_head(
    head: bytes, count_at: int, consumer_id: int, bit_flags: int, delivery_count: int
) -> bytes:
    """Return the head of a delivery: `RouterView.replace` of what changes for each consumer.

    `head` and `count_at` are as of a `RouterView` of version 200 or 301 with a delivery count.
    `bit_flags` are all flags of the packet, of which only `ROUTER_FLAGS` may differ from its own.
    """
    copy = bytearray(head)
    _ADDRESS.pack_into(copy, _ADDRESS_AT, bit_flags, consumer_id)
    _COUNT_FORM.pack_into(copy, count_at, delivery_count)
    return bytes(copy)


def _put(head: bytearray, name: str, place: tuple[int, struct.Struct], value: int | bytes) -> None:
    offset, form = place
    if isinstance(value, bytes) and len(value) != form.size:
        raise EncodeError(
            name, value, f"it has {form.size} bytes"
        )  # `struct` would pad or truncate
    try:
        form.pack_into(head, offset, value)
    except struct.error as error:
        raise EncodeError(name, value, str(error)) from None
