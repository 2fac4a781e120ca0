"""The extents of a stream's objects, to extract one, or to copy it into another stream."""

from __future__ import annotations

import struct
from typing import Any

from wireyard.java.grammar import FIRST_HANDLE, MAGIC, TC_REFERENCE
from wireyard.java.values import MAX_DEPTH, JavaError

MAX_CUT_BYTES = 1 << 26
"""Most bytes of all objects extracted from one stream. Each includes the objects that it refers to,
so a thousand small ones that share a large one would be a thousand large ones."""

BEGIN, ASSIGN, REFER = range(3)
_REFERENCE = struct.Struct(">BI")


class Graph:
    """The handles of one stream, and a log of their events in stream order.

    `log` has ``(BEGIN, offset, handle)`` for the first byte of each object with a handle,
    ``(ASSIGN, 0, handle)`` when the handle is assigned, and ``(REFER, offset, handle)`` for each
    TC_REFERENCE. The other lists have one element per handle: `values` the object, `spans` the
    index in `log` of its BEGIN, that after its last entry, and the offset after its last byte.
    Handles are not counted anew after a TC_RESET.
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
        """Return one object, with all objects that it refers to, as a stream of its own."""
        return MAGIC + self.cut(handle, FIRST_HANDLE)[0]

    def cut(self, handle: int, first: int) -> tuple[bytes, int]:
        """Return the bytes of one object to insert where the next handle is `first`.

        Objects outside it are written out at the first reference to them. The second value is the
        next handle after it.
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
                # Written out before: an object that contains this one was copied into it.
                _, index, at = self.spans[other]
            else:
                at = offset + _REFERENCE.size
        self._append(out, at, stop)

    def _append(self, out: bytearray, start: int, stop: int) -> None:
        # Each pass of the loop above counts at least the 5 bytes of a reference.
        self.cut_bytes += stop - start + _REFERENCE.size
        if self.cut_bytes > MAX_CUT_BYTES:
            problem = f"would be copied, more than {MAX_CUT_BYTES} bytes of objects"
            raise JavaError("limit_exceeded", "object", start, problem)
        out += self.data[start:stop]
