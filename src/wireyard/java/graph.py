"""Where each object of a stream stands, so that one can be taken out or moved into another."""

from __future__ import annotations

import struct
from typing import Any

from wireyard.java.grammar import FIRST_HANDLE, MAGIC, TC_REFERENCE
from wireyard.java.values import MAX_DEPTH, JavaError

__all__ = ["ASSIGN", "BEGIN", "MAX_CUT_BYTES", "REFER", "Graph"]

MAX_CUT_BYTES = 1 << 26
"""Bytes of all objects taken out of one stream. Each takes along what it refers to, so a thousand
small ones that share a large one would come to a thousand large ones."""

BEGIN, ASSIGN, REFER = range(3)
_REFERENCE = struct.Struct(">BI")


class Graph:
    """The handles of one stream, and in `log` what happened to them, in stream order.

    `log` has ``(BEGIN, offset, handle)`` for the first byte of each object that gets a handle,
    ``(ASSIGN, 0, handle)`` where it gets it, ``(REFER, offset, handle)`` for each TC_REFERENCE.
    The other lists have one element a handle: the object; and its span, which is the place in
    `log` of its BEGIN and behind its last entry, and the offset behind its last byte. Handles are
    counted on past a TC_RESET.
    """

    __slots__ = ("cut_bytes", "data", "handles", "log", "spans", "values")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.values: list[Any] = []
        self.spans: list[tuple[int, int, int]] = []
        self.log: list[tuple[int, int, int]] = []
        self.handles: dict[int, int] | None = None
        self.cut_bytes = 0

    def handle(self, value: object) -> int:
        """Return the handle of an object of this stream."""
        if self.handles is None:
            self.handles = {id(other): handle for handle, other in enumerate(self.values)}
        return self.handles[id(value)]

    def stream(self, handle: int) -> bytes:
        """Return one object and all it refers to as a whole stream."""
        return MAGIC + self.cut(handle, FIRST_HANDLE)[0]

    def cut(self, handle: int, first: int) -> tuple[bytes, int]:
        """Return the bytes of one object for a place where the next handle is `first`.

        What it refers to outside itself is spelled out at the first reference. The second value
        is the next handle behind it.
        """
        out = bytearray()
        numbers: dict[int, int] = {}
        self._copy(handle, first, numbers, out, 0)
        return bytes(out), first + len(numbers)

    def _copy(
        self, handle: int, first: int, numbers: dict[int, int], out: bytearray, depth: int
    ) -> None:
        index, after, stop = self.spans[handle]
        start = at = self.log[index][1]
        if depth > MAX_DEPTH:
            raise JavaError("limit_exceeded", "reference", start, "is one of too long a chain")
        while index < after:
            kind, offset, other = self.log[index]
            index += 1
            number = numbers.get(other)
            if kind == ASSIGN:
                numbers[other] = first + len(numbers)
                continue
            if kind == BEGIN and number is None:
                continue
            self._append(out, at, offset)
            if number is None:
                self._copy(other, first, numbers, out, depth + 1)
            else:
                out += _REFERENCE.pack(TC_REFERENCE, number)
            if kind == BEGIN:
                # Spelled out before: an object that contains this one was copied into it.
                _, index, at = self.spans[other]
            else:
                at = offset + _REFERENCE.size
        self._append(out, at, stop)

    def _append(self, out: bytearray, start: int, stop: int) -> None:
        # A reference costs its 5 bytes, so one pass of the loop above is paid for too.
        self.cut_bytes += stop - start + _REFERENCE.size
        if self.cut_bytes > MAX_CUT_BYTES:
            problem = f"would be copied, more than {MAX_CUT_BYTES} bytes of objects"
            raise JavaError("limit_exceeded", "object", start, problem)
        out += self.data[start:stop]
