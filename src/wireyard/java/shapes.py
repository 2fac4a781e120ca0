"""Tables of the serial forms of the known classes.

They are those of the "Serial Data" sections of the Java SE API.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from wireyard.java.values import JavaCollection, JavaValue

MAX_BIG_BYTES = 1785
"""Most bytes in the magnitude of a BigInteger. Python prints integers of at most 4300 digits, to
avoid quadratic time, and 256^1785 has 4299."""


class Parts(dict[str, tuple[dict[str, Any], list[Any]]]):
    """The data of one object in the stream, by class, root first.

    Each class has its fields by name, and the objects and primitive data (`bytes`) that its
    writeObject wrote after them.
    """

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset


BOXES = {
    "java.lang.Boolean": ("boolean", "Z", 0xCD207280D59CFAEE),
    "java.lang.Byte": ("byte", "B", 0x9C4E6084EE50F51C),
    "java.lang.Character": ("character", "C", 0x348B47D96B1A2678),
    "java.lang.Short": ("short", "S", 0x684D37133460DA52),
    "java.lang.Integer": ("integer", "I", 0x12E2A0A4F7818738),
    "java.lang.Long": ("long", "J", 0x3B8BE490CC8F23DF),
    "java.lang.Float": ("float", "F", 0xDAEDC9A2DB3CF0EC),
    "java.lang.Double": ("double", "D", 0x80B3C24A296BFB04),
}
"""By class: type name, type code of the one field ``value``, serialVersionUID."""


class ShapeError(ValueError):
    """An object of a known class in another form; the text is a predicate, without a subject."""

    def __init__(self, problem: str, code: str = "bad_java") -> None:
        self.code = code
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Shape:
    """The serial form of a class.

    `kind` is that of the `JavaCollection`, None for a value; `read` returns the elements, or the
    value.
    """

    kind: str | None
    read: Callable[[Parts], Any]


def _fields(parts: Parts, owner: str) -> dict[str, Any]:
    if owner not in parts:
        raise ShapeError(f"has no data of class {owner}")
    return parts[owner][0]


def _field(parts: Parts, owner: str, name: str, kind: str) -> Any:
    """Return a field, which has to be a value of the type `kind`, or an ``int``."""
    value = _fields(parts, owner).get(name)
    if kind == "int" and type(value) is int:
        return value
    if isinstance(value, JavaValue) and value.type == kind:
        return value.value
    raise ShapeError(f"has no field {name} of type {kind}")


def _written(parts: Parts, owner: str, form: str, lead: int = 0) -> tuple[int, list[Any]]:
    """Return the last number of the primitive data after `lead` objects, and the rest."""
    _fields(parts, owner)
    items = parts[owner][1]
    block = items[lead] if len(items) > lead else None
    if type(block) is not bytes or len(block) != struct.calcsize(form):
        raise ShapeError(f"wrote no {struct.calcsize(form)} bytes of primitive data")
    objects = items[lead + 1 :]
    if any(type(item) is bytes for item in objects):
        raise ShapeError("wrote primitive data among its elements")
    number: int = struct.unpack(form, block)[-1]
    return number, objects


def _checked(count: int, objects: list[Any], each: int = 1) -> list[Any]:
    if count * each != len(objects):
        raise ShapeError(f"says it has {count} elements, {len(objects) // each} follow")
    return objects


def _elements(owner: str, form: str, lead: int = 0) -> Callable[[Parts], list[Any]]:
    return lambda parts: _checked(*_written(parts, owner, form, lead))


def _entries(owner: str, form: str) -> Callable[[Parts], list[Any]]:
    return lambda parts: _pairs(_checked(*_written(parts, owner, form), 2))


def _pairs(objects: list[Any]) -> list[Any]:
    return list(zip(objects[::2], objects[1::2], strict=True))


def _array_list(parts: Parts) -> list[Any]:
    owner = "java.util.ArrayList"
    _, objects = _written(parts, owner, ">i")  # the capacity
    return _checked(_field(parts, owner, "size", "int"), objects)


def _vector(parts: Parts) -> list[Any]:
    owner = "java.util.Vector"
    array = _fields(parts, owner).get("elementData")
    count = _field(parts, owner, "elementCount", "int")
    if not isinstance(array, JavaCollection) or not 0 <= count <= len(array.items):
        raise ShapeError(f"has no array of {count} elements")
    return array.items[:count]


def _wrapped(owner: str, name: str) -> Callable[[Parts], list[Any]]:
    def read(parts: Parts) -> list[Any]:
        fields = _fields(parts, owner)
        if name not in fields:
            raise ShapeError(f"has no field {name}")
        return [fields[name]]

    return read


def _immutable(parts: Parts) -> list[Any]:
    """Read the serial form of ``List.of``, ``Set.of`` and ``Map.of``, which have different tags."""
    owner = "java.util.CollSer"
    objects = _checked(*_written(parts, owner, ">i"))
    tag = _field(parts, owner, "tag", "int") & 0xFF
    kind = {1: "list", 2: "set", 3: "map", 4: "list"}.get(tag)
    if kind is None or (kind == "map" and len(objects) % 2):
        raise ShapeError(f"has the tag {tag} and {len(objects)} elements")
    items = _pairs(objects) if kind == "map" else objects
    return [JavaCollection(owner, kind, items, parts.offset)]


def _date(parts: Parts) -> JavaValue:
    milliseconds, objects = _written(parts, "java.util.Date", ">q")
    _checked(0, objects)
    return JavaValue("date", milliseconds)


def _big_integer(parts: Parts) -> JavaValue:
    owner = "java.math.BigInteger"
    signum = _field(parts, owner, "signum", "int")
    magnitude = _field(parts, owner, "magnitude", "bytes").lstrip(b"\0")
    if not -1 <= signum <= 1 or bool(signum) != bool(magnitude):
        raise ShapeError(f"has signum {signum} and {len(magnitude)} bytes")
    if len(magnitude) > MAX_BIG_BYTES:
        problem = f"has {len(magnitude)} bytes, at most {MAX_BIG_BYTES} are read"
        raise ShapeError(problem, "limit_exceeded")
    return JavaValue("big_integer", signum * int.from_bytes(magnitude, "big"))


def _big_decimal(parts: Parts) -> JavaValue:
    owner = "java.math.BigDecimal"
    unscaled = _field(parts, owner, "intVal", "big_integer")
    scale = _field(parts, owner, "scale", "int")
    digits = tuple(map(int, str(abs(unscaled))))
    return JavaValue("big_decimal", Decimal((int(unscaled < 0), digits, -scale)))


def _singleton_map(parts: Parts) -> list[Any]:
    owner = _C + "SingletonMap"
    return [(_wrapped(owner, "k")(parts)[0], _wrapped(owner, "v")(parts)[0])]


def _nothing(parts: Parts) -> list[Any]:
    return []


_U = "java.util."
_C = "java.util.Collections$"

_HASHTABLE = Shape("map", _entries(_U + "Hashtable", ">ii"))  # capacity, count
_HASH_MAP = Shape("map", _entries(_U + "HashMap", ">ii"))
_HASH_SET = Shape("set", _elements(_U + "HashSet", ">ifi"))  # capacity, load factor, count
_VECTOR = Shape("list", _vector)
_COLLECTION_VIEW = Shape("wrapper", _wrapped(_C + "UnmodifiableCollection", "c"))
_COLLECTION_LOCK = Shape("wrapper", _wrapped(_C + "SynchronizedCollection", "c"))

SHAPES = {
    _U + "Hashtable": _HASHTABLE,
    _U + "Properties": _HASHTABLE,
    _U + "HashMap": _HASH_MAP,
    _U + "LinkedHashMap": _HASH_MAP,
    _U + "TreeMap": Shape("map", _entries(_U + "TreeMap", ">i")),
    _U + "ArrayList": Shape("list", _array_list),
    _U + "LinkedList": Shape("list", _elements(_U + "LinkedList", ">i")),
    _U + "ArrayDeque": Shape("list", _elements(_U + "ArrayDeque", ">i")),
    _U + "Vector": _VECTOR,
    _U + "Stack": _VECTOR,
    _U + "HashSet": _HASH_SET,
    _U + "LinkedHashSet": _HASH_SET,
    _U + "TreeSet": Shape("set", _elements(_U + "TreeSet", ">i", lead=1)),  # the comparator
    _U + "CollSer": Shape("wrapper", _immutable),
    _U + "Arrays$ArrayList": Shape("wrapper", _wrapped(_U + "Arrays$ArrayList", "a")),
    _C + "EmptyList": Shape("list", _nothing),
    _C + "EmptySet": Shape("set", _nothing),
    _C + "EmptyMap": Shape("map", _nothing),
    _C + "SingletonList": Shape("list", _wrapped(_C + "SingletonList", "element")),
    _C + "SingletonSet": Shape("set", _wrapped(_C + "SingletonSet", "element")),
    _C + "SingletonMap": Shape("map", _singleton_map),
    _C + "UnmodifiableCollection": _COLLECTION_VIEW,
    _C + "UnmodifiableList": _COLLECTION_VIEW,
    _C + "UnmodifiableRandomAccessList": _COLLECTION_VIEW,
    _C + "UnmodifiableSet": _COLLECTION_VIEW,
    _C + "UnmodifiableMap": Shape("wrapper", _wrapped(_C + "UnmodifiableMap", "m")),
    _C + "SynchronizedCollection": _COLLECTION_LOCK,
    _C + "SynchronizedList": _COLLECTION_LOCK,
    _C + "SynchronizedRandomAccessList": _COLLECTION_LOCK,
    _C + "SynchronizedSet": _COLLECTION_LOCK,
    _C + "SynchronizedMap": Shape("wrapper", _wrapped(_C + "SynchronizedMap", "m")),
    _U + "Date": Shape(None, _date),
    "java.math.BigInteger": Shape(None, _big_integer),
    "java.math.BigDecimal": Shape(None, _big_decimal),
}
"""Serial form by class name. Unmodifiable lists and sets have the wrapped collection in their root
class, so one shape serves all of a family."""
