"""The terminal symbols of the serialization grammar, and class descriptors.

Names and numbers are those of the Java Object Serialization Specification, chapter 6.
"""

from __future__ import annotations

import struct

from wireyard.java.shapes import BOXES, SHAPES, Shape

MAGIC = b"\xac\xed\x00\x05"
"""Stream magic and version."""

FIRST_HANDLE = 0x7E0000

TC_NULL, TC_REFERENCE, TC_CLASSDESC, TC_OBJECT, TC_STRING, TC_ARRAY, TC_CLASS = range(0x70, 0x77)
TC_BLOCKDATA, TC_ENDBLOCKDATA, TC_RESET, TC_BLOCKDATALONG = range(0x77, 0x7B)
TC_EXCEPTION, TC_LONGSTRING, TC_PROXYCLASSDESC, TC_ENUM = range(0x7B, 0x7F)

SC_WRITE_METHOD, SC_SERIALIZABLE, SC_EXTERNALIZABLE, SC_BLOCK_DATA, SC_ENUM = 1, 2, 4, 8, 16

PRIMITIVES = {"B": "b", "C": "H", "D": "d", "F": "f", "I": "i", "J": "q", "S": "h", "Z": "?"}
"""Field type codes of the primitives, as `struct` codes."""

_TO_STRUCT = str.maketrans(PRIMITIVES)
_NO_FIELDS = struct.Struct(">")


class ClassDesc:
    """One class descriptor; `parts` are the classes with data, of its ancestors and itself."""

    __slots__ = ("box", "flags", "name", "names", "objects", "parts", "primitives", "shape")

    def __init__(self, name: str) -> None:
        self.name = name
        self.flags = 0
        self.primitives = _NO_FIELDS
        self.names: list[str] = []
        self.objects: list[str] = []
        self.parts: tuple[ClassDesc, ...] | None = None
        self.box: str | None = None
        self.shape: Shape | None = None

    def close(self, codes: str, parent: ClassDesc | None) -> None:
        """Set the attributes that depend on the whole descriptor."""
        if codes:
            self.primitives = struct.Struct(">" + codes.translate(_TO_STRUCT))
        # An Externalizable class writes all data of the object; its ancestors have none.
        alone = self.flags & SC_EXTERNALIZABLE
        inherited = parent.parts if parent and parent.parts and not alone else ()
        # Classes without data are left out, or a long chain of them would be walked per object.
        written = self.flags & (SC_WRITE_METHOD | SC_EXTERNALIZABLE)
        has_data = self.names or self.objects or written
        self.parts = (*inherited, self) if has_data else inherited
        self.shape = SHAPES.get(self.name)
        word, code, _ = BOXES.get(self.name, (None, "", 0))
        if codes == code and self.names == ["value"] and self.parts == (self,):
            self.box = word
