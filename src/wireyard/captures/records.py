"""Packets as capture files record them, in columns: what pcap and pcapng are both read into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.errors import DecodeError
from wireyard.streams.blocks import UNKNOWN

__all__ = ["BLOCK_RECORDS", "NO_TIME", "Context", "Interface", "Records"]

Ints = npt.NDArray[np.int64]

NO_TIME: Final = UNKNOWN
"""The time of a packet that has none: Simple Packet Blocks do not say."""
BLOCK_RECORDS: Final = 6000
"""Records that are read at once: their columns should stay in the cache, where columns that are a
power of two long would take the same lines."""


class Interface(NamedTuple):
    """How packets of an interface are to be read; times in units of ``1 / units`` seconds."""

    link: int
    snapshot_bytes: int
    units: int = 1_000_000
    offset_s: int = 0


class Context(NamedTuple):
    """What a record has to be read by that stands before it in its file."""

    little: bool
    interfaces: tuple[Interface, ...]
    """Those of its section; of pcap one."""
    header_bytes: int = 0
    """Size of a record's header in pcap; 0 in pcapng, where blocks say all of their sizes."""


@dataclass(frozen=True, slots=True)
class Records:
    """Some packets of a capture that follow each other.

    Shapes: all columns (r). The last of a capture end where reading did; `damage` says why that is
    before the file's end.
    """

    times_ns: Ints
    starts: Ints
    """Offset of the first captured byte in the file."""
    captured: Ints
    originals: Ints
    """Bytes each packet had before it was cut to the snapshot length, as the file says."""
    links: Ints
    stop: int = 0
    """Offset where reading ended."""
    damage: DecodeError | None = None
    context: Context | None = None
    """That of what begins at `stop`; the last has it."""

    def __len__(self) -> int:
        return len(self.starts)
