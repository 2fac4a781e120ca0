"""Files of variable-size records: a header, consecutive records, a last marker, and unused space.

Rules of this file:

1. A valid record begins with its magic number, has a state of its version, and a capacity that
   includes its own header and ends in the file. The last record has no capacity. Every other record
   is followed by another.
2. Otherwise the record is damaged. It ends where the next valid record begins, which is looked for
   in steps of 4 bytes, as the broker does.
3. The contents of a record have no influence on where it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from wireyard.captures.stores.layout import (
    CAPACITY_STATES,
    FILE_MAGIC,
    RECORD_MAGIC,
    VR_HEADERS,
    VR_PENDING,
    VR_RECORD,
    State,
)
from wireyard.captures.stores.record import Contents, Record
from wireyard.captures.stores.section import SPEC, ReadData, Section
from wireyard.errors import DecodeError, Malformed, Truncated, UnsupportedVersion
from wireyard.streams.framer import GARBAGE, MALFORMED, OK, TAIL

FORMAT: Final = "vrfile"
_SPEC: Final = f"{SPEC}, {FORMAT}"
_MAGIC: Final = RECORD_MAGIC.to_bytes(4, "big")
_STEP_BYTES: Final = 4
_HEAD_BYTES: Final = 6
"""Bytes of magic number and version."""
_NEWEST: Final = 2


def read_vrfile(data: bytes, read_data: ReadData) -> list[Record]:
    """Return the records of a file, including its header and unused space.

    `read_data` reads the data of a record. Errors are only reported for records in use; the
    contents of free and unfinished ones are given as far as they can be read.
    """
    if not data:
        return []
    header = _read_header(data)
    records = [header]
    states = CAPACITY_STATES.get(_version(data), CAPACITY_STATES[_NEWEST])
    walk = _Walk(data, states, read_data)
    records.extend(walk.records(header.stop))
    return records


def _version(data: bytes) -> int:
    return int.from_bytes(data[4:_HEAD_BYTES], "big", signed=True)


def _read_header(data: bytes) -> Record:
    size, least = len(data), VR_HEADERS[1].size
    if size < least:
        truncated = Truncated(FORMAT, "header", 0, least, size, _SPEC)
        return Record(0, size, State.UNKNOWN, Contents(), TAIL, truncated)
    layout = VR_HEADERS.get(_version(data))
    if int.from_bytes(data[:4], "big") != FILE_MAGIC:
        error: DecodeError = Malformed(FORMAT, "magic", 0, "is not there", _SPEC, "bad_magic")
    elif layout is None:
        problem = f"is {_version(data)}, not 1 or 2"
        error = UnsupportedVersion(FORMAT, "version", 4, problem, _SPEC)
    elif size < layout.size:
        truncated = Truncated(FORMAT, "header", 0, layout.size, size, _SPEC)
        return Record(0, size, State.UNKNOWN, Contents(), TAIL, truncated)
    else:
        return Record(0, layout.size, State.HEADER, Contents())
    # The records after a damaged header may be intact.
    first = data.find(_MAGIC, 1)
    return Record(0, first if first > 0 else size, State.UNKNOWN, Contents(), GARBAGE, error)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A record's state and cookie, and where the next record has to begin."""

    stop: int
    state: State
    cookie: int


@dataclass(frozen=True, slots=True)
class _Walk:
    data: bytes
    states: Mapping[int, State]
    read_data: ReadData

    @property
    def size(self) -> int:
        return len(self.data)

    def records(self, at: int) -> Iterator[Record]:
        """Yield the records from `at` to the end of the file."""
        while at < self.size:
            frame = self.frame(at)
            if isinstance(frame, DecodeError):
                record = self.damaged(at, frame)
            elif frame.state is State.LAST:
                yield Record(at, frame.stop, State.LAST, Contents())
                if frame.stop < self.size:
                    yield Record(frame.stop, self.size, State.UNUSED, Contents())
                return
            elif self.followed(frame):
                record = self.record(at, frame)
            else:
                record = self.unfollowed(at, frame)
            yield record
            at = record.stop

    def frame(self, at: int) -> _Frame | DecodeError:
        """Return the frame of the record at `at`, or the error if none begins there."""
        left = self.size - at
        if left < VR_RECORD.size:
            return Truncated(FORMAT, "record header", 0, VR_RECORD.size, left, _SPEC)
        magic, capacity, number, cookie = VR_RECORD.struct.unpack_from(self.data, at)
        if magic != RECORD_MAGIC:
            return Malformed(FORMAT, "magic", 0, "is not there", _SPEC, "bad_magic")
        state = self.states.get(number)
        if state is None:
            return Malformed(FORMAT, "state", 8, f"is {number}", _SPEC, "bad_state")
        last = state is State.LAST
        has_room = capacity == 0 if last else capacity >= VR_RECORD.size
        if not has_room:
            return Malformed(FORMAT, "capacity", 4, f"is {capacity}", _SPEC, "bad_size")
        if capacity > left:
            return Truncated(FORMAT, "record", 0, capacity, left, _SPEC)
        return _Frame(at + (VR_RECORD.size if last else capacity), state, cookie)

    def followed(self, frame: _Frame) -> bool:
        """Return whether a record begins after a frame, or the frame is the last."""
        if frame.state is State.LAST:
            return True
        return self.data.startswith(_MAGIC, frame.stop)

    def next_frame(self, at: int) -> int:
        """Return where the next valid record begins; the file's size if there is none."""
        candidate = at + _STEP_BYTES
        while (candidate := self.data.find(_MAGIC, candidate)) >= 0:
            if (candidate - at) % _STEP_BYTES == 0:
                frame = self.frame(candidate)
                if isinstance(frame, _Frame) and self.followed(frame):
                    return candidate
            candidate += 1
        return self.size

    def damaged(self, at: int, error: DecodeError) -> Record:
        """Return the bytes up to the next valid record, which are no record, as one."""
        stop = self.next_frame(at)
        at_end = isinstance(error, Truncated) and stop == self.size
        return Record(at, stop, State.UNKNOWN, Contents(), TAIL if at_end else GARBAGE, error)

    def unfollowed(self, at: int, frame: _Frame) -> Record:
        """Return a record that no record follows; garbage if a valid one begins inside it."""
        stop = self.next_frame(at)
        problem = f"is {frame.stop - at}, and no record begins there"
        error = Malformed(FORMAT, "capacity", 4, problem, _SPEC, "bad_size")
        if stop < frame.stop:
            return Record(at, stop, State.UNKNOWN, Contents(), GARBAGE, error)
        return self.record(at, frame, error)

    def record(self, at: int, frame: _Frame, error: DecodeError | None = None) -> Record:
        """Return a record with its contents."""
        state = frame.state
        if state is State.ALLOCATED and frame.cookie == VR_PENDING:
            state = State.PENDING
        elif state is State.ALLOCATED and frame.cookie and error is None:
            problem = f"is {frame.cookie}, not 0 or -1"
            error = Malformed(FORMAT, "cookie", 10, problem, _SPEC, "bad_cookie")
        contents = Contents()
        section = Section(self.data, at, at + VR_RECORD.size, frame.stop, FORMAT)
        if state is not State.PROPERTIES:
            try:
                self.read_data(section, contents)
            except DecodeError as fault:
                if state is State.ALLOCATED and error is None:
                    error = fault
        return Record(at, frame.stop, state, contents, MALFORMED if error else OK, error)
