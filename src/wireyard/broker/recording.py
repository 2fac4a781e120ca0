"""A record of what passes a broker: pcapng with frames made up around the plain bytes.

Every connection has its SYN, its FIN, and sequence numbers that fit, so that whatever reads
captures reads it. TLS and WebSocket are removed, and passwords are masked before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import IO, Final

__all__ = ["Recording", "Tape"]

_FIN, _SYN, _ACK = 1, 2, 16
_SEGMENT_BYTES: Final = 32 << 10
_ETHERNET: Final = 1
_NANOSECONDS: Final = bytes((9,))
_MACS: Final = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
Address = tuple[str, int]


class Recording:
    """A capture file that is written while connections are open.

    Parameters
    ----------
    file
        Gets whole blocks, flushed after each.
    time_ns
        Returns the time of a frame.
    say
        Is called with a line if the file cannot be written any more; the recording has ended then.
    """

    def __init__(
        self,
        file: IO[bytes],
        time_ns: Callable[[], int],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._file: IO[bytes] | None = file
        self._time_ns, self._say = time_ns, say
        self._write(_block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)))
        resolution = struct.pack("<HH", 9, 1) + _NANOSECONDS + bytes(3)
        self._write(_block(1, struct.pack("<HHI", _ETHERNET, 0, 0) + resolution))

    def open(self, client: Address, server: Address) -> Tape:
        """Begin a connection."""
        return Tape(self, client, server)

    def frame(self, data: bytes) -> None:
        """Write a frame."""
        time_ns = self._time_ns()
        head = struct.pack("<IIIII", 0, time_ns >> 32, time_ns & 0xFFFF_FFFF, len(data), len(data))
        self._write(_block(6, head + data + bytes(-len(data) % 4)))

    def _write(self, block: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(block)
            self._file.flush()
        except OSError as error:
            self._say(f"the recording has ended: {error.strerror}")
            self.close()

    def close(self) -> None:
        """End the recording."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what is in its buffer
                file.close()


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size


class Tape:
    """One connection of a recording."""

    def __init__(self, recording: Recording, client: Address, server: Address) -> None:
        self._recording = recording
        self._ends = client, server
        self._sent = [1, 1]
        """Next sequence number of each side, modulo 2^32."""
        self._segment(0, _SYN, b"", at=0)
        self._segment(1, _SYN | _ACK, b"", at=0)
        self._segment(0, _ACK, b"")

    def write(self, arrived: bool, data: bytes) -> None:
        """Write bytes of the client, which arrived, or of the broker."""
        side = 0 if arrived else 1
        for start in range(0, len(data), _SEGMENT_BYTES):
            self._segment(side, _ACK, data[start : start + _SEGMENT_BYTES])

    def close(self, by_client: bool) -> None:
        """End the connection."""
        first = 0 if by_client else 1
        for side in (first, 1 - first):
            self._segment(side, _FIN | _ACK, b"")
            self._sent[side] = self._sent[side] + 1 & 0xFFFF_FFFF
        self._segment(first, _ACK, b"")

    def _segment(self, side: int, flags: int, data: bytes, at: int | None = None) -> None:
        own, other = self._ends[side], self._ends[1 - side]
        sequence = self._sent[side] if at is None else at
        read = self._sent[1 - side] if flags & _ACK else 0
        ports = own[1], other[1]
        tcp = struct.pack(">HHIIBBHHH", *ports, sequence, read, 5 << 4, flags, 65535, 0, 0) + data
        self._sent[side] = self._sent[side] + len(data) & 0xFFFF_FFFF
        source, target = ip_address(own[0]), ip_address(other[0])
        if source.version == 6:
            ip = struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64)
            kind = 0x86DD
        else:
            ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0)
            kind = 0x0800
        ethernet = _MACS[1 - side] + _MACS[side] + kind.to_bytes(2, "big")
        self._recording.frame(ethernet + ip + source.packed + target.packed + tcp)
