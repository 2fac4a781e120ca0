"""The tables `streams` and `ledger`: a row each for every stream, and their sums by input.

Tasks write the rows of the streams that they read, in a file of each table. A commit has the sums
only, so opening a lake takes the same whatever the number of its streams.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.captures import stream_table
from wireyard.captures.stream_table import LEDGER_TABLE
from wireyard.streams.source import filesystem

__all__ = [
    "LEDGER_FILES",
    "LedgerSum",
    "StreamLedger",
    "captured_streams",
    "ledger_table",
    "streams_table",
]

LEDGER_FILES: Final = ("streams", "ledger")
"""The two tables."""
_BATCH_ROWS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class StreamLedger:
    """Where each byte of a stream went."""

    source: str
    stream: str
    format: str | None
    """None of an empty stream."""
    counts: Mapping[str, int]
    facts: Mapping[str, Any]
    """What a capture shows of it: columns of the table ``streams``."""


class LedgerSum(NamedTuple):
    """The ledgers of some streams, added."""

    streams: int = 0
    bad_streams: int = 0
    """Those with bytes in no well-formed packet."""
    bytes_read: int = 0
    bytes_ok: int = 0
    bytes_malformed: int = 0
    bytes_garbage: int = 0
    bytes_tail: int = 0
    packets_ok: int = 0
    packets_malformed: int = 0

    @classmethod
    def of(cls, ledger: StreamLedger) -> LedgerSum:
        """Return that of one stream."""
        is_bad = ledger.counts["bytes_ok"] != ledger.counts["bytes_read"]
        return cls(1, int(is_bad), **ledger.counts)

    @property
    def packets(self) -> int:
        """How many packets there are, malformed ones too."""
        return self.packets_ok + self.packets_malformed

    @classmethod
    def total(cls, some: Iterable[LedgerSum]) -> LedgerSum:
        """Return the sum of all of them."""
        return cls(*map(sum, zip(*some, strict=True)))


def streams_table(ledgers: Iterable[StreamLedger]) -> pa.Table:
    """Return a row for every stream; what only captures show is null of others."""
    return stream_table.streams_table(
        {
            "source": one.source,
            "stream": one.stream,
            "format": one.format,
            **one.facts,
            "bytes_read": one.counts["bytes_read"],
        }
        for one in ledgers
    )


def ledger_table(ledgers: Iterable[StreamLedger]) -> pa.Table:
    """Return a row for every stream, in the order of `streams_table`."""
    rows = [{"source": one.source, "stream": one.stream, **one.counts} for one in ledgers]
    return pa.Table.from_pylist(rows, LEDGER_TABLE)


def captured_streams(
    paths: Iterable[str], sources: Collection[str], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield what captures show of the streams of some inputs.

    Parameters
    ----------
    paths
        Files of the table `streams`, perhaps with streams of other inputs too.
    """
    wanted = pa.array(sources, pa.string())
    needed = [*dict.fromkeys(("source", "transport", *columns))]
    for path in paths:
        system, inner = filesystem(path)
        with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=needed):
                is_wanted = pc.is_in(batch["source"], wanted)
                found = batch.filter(pc.and_(is_wanted, batch["transport"].is_valid()))
                yield pa.Table.from_batches([found]).select(columns)
