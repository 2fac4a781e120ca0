"""The tables `streams` and `ledger`, with a row for each stream, and the sums of ledgers by input.

Tasks write the rows of the streams that they read. A commit has only the sums, so the time to open
a lake does not depend on the number of streams.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from wireyard.captures import stream_table
from wireyard.captures.stream_table import LEDGER_TABLE
from wireyard.errors import LakeDamaged
from wireyard.streams.source import filesystem

LEDGER_FILES: Final = ("streams", "ledger")
"""The two tables."""
_BATCH_ROWS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class StreamLedger:
    """The account of all bytes of a stream."""

    source: str
    stream: str
    format: str | None
    """None for an empty stream."""
    counts: Mapping[str, int]
    facts: Mapping[str, Any]
    """Further columns of the table ``streams``, for a stream of a capture."""


class LedgerSum(NamedTuple):
    """The sum of the ledgers of some streams."""

    streams: int = 0
    bad_streams: int = 0
    """Streams with bytes outside of well-formed packets."""
    bytes_read: int = 0
    bytes_ok: int = 0
    bytes_malformed: int = 0
    bytes_garbage: int = 0
    bytes_tail: int = 0
    packets_ok: int = 0
    packets_malformed: int = 0

    @classmethod
    def of(cls, ledger: StreamLedger) -> LedgerSum:
        """Return the sum for one stream."""
        is_bad = ledger.counts["bytes_ok"] != ledger.counts["bytes_read"]
        return cls(1, int(is_bad), **ledger.counts)

    @property
    def packets(self) -> int:
        """Number of packets, malformed ones included."""
        return self.packets_ok + self.packets_malformed

    @classmethod
    def total(cls, sums: Iterable[LedgerSum]) -> LedgerSum:
        """Return the total of several sums."""
        return cls(*map(sum, zip(*sums, strict=True)))


def streams_table(ledgers: Iterable[StreamLedger]) -> pa.Table:
    """Return the rows of the table `streams`; columns of captures are null for other streams."""
    return stream_table.streams_table(
        {
            "source": ledger.source,
            "stream": ledger.stream,
            "format": ledger.format,
            **ledger.facts,
            "bytes_read": ledger.counts["bytes_read"],
        }
        for ledger in ledgers
    )


def ledger_table(ledgers: Iterable[StreamLedger]) -> pa.Table:
    """Return the rows of the table `ledger`, in the order of `streams_table`."""
    rows = [
        {"source": ledger.source, "stream": ledger.stream, **ledger.counts} for ledger in ledgers
    ]
    return pa.Table.from_pylist(rows, LEDGER_TABLE)


def captured_streams(
    paths: Iterable[str], sources: Collection[str], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield columns of the table `streams` for the captured streams of some inputs.

    `paths` are files of the table; they may have streams of other inputs too. `LakeDamaged` is
    raised if a file is none of the table.
    """
    from pyarrow import compute as pc  # slow to import

    wanted = pa.array(sources, pa.string())
    needed = [*dict.fromkeys(("source", "transport", *columns))]
    for path in paths:
        system, inner = filesystem(path)
        try:
            with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=needed):
                    is_wanted = pc.is_in(batch["source"], wanted)
                    captured = batch.filter(pc.and_(is_wanted, batch["transport"].is_valid()))
                    yield pa.Table.from_batches([captured]).select(columns)
        except (pa.ArrowException, KeyError) as error:
            why = " ".join(str(error).split())
            raise LakeDamaged(f"{path}: is no file of the table 'streams' ({why})") from None
