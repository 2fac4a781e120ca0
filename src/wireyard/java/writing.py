"""The encoder of Java serialization streams: property tables, maps and lists of plain values.

Values are pairs of a type name and a value, as `JavaValue` and properties are. A repeated value
that the JDK boxes from its cache is written as a reference, as Java does.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wireyard.errors import EncodeError
from wireyard.java.grammar import (
    FIRST_HANDLE,
    MAGIC,
    PRIMITIVES,
    SC_SERIALIZABLE,
    SC_WRITE_METHOD,
    TC_ARRAY,
    TC_BLOCKDATA,
    TC_CLASSDESC,
    TC_ENDBLOCKDATA,
    TC_LONGSTRING,
    TC_NULL,
    TC_OBJECT,
    TC_REFERENCE,
    TC_STRING,
)
from wireyard.java.serial import Reader
from wireyard.java.shapes import BOXES
from wireyard.java.text import encode_modified
from wireyard.java.values import JavaError

Value = tuple[str, Any]
"""Type name and value."""

_NUMBERS = ("byte", "short", "integer", "long", "float", "double")
_PROPERTY_WORDS = ("boolean", *_NUMBERS, "string", "object")
_BODY_WORDS = ("boolean", *_NUMBERS, "string", "character", "bytes")
_LOAD_FACTOR = 0.75
_HASHTABLE_CAPACITY = 11
_HASHMAP_CAPACITY = 16


def write_hashtable(entries: Mapping[str, Value]) -> bytes:
    """Write a property section of JMQ 1.0.3 or 2.0.0, with entries in the given order.

    The order has no meaning in a Hashtable; that of a decoded section gives the same bytes again.

    Parameters
    ----------
    entries
        Type name and value by property name. The value of an ``object`` is a whole serialization
        stream, whose first object is written.

    Raises
    ------
    EncodeError
        An unknown type name, a value that does not fit its type, or an ``object`` that is null or
        not a readable stream.
    """
    capacity = _HASHTABLE_CAPACITY
    while len(entries) > int(capacity * _LOAD_FACTOR):
        capacity = 2 * capacity + 1
    writer = _Writer(_PROPERTY_WORDS)
    writer.begin_table(_HASHTABLE, capacity, int(capacity * _LOAD_FACTOR), len(entries))
    for name, value in entries.items():
        writer.string("property name", name)
        writer.value(f"property {name}", value)
    return writer.end_table()


def write_hashmap(entries: Mapping[str, Value | None], field: str) -> bytes:
    """Write one ``java.util.HashMap``: the body of a MAP message.

    Parameters
    ----------
    entries
        Type name and value by entry name, None for null. Types are those of properties without
        ``object``, and ``character`` and ``bytes``.
    field
        The packet's field, for errors.

    Raises
    ------
    EncodeError
        An unknown type name, or a value that does not fit its type.
    """
    capacity = _HASHMAP_CAPACITY
    while len(entries) > capacity * _LOAD_FACTOR:
        capacity *= 2
    writer = _Writer(_BODY_WORDS)
    # A map to which nothing was ever added has threshold 0.
    threshold = int(capacity * _LOAD_FACTOR) if entries else 0
    writer.begin_table(_HASHMAP, capacity, threshold, len(entries))
    for name, value in entries.items():
        writer.string(f"{field} name", name)
        writer.value(f"{field} entry {name}", value)
    return writer.end_table()


def write_objects(values: Iterable[Value | None], field: str) -> bytes:
    """Write values one after the other: the body of a STREAM message.

    Parameters and errors are those of `write_hashmap`.
    """
    writer = _Writer(_BODY_WORDS)
    for place, value in enumerate(values):
        writer.value(f"{field} element {place}", value)
    return bytes(writer.out)


def _descriptor(name: str, uid: int, flags: int, fields: tuple[tuple[str, str], ...]) -> bytes:
    """Return a class descriptor up to its superclass."""
    parts = [struct.pack(">B", TC_CLASSDESC), _short_text(name)]
    parts.append(struct.pack(">QBH", uid, flags, len(fields)))
    parts.extend(code.encode() + _short_text(field) for code, field in fields)
    return b"".join((*parts, bytes((TC_ENDBLOCKDATA,))))


def _short_text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _table(name: str, uid: int) -> bytes:
    fields = (("F", "loadFactor"), ("I", "threshold"))
    return _descriptor(name, uid, SC_SERIALIZABLE | SC_WRITE_METHOD, fields)


_HASHTABLE = _table("java.util.Hashtable", 0x13BB0F25214AE4B8)
_HASHMAP = _table("java.util.HashMap", 0x0507DAC1C31660D1)
_NUMBER = _descriptor("java.lang.Number", 0x86AC951D0B94E08B, SC_SERIALIZABLE, ())
_BYTES = _descriptor("[B", 0xACF317F8060854E0, SC_SERIALIZABLE, ())

_BOXES = {
    word: (_descriptor(name, uid, SC_SERIALIZABLE, ((code, "value"),)), ">" + PRIMITIVES[code])
    for name, (word, code, uid) in BOXES.items()
}
"""By type name: descriptor, `struct` code of the field."""


class _Writer:
    """Writes a stream and assigns its handles; `words` are the names of the allowed types."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.out = bytearray(MAGIC)
        self.next = FIRST_HANDLE
        self.classes: dict[str, int] = {}
        self.boxed: dict[Value, int] = {}
        self.others = {"string": self.string, "object": self.object, "bytes": self.byte_array}

    def begin_table(self, descriptor: bytes, capacity: int, threshold: int, count: int) -> None:
        """Write the fields of a table, and the block data before its entries."""
        self.out += struct.pack(">B", TC_OBJECT) + descriptor + struct.pack(">B", TC_NULL)
        self.out += struct.pack(">fi", _LOAD_FACTOR, threshold)
        self.out += struct.pack(">BBii", TC_BLOCKDATA, 8, capacity, count)
        self.next += 2  # the descriptor and the table

    def end_table(self) -> bytes:
        """End the table and return the stream."""
        return bytes(self.out) + bytes((TC_ENDBLOCKDATA,))

    def value(self, field: str, value: Value | None) -> None:
        """Write a value, or null."""
        if value is None:
            self.out.append(TC_NULL)
            return
        word, content = value
        if word not in self.words:
            raise EncodeError(f"type of {field}", word, f"one of {', '.join(self.words)}")
        if word in self.others:
            self.others[word](field, content)
        else:
            self.box(field, word, content)

    def assign(self) -> int:
        self.next += 1
        return self.next - 1

    def refer(self, handle: int) -> None:
        self.out += struct.pack(">BI", TC_REFERENCE, handle)

    def string(self, field: str, text: object) -> None:
        if not isinstance(text, str):
            raise EncodeError(field, text, "text is needed")
        data = encode_modified(text)
        short = len(data) <= 0xFFFF
        form, tag = (">BH", TC_STRING) if short else (">BQ", TC_LONGSTRING)
        self.out += struct.pack(form, tag, len(data)) + data
        self.assign()

    def byte_array(self, field: str, data: object) -> None:
        if not isinstance(data, bytes):
            raise EncodeError(field, data, "bytes are needed")
        self.out.append(TC_ARRAY)
        self.descriptor("bytes", _BYTES)
        self.out += struct.pack(">i", len(data)) + data
        self.assign()

    def box(self, field: str, word: str, value: Any) -> None:
        descriptor, form = _BOXES[word]
        data = self.packed(field, word, form, value)
        key = word, value
        if key in self.boxed:
            self.refer(self.boxed[key])
            return
        self.out.append(TC_OBJECT)
        self.descriptor(word, descriptor)
        self.out += data
        handle = self.assign()
        if word in ("boolean", "byte") or (
            word in ("short", "integer", "long") and -128 <= value <= 127
        ):
            self.boxed[key] = handle

    def packed(self, field: str, word: str, form: str, value: Any) -> bytes:
        fault = EncodeError(field, value, f"does not fit type {word}")
        if (word == "boolean") != isinstance(value, bool):
            raise fault
        if word == "character":
            if not isinstance(value, str) or len(value) != 1:
                raise fault
            value = ord(value)
        if isinstance(value, float) and math.isnan(value):
            value = math.nan  # Java writes only these NaNs: 7FC00000 and 7FF8000000000000.
        try:
            return struct.pack(form, value)
        except (struct.error, OverflowError, TypeError):
            raise fault from None

    def descriptor(self, word: str, descriptor: bytes) -> None:
        if word in self.classes:
            self.refer(self.classes[word])
            return
        self.out += descriptor
        self.classes[word] = self.assign()
        if word not in _NUMBERS:
            self.out.append(TC_NULL)
        elif "number" in self.classes:
            self.refer(self.classes["number"])
        else:
            self.out += _NUMBER
            self.out.append(TC_NULL)
            self.classes["number"] = self.assign()

    def object(self, field: str, value: object) -> None:
        if not isinstance(value, bytes):
            raise EncodeError(field, value, "an object property holds bytes")
        try:
            reader = Reader(value)
            first = reader.top()
            if first is None:
                raise EncodeError(field, value, "a Hashtable holds no null")
            data, self.next = reader.graph.cut(reader.graph.handle(first), self.next)
        except JavaError as error:
            raise EncodeError(field, value, f"no serialization stream: {error}") from None
        self.out += data
