"""A strict, bounded reader of Java serialization streams.

It follows the grammar of the Java Object Serialization Specification, chapter 6. No class that the
stream names is looked up, imported or instantiated. Class descriptors give the lengths of the
fields of any class, and the data of its own writeObject ends with TC_ENDBLOCKDATA, so objects of
unknown classes can be skipped without guessing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from wireyard.java.cursor import Cursor
from wireyard.java.grammar import (
    PRIMITIVES,
    SC_BLOCK_DATA,
    SC_ENUM,
    SC_EXTERNALIZABLE,
    SC_SERIALIZABLE,
    SC_WRITE_METHOD,
    TC_ARRAY,
    TC_BLOCKDATA,
    TC_BLOCKDATALONG,
    TC_CLASS,
    TC_CLASSDESC,
    TC_ENDBLOCKDATA,
    TC_ENUM,
    TC_LONGSTRING,
    TC_NULL,
    TC_OBJECT,
    TC_PROXYCLASSDESC,
    TC_REFERENCE,
    TC_RESET,
    TC_STRING,
    ClassDesc,
)
from wireyard.java.shapes import BOXES, Parts, Shape, ShapeError
from wireyard.java.values import MAX_DEPTH, JavaCollection, JavaError, JavaValue, Opaque

_OPEN = object()
"""Stands for a value that is still being read."""

_DESCRIPTOR = struct.Struct(">QBH")
"""serialVersionUID, flags, number of fields."""


class Reader(Cursor):
    """A recursive descent reader of one stream.

    There is one method for each symbol of the grammar; `start` is the offset of its TC byte. Each
    level of nesting is at most five calls deep, so `MAX_DEPTH` bounds the stack.
    """

    def top(self) -> Any:
        """Read one top-level object."""
        self.resets()
        return self.value("object")

    def resets(self) -> None:
        """Skip TC_RESET, which invalidates all handles and is allowed between objects only."""
        while self.at < self.size and self.data[self.at] == TC_RESET:
            self.at += 1
            self.base = len(self.graph.values)

    def value(self, field: str) -> Any:
        """Read any object, or null."""
        start = self.take(1, field)
        return self.tagged(self.data[start], start, field)

    def tagged(self, tag: int, start: int, field: str) -> Any:
        """Read an object after its TC byte."""
        read = _READERS.get(tag)
        if read is None:
            problem = f"is {tag:#04x}, not the start of an object"
            raise JavaError("bad_java", field, start, problem)
        return read(self, start)

    def null(self, start: int) -> None:
        """Return the null reference."""

    def reference(self, start: int) -> Any:
        """Return an earlier object; a collection may still be without its elements."""
        value = self.refer(start)
        if value is _OPEN or isinstance(value, ClassDesc):
            raise JavaError("bad_java", "reference", start, "is to no complete object")
        if self.descriptors and not (isinstance(value, JavaValue) and value.type == "string"):
            # Java refers only to strings there. An object could contain one of the incomplete
            # class, which could not be extracted from the stream.
            raise JavaError("bad_java", "reference", start, "is to an object, in a descriptor")
        return value

    def string(self, start: int, length_bytes: int = 2) -> JavaValue:
        """Read a String."""
        handle = self.assign(self.begin(start), _OPEN)
        value = JavaValue("string", self.text(length_bytes, "string"))
        self.end(handle, value)
        return value

    def type_string(self, field: str) -> str:
        """Read a String where the grammar allows nothing else."""
        start = self.at
        value = self.value(field)
        if not isinstance(value, JavaValue) or value.type != "string":
            raise JavaError("bad_java", field, start, "is no string")
        text: str = value.value
        return text

    def class_desc(self) -> ClassDesc | None:
        """Read a class descriptor, a reference to a complete one, or null."""
        start = self.take(1, "class descriptor")
        tag = self.data[start]
        if tag == TC_CLASSDESC:
            return self.new_class(start)
        if tag == TC_PROXYCLASSDESC:
            return self.proxy_class(start)
        if tag == TC_NULL:
            return None
        value = self.refer(start) if tag == TC_REFERENCE else None
        if not isinstance(value, ClassDesc) or value.parts is None:
            raise JavaError("bad_java", "class descriptor", start, "is no class descriptor")
        return value

    def class_of(self, start: int, kinds: int, field: str) -> ClassDesc:
        """Read the class descriptor of the object at `start`, with one of the flags `kinds`."""
        desc = self.class_desc()
        if desc is None:
            raise JavaError("bad_java", field, start, "has no class")
        if not desc.flags & kinds:
            raise JavaError("bad_java", field, start, f"has a class of flags {desc.flags:#04x}")
        return desc

    def new_class(self, start: int) -> ClassDesc:
        """Read a class descriptor that is no reference."""
        begun = self.begin(start)
        desc = ClassDesc(self.text(2, "class name"))
        handle = self.assign(begun, desc)
        self.descriptors += 1
        at = self.take(_DESCRIPTOR.size, "class descriptor")
        _, desc.flags, count = _DESCRIPTOR.unpack_from(self.data, at)
        if desc.flags & _BOTH_KINDS == _BOTH_KINDS:
            raise JavaError("bad_java", "class flags", at + 8, f"are {desc.flags:#04x}")
        codes = "".join([self.field_desc(desc) for _ in range(count)])
        self.finish(desc, codes, handle)
        return desc

    def finish(self, desc: ClassDesc, codes: str, handle: int) -> None:
        """Read the end of a class descriptor: its annotation and its superclass."""
        self.annotation()
        self.descriptors -= 1
        start = self.at
        desc.close(codes, self.class_desc())
        if len(desc.parts or ()) > MAX_DEPTH:
            # By references to earlier descriptors; nesting is limited by `begin`.
            problem = f"has more than {MAX_DEPTH} ancestors"
            raise JavaError("limit_exceeded", "superclass", start, problem)
        self.end(handle, desc)

    def field_desc(self, desc: ClassDesc) -> str:
        """Add one field to `desc`; return its type code if it is primitive, else nothing."""
        start = self.take(1, "field type")
        code = chr(self.data[start])
        name = self.text(2, "field name")
        if code in PRIMITIVES and not desc.objects:
            desc.names.append(name)
            return code
        if code not in "L[":
            # Java requires primitive fields before object fields.
            raise JavaError("bad_java", "field type", start, f"is {code!r} in a wrong place")
        self.type_string("field class")
        desc.objects.append(name)
        return ""

    def proxy_class(self, start: int) -> ClassDesc:
        """Read the descriptor of a dynamic proxy."""
        begun = self.begin(start)
        desc = ClassDesc("java.lang.reflect.Proxy")
        handle = self.assign(begun, desc)
        self.descriptors += 1
        for _ in range(self.number(4, "interface count")):
            self.text(2, "interface name")
        desc.flags = SC_SERIALIZABLE
        self.finish(desc, "", handle)
        return desc

    def annotation(self) -> list[Any]:
        """Read up to TC_ENDBLOCKDATA: objects, and each block of primitive data as `bytes`."""
        items: list[Any] = []
        while True:
            start = self.take(1, "block data")
            tag = self.data[start]
            if tag == TC_ENDBLOCKDATA:
                return items
            if tag in (TC_BLOCKDATA, TC_BLOCKDATALONG):
                size = self.number(1 if tag == TC_BLOCKDATA else 4, "block size")
                begin = self.take(size, "block data")
                items.append(self.data[begin : self.at])
            else:
                items.append(self.tagged(tag, start, "object"))
            self.count(1, "objects", start)

    def object(self, start: int) -> Any:
        """Read an instance of a class that is neither an array nor an enum."""
        begun = self.begin(start)
        desc = self.class_of(start, SC_SERIALIZABLE | SC_EXTERNALIZABLE, "object")
        if desc.box:
            return self.end(self.assign(begun, _OPEN), self.boxed(desc))
        shape = desc.shape
        node: Any = _OPEN
        if shape is None:
            node = self.opaque(desc.name, start)
        elif shape.kind:
            node = JavaCollection(desc.name, shape.kind, [], start)
        handle = self.assign(begun, node)
        parts = Parts(start)
        for part in desc.parts or ():
            parts[part.name] = self.part(part)
        return self.end(handle, self.shaped(desc.name, shape, parts, node) if shape else node)

    def opaque(self, class_name: str, start: int) -> Opaque:
        """Return the object that gets the next handle, as one of an unknown class."""
        return Opaque(class_name, start, partial(self.graph.stream, len(self.graph.values)))

    def boxed(self, desc: ClassDesc) -> JavaValue:
        """Read the one field of a boxed primitive."""
        value = desc.primitives.unpack_from(self.data, self.take(desc.primitives.size, desc.name))
        assert desc.box
        return JavaValue(desc.box, chr(value[0]) if desc.box == "character" else value[0])

    def part(self, desc: ClassDesc) -> tuple[dict[str, Any], list[Any]]:
        """Read the data of one class of an object: fields by name, and its annotation."""
        fields: dict[str, Any] = {}
        if desc.flags & SC_SERIALIZABLE:
            start = self.take(desc.primitives.size, "fields")
            numbers = desc.primitives.unpack_from(self.data, start)
            fields.update(zip(desc.names, numbers, strict=True))
            for name in desc.objects:
                fields[name] = self.value(name)
            return fields, self.annotation() if desc.flags & SC_WRITE_METHOD else []
        if not desc.flags & SC_BLOCK_DATA:
            # Only the class itself could find the end of its data.
            raise JavaError("bad_java", desc.name, self.at, "has data without an end mark")
        return fields, self.annotation()

    def shaped(self, name: str, shape: Shape, parts: Parts, node: Any) -> Any:
        """Return the value of an object of a known class, or `node` filled with its elements."""
        try:
            content = shape.read(parts)
        except ShapeError as error:
            raise JavaError(error.code, name, parts.offset, str(error)) from None
        if shape.kind is None:
            return content
        node.items.extend(content)
        return node

    def array(self, start: int) -> JavaValue | JavaCollection:
        """Read an array: a byte[] as `bytes`, others with their elements."""
        begun = self.begin(start)
        desc = self.class_of(start, SC_SERIALIZABLE, "array")
        code = desc.name[1:2] if desc.name[:1] == "[" else ""
        kind = "primitives" if code in PRIMITIVES else "list"
        node: Any = _OPEN if code == "B" else JavaCollection(desc.name, kind, [], start)
        handle = self.assign(begun, node)
        size = self.number(4, "array length", signed=True)
        if size < 0 or not code:
            problem = f"is {size} for class {desc.name!r:.60}"
            raise JavaError("bad_java", "array length", self.at - 4, problem)
        if code == "B":
            begin = self.take(size, "array")
            node = JavaValue("bytes", self.data[begin : self.at])
        elif code in PRIMITIVES:
            self.primitives(node, code, size)
        else:
            self.references(node, size)
        self.end(handle, node)
        array: JavaValue | JavaCollection = node
        return array

    def primitives(self, node: JavaCollection, code: str, size: int) -> None:
        """Read the elements of an array of numbers, booleans or characters."""
        form = f">{size}{PRIMITIVES[code]}"
        self.count(size, "array elements", self.at)
        begin = self.take(struct.calcsize(form), "array")
        numbers = struct.unpack_from(form, self.data, begin)
        node.items.extend(map(chr, numbers) if code == "C" else numbers)

    def references(self, node: JavaCollection, size: int) -> None:
        """Read the elements of an array of objects; the shortest, null, has one byte."""
        self.count(size, "array elements", self.at)
        if size > self.size - self.at:
            self.take(size, "array")
        for _ in range(size):
            node.items.append(self.value("array element"))

    def class_object(self, start: int) -> Opaque:
        """Read a ``java.lang.Class``."""
        begun = self.begin(start)
        self.class_desc()
        node = self.opaque("java.lang.Class", start)
        self.end(self.assign(begun, node), node)
        return node

    def enum(self, start: int) -> JavaValue:
        """Read an enum constant."""
        begun = self.begin(start)
        desc = self.class_of(start, SC_ENUM, "enum")
        handle = self.assign(begun, _OPEN)
        value = JavaValue("enum", f"{desc.name}.{self.type_string('enum constant')}")
        self.end(handle, value)
        return value


_BOTH_KINDS = SC_SERIALIZABLE | SC_EXTERNALIZABLE

_READERS: dict[int, Callable[[Reader, int], Any]] = {
    TC_NULL: Reader.null,
    TC_REFERENCE: Reader.reference,
    TC_OBJECT: Reader.object,
    TC_STRING: Reader.string,
    TC_LONGSTRING: partial(Reader.string, length_bytes=8),
    TC_ARRAY: Reader.array,
    TC_CLASS: Reader.class_object,
    TC_ENUM: Reader.enum,
}


def read_objects(data: bytes | memoryview) -> list[Any]:
    """Read all top-level objects of a stream; objects that they share are the same in Python.

    A value is a `JavaValue`, `JavaCollection`, `Opaque`, or None for null. A JavaError is raised if
    the bytes are no stream, end too early, or go over a limit.
    """
    reader = Reader(data)
    values = []
    while reader.at < reader.size:
        reader.count(1, "objects", reader.at)
        values.append(reader.top())
        reader.resets()
    return values


_TABLES = ("java.util.Hashtable", "java.util.Properties")
_PROPERTY_TYPES = {word for word, *_ in BOXES.values()} - {"character"} | {"string"}


def read_hashtable(data: bytes | memoryview) -> dict[str, tuple[str, Any]]:
    """Read a property section of JMQ 1.0.3 or 2.0.0: one serialized ``Hashtable<String, Object>``.

    Return type name and value by property name, in stream order. A value that is no string, boolean
    or number is an ``object``: its bytes as a stream of its own. A JavaError is raised for anything
    else than a Hashtable with strings as keys, or for one over a limit.
    """
    reader = Reader(data)
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
        if isinstance(value, JavaValue) and value.type in _PROPERTY_TYPES:
            entries[name] = value
        else:
            entries[name] = JavaValue("object", reader.graph.stream(reader.graph.handle(value)))
    return entries
