"""Packets as capture files record them, in columns: what pcap and pcapng are both read into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wireyard.errors import DecodeError

__all__ = ["BLOCK_RECORDS", "NO_TIME", "Records"]

Ints = npt.NDArray[np.int64]

NO_TIME: Final = -(1 << 63)
"""The time of a packet that has none: Simple Packet Blocks do not say."""
BLOCK_RECORDS: Final = 1 << 15
"""Records that are read at once: their columns should stay in the cache."""


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

    def __len__(self) -> int:
        return len(self.starts)
