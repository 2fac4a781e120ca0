"""The variable header: iteration over its items, decoding of their values, and encoding."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from wireyard import java
from wireyard.errors import EncodeError, Malformed, Truncated
from wireyard.formats.base import View
from wireyard.formats.fields import maybe, whole
from wireyard.formats.jmq.layout import FLAGS, HEADER_BYTES, ITEMS, SPEC

DESTINATION_KINDS: Final = (b"T:", b"Q:")
"""The prefixes of a topic and of a queue that brokers put before the name to hash it."""

_LIST = f"{SPEC}, variable header"


class ItemSpan(NamedTuple):
    """An item's position in its packet: type at `start`, then length, value in ``[value, stop)``.

    The end of the list is an item of type 0, two bytes long, without a value.
    """

    code: int
    start: int
    value: int
    stop: int


def destination_hash(name: str, bit_flags: int) -> int:
    """Return the 32-bit number of a destination (errata 36): CRC-32 of ``Q:name`` or ``T:name``.

    Two destinations may have the same number, so their names have to be compared too.
    """
    kind = DESTINATION_KINDS[bit_flags & FLAGS["Q"]]
    return zlib.crc32(kind + name.encode("utf-8", "surrogatepass"))


def walk_items(view: View, start: int, stop: int) -> Iterator[ItemSpan]:
    """Yield the items of the list from `start` to `stop`, the end of the list last.

    Bytes after the end are padding. An empty list has no end item. `Truncated` is raised for an
    item that does not fit, or a list without its end.
    """
    at = start
    while start < stop:
        if stop - at < 2:
            raise Truncated("jmq", "item type", at, 2, stop - at, _LIST)
        code = int.from_bytes(view[at : at + 2], "big")
        if code == 0:
            yield ItemSpan(0, at, at + 2, at + 2)
            return
        if stop - at < 4:
            raise Truncated("jmq", "item length", at + 2, 2, stop - at - 2, _LIST)
        # Unsigned, as specified; the shipped reader reads it as signed (errata 7).
        size = int.from_bytes(view[at + 2 : at + 4], "big")
        value = at + 4
        if size > stop - value:
            item = ITEMS.get(code)
            name = item.name if item else f"item {code}"
            raise Truncated("jmq", name, value, size, stop - value, _LIST)
        yield ItemSpan(code, at, value, value + size)
        at = value + size


def item_value(view: View, span: ItemSpan) -> int | str | bytes:
    """Return the value of an item: a number, text, or bytes for an unknown type.

    `Malformed` is raised for a number of the wrong length, or text that is not UTF-8.
    """
    data = bytes(view[span.value : span.stop])
    item = ITEMS.get(span.code)
    if item is None:
        return data
    if item.width is None:
        try:
            return java.decode_text(data)
        except ValueError:
            raise Malformed(
                "jmq", item.name, span.value, "is not UTF-8", _LIST, "bad_utf8"
            ) from None
    if len(data) != item.width:
        problem = f"has length {len(data)}, not {item.width}"
        raise Malformed("jmq", item.name, span.value - 2, problem, _LIST)
    return int.from_bytes(data, "big", signed=True)


def item_pairs(name: str, given: Any) -> tuple[tuple[int, bytes], ...]:
    """Return items of unknown types, given as pairs of a type and bytes.

    Anything but a sequence of such pairs raises an EncodeError.
    """
    pairs = []
    for pair in given if isinstance(given, Sequence) else (given,):
        match pair:
            case (code, bytes(data)):
                pairs.append((whole(name, code), data))
            case _:
                raise EncodeError(name, pair, "pairs of a type and bytes are needed")
    return tuple(pairs)


def encode_items(get: Callable[[str], Any]) -> bytes:
    """Encode the variable header of a packet; `get` returns its fields by name.

    A value that does not fit its item raises an EncodeError.
    """
    parts = []
    version = get("version")
    for code, item in ITEMS.items():
        value = get(item.name)
        if value is None or (version == 103 and item.name == "transaction_id"):
            continue
        parts.append(_encode_item(code, item.name, item.width, value))
    for code, data in get("unknown_items") or ():
        if not 0 < code <= 0xFFFF or code in ITEMS:
            raise EncodeError("unknown_items", code, "a type from 12 to 65535")
        parts.append(_framed_item(code, "unknown_items", data))
    listed = b"".join(parts)
    least = HEADER_BYTES + len(listed) + 2
    wanted = maybe(whole)("property_offset", get("property_offset")) or 0
    if not least <= wanted <= least + 4 and (listed or wanted != HEADER_BYTES):
        # 103 always has a list, even an empty one; 200 and 301 omit that (errata 11).
        wanted = least + -least % 4 if listed or version == 103 else HEADER_BYTES
    return listed.ljust(wanted - HEADER_BYTES, b"\0")


def _encode_item(code: int, name: str, width: int | None, value: Any) -> bytes:
    if width is None and not isinstance(value, str):
        raise EncodeError(name, value, "text is needed")
    try:
        # Text is standard UTF-8, which every shipped reader accepts.
        data = value.encode() if width is None else whole(name, value).to_bytes(width, signed=True)
    except (ValueError, OverflowError) as error:
        raise EncodeError(name, value, str(error)) from None
    return _framed_item(code, name, data)


def _framed_item(code: int, name: str, data: bytes) -> bytes:
    if len(data) > 0xFFFF:
        raise EncodeError(name, data, f"{len(data)} bytes, an item holds 65535 at most")
    return struct.pack(">HH", code, len(data)) + data
