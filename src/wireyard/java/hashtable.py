"""Properties as JMQ 1.0.3 and 2.0.0 send them: one serialized ``Hashtable<String, Object>``."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from wireyard.errors import EncodeError
from wireyard.java.cursor import DEFAULT_LIMITS, Limits
from wireyard.java.grammar import (
    FIRST_HANDLE,
    MAGIC,
    PRIMITIVES,
    SC_SERIALIZABLE,
    SC_WRITE_METHOD,
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
from wireyard.java.values import JavaCollection, JavaError, JavaValue

__all__ = ["read_hashtable", "write_hashtable"]

_TABLES = ("java.util.Hashtable", "java.util.Properties")

_WORDS = frozenset(
    ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "object")
)

_FIRST_CAPACITY = 11
_LOAD_FACTOR = 0.75


def read_hashtable(
    data: bytes | memoryview, limits: Limits = DEFAULT_LIMITS
) -> dict[str, tuple[str, Any]]:
    """Read a property section of JMQ 1.0.3 or 2.0.0.

    Returns
    -------
    dict
        Name to type word and value, in stream order. A value that is neither a string nor one of
        the seven numbers is an ``object``: its bytes as a whole stream of its own.

    Raises
    ------
    JavaError
        No serialized Hashtable with text for keys, or one over a limit.
    """
    reader = Reader(data, limits)
    start = reader.at
    table = reader.top()
    if not isinstance(table, JavaCollection) or table.class_name not in _TABLES:
        raise JavaError("bad_java", "property table", start, "is no java.util.Hashtable")
    entries: dict[str, tuple[str, Any]] = {}
    for key, value in table.items:
        if not isinstance(key, JavaValue) or key.type != "string":
            raise JavaError("bad_java", "property name", start, "is no string")
        name = key.value
        if name in entries:
            raise JavaError("bad_java", "property name", start, f"{name!r:.60} stands twice")
        if value is None:
            raise JavaError("bad_java", "property value", start, f"of {name!r:.60} is null")
        if isinstance(value, JavaValue) and value.type in _WORDS:
            entries[name] = value
        else:
            entries[name] = JavaValue("object", reader.graph.stream(reader.graph.handle(value)))
    return entries


def write_hashtable(entries: Mapping[str, tuple[str, Any]]) -> bytes:
    """Write a property section of JMQ 1.0.3 or 2.0.0, entries in the order given.

    The order has no meaning in a Hashtable; kept as read, it gives the bytes that were read.
    Booleans, bytes and whole numbers from -128 to 127 that repeat are references, as boxed
    values of a Java program are.

    Parameters
    ----------
    entries
        Name to type word and value. The value of an ``object`` is a whole serialization stream;
        its first object becomes the value.

    Raises
    ------
    EncodeError
        An unknown type word, a value its type cannot hold, or an ``object`` that is null or no
        stream this module can read.
    """
    writer = _Writer(len(entries))
    for name, (word, value) in entries.items():
        writer.string("property name", name)
        if word == "string":
            writer.string(f"property {name}", value)
        elif word == "object":
            writer.object(name, value)
        else:
            writer.box(name, word, value)
    return bytes(writer.out) + bytes((TC_ENDBLOCKDATA,))


def _descriptor(name: str, uid: int, flags: int, fields: tuple[tuple[str, str], ...]) -> bytes:
    """Return a class descriptor up to where its superclass stands."""
    parts = [struct.pack(">B", TC_CLASSDESC), _short_text(name)]
    parts.append(struct.pack(">QBH", uid, flags, len(fields)))
    parts.extend(code.encode() + _short_text(field) for code, field in fields)
    return b"".join((*parts, bytes((TC_ENDBLOCKDATA,))))


def _short_text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


_HASHTABLE = _descriptor(
    "java.util.Hashtable",
    0x13BB0F25214AE4B8,
    SC_SERIALIZABLE | SC_WRITE_METHOD,
    (("F", "loadFactor"), ("I", "threshold")),
)
_NUMBER = _descriptor("java.lang.Number", 0x86AC951D0B94E08B, SC_SERIALIZABLE, ())

# Type word: descriptor, `struct` code of the field.
_BOXES = {
    word: (_descriptor(name, uid, SC_SERIALIZABLE, ((code, "value"),)), ">" + PRIMITIVES[code])
    for name, (word, code, uid) in BOXES.items()
    if word in _WORDS
}


class _Writer:
    """The stream so far, and the handles it has given out."""

    def __init__(self, count: int) -> None:
        capacity = _FIRST_CAPACITY
        while count > int(capacity * _LOAD_FACTOR):
            capacity = 2 * capacity + 1
        self.out = bytearray(MAGIC)
        self.out += struct.pack(">B", TC_OBJECT) + _HASHTABLE + struct.pack(">B", TC_NULL)
        self.out += struct.pack(">fi", _LOAD_FACTOR, int(capacity * _LOAD_FACTOR))
        self.out += struct.pack(">BBii", TC_BLOCKDATA, 8, capacity, count)
        self.next = FIRST_HANDLE + 2
        self.classes: dict[str, int] = {}
        self.boxed: dict[tuple[str, Any], int] = {}

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

    def box(self, name: str, word: str, value: Any) -> None:
        if word not in _BOXES:
            words = ", ".join(sorted(_WORDS))
            raise EncodeError(f"type of property {name}", word, f"one of {words}")
        descriptor, form = _BOXES[word]
        data = self.packed(name, word, form, value)
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

    def packed(self, name: str, word: str, form: str, value: Any) -> bytes:
        if (word == "boolean") != isinstance(value, bool):
            raise EncodeError(f"property {name}", value, f"does not fit type {word}")
        if isinstance(value, float) and math.isnan(value):
            value = math.nan  # Java writes one NaN only: 7FC00000 and 7FF8000000000000.
        try:
            return struct.pack(form, value)
        except (struct.error, OverflowError, TypeError):
            raise EncodeError(f"property {name}", value, f"does not fit type {word}") from None

    def descriptor(self, word: str, descriptor: bytes) -> None:
        if word in self.classes:
            self.refer(self.classes[word])
            return
        self.out += descriptor
        self.classes[word] = self.assign()
        if word == "boolean":
            self.out.append(TC_NULL)  # every other box is a Number
        elif "number" in self.classes:
            self.refer(self.classes["number"])
        else:
            self.out += _NUMBER
            self.out.append(TC_NULL)
            self.classes["number"] = self.assign()

    def object(self, name: str, value: object) -> None:
        field = f"property {name}"
        if not isinstance(value, bytes):
            raise EncodeError(field, value, "an object property holds bytes")
        try:
            reader = Reader(value, DEFAULT_LIMITS)
            first = reader.top()
            if first is None:
                raise EncodeError(field, value, "a Hashtable holds no null")
            data, self.next = reader.graph.cut(reader.graph.handle(first), self.next)
        except JavaError as error:
            raise EncodeError(field, value, f"no serialization stream: {error}") from None
        self.out += data
