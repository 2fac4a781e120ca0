"""A bounded reader of one section of a packet, in the encodings of ``DataInputStream``."""

from __future__ import annotations

from wireyard import java
from wireyard.errors import DecodeError, Malformed, Truncated


class Cursor:
    """Reads a section from left to right; every error has the field and its offset.

    For errors, `format` is the format's name, `base` the section's offset in its packet, and `spec`
    the document's section.
    """

    def __init__(self, data: bytes, format: str, base: int, spec: str) -> None:
        self.data = data
        self.at = 0
        self.format = format
        self.base = base
        self.spec = spec

    def take(self, size: int, field: str) -> bytes:
        """Return the next `size` bytes."""
        left = len(self.data) - self.at
        if size > left:
            raise Truncated(self.format, field, self.base + self.at, size, left, self.spec)
        start, self.at = self.at, self.at + size
        return self.data[start : self.at]

    def integer(self, size: int, field: str, *, signed: bool = True) -> int:
        """Return an integer of `size` bytes."""
        start, stop = self.at, self.at + size
        if stop > len(self.data):
            self.take(size, field)
        self.at = stop
        return int.from_bytes(self.data[start:stop], "big", signed=signed)

    def text(self, field: str) -> str:
        """Return text of modified UTF-8 after a 16-bit length."""
        size = self.integer(2, f"{field} length", signed=False)
        start = self.at
        data = self.take(size, field)
        try:
            return java.decode_text(data)
        except ValueError:
            problem = "is not modified UTF-8"
            raise self.fault(Malformed, field, start, problem, "bad_utf8") from None

    def fault(
        self, kind: type[DecodeError], field: str, at: int, problem: str, code: str | None = None
    ) -> DecodeError:
        """Return an error about the field at `at` of the section."""
        return kind(self.format, field, self.base + at, problem, self.spec, code)
