"""A record of what passes a broker or a proxy: pcapng with frames made up around the plain bytes.

Every connection has its SYN, its FIN or RST, and sequence numbers that fit, so that whatever reads
captures reads it. TLS is removed, and passwords are masked before.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Final, NamedTuple

_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_SEGMENT_BYTES: Final = 32 << 10
_BLOCK: Final = struct.Struct("<IIIIIII")
_SIZE: Final = struct.Struct("<I")
_TCP: Final = struct.Struct(">HHIIBBHHH")
_IPV4: Final = struct.Struct(">BBHHHBBH")
_IPV6: Final = struct.Struct(">IHBB")
_ETHERNET: Final = 1
_NANOSECONDS: Final = bytes((9,))
_HEAD_BYTES: Final = 56
"""Bytes of a file without a frame."""
_MACS: Final = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
Address = tuple[str, int]


def shown_address(address: Address) -> str:
    """Return an address as text."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Rotation(NamedTuple):
    """When a recording goes on in a new file: once either limit is reached, with the next frame."""

    open_next: Callable[[], IO[bytes]]
    """Returns the new file."""
    max_bytes: int
    max_seconds: float


def record_into(
    folder: Path,
    kind: str,
    time_ns: Callable[[], int],
    say: Callable[[str], None],
    max_bytes: int = 0,
    max_seconds: float = 0,
    later: Callable[[Callable[[], None]], object] | None = None,
) -> Recording:
    """Begin a recording in a folder, which is made if it is missing.

    `kind` is the first word of the names of files; the rest is the time at which they begin. A file
    that has reached `max_bytes` or `max_seconds` is followed by a new one; 0 is no limit.
    `time_ns`, `say` and `later` are those of `Recording`. An `OSError` is raised if the folder or
    its first file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def open_next() -> IO[bytes]:
        seconds, rest = divmod(time_ns(), 1_000_000_000)
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
        path = folder / f"{kind}-{began}-{rest // 1000:06}.pcapng"
        file = path.open("xb")
        say(f"records to {path}")
        return file

    rotation = Rotation(open_next, max_bytes, max_seconds) if max_bytes or max_seconds else None
    return Recording(open_next(), time_ns, say, rotation, later)


class Recording:
    """A capture file that is written while connections are open.

    `file` gets whole blocks. `time_ns` returns the time of a frame. `say` is called with a line if
    the file cannot be written any more; the recording has ended then. `rotation` is when it goes on
    in a new file, in which open connections continue; None for never. `later` has a function called
    soon, which makes readers see all that was written until then; if it is None, each write does.
    """

    def __init__(
        self,
        file: IO[bytes],
        time_ns: Callable[[], int],
        say: Callable[[str], None] = lambda text: None,
        rotation: Rotation | None = None,
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._time_ns, self._say, self._rotation = time_ns, say, rotation
        self._later, self._is_flush_due = later, False
        self._begin(file)

    def open(self, client: Address, server: Address) -> Tape:
        """Begin a connection."""
        return Tape(self, client, server)

    def write(self, frames: list[tuple[bytes, bytes]]) -> None:
        """Write frames, each as its headers and its data."""
        time_ns = self._time_ns()
        if self._rotation is not None and self._size > _HEAD_BYTES:
            self._rotate(self._rotation, time_ns)
        parts: list[bytes] = []
        for headers, data in frames:
            length = len(headers) + len(data)
            padding = -length % 4
            size = 32 + length + padding
            times = time_ns >> 32, time_ns & 0xFFFF_FFFF
            parts += (
                _BLOCK.pack(6, size, 0, *times, length, length),
                headers,
                data,
                bytes(padding),
                _SIZE.pack(size),
            )
        self._append(b"".join(parts))

    def _begin(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file
        self._began_ns, self._size = self._time_ns(), 0
        resolution = struct.pack("<HH", 9, 1) + _NANOSECONDS + bytes(3)
        self._append(
            _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
            + _block(1, struct.pack("<HHI", _ETHERNET, 0, 0) + resolution)
        )

    def _rotate(self, rotation: Rotation, now_ns: int) -> None:
        is_full = 0 < rotation.max_bytes <= self._size
        is_old = 0 < rotation.max_seconds * 1e9 <= now_ns - self._began_ns
        if self._file is not None and (is_full or is_old):
            self.close()
            try:
                self._begin(rotation.open_next())
            except OSError as error:
                self._fail(error)

    def _append(self, blocks: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(blocks)
            self._size += len(blocks)
            if self._later is None:
                self._file.flush()
            elif not self._is_flush_due:
                self._is_flush_due = True
                self._later(self._flush)
        except OSError as error:
            self._fail(error)

    def _flush(self) -> None:
        self._is_flush_due = False
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._say(f"the recording has ended: {error.strerror}")
        self.close()

    def close(self) -> None:
        """End the recording."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what is in its buffer
                file.close()


def _block(kind: int, body: bytes) -> bytes:
    size = _SIZE.pack(12 + len(body))
    return _SIZE.pack(kind) + size + body + size


class Tape:
    """One connection of a recording."""

    def __init__(self, recording: Recording, client: Address, server: Address) -> None:
        self._recording = recording
        self._ports = client[1], server[1]
        ends = ip_address(client[0]), ip_address(server[0])
        self._packed = ends[0].packed, ends[1].packed
        self._is_ipv6 = ends[0].version == 6
        self._sent = [1, 1]
        """Next sequence number of each side, modulo 2^32."""
        self._finished = [False, False]
        self._segment(0, _SYN, b"", at=0)
        self._segment(1, _SYN | _ACK, b"", at=0)
        self._segment(0, _ACK, b"")

    def write(self, arrived: bool, data: bytes) -> None:
        """Write bytes of the client, which arrived, or of the broker."""
        side = 0 if arrived else 1
        if len(data) <= _SEGMENT_BYTES:
            if data:
                self._segment(side, _ACK, data)
            return
        view = range(0, len(data), _SEGMENT_BYTES)
        self._recording.write(
            [self._frame(side, _ACK, data[start : start + _SEGMENT_BYTES]) for start in view]
        )

    def finish(self, by_client: bool) -> None:
        """End one direction: nothing more comes from this side."""
        side = 0 if by_client else 1
        if not self._finished[side]:
            self._finished[side] = True
            self._segment(side, _FIN | _ACK, b"")
            self._sent[side] = self._sent[side] + 1 & 0xFFFF_FFFF

    def reset(self, by_client: bool) -> None:
        """End the connection by a reset."""
        if not all(self._finished):
            self._finished = [True, True]
            self._segment(0 if by_client else 1, _RST | _ACK, b"")

    def close(self, by_client: bool) -> None:
        """End what is open of the connection; one side is the first."""
        if not all(self._finished):
            self.finish(by_client)
            self.finish(not by_client)
            self._segment(0 if by_client else 1, _ACK, b"")

    def _segment(self, side: int, flags: int, data: bytes, at: int | None = None) -> None:
        self._recording.write([self._frame(side, flags, data, at)])

    def _frame(
        self, side: int, flags: int, data: bytes, at: int | None = None
    ) -> tuple[bytes, bytes]:
        sequence = self._sent[side] if at is None else at
        read = self._sent[1 - side] if flags & _ACK else 0
        ports = self._ports[side], self._ports[1 - side]
        tcp = _TCP.pack(*ports, sequence, read, 5 << 4, flags, 65535, 0, 0)
        self._sent[side] = self._sent[side] + len(data) & 0xFFFF_FFFF
        size = len(tcp) + len(data)
        if self._is_ipv6:
            ip = _IPV6.pack(6 << 28, size, 6, 64)
            kind = b"\x86\xdd"
        else:
            ip = _IPV4.pack(0x45, 0, 20 + size, 0, 0x4000, 64, 6, 0)
            kind = b"\x08\x00"
        packed = self._packed[side] + self._packed[1 - side]
        return _MACS[1 - side] + _MACS[side] + kind + ip + packed + tcp, data
