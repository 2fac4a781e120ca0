"""Files of a store put together from the facts about them, without a line of ours."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import adler32

from tests.make import packet

FREE, ALLOCATED, LAST, PROPERTIES = 1, 2, 3, 4
RECORD = bytes.fromhex("aaaa5555")
FILE = bytes.fromhex("5555aaaa")
ROOM = 100


def record(data: bytes, state: int = ALLOCATED, cookie: int = 0, block: int = 256) -> bytes:
    """Return a record of a vrfile, as long as whole blocks are."""
    capacity = -(-(12 + len(data)) // block) * block
    return (RECORD + struct.pack(">ihh", capacity, state, cookie) + data).ljust(capacity, b"\0")


def vrfile(*records: bytes, version: int = 2, room: int = ROOM) -> bytes:
    """Return a vrfile with its header, its last record and room behind it."""
    header = FILE + struct.pack(">hhq", version, 0, 7) + bytes(8 if version == 2 else 0)
    last = RECORD + struct.pack(">ihh", 0, LAST if version == 2 else 0, 0)
    return header + b"".join(records) + last + bytes(room)


def states(*consumers: tuple[int, int]) -> bytes:
    """Return consumers and their states."""
    pairs = b"".join(struct.pack(">qi", *one) for one in consumers)
    return struct.pack(">i", len(consumers)) + pairs


def message(data: bytes, *consumers: tuple[int, int]) -> bytes:
    """Return the data of a message record."""
    return struct.pack(">i", len(data)) + data + states(*consumers)


def single(data: bytes, attached: bytes = b"", tag: bytes = b"GOOD") -> bytes:
    """Return a file of one record."""
    size = struct.pack(">q", len(data))
    return b"\0\4" + tag + size + data + struct.pack(">q", len(attached)) + attached


def log_header(
    status: int = 3, position: int = 48, checkpoint: int = 2, version: int = 1, cookie: int = 1
) -> bytes:
    """Return the header of a log."""
    head = FILE + struct.pack(">hhqqq", version, status, position, 1795288299154, checkpoint)
    return head + struct.pack(">qq", adler32(head), cookie)


def log_record(body: bytes, sequence: int, checkpoint: int = 2, type: int = -1) -> bytes:
    """Return a record of a log."""
    numbers = type, len(body), 1795288300134, sequence, checkpoint, adler32(body), 0
    return RECORD + struct.pack(">iiqqqqi", *numbers) + body


def log(*records: bytes, header: bytes | None = None, room: int = ROOM) -> bytes:
    """Return a log with room behind it."""
    return (header or log_header()) + b"".join(records) + bytes(room)


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def message_id(sequence: int = 1) -> bytes:
    """Return a SysMessageID."""
    address = bytes(10) + b"\xff\xff" + bytes([192, 168, 1, 17])
    return struct.pack(">q16sii", 1105948800001, address, 49152, sequence)


def acknowledgment(destination: str, sequence: int, consumer: int) -> bytes:
    """Return one acknowledgment."""
    return utf(destination) + message_id(sequence) + struct.pack(">q", consumer)


def details(kind: int, number: int, state: int, *, xid: bool = False) -> bytes:
    """Return what is said of a transaction."""
    return struct.pack(">bqii?", kind, number, state, 0, xid) + bytes(136 if xid else 0)


def routed(data: bytes, *consumers: int) -> bytes:
    """Return a packet and who it is for."""
    return data + struct.pack(f">i{len(consumers)}q", len(consumers), *consumers)


def work(messages: Sequence[bytes] = (), acknowledgments: Sequence[bytes] = ()) -> bytes:
    """Return what was done in a transaction."""
    sent = struct.pack(">i", len(messages)) + b"".join(messages)
    return sent + struct.pack(">i", len(acknowledgments)) + b"".join(acknowledgments)


def group(*members: tuple[int, bytes]) -> bytes:
    """Return the body of a group."""
    parts = (struct.pack(">ii", type, len(body)) + body for type, body in members)
    return struct.pack(">i", len(members)) + b"".join(parts)


def packets(count: int) -> list[bytes]:
    """Return packets of different sizes."""
    return [packet(sequence=number, body=b"b" * (number * 37)) for number in range(count)]
