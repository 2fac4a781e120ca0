"""A search for forbidden characters in topics, eight bytes at a time, for kernels."""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes
from wireyard.memory import HIGH_BITS, load_u8, load_word

_ONES: Final = 0x0101010101010101
_PLUS: Final = 0x2B2B2B2B2B2B2B2B
_PLUS_FROM_HASH: Final = 0x0808080808080808
"""The one bit in which + and # differ."""


@inlined
def has_forbidden(text: Bytes, at: int, stop: int) -> bool:
    """Return whether +, # or U+0000 is in ``text[at:stop]``.

    The high bit of a byte of ``(word - _ONES) & ~word`` is set first at a byte that is 0.
    """
    flags = 0
    for word_at in range(at, stop - 7, 8):
        word = load_word(text, word_at)
        wild = (word | _PLUS_FROM_HASH) ^ _PLUS
        flags |= ((word - _ONES) & ~word | (wild - _ONES) & ~wild) & HIGH_BITS
    odd = flags != 0
    for place in range(stop - (stop - at) % 8, stop):
        char = load_u8(text, place)
        odd |= (char == 0x2B) | (char == 0x23) | (char == 0)
    return odd
