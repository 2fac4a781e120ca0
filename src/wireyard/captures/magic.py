"""The first four bytes of capture files."""

from __future__ import annotations

from typing import Final

__all__ = ["MICROSECONDS", "NANOSECONDS", "PATCHED", "PCAPNG", "is_capture"]

MICROSECONDS: Final = 0xA1B2C3D4
"""Magic number of pcap files, in the byte order of the file: times in microseconds."""
NANOSECONDS: Final = 0xA1B23C4D
PATCHED: Final = 0xA1B2CD34
"""The format of Kuznetzov's patches to libpcap."""
PCAPNG: Final = b"\n\r\r\n"
"""The type of a section header block, the same in both byte orders."""

_PCAP: Final = frozenset(
    magic.to_bytes(4, order)
    for magic in (MICROSECONDS, NANOSECONDS, PATCHED)
    for order in ("little", "big")
)


def is_capture(head: bytes) -> bool:
    """Return whether a file's first bytes are those of a capture file."""
    return head[:4] in _PCAP or head[:4] == PCAPNG
