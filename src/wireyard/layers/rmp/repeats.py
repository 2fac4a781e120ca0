"""Repeated packets of one sender, duplicated by networks and captures."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from wireyard.layers.rmp.limits import NUMBERS, Limits
from wireyard.layers.rmp.parsing import Fields

__all__ = ["Repeats"]

_ROOM_BYTES: Final = 1400
"""The longest packet of the ring over UDP: a longer one does not fit into an Ethernet frame."""


class Repeats:
    """The last packets of a sender.

    Rules of this class (errata R27):

    1. An equal packet with a message number is a repeat while its sender may not reuse the number:
       twice the time that receivers wait for the rest of a message.
    2. A number is reused after all others, so no more than `NUMBERS` packets are held.
    3. Packets without a number have no identity. Of two equal ones, the second is a repeat if it
       comes within the time that a sender waits for messages to share a packet, and both would have
       fitted into one packet: their sender would have packed them.
    4. Without times only packets with numbers can be repeats.

    A packet is held as a hash of 64 bits. A different packet with the same hash counts as a repeat:
    with all held packets, the chance is one in 2**48.
    """

    def __init__(self, limits: Limits) -> None:
        self._hold_s = 2 * limits.reassembly_timeout_s
        self._packing_s = limits.max_delay_s
        self._seen: OrderedDict[int, float] = OrderedDict()

    def is_repeat(
        self, packet: Sequence[tuple[Fields, bytes]], size: int, now: float | None
    ) -> bool:
        """Observe a packet; return whether it is a repeat.

        Parameters
        ----------
        packet
            The fields and data of its messages.
        size
            Its length in bytes.
        now
            The time in seconds; None if it is unknown.
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
