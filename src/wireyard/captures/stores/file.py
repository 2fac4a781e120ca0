"""One file of a store: its records, and the stream of the packets in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.record import Record
from wireyard.captures.stores.stream import StoreStream
from wireyard.errors import SourceError
from wireyard.formats import Format, get_format


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file with its content at the time of reading.

    `failure` is the error if it could not be read, as when a running broker has removed it.
    """

    source: str
    name: str
    """The file's name in the store, or its path if only this file is read."""
    kind: Kind
    destination: str | None
    """Destination of the messages in the file, as ``Q:name``, by its folder; None if unknown."""
    data: bytes = field(repr=False)
    records: list[Record] = field(repr=False)
    failure: SourceError | None = None

    @property
    def format(self) -> Format | None:
        """Format of the packets in the file; None if files of its kind have none."""
        packets = self.kind.value.packets
        return None if packets is None else get_format(packets)

    @property
    def stream(self) -> StoreStream | None:
        """The packets in the file as a stream; None if files of its kind have none."""
        format = self.format
        if format is None:
            return None
        ranges = list(chain.from_iterable(record.held for record in self.records))
        pieces = np.array(ranges, np.int64).reshape(-1, 2)
        apart = pieces[1:, 0] != pieces[:-1, 1]
        starts, stops = np.r_[True, apart], np.r_[apart, True]
        if len(pieces):
            pieces = np.stack([pieces[starts, 0], pieces[stops, 1]], axis=1)
        data = np.frombuffer(self.data, np.uint8)
        return StoreStream(self.source, self.name, format, data, pieces)

    @property
    def ledger(self) -> dict[str, int]:
        """Bytes of the file by the state of their records, or ``damaged``; all are counted."""
        sizes: Counter[str] = Counter()
        for record in self.records:
            sizes[record.label] += record.stop - record.start
        return dict(sizes)
