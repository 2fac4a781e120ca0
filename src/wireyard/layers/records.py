"""Records that all layers share: the position of a packet, and a protocol violation.

Records of one protocol, such as messages and delivery attempts, are in the folder of its layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from wireyard.formats.base import Row

GAP, TAIL = "gap", "tail"
"""The status of bytes that were not captured, and of those of an unfinished packet."""
_NS_PER_S = 1_000_000_000
_BEFORE = -1
"""An offset that sorts before all packets of a stream."""


class Position(NamedTuple):
    """The position of a packet in a capture. Positions compare in the order of arrival.

    A receiver reads a stream in order, so a packet has arrived when it and all before it have: at
    `reached_ns`, in `reached_frame`. Raw streams have no times: their packets are at 0, ordered by
    stream and offset.
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
        """Return the position of a packet that all earlier ones of its stream arrived before."""
        get = row.get
        ns, frame = get("captured_ns"), get("frame")
        return position_of(
            (ns or 0, frame or 0, row["stream"], row["offset"], ns, frame, row["source"])
        )

    @property
    def time(self) -> int:
        """The capture time, or the offset where there is none: a sort key within a stream."""
        return self.offset if self.ns is None else self.ns

    @property
    def key(self) -> str:
        """The key of the message or request in this packet: ``stream@offset``."""
        return f"{self.stream}@{self.offset}"

    @property
    def order(self) -> tuple[int, int, str, int]:
        """The fields that order the packets of one source."""
        return self[:4]

    @property
    def lead(self) -> Row:
        """The columns of a row that identify the packet."""
        return {"source": self.source, "stream": self.stream, "offset": self.offset}

    def after(self, seconds: int) -> Position | None:
        """Return a position `seconds` later that sorts before all packets then; None without times.

        Units: seconds.
        """
        if self.ns is None:
            return None
        due_ns = self.ns + seconds * _NS_PER_S
        return Position(due_ns, 0, self.stream, _BEFORE, due_ns, None, self.source)


position_of = partial(tuple.__new__, Position)
"""A faster constructor of `Position` from a tuple of its values: it takes a third less time."""


class Violation(NamedTuple):
    """A violation of the protocol, or a gap of missing bytes."""

    rule: str
    text: str
    at: Position
    """The packet that violates the rule."""
    endpoint: str | None
    """The side that sent it; null or empty in a raw stream."""
    client_id: str | None = None
    """The client id of the connection."""
    message_key: str | None = None


def violation_row(protocol: str, violation: Violation) -> Row:
    """Return a violation as a row of `wireyard.layers.tables.VIOLATIONS`."""
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
