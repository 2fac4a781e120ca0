"""The property section of JMQ 1.0.3 and 2.0.0: one serialized ``Hashtable<String, Object>``."""

from __future__ import annotations

from typing import Any

from wireyard.java.cursor import DEFAULT_LIMITS, Limits
from wireyard.java.serial import Reader
from wireyard.java.values import JavaCollection, JavaError, JavaValue

_TABLES = ("java.util.Hashtable", "java.util.Properties")

_WORDS = frozenset(
    ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "object")
)


def read_hashtable(
    data: bytes | memoryview, limits: Limits = DEFAULT_LIMITS
) -> dict[str, tuple[str, Any]]:
    """Read a property section of JMQ 1.0.3 or 2.0.0.

    Returns
    -------
    dict
        Type name and value by property name, in stream order. A value that is no string, boolean
        or number is an ``object``: its bytes as a stream of its own.

    Raises
    ------
    JavaError
        Not a serialized Hashtable with strings as keys, or one over a limit.
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
