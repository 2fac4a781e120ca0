"""Files of one record, for messages and transactions too large for a file of many records.

::

    0   tag         6   UTF: GOOD, FREE, or .... while it is written
    6   size        8
    14  data
        size        8
        attachment      can be changed without rewriting the data

The file may be longer than that, because files are used again. A broker loads only GOOD records.
"""

from __future__ import annotations

from typing import Final

from wireyard.captures.stores.layout import SINGLE_TAGS, TAG_BYTES, State
from wireyard.captures.stores.record import Contents, Record
from wireyard.captures.stores.section import SPEC, ReadData, Section
from wireyard.errors import DecodeError, Malformed, Truncated
from wireyard.streams.framer import GARBAGE, MALFORMED, TAIL

FORMAT: Final = "single"
_SPEC: Final = f"{SPEC}, {FORMAT}"
_LENGTH: Final = b"\0\4"
_DATA, _ATTACHMENT = "data", "attachment"


def begins_single(head: bytes) -> bool:
    """Return whether the first bytes of a file are a tag."""
    return head[:2] == _LENGTH and head[2:TAG_BYTES] in SINGLE_TAGS


def read_single(data: bytes, read_data: ReadData, read_attachment: ReadData) -> list[Record]:
    """Return the record of a file, and the unused space after it.

    `read_data` and `read_attachment` read the two parts of a record. Errors are only reported for a
    GOOD record; the contents of others are given as far as they can be read.
    """
    size = len(data)
    if not size:
        return []
    contents = Contents()
    if size < TAG_BYTES:
        truncated = Truncated(FORMAT, "tag", 0, TAG_BYTES, size, _SPEC)
        return [Record(0, size, State.UNKNOWN, contents, TAIL, truncated)]
    if not begins_single(data):
        fault = Malformed(FORMAT, "tag", 0, "is none of GOOD, FREE and ....", _SPEC, "bad_tag")
        return [Record(0, size, State.UNKNOWN, contents, GARBAGE, fault)]
    state = SINGLE_TAGS[data[2:TAG_BYTES]]
    section = Section(data, 0, TAG_BYTES, size, FORMAT)
    try:
        for name, read in ((_DATA, read_data), (_ATTACHMENT, read_attachment)):
            part = section.part(section.size(f"{name} size", 8), name)
            read(part, contents)
            part.end()
    except DecodeError as error:
        if state is not State.ALLOCATED:
            return [Record(0, size, state, contents)]
        cut_off = isinstance(error, Truncated) and error.field.startswith((_DATA, _ATTACHMENT))
        status = TAIL if cut_off else MALFORMED
        return [Record(0, size, state, contents, status, error)]
    records = [Record(0, section.place, state, contents)]
    if section.left:
        records.append(Record(section.place, size, State.UNUSED, Contents()))
    return records
