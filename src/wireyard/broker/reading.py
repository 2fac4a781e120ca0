"""Sockets that are read into one buffer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final

_MAX_READ_BYTES: Final = 256 << 10


def read_room() -> memoryview:
    """Return a buffer for what arrives on the sockets of one loop."""
    return memoryview(bytearray(_MAX_READ_BYTES))


class Reading(asyncio.BufferedProtocol):
    """A socket that is read into `room`, which all sockets of a loop have in common.

    asyncio makes a new object of this size for each read, which takes longer than all else that is
    done with a packet.
    """

    def __init__(self, room: memoryview) -> None:
        self._room = room

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes are read into."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.data_received(bytes(self._room[:nbytes]))

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Handle what arrived."""
