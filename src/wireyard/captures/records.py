"""Packet records as columns: the common form of pcap and pcapng files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from wireyard.arrays import Ints
from wireyard.errors import DecodeError
from wireyard.streams.blocks import UNKNOWN

NO_TIME: Final = UNKNOWN
"""The time of a packet without one, such as that of a Simple Packet Block."""
BLOCK_RECORDS: Final = 6000
"""Records that are read at once: few enough that their columns stay in the cache. No power of two,
which would put all columns into the same cache lines."""


class Interface(NamedTuple):
    """Link type, snapshot length and clock of an interface; times are in ``1 / units`` seconds."""

    link: int
    snapshot_bytes: int
    units: int = 1_000_000
    offset_s: int = 0


class Placed(NamedTuple):
    """A text, and the frame that it is about."""

    frame: int
    text: str


class Context(NamedTuple):
    """The facts from earlier in a file that are needed to read a record."""

    little: bool
    """Whether numbers are little-endian."""
    interfaces: tuple[Interface, ...]
    """The interfaces of its section; one in pcap."""
    header_bytes: int = 0
    """Size of a record's header in pcap; 0 in pcapng, whose blocks have their own sizes."""


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive packets of a capture.

    Shapes: all columns (r). In the last ones of a capture, `damage` is the error that ended reading
    before the end of the file.
    """

    times_ns: Ints
    starts: Ints
    """Offset of the first captured byte in the file."""
    captured: Ints
    originals: Ints
    """Bytes of each packet on the wire, as the file states it."""
    links: Ints
    stop: int = 0
    """Offset where reading ended."""
    damage: DecodeError | None = None
    context: Context | None = None
    """The context at `stop`; set in the last records of a capture."""
    interfaces: Ints | None = None
    """Number of each packet's interface in its section; None if all are of the first one."""

    def __len__(self) -> int:
        return len(self.starts)


def describe_damage(damage: object, unread_bytes: int) -> str:
    """Return in one line what is wrong with an input, and how many bytes are not read for it."""
    if not unread_bytes:
        return str(damage)
    unread = "1 byte is" if unread_bytes == 1 else f"{unread_bytes} bytes are"
    return f"{damage}; {unread} not read"
