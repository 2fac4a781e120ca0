"""Transaction logs: a header, consecutive records, and unused space.

A log is reused after every checkpoint. So the last live record may be followed by records of an
earlier round, or by the rest of one; neither is damage. A round is all records with the same
checkpoint sequence. Rules of this file:

1. Replay begins at the header's position, unless its status is that of a clean shutdown, and goes
   on while each record has a correct checksum, the header's checkpoint sequence, and the next
   sequence number. These records are live.
2. Other records of the header's round after that position are unreached. All others are stale.
3. Bytes that are no record are unused if they are zeros, damaged if a record of the header's round
   that should be replayed follows, and stale otherwise.
4. The records in a group are separate records; the group's own record ends before the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import adler32

from wireyard.captures.stores.layout import (
    CLEAN,
    FILE_MAGIC,
    GROUP,
    LOG_HEADER,
    LOG_RECORD,
    LOG_TYPES,
    LOG_VERSION,
    RECORD_MAGIC,
    SUMMED_BYTES,
    State,
)
from wireyard.captures.stores.record import Contents, Record
from wireyard.captures.stores.section import SPEC, Section
from wireyard.captures.stores.work import read_work
from wireyard.errors import DecodeError, Malformed, Truncated, UnsupportedVersion
from wireyard.streams.framer import GARBAGE, MALFORMED, OK, TAIL

FORMAT: Final = "txnlog"
_SPEC: Final = f"{SPEC}, {FORMAT}"
_MAGIC: Final = RECORD_MAGIC.to_bytes(4, "big")
_MEMBER_BYTES: Final = 8
"""Type and size of a record in a group."""


def begins_log(head: bytes) -> bool:
    """Return whether the first bytes of a file, `LOG_HEADER.size` or more, are a log's header."""
    if len(head) < LOG_HEADER.size:
        return False
    header: Any = LOG_HEADER.unpack(head)
    return bool(header["magic"] == FILE_MAGIC) and _has_valid_checksum(head, header)


def read_txnlog(data: bytes) -> list[Record]:
    """Return the records of a log, including its header and unused space."""
    size = len(data)
    if not size:
        return []
    if size < LOG_HEADER.size:
        truncated = Truncated(FORMAT, "header", 0, LOG_HEADER.size, size, _SPEC)
        return [Record(0, size, State.UNKNOWN, Contents(), TAIL, truncated)]
    header: Any = LOG_HEADER.unpack(data)
    error = _fault_of_header(data, header)
    status = MALFORMED if error else OK
    records = [Record(0, LOG_HEADER.size, State.HEADER, Contents(), status, error)]
    walk = _Walk(
        data,
        header["checkpoint_position"],
        header["checkpoint_sequence"],
        plays=header["status"] != CLEAN,
    )
    records.extend(walk.records(LOG_HEADER.size))
    return records


def _has_valid_checksum(head: bytes, header: Any) -> bool:
    return bool(header["checksum"] == adler32(head[:SUMMED_BYTES]))


def _fault_of_header(data: bytes, header: Any) -> DecodeError | None:
    if header["magic"] != FILE_MAGIC:
        return Malformed(FORMAT, "magic", 0, "is not there", _SPEC, "bad_magic")
    if header["version"] != LOG_VERSION:
        problem = f"is {header['version']}, not {LOG_VERSION}"
        return UnsupportedVersion(FORMAT, "version", 4, problem, _SPEC)
    if not _has_valid_checksum(data, header):
        problem = "is not the sum of the header"
        return Malformed(FORMAT, "checksum", SUMMED_BYTES, problem, _SPEC, "bad_checksum")
    position = header["checkpoint_position"]
    if not LOG_HEADER.size <= position <= len(data):
        at, problem = LOG_HEADER["checkpoint_position"].offset, f"is {position}"
        return Malformed(FORMAT, "checkpoint position", at, problem, _SPEC, "bad_position")
    return None


@dataclass(slots=True)
class _Walk:
    data: bytes
    position: int
    """Offset where replay begins."""
    round: int
    """The header's checkpoint sequence."""
    plays: bool
    """Whether there is anything to replay."""
    playing: bool = field(init=False)
    """Whether replay would get as far as the current record."""
    number: int = field(default=0, init=False)
    """Sequence number of the next record to replay."""

    def __post_init__(self) -> None:
        self.playing = self.plays

    def records(self, at: int) -> Iterator[Record]:
        """Yield the records from `at` to the end of the file."""
        while at < len(self.data):
            header = self.header(at)
            if isinstance(header, DecodeError):
                record = self.other(at, header)
                yield record
            else:
                for record in self.record(at, header):
                    yield record
            at = record.stop

    def header(self, at: int) -> dict[str, Any] | DecodeError:
        """Return the header of the record at `at`, or the error if none begins there."""
        left = len(self.data) - at
        if left < LOG_RECORD.size:
            return Truncated(FORMAT, "record header", 0, LOG_RECORD.size, left, _SPEC)
        header: dict[str, Any] = LOG_RECORD.unpack(self.data, at)
        if header["magic"] != RECORD_MAGIC:
            return Malformed(FORMAT, "magic", 0, "is not there", _SPEC, "bad_magic")
        if header["size"] < 0:
            return Malformed(FORMAT, "size", 8, f"is {header['size']}", _SPEC, "bad_size")
        if header["size"] > left - LOG_RECORD.size:
            needed = LOG_RECORD.size + header["size"]
            return Truncated(FORMAT, "record", 0, needed, left, _SPEC)
        return header

    def next_record(self, at: int) -> int:
        """Return where the next consistent record begins; the file's size if there is none.

        Checksums are not compared here, as every magic number would cost one.
        """
        candidate = at
        while (candidate := self.data.find(_MAGIC, candidate + 1)) >= 0:
            header = self.header(candidate)
            if isinstance(header, DecodeError) or header["reserved"]:
                continue
            stop = candidate + LOG_RECORD.size + header["size"]
            behind = self.data[stop : stop + len(_MAGIC)]
            if header["type"] in LOG_TYPES and (behind == _MAGIC or not any(behind)):
                return candidate
        return len(self.data)

    def other(self, at: int, error: DecodeError) -> Record:
        """Return the bytes up to the next record, which are no record, as one."""
        stop = self.next_record(at)
        state, status = State.STALE, OK
        if not self.data[at:stop].strip(b"\0"):
            state = State.UNUSED
        elif self.damages(at, stop):
            cut = isinstance(error, Truncated) and stop == len(self.data)
            state, status = State.UNKNOWN, TAIL if cut else GARBAGE
        if at >= self.position:
            self.playing = False
        return Record(at, stop, state, Contents(), status, error if status != OK else None)

    def damages(self, at: int, stop: int) -> bool:
        """Return whether bytes that are no record are in place of one that should be replayed."""
        if not self.plays or at < self.position:
            return False
        if len(self.data) - at < LOG_RECORD.size:
            return self.playing and self.data.startswith(_MAGIC, at)
        lost = LOG_RECORD.unpack(self.data, at)
        if (lost["checkpoint_sequence"], lost["sequence"]) == (self.round, self.number):
            return True
        return stop < len(self.data) and self.is_of_round(LOG_RECORD.unpack(self.data, stop))

    def is_of_round(self, header: dict[str, Any]) -> bool:
        """Return whether a record was written since the last checkpoint."""
        return bool(header["checkpoint_sequence"] == self.round)

    def record(self, at: int, header: dict[str, Any]) -> Iterator[Record]:
        """Yield a record, or a group and the records in it."""
        begin = at + LOG_RECORD.size
        stop = begin + header["size"]
        error: DecodeError | None = None
        if adler32(memoryview(self.data)[begin:stop]) != header["checksum"]:
            place, problem = LOG_RECORD["checksum"].offset, "is not the sum of the body"
            error = Malformed(FORMAT, "checksum", place, problem, _SPEC, "bad_checksum")
        state = self.state(at, header, whole=error is None)
        contents = Contents(
            timestamp_ms=header["timestamp"],
            sequence=header["sequence"],
            checkpoint_sequence=header["checkpoint_sequence"],
        )
        section = Section(self.data, at, begin, stop, FORMAT)
        if error is None and header["type"] == GROUP:
            yield from _members(section, Record(at, stop, state, contents))
            return
        try:
            read_work(section, header["type"], contents)
        except DecodeError as fault:
            error = error or fault
        yield Record(at, stop, state, contents, MALFORMED if error else OK, error)

    def state(self, at: int, header: dict[str, Any], *, whole: bool) -> State:
        """Return the state of a record; update `playing` and `number`."""
        if at < self.position:
            return State.STALE
        if not self.plays or not self.is_of_round(header):
            self.playing = False
            return State.STALE
        self.playing = self.playing and whole and header["sequence"] == self.number
        self.number = header["sequence"] + 1
        return State.LIVE if self.playing else State.UNREACHED


def _members(section: Section, group: Record) -> Iterator[Record]:
    """Yield the beginning of a group, up to its first record, then its records."""
    group.contents.kind = LOG_TYPES[GROUP]
    last, at = group, group.start
    try:
        number = section.count("record count", _MEMBER_BYTES)
        last, at = replace(group, stop=section.place), section.place
        for _ in range(number):
            section.base = -section.at  # offsets count from the record, not from its group
            following = _member(section, group)
            yield last
            last, at = following, section.place
        section.base = -section.at
        section.end()
    except DecodeError as error:
        if at == group.stop:
            yield replace(last, status=MALFORMED, error=error)
            return
        if at > group.start:
            yield last
        last = replace(group, start=at, status=MALFORMED, error=error)
    yield last


def _member(section: Section, group: Record) -> Record:
    at = section.place
    contents = replace(group.contents, packets=[], acknowledgments=[])
    type = section.integer(4, "type")
    body = section.part(section.size("size"), "record")
    try:
        read_work(body, type, contents)
    except DecodeError as error:
        return replace(
            group, start=at, stop=section.place, contents=contents, status=MALFORMED, error=error
        )
    return replace(group, start=at, stop=section.place, contents=contents)
