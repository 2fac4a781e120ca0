"""A bounded cursor over a serialization stream, with its limits and its table of handles."""

from __future__ import annotations

from typing import Any

from wireyard.java.grammar import FIRST_HANDLE, MAGIC
from wireyard.java.graph import ASSIGN, BEGIN, REFER, Graph
from wireyard.java.text import decode_text
from wireyard.java.values import MAX_DEPTH, JavaError

MAX_HANDLES = 1 << 20
"""Most objects, strings and class descriptors: some 500 bytes of Python each, 500 MB at worst."""

MAX_ELEMENTS = 1 << 22
"""Most elements of arrays and collections, and references: up to 120 bytes of Python each, 500 MB.
"""


class Cursor:
    """A position in one stream. Every length is compared with the bytes left before it is used."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = bytes(data)
        self.size = len(self.data)
        self.graph = Graph(self.data)
        self.at = 0
        self.depth = 0
        self.descriptors = 0  # class descriptors being read
        self.elements = 0
        self.base = 0  # first handle after the last TC_RESET, which invalidates the earlier ones
        start = self.take(len(MAGIC), "stream header")
        if self.data[: len(MAGIC)] != MAGIC:
            shown = self.data[: len(MAGIC)].hex()
            raise JavaError("bad_java", "stream header", start, f"is {shown}, not {MAGIC.hex()}")

    def take(self, size: int, field: str) -> int:
        """Advance by `size` bytes; return the position before."""
        start = self.at
        if size > self.size - start:
            problem = f"needs {size} bytes, {self.size - start} left"
            raise JavaError("truncated", field, start, problem)
        self.at = start + size
        return start

    def number(self, size: int, field: str, *, signed: bool = False) -> int:
        """Read an integer of `size` bytes."""
        start = self.take(size, field)
        return int.from_bytes(self.data[start : self.at], "big", signed=signed)

    def text(self, length_bytes: int, field: str) -> str:
        """Read text after a length of `length_bytes`."""
        start = self.take(self.number(length_bytes, field), field)
        try:
            return decode_text(self.data[start : self.at])
        except UnicodeDecodeError:
            problem = "is not modified UTF-8"
            raise JavaError("bad_java", field, start, problem) from None

    def count(self, more: int, field: str, start: int) -> None:
        """Count elements against their limit."""
        self.elements += more
        if self.elements > MAX_ELEMENTS:
            problem = f"make {self.elements} elements, at most {MAX_ELEMENTS} are allowed"
            raise JavaError("limit_exceeded", field, start, problem)

    def begin(self, start: int) -> int:
        """Record the beginning of an object, one level deeper; return its index in the log."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            problem = f"is nested more than {MAX_DEPTH} deep"
            raise JavaError("limit_exceeded", "object", start, problem)
        log = self.graph.log
        log.append((BEGIN, start, 0))
        return len(log) - 1

    def assign(self, begun: int, value: object) -> int:
        """Assign a handle to the object of that log entry, at newHandle of the grammar."""
        graph = self.graph
        handle = len(graph.values)
        start = graph.log[begun][1]
        if handle >= MAX_HANDLES:
            problem = f"is one of more than {MAX_HANDLES}"
            raise JavaError("limit_exceeded", "object", start, problem)
        graph.values.append(value)
        graph.spans.append((begun, 0, 0))
        graph.log[begun] = (BEGIN, start, handle)
        graph.log.append((ASSIGN, 0, handle))
        return handle

    def end(self, handle: int, value: Any) -> Any:
        """Record the end of an object; return its value."""
        graph = self.graph
        graph.values[handle] = value
        graph.spans[handle] = (graph.spans[handle][0], len(graph.log), self.at)
        self.depth -= 1
        return value

    def refer(self, start: int) -> Any:
        """Read the handle of a TC_REFERENCE; return the object that it refers to."""
        number = self.number(4, "reference")
        handle = number - FIRST_HANDLE + self.base
        if not self.base <= handle < len(self.graph.values):
            raise JavaError("bad_java", "reference", start, f"is {number:#x}, no such handle")
        self.count(1, "references", start)
        self.graph.log.append((REFER, start, handle))
        return self.graph.values[handle]
