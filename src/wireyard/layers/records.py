"""Records that all layers share: the position of a packet, and a rule that was broken.

What only one protocol has, such as messages and delivery attempts, is in the folder of its layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

from wireyard.formats.base import Row

__all__ = ["Position", "Record", "Violation", "position_of", "violation_row"]

_NS_PER_S = 1_000_000_000
_BEFORE = -1
"""The offset of what comes before all packets of a stream."""


class Position(NamedTuple):
    """The position of a packet in a capture; the smaller of two is the earlier.

    A receiver reads a stream in order, so a packet has arrived when it and all before it have: at
    `reached_ns`, in `reached_frame`. What has no time is at 0, one stream behind the other.
    """

    reached_ns: int
    reached_frame: int
    stream: str
    offset: int
    ns: int | None
    """The packet's own time, null in raw streams."""
    frame: int | None
    source: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Position:
        """Return the position of a packet of which nothing before it is missing or late."""
        get = row.get
        ns, frame = get("captured_ns"), get("frame")
        return position_of(
            (ns or 0, frame or 0, row["stream"], row["offset"], ns, frame, row["source"])
        )

    @property
    def time(self) -> int:
        """The time, or the offset in the stream where there is none; it orders packets."""
        return self.offset if self.ns is None else self.ns

    @property
    def key(self) -> str:
        """The key of the message, or of the request, that the packet is."""
        return f"{self.stream}@{self.offset}"

    @property
    def order(self) -> tuple[int, int, str, int]:
        """The part of a position that orders the packets of one source."""
        return self[:4]

    @property
    def lead(self) -> Row:
        """The columns of a row that lead back to the packet."""
        return {"source": self.source, "stream": self.stream, "offset": self.offset}

    def after(self, seconds: int) -> Position | None:
        """Return the position some time later, before all packets then; None without a time."""
        if self.ns is None:
            return None
        due_ns = self.ns + seconds * _NS_PER_S
        return Position(due_ns, 0, self.stream, _BEFORE, due_ns, None, self.source)


position_of = partial(tuple.__new__, Position)
"""`Position` of a tuple of its values, in a third less time."""


class Violation(NamedTuple):
    """A rule that was broken, or bytes that are missing."""

    rule: str
    text: str
    at: Position
    """The packet that broke it."""
    endpoint: str | None
    """The side that broke it, null or empty in a raw stream."""
    client_id: str | None = None
    """That of the connection."""
    message_key: str | None = None


def violation_row(protocol: str, violation: Violation) -> Row:
    """Return a row of `wireyard.layers.tables.VIOLATIONS`."""
    at = violation.at
    return {
        "protocol": protocol,
        "rule": violation.rule,
        "client": violation.endpoint or None,
        "message_key": violation.message_key,
        "text": violation.text,
        "client_id": violation.client_id,
        "captured_ns": at.ns,
        "frame": at.frame,
        **at.lead,
    }


class Record:
    """Base of slotted dataclasses that are pickled as their values, in half the time and space.

    Named tuples among the values are pickled as plain ones.
    """

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Callable[..., Record], tuple[Any, ...]]:
        kind: Any = type(self)
        values_of, tuples = _layout(kind)
        values = list(values_of(self))
        for place, _ in tuples:
            if values[place] is not None:
                values[place] = tuple(values[place])
        return _restored, (kind, values)


def _restored(kind: Any, values: list[Any]) -> Any:
    for place, named_tuple in _layout(kind)[1]:
        if values[place] is not None:
            values[place] = named_tuple(*values[place])
    return kind(*values)


@cache
def _layout(kind: Any) -> tuple[Callable[[Any], Any], list[tuple[int, type]]]:
    """Return how to get the values of a record, and which of them are named tuples."""
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind)]
    tuples = [
        (place, one)
        for place, name in enumerate(names)
        for one in (hints[name], *_choices(hints[name]))
        if hasattr(one, "_fields")
    ]
    return attrgetter(*names), tuples


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else ()
