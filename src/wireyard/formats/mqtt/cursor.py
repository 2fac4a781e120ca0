"""A reader of one control packet, which collects faults instead of stopping at the first.

A value that breaks a rule is recorded as a fault, and reading continues after it; only a field that
does not fit ends the reading. The fields that were read can be recorded for display.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple

from wireyard import java
from wireyard.errors import DecodeError, LimitExceeded, Malformed, Truncated
from wireyard.formats.base import View
from wireyard.formats.mqtt.layout import MAX_ENTRIES, MSB_FIRST, VERSION_BITS
from wireyard.formats.mqtt.rules import RULES

MAX_FAULTS = 100
"""Most faults of a packet that are recorded: each of 256 million return codes may be one."""
_MOST_INTEGER_BYTES = 4


class Mark(NamedTuple):
    """Bytes ``[start, stop)`` of a packet that were read as one field."""

    start: int
    stop: int
    field: str
    value: object


def read_integer(view: View, at: int, stop: int) -> tuple[int, int]:
    """Return the variable byte integer at `at` and the position after it.

    The position is `at` itself if more bytes are needed, and beyond `stop` if the integer is longer
    than four bytes.
    """
    value = 0
    for place in range(_MOST_INTEGER_BYTES):
        if at + place >= stop:
            return 0, at
        digit = view[at + place]
        value |= (digit & 0x7F) << 7 * place
        if digit < 0x80:
            return value, at + place + 1
    return 0, stop + 1


class Cursor:
    """A position in one whole packet, and the faults so far.

    `context` is that of the packet: the version in force, and the byte order of 1999. With
    `traced`, the fields are recorded in `marks`.
    """

    def __init__(self, view: View, context: int, traced: bool = False) -> None:
        self.view = view
        self.at = 0
        self.stop = len(view)
        self.is_cut = False
        """Whether the packet goes on behind the view."""
        self.version = context & VERSION_BITS
        self.faults: list[DecodeError] = []
        self.marks: list[Mark] = []
        self._traced = traced
        self._last_byte_first = self.version == 2 and not context & MSB_FIRST

    @property
    def left(self) -> int:
        """Bytes before `stop`."""
        return self.stop - self.at

    # --- faults ---------------------------------------------------------------------------

    def fault(self, rule: str, field: str, at: int, problem: str, spec: str | None = None) -> None:
        """Record that the field at `at` breaks a rule, if the version has the rule."""
        broken = RULES[rule]
        if broken.holds(self.version) and len(self.faults) < MAX_FAULTS:
            where = spec or broken.spec(self.version)
            code = broken.verdict(self.version)
            self.faults.append(Malformed("mqtt", field, at, problem, where, code))

    def note(self, error: DecodeError) -> None:
        """Record an error that ended the reading, unless it is recorded already."""
        if error not in self.faults:
            self.faults.append(error)

    def end(self) -> None:
        """Record a fault if bytes follow the last field."""
        if self.left:
            problem = f"is followed by {self.left} bytes that belong to no field"
            self.fault("trailing_bytes", "packet", self.at, problem)

    def more(self, entries: Sized, field: str) -> bool:
        """Return whether a list goes on, of which some entries are read.

        Raises
        ------
        LimitExceeded
            It goes on behind `MAX_ENTRIES`.
        """
        if self.left and len(entries) >= MAX_ENTRIES:
            spec = RULES["remaining_length"].spec(self.version)
            problem = f"is behind {MAX_ENTRIES} others, the most that are read"
            raise LimitExceeded("mqtt", field, self.at, problem, spec)
        return self.left > 0

    # --- fields ---------------------------------------------------------------------------

    def mark(self, start: int, field: str, value: object) -> None:
        """Record the bytes from `start` up to here as one field, if traced."""
        if self._traced and self.at > start:
            self.marks.append(Mark(start, self.at, field, value))

    def skip(self, size: int, field: str) -> int:
        """Advance by `size` bytes; return the position before.

        `Truncated` is raised if they do not fit.
        """
        if size > self.left:
            spec = RULES["truncated"].spec(self.version)
            raise Truncated("mqtt", field, self.at, size, self.left, spec)
        start = self.at
        self.at += size
        return start

    def byte(self, field: str) -> int:
        """Read one byte."""
        start = self.skip(1, field)
        value = self.view[start]
        self.mark(start, field, value)
        return value

    def word(self, field: str) -> int:
        """Read an integer of 16 bits, in the byte order of the version."""
        start = self.skip(2, field)
        order = (start + 1, start) if self._last_byte_first else (start, start + 1)
        value = self.view[order[0]] << 8 | self.view[order[1]]
        self.mark(start, field, value)
        return value

    def four(self, field: str) -> int:
        """Read an integer of 32 bits; only 5.0 has them."""
        start = self.skip(4, field)
        value = int.from_bytes(self.view[start : self.at], "big")
        self.mark(start, field, value)
        return value

    def variable(self, field: str, limit: str = "variable_byte_integer") -> int:
        """Read a variable byte integer; `limit` is the rule that limits it to four bytes.

        A DecodeError is raised if it does not end within four bytes, or within the packet.
        """
        start = self.at
        value, self.at = read_integer(self.view, start, self.stop)
        if self.at == start:
            raise Truncated(
                "mqtt",
                field,
                start,
                self.left + 1,
                self.left,
                RULES["truncated"].spec(self.version),
            )
        if self.at > self.stop:
            self.at = start
            rule = RULES[limit]
            problem = "does not end within four bytes"
            where, code = rule.spec(self.version), rule.verdict(self.version)
            raise Malformed("mqtt", field, start, problem, where, code)
        if self.at - start > 1 and self.view[self.at - 1] == 0:
            problem = f"takes {self.at - start} bytes for {value}"
            self.fault("overlong_integer", field, start, problem)
        self.mark(start, field, value)
        return value

    def binary(self, field: str) -> bytes:
        """Read bytes after a 16-bit length."""
        length_at = self.skip(2, f"{field} length")
        size = self.view[length_at] << 8 | self.view[length_at + 1]
        self.mark(length_at, f"{field} length", size)
        start = self.skip(size, field)
        value = bytes(self.view[start : self.at])
        self.mark(start, field, value)
        return value

    def text(self, field: str) -> str | None:
        """Read text after a 16-bit length; None, and a fault, if its encoding is invalid."""
        raw = self.binary(field)
        start = self.at - len(raw)
        text = _modified_text(raw) if self.version == 2 else _plain_text(raw)
        if text is None:
            self.fault("bad_utf8", field, start, "is not UTF-8")
        elif "\0" in text:
            self.fault("null_character", field, start + raw.find(0), "has U+0000")
        return text


def _plain_text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _modified_text(raw: bytes) -> str | None:
    """Decode text of ``writeUTF``, None if it is invalid or has a lone surrogate (errata M15)."""
    try:
        text = java.decode_text(raw)
        text.encode()
    except ValueError:
        return None
    return text if java.encode_modified(text) == raw else None
