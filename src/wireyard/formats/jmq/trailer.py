"""Time stamps behind the message data, as open issue 2 of the specification draws them.

The specification asks for a field with the size of the message data and gives it no place. It is an
item of type 12 here, because readers skip items that they do not know (errata 37). Each stamp is 32
bytes::

    0   timestamp  8
    8   address   16   of the server that made the stamp
    24  port       4   of that server
    28  whence     4   the stage at which it was made
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from wireyard.errors import EncodeError, Malformed
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import SPEC, STAMPED
from wireyard.formats.message_id import address_bytes, address_text

_SPEC = f"{SPEC}, open issue 2"
_STAMP: Final = struct.Struct(">q16sii")
STAMP_BYTES: Final = _STAMP.size
_SIZE: Final = struct.Struct(">I")
_TEXT: Final = re.compile(r"(-?\d+) (\S+) (-?\d+)", re.ASCII)


class Stamp(NamedTuple):
    """When and where a packet was at one stage of its way."""

    timestamp: int
    address: bytes
    port: int
    whence: int


Items = Sequence[tuple[int, bytes]]


def stamps_in(items: Items, body: bytes, start: int) -> tuple[bytes, tuple[Stamp, ...] | None]:
    """Return the message data in `body`, and the stamps behind it; None if no item has its size.

    The body is at `start` of its packet. `Malformed` is raised for a size that does not fit, or a
    part of a stamp.
    """
    sizes = [data for code, data in items if code == STAMPED]
    if not sizes:
        return body, None
    size = int.from_bytes(sizes[-1], "big")
    if len(sizes[-1]) != _SIZE.size or size > len(body):
        problem = f"is {size} in {len(sizes[-1])} bytes, {len(body)} bytes follow the properties"
        raise Malformed("jmq", "message size", start, problem, _SPEC)
    return body[:size], read_stamps(body[size:], start + size)


def read_stamps(data: bytes, start: int = 0) -> tuple[Stamp, ...]:
    """Return the stamps in bytes at `start` of a packet.

    `Malformed` is raised if the last one is not whole.
    """
    if len(data) % _STAMP.size:
        problem = f"are {len(data)} bytes, each has {_STAMP.size}"
        raise Malformed("jmq", "time stamps", start, problem, _SPEC)
    return tuple(map(Stamp._make, _STAMP.iter_unpack(data)))


def write_stamps(stamps: Iterable[Stamp]) -> bytes:
    """Return the bytes of stamps."""
    return b"".join(_STAMP.pack(*stamp) for stamp in stamps)


def size_message(items: Items, size: int) -> Items:
    """Return unknown items with that of the size of the message, which is `size`."""
    data = _SIZE.pack(size)
    if [held for code, held in items if code == STAMPED][-1:] == [data]:
        return items
    return (*(item for item in items if item[0] != STAMPED), (STAMPED, data))


def stamps_of(name: str, given: Any) -> tuple[Stamp, ...] | None:
    """Return stamps given as sequences of their fields; an address may be text.

    An EncodeError is raised for anything else, or a value that does not fit.
    """
    if given is None:
        return None
    try:
        made = [Stamp(*stamp) for stamp in given]
        made = [
            one._replace(address=address_bytes(one.address))
            if isinstance(one.address, str)
            else one
            for one in made
        ]
        return read_stamps(write_stamps(made))
    except (TypeError, ValueError, struct.error) as error:
        raise EncodeError(name, given, str(error)) from None


def stamp_rows(stamps: Iterable[Stamp]) -> list[Row]:
    """Return the stamps of a row: whence as name, and timestamp, address and port as value."""
    return [
        {"name": str(whence), "value": f"{timestamp} {address_text(address)} {port}"}
        for timestamp, address, port, whence in stamps
    ]


def stamps_of_rows(name: str, rows: Iterable[Row]) -> tuple[Stamp, ...] | None:
    """Return the stamps that `stamp_rows` shows.

    A value of another form raises an EncodeError.
    """
    found = []
    for row in rows:
        try:
            match = _TEXT.fullmatch(row["value"])
            is_number = row["name"].lstrip("-").isdecimal()
        except (AttributeError, KeyError, TypeError):  # it is no pair of texts
            match = None
        if match is None or not is_number:
            raise EncodeError(name, row, "a number, and timestamp, address and port are needed")
        found.append((int(match[1]), match[2], int(match[3]), int(row["name"])))
    return stamps_of(name, found)
