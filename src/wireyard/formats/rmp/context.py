"""The context of an RMP frame: the message's position in its packet, and the dialect.

Rules of this file:

1. A stream is one packet, as a datagram is; or it is `framed`: each packet comes after its length.
2. `ordinal` counts the messages of the packet before this one, and `before` their bytes, with the
   length before a framed packet.
3. `left` counts the bytes from this message to the end of a framed packet. It is 0 at the start of
   every packet, where the length is still to be read, and in streams that are one packet.
4. `at_end` is whether a stream that is one packet ends with the frame, so no message follows.

The worst case is a packet of `MAX_PACKET_BYTES`, 2**20, with messages of 4 bytes: 19 bits of
`ordinal`, 21 of `before`, and 16 of `left`, because a framed packet's length has 16 bits. With two
bits for the dialect and one for `at_end` that makes 59.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LIST_ORDER_BIT: Final = 1
"""Set if the length comes before the reply-to field."""
FRAMED: Final = 2
"""Set if each packet comes after its length."""
LEFT_SHIFT: Final = 2
LEFT_BITS: Final = 16
BEFORE_SHIFT: Final = LEFT_SHIFT + LEFT_BITS
BEFORE_BITS: Final = 21
ORDINAL_SHIFT: Final = BEFORE_SHIFT + BEFORE_BITS
_ORDINAL_BITS: Final = 19
_AT_END: Final = 1 << ORDINAL_SHIFT + _ORDINAL_BITS
"""Above the bits that kernels use, which leave streams that are one packet to the scalar reader."""


class MessageContext(NamedTuple):
    """A context as its parts."""

    list_order: bool
    framed: bool
    ordinal: int = 0
    before: int = 0
    left: int = 0
    at_end: bool = False

    @classmethod
    def of(cls, context: int) -> MessageContext:
        """Return the parts of a context."""
        return cls(
            bool(context & LIST_ORDER_BIT),
            bool(context & FRAMED),
            context >> ORDINAL_SHIFT & (1 << _ORDINAL_BITS) - 1,
            context >> BEFORE_SHIFT & (1 << BEFORE_BITS) - 1,
            context >> LEFT_SHIFT & (1 << LEFT_BITS) - 1,
            bool(context & _AT_END),
        )

    @property
    def context(self) -> int:
        """The context as one integer."""
        return (
            self.ordinal << ORDINAL_SHIFT
            | self.before << BEFORE_SHIFT
            | self.left << LEFT_SHIFT
            | self.framed * FRAMED
            | self.list_order * LIST_ORDER_BIT
            | self.at_end * _AT_END
        )
