"""Fixed headers and columns as tables, for decoding, schemas, the inspector and the documents."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["Column", "Field", "Layout"]

_CODES = {"i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a fixed header; offsets and widths are bytes."""

    name: str
    offset: int
    width: int
    kind: str
    """``i8 u8 i16 u16 i32 u32 i64`` or ``bytes``."""
    doc: str
    spec: str
    unit: str | None = None

    @property
    def stop(self) -> int:
        """First byte after the field."""
        return self.offset + self.width

    @property
    def code(self) -> str:
        """The field as a `struct` code."""
        return _CODES.get(self.kind, f"{self.width}s")


@dataclass(frozen=True)
class Layout:
    """A fixed header: its fields in wire order, without gaps or overlaps."""

    name: str
    fields: tuple[Field, ...]
    byte_order: str = ">"
    size: int = field(init=False)

    def __post_init__(self) -> None:
        position = 0
        for item in self.fields:
            if item.offset != position or struct.calcsize(">" + item.code) != item.width:
                raise ValueError(f"{self.name}: field {item.name} does not stand at {position}")
            position = item.stop
        object.__setattr__(self, "size", position)

    def __getitem__(self, name: str) -> Field:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {item.name: item for item in self.fields}

    @cached_property
    def struct(self) -> struct.Struct:
        """The whole header as one `struct.Struct`."""
        return struct.Struct(self.byte_order + "".join(item.code for item in self.fields))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Field names in wire order."""
        return tuple(item.name for item in self.fields)

    def unpack(self, data: bytes | memoryview, start: int = 0) -> dict[str, int | bytes]:
        """Return every field of the header at `start` by name."""
        return dict(zip(self.names, self.struct.unpack_from(data, start), strict=True))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a format's rows.

    `kind` is one of the types that every engine supports: ``bool int32 int64 string binary``, or a
    composite type of ``wireyard.schema``. An ``offset`` is a position in the stream; formats give
    it relative to the row's own offset, which is added.
    """

    name: str
    kind: str
    doc: str
    spec: str = ""
    unit: str | None = None
