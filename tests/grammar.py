"""Random text, properties and Java tables, byte by byte from the grammars: all that is well-formed.

Nothing here imports the code under test. What our writers never write is as likely as what they do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

__all__ = ["bits", "java_table", "lenient_text", "odd_bytes", "section", "strict_text"]

_ASCII = b"abcxyz ABC.09_-/:"
_SEQUENCES = (
    "ä",
    "é",
    "ß",
    "日",
    "Ω",
    "€",
    "😀",
    "𝄞",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\x7f",
    "\x80",
)
_ONLY_JAVA = (
    b"\xc0\x80",  # NUL as writeUTF writes it
    b"\0",
    b"\xed\xa0\xbd\xed\xb8\x80",  # a pair of surrogates
    b"\xed\xa0\x80",  # one half
    b"\xed\xbf\xbf",  # the other
)


def bits(rng: Random, count: int) -> int:
    """Return an integer of so many bits; its ends and small ones are as likely as others."""
    edges = (0, 1, (1 << count) - 1, 1 << count - 1, rng.getrandbits(count) >> rng.randrange(count))
    return rng.choice((*edges, rng.getrandbits(count)))


def odd_bytes(rng: Random, sizes: Sequence[int]) -> bytes:
    """Return bytes of one of the sizes."""
    return rng.randbytes(rng.choice(sizes))


def strict_text(rng: Random, most: int) -> str:
    """Return up to `most` characters that every UTF-8 has."""
    if rng.random() < 0.7:
        return bytes(rng.choices(_ASCII, k=rng.randint(0, most))).decode()
    letters = (*_SEQUENCES, "a", "b", "c")
    return "".join(rng.choices(letters, k=rng.randint(0, most)))


def lenient_text(rng: Random, most: int) -> bytes:
    """Return text as Java programs and others may send it: in any form of any character."""
    if rng.random() < 0.8:
        return strict_text(rng, most).encode()
    parts = (*_ONLY_JAVA, *(each.encode() for each in _SEQUENCES), b"a", b"zz")
    return b"".join(rng.choices(parts, k=rng.randint(0, most)))


def text(data: bytes) -> bytes:
    """Lay out a length of 16 bits and text."""
    return struct.pack(">H", len(data)) + data


# --- the marshalled section -----------------------------------------------------------------

_JAVA_STRING = bytes.fromhex("aced0005740001 61")
_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 4, 7: 8}
_FLOATS = {6: (b"\x7f\xc0\0\0", b"\x7f\x80\0\1", b"\xff\xff\xff\xff", b"\x80\0\0\0"),
           7: (b"\x7f\xf8" + bytes(6), b"\x7f\xf0" + b"\0" * 5 + b"\1", b"\xff" * 8)}  # fmt: skip


def section(rng: Random, short_objects: bool) -> bytes:
    """Return a marshalled section: any names, twice too, any bytes as values, slack at its end."""
    entries = [_property(rng, short_objects) for _ in range(rng.choice((0, 1, 2, 3, 3, 8)))]
    if rng.random() < 0.01:
        entries += [_property(rng, short_objects) for _ in range(70)]
    if entries and rng.random() < 0.1:
        entries.insert(rng.randrange(len(entries)), rng.choice(entries))
    slack = odd_bytes(rng, (1, 2, 7, 40)) if rng.random() < 0.05 else b""
    return struct.pack(">ii", 1, len(entries)) + b"".join(entries) + slack


def _property(rng: Random, short_objects: bool) -> bytes:
    name = lenient_text(rng, 12)
    code = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 9))
    if code == 8:
        value = text(lenient_text(rng, 30))
    elif code == 9:
        held, is_short = odd_bytes(rng, (0, 1, 5, 30)), short_objects
        if rng.random() < 0.5:  # a serialized object shows the width of its length
            held, is_short = _JAVA_STRING + held, rng.random() < 0.5
        value = struct.pack(">H" if is_short else ">i", len(held)) + held
    elif code in _FLOATS and rng.random() < 0.1:
        value = rng.choice(_FLOATS[code])
    elif code == 1 and rng.random() < 0.9:
        value = bytes([rng.randrange(2)])
    else:
        value = bits(rng, 8 * _WIDTHS[code]).to_bytes(_WIDTHS[code], "big")
    return text(name) + struct.pack(">h", code) + value


# --- java.util.Hashtable --------------------------------------------------------------------

_HASHTABLE = "13bb0f25214ae4b8 03 0002 46 000a 6c6f6164466163746f72 49 0009 7468726573686f6c64 78"
_PROPERTIES = "3912d07a70363e98 02 0001 4c 0008 64656661756c7473"
_NUMBER = "86ac951d0b94e08b 02 0000 78 70"
_BOXES = {
    "java.lang.Boolean": ("cd207280d59cfaee", "Z", 1),
    "java.lang.Byte": ("9c4e6084ee50f51c", "B", 1),
    "java.lang.Short": ("684d37133460da52", "S", 2),
    "java.lang.Integer": ("12e2a0a4f7818738", "I", 4),
    "java.lang.Long": ("3b8be490cc8f23df", "J", 8),
    "java.lang.Float": ("daedc9a2db3cf0ec", "F", 4),
    "java.lang.Double": ("80b3c24a296bfb04", "D", 8),
}


class _Table:
    """A serialization stream from left to right, and the handles that it has given out."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.out = bytearray(b"\xac\xed\0\5")
        self.handles = 0
        self.classes: dict[str, int] = {}
        self.values: list[int] = []

    def handle(self) -> int:
        self.handles += 1
        return 0x7E0000 + self.handles - 1

    def put(self, *parts: str | bytes) -> None:
        for part in parts:
            self.out += bytes.fromhex(part) if isinstance(part, str) else part

    def refer(self, handle: int) -> None:
        self.put(b"\x71", struct.pack(">I", handle))

    def described(self, name: str, rest: str) -> None:
        """Write a class descriptor up to its superclass."""
        self.put(b"\x72", text(name.encode()), rest)
        self.classes[name] = self.handle()

    def string(self, data: bytes) -> None:
        if self.rng.random() < 0.1:
            self.put(b"\x7c", struct.pack(">q", len(data)), data)
        else:
            self.put(b"\x74", text(data))
        self.values.append(self.handle())

    def box(self, name: str) -> None:
        uid, code, width = _BOXES[name]
        self.put(b"\x73")
        if name in self.classes:
            self.refer(self.classes[name])
        else:
            field = f"{uid} 02 0001 {ord(code):02x} 0005 76616c7565 78"
            self.described(name, field)
            if name == "java.lang.Boolean":
                self.put("70")
            elif "java.lang.Number" in self.classes:
                self.refer(self.classes["java.lang.Number"])
            else:
                self.described("java.lang.Number", _NUMBER)
        self.values.append(self.handle())
        most = 2 if name == "java.lang.Boolean" and self.rng.random() < 0.9 else 256
        self.put(bytes([self.rng.randrange(most)]) if width == 1 else self.rng.randbytes(width))

    def value(self) -> None:
        kind = self.rng.randrange(10)
        if kind == 0 and self.values:
            self.refer(self.rng.choice(self.values))
        elif kind <= 3:
            self.string(lenient_text(self.rng, 20))
        elif kind == 4:
            self.bytes()
        else:
            self.box(self.rng.choice([*_BOXES]))

    def bytes(self) -> None:
        self.put(b"\x75")
        if "[B" in self.classes:
            self.refer(self.classes["[B"])
        else:
            self.described("[B", "acf317f8060854e0 02 0000 78 70")
        self.values.append(self.handle())
        held = odd_bytes(self.rng, (0, 1, 9))
        self.put(struct.pack(">i", len(held)), held)


def java_table(rng: Random) -> bytes:
    """Return a serialized Hashtable, sometimes its subclass Properties; the sizes mean nothing."""
    table = _Table(rng)
    derived = rng.random() < 0.2
    table.put(b"\x73")
    if derived:
        table.put(b"\x72", text(b"java.util.Properties"), _PROPERTIES)
        table.handle()
        table.put(b"\x74", text(b"Ljava/util/Properties;"), b"\x78")
        table.handle()
    table.described("java.util.Hashtable", _HASHTABLE)
    table.put("70")
    table.handle()
    count = rng.choice((0, 1, 2, 3, 9))
    factor, threshold = rng.choice(((b"\x3f\x40\0\0", 8), (rng.randbytes(4), bits(rng, 31))))
    capacity = rng.choice((11, 23, bits(rng, 31)))
    table.put(factor, struct.pack(">i", threshold), "7708", struct.pack(">ii", capacity, count))
    for number in range(count):
        table.string(lenient_text(rng, 10) + b"%d" % number)
        table.value()
    table.put("78 70" if derived else "78")
    return bytes(table.out)
