"""The configuration change record of a cluster: a magic number, then a GPacket for each change."""

from __future__ import annotations

from typing import Final

from wireyard.captures.stores.layout import CONFIG_HEADER, CONFIG_MAGIC, ENTRY_HEADER, State
from wireyard.captures.stores.record import Contents, Record
from wireyard.captures.stores.section import SPEC, Section
from wireyard.errors import DecodeError, Malformed, Truncated
from wireyard.streams.framer import GARBAGE, OK, TAIL

FORMAT: Final = "configrecord"
_SPEC: Final = f"{SPEC}, {FORMAT}"


def read_configrecord(data: bytes) -> list[Record]:
    """Return the records of a file; an unreadable one is the last, as nothing marks the next."""
    size, at = len(data), CONFIG_HEADER.size
    if not size:
        return []
    if int.from_bytes(data[:at], "big") != CONFIG_MAGIC:
        error = Malformed(FORMAT, "magic", 0, "is not there", _SPEC, "bad_magic")
        return [Record(0, size, State.UNKNOWN, Contents(), GARBAGE, error)]
    records = [Record(0, at, State.HEADER, Contents())]
    while at < size and records[-1].status == OK:
        records.append(_entry(data, at))
        at = records[-1].stop
    return records


def _entry(data: bytes, at: int) -> Record:
    contents = Contents()
    # A section of only the header, as one to the end of the file would copy all further entries.
    head = Section(data, at, at, min(at + ENTRY_HEADER.size, len(data)), FORMAT)
    try:
        contents.timestamp_ms = head.integer(8, "timestamp")
        stop = at + ENTRY_HEADER.size + head.size("size")
        section = Section(data, at, at + ENTRY_HEADER.size, stop, FORMAT)
        contents.packets.append(section.packet("gpacket", stop - at - ENTRY_HEADER.size))
    except DecodeError as error:
        status = TAIL if isinstance(error, Truncated) else GARBAGE
        return Record(at, len(data), State.UNKNOWN, contents, status, error)
    return Record(at, stop, State.ALLOCATED, contents)
