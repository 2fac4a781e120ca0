"""Encodings of Java: modified UTF-8, numbers as text, and serialized objects.

This package does not depend on formats: it raises a `JavaError` with an offset into its input, from
which a format makes an error of its own.
"""

from wireyard.java.serial import read_hashtable, read_objects
from wireyard.java.text import (
    decode_text,
    double_text,
    encode_modified,
    float_text,
    storable,
)
from wireyard.java.values import JavaCollection, JavaError, JavaValue, Opaque, plain
from wireyard.java.writing import write_hashmap, write_hashtable, write_objects

__all__ = [
    "JavaCollection",
    "JavaError",
    "JavaValue",
    "Opaque",
    "decode_text",
    "double_text",
    "encode_modified",
    "float_text",
    "plain",
    "read_hashtable",
    "read_objects",
    "storable",
    "write_hashmap",
    "write_hashtable",
    "write_objects",
]
