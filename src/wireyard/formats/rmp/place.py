"""Where a message stands in its packet, and how its stream is read: a frame's context opened.

Rules of this file:

1. A stream is one packet, as a datagram is; or it is `framed`: each packet after its length.
2. A message that is not its packet's first has a `place` above 0, and `before` counts the bytes of
   the packet in front of it, the length of a framed one too.
3. `left` counts the bytes from it to the end of a framed packet. It is 0 where nothing before the
   frame shows: at the start of every packet, and in streams that are one packet.
4. `ends` is whether a stream that is one packet ends with the frame, so no message follows.

The worst case is a packet of `MAX_PACKET_BYTES`, 2**20, with messages of 4 bytes: 19 bits of
`place`, 21 of `before`, and 16 of `left`, for which framed packets have 16 bits. With two bits for
the dialect and one for `ends` that makes 59.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "BEFORE_BITS",
    "BEFORE_SHIFT",
    "FRAMED",
    "LEFT_BITS",
    "LEFT_SHIFT",
    "LIST_ORDER_BIT",
    "PLACE_SHIFT",
    "Place",
]

LIST_ORDER_BIT: Final = 1
"""Set where the length stands before the reply-to field."""
FRAMED: Final = 2
"""Set where each packet stands after its length."""
LEFT_SHIFT: Final = 2
LEFT_BITS: Final = 16
BEFORE_SHIFT: Final = LEFT_SHIFT + LEFT_BITS
BEFORE_BITS: Final = 21
PLACE_SHIFT: Final = BEFORE_SHIFT + BEFORE_BITS
_PLACE_BITS: Final = 19
_ENDS: Final = 1 << PLACE_SHIFT + _PLACE_BITS
"""Above all that kernels look at: they leave streams that are one packet to the scalar reader."""


class Place(NamedTuple):
    """A context, taken apart."""

    list_order: bool
    framed: bool
    place: int = 0
    before: int = 0
    left: int = 0
    ends: bool = False

    @classmethod
    def of(cls, context: int) -> Place:
        """Return what `context` says."""
        return cls(
            bool(context & LIST_ORDER_BIT),
            bool(context & FRAMED),
            context >> PLACE_SHIFT & (1 << _PLACE_BITS) - 1,
            context >> BEFORE_SHIFT & (1 << BEFORE_BITS) - 1,
            context >> LEFT_SHIFT & (1 << LEFT_BITS) - 1,
            bool(context & _ENDS),
        )

    @property
    def context(self) -> int:
        """The place as one integer."""
        return (
            self.place << PLACE_SHIFT
            | self.before << BEFORE_SHIFT
            | self.left << LEFT_SHIFT
            | self.framed * FRAMED
            | self.list_order * LIST_ORDER_BIT
            | self.ends * _ENDS
        )
