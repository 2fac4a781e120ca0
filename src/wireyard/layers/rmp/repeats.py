"""Packets of one sender that come again, as networks and captures double them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from wireyard.layers.rmp.limits import NUMBERS, Limits
from wireyard.layers.rmp.parsing import Fields

__all__ = ["Repeats"]

_ROOM_BYTES: Final = 1400
"""Of a packet, as the ring over UDP has it: more does not fit an Ethernet frame."""


class Repeats:
    """What the last packets of a sender were.

    Rules of this class (errata R27):

    1. An equal packet with a message number is the same, while its sender may not use the number
       again: twice the time that receivers wait for the rest of a message.
    2. A number is used again after all the others were, so no more than `NUMBERS` are remembered.
    3. Packets without a number say nothing by which one could know them. Two that are equal are one
       if they are no further apart than a sender waits for messages to share a packet, and if one
       packet had had room for both: it would have been one.
    4. Without times only numbers decide.

    A packet is remembered by a hash of 64 bits. Another one that has the same is taken for it: with
    all that is remembered, one in 2**48.
    """

    def __init__(self, limits: Limits) -> None:
        self._hold_s = 2 * limits.reassembly_timeout_s
        self._packing_s = limits.max_delay_s
        self._seen: OrderedDict[int, float] = OrderedDict()

    def again(self, packet: Sequence[tuple[Fields, bytes]], size: int, now: float | None) -> bool:
        """Observe a packet; say whether it came before.

        Parameters
        ----------
        packet
            What its messages say, and their data.
        size
            Its bytes.
        now
            When it came; None where that is unknown.
        """
        numbered = any(fields.message_number is not None for fields, _ in packet)
        if not numbered and (now is None or 2 * size > _ROOM_BYTES):
            return False
        key, at = hash(tuple(packet)), now or 0.0
        seen = self._seen.get(key)
        if seen is not None and at - seen <= (self._hold_s if numbered else self._packing_s):
            return True
        self._seen[key] = at
        self._seen.move_to_end(key)
        if len(self._seen) > NUMBERS:
            self._seen.popitem(last=False)
        return False
