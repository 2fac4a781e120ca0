"""The packet as a router sees it: mostly read-only, sent on with a few fields changed.

Properties and body are never read or copied. What changes stands in a small head that is copied
for each delivery; what follows it is one view that all deliveries share. That is the plan of the
specification (closed issue 8): an immutable value, and the fields that may change as arguments.

The consumer id changes for every receiver, some flags with it. The delivery count is an item that
clients never send, so a packet grows by it once, on arrival. A router that stamps packets as their
sender sets the SysMessageID as well. Everything else belongs to the sender.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from wireyard.errors import EncodeError, UsageError
from wireyard.formats.base import Row
from wireyard.formats.jmq.items import ItemSpan, destination_hash, item_value, walk_items
from wireyard.formats.jmq.layout import (
    FLAGS,
    HEADER_BYTES,
    HEADERS,
    ITEMS_BY_NAME,
    SYS_MESSAGE_ID,
)
from wireyard.formats.jmq.packet import check_sections, read_prefix

__all__ = ["ROUTER_FIELDS", "ROUTER_FLAGS", "RouterView"]

ROUTER_FIELDS = ("consumer_id", *SYS_MESSAGE_ID)
"""Header fields that `RouterView.replace` takes."""

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
"""Flags that `RouterView.replace` takes; the others say what the message is."""

_PLACES = {
    version: {
        field.name: (field.offset, struct.Struct(f">{field.code}")) for field in header.fields
    }
    for version, header in HEADERS.items()
}
"""Offset and form of each header field, by version and name."""

_COUNT = ITEMS_BY_NAME["delivery_count"]
_COUNT_FORM = struct.Struct(">i")
_COUNT_ITEM = struct.pack(">HHi", _COUNT.code, 4, 0)
_LIST_END = bytes(4)
"""Type 0, and the padding to the next 32-bit boundary."""


@dataclass(frozen=True, slots=True, eq=False)
class RouterView:
    """One framed packet, read in place.

    Parameters
    ----------
    view
        The whole packet. It is not copied: do not change it while a view on it is in use.

    Raises
    ------
    DecodeError
        No such packet: a wrong magic, size, version, or sections that do not fit in it.
    """

    view: bytes | bytearray | memoryview
    head: bytes = b""
    """The fixed header as it will be sent, and the items that had to be copied with it."""
    tail: int = HEADER_BYTES
    """Where in `view` the bytes after the head begin."""
    count_at: int = 0
    """Where in `head` the delivery count stands; 0: it is not in there."""

    def __post_init__(self) -> None:
        if self.head:
            return
        view = memoryview(self.view)
        layout = HEADERS[read_prefix(view, {})]
        header: dict[str, Any] = layout.unpack(view)
        check_sections(layout["property_offset"].offset, header)
        object.__setattr__(self, "head", bytes(view[:HEADER_BYTES]))

    @property
    def version(self) -> int:
        """Version of the packet: 103, 200 or 301."""
        return self.head[4] << 8 | self.head[5]

    @property
    def header_bytes(self) -> bytes:
        """The 72 bytes of the fixed header as they will be sent."""
        return self.head[:HEADER_BYTES]

    @property
    def message_key(self) -> bytes:
        """The 32 bytes that identify the message; never the id of the client's choice."""
        layout = HEADERS[self.version]
        return self.head[layout["timestamp"].offset : layout["sequence"].stop]

    @property
    def destination(self) -> str | None:
        """Name of the destination; None if the packet has none."""
        found = self.item("destination")
        return None if found is None else str(found)

    @property
    def destination_hash(self) -> int | None:
        """Number of the destination to dispatch by (errata 36); None if the packet has none.

        Two destinations may have the same number: compare `destination` too.
        """
        found = self.destination
        return None if found is None else destination_hash(found, self.header()["bit_flags"])

    def header(self) -> Row:
        """Return every field of the fixed header by name."""
        header: Row = HEADERS[self.version].unpack(self.head)
        if self.version == 103:
            header["bit_flags"] &= 0x00FF  # 2.0 clients left garbage above (errata 27).
        return header

    def item(self, name: str) -> int | str | bytes | None:
        """Return what the item of that name holds, None if there is none; the last of two counts.

        The other items are stepped over by their lengths.

        Raises
        ------
        DecodeError
            An item that does not fit, or that does not hold what its type says.
        """
        if name == _COUNT.name and self.count_at:
            count: int = _COUNT_FORM.unpack_from(self.head, self.count_at)[0]
            return count
        if name in HEADERS[self.version]:
            found: int = self.header()[name]  # 103 has its transaction id there (errata 2).
            return found
        view = memoryview(self.view)
        span = self._find(name)
        return item_value(view, span) if span else None

    def replace(self, *, delivery_count: int | None = None, **changes: int | bytes) -> RouterView:
        """Return the packet with some fields changed.

        Parameters
        ----------
        delivery_count
            Written into the packet's own item, or into a new one: the packet grows by 8 bytes
            then, by 12 if it had no items at all.
        changes
            `ROUTER_FIELDS` by name, and `ROUTER_FLAGS` by name as true or false.

        Raises
        ------
        EncodeError
            A value that the packet's version cannot hold.
        UsageError
            A field that is not for routers to change.
        DecodeError
            A list of items that has no room for a delivery count, being broken.
        """
        place = self if delivery_count is None or self.count_at else self._with_count()
        head = bytearray(place.head)
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
            _put(head, _COUNT.name, (place.count_at, _COUNT_FORM), delivery_count)
        return RouterView(self.view, bytes(head), place.tail, place.count_at)

    def parts(self) -> tuple[bytes, memoryview]:
        """Return the head and a view of all that follows it, for a write that gathers."""
        return self.head, memoryview(self.view)[self.tail :].toreadonly()

    def _list_stop(self) -> int:
        """Return where the items of `view` end, whatever the head has grown to."""
        offset, form = _PLACES[self.version]["property_offset"]
        stop: int = form.unpack_from(self.view, offset)[0]
        return stop

    def _find(self, name: str) -> ItemSpan | None:
        found = None
        code = ITEMS_BY_NAME[name].code
        for span in walk_items(memoryview(self.view), HEADER_BYTES, self._list_stop()):
            if span.code == code:
                found = span
        return found

    def _with_count(self) -> RouterView:
        """Return the packet with its delivery count, still the old one or 0, in the head."""
        view = memoryview(self.view)
        span = self._find(_COUNT.name)
        if span:
            item_value(view, span)  # Four bytes, or it is an error.
            copied = bytes(view[HEADER_BYTES : span.stop])
            return RouterView(self.view, self.head + copied, span.stop, span.value)
        added = _COUNT_ITEM if self._list_stop() > HEADER_BYTES else _COUNT_ITEM + _LIST_END
        head = bytearray(self.head)
        header = self.header()
        for name in ("size", "property_offset"):
            _put(head, name, _PLACES[self.version][name], header[name] + len(added))
        return RouterView(self.view, bytes(head) + added, HEADER_BYTES, HEADER_BYTES + 4)

    def _set_flag(self, head: bytearray, name: str, on: bool) -> None:
        bit = ROUTER_FLAGS[name]
        if self.version == 103 and bit > 0xFF:
            # The byte above the low eight flags is garbage there, and stays what it is.
            if on:
                raise EncodeError(name, on, "version 103 has the flags Q to T only")
            return
        offset, form = _PLACES[self.version]["bit_flags"]
        flags = form.unpack_from(head, offset)[0]
        form.pack_into(head, offset, flags | bit if on else flags & ~bit)


def _put(head: bytearray, name: str, place: tuple[int, struct.Struct], value: int | bytes) -> None:
    offset, form = place
    if isinstance(value, bytes) and len(value) != form.size:
        raise EncodeError(name, value, f"it has {form.size} bytes")  # `struct` would pad or cut it
    try:
        form.pack_into(head, offset, value)
    except struct.error as error:
        raise EncodeError(name, value, str(error)) from None
