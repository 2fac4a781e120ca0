"""Counts of the rows of streams, and the ledgers made from them, which have to balance.

`make_ledger` makes the ledger of one stream, `make_ledgers` those of the streams of a bundle, as
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.captures.stream_table import LEDGER, LEDGER_TABLE, STREAMS, with_timestamps
from wireyard.errors import LedgerError
from wireyard.lake.ledgers import LedgerSum, StreamLedger
from wireyard.pipeline.decoding.results import StreamRows
from wireyard.schema import repeat_texts
from wireyard.streams.framer import GAP, GARBAGE, MALFORMED, OK, TAIL

_WHOLE = -1
"""Instead of the offset of a row that does not begin where the one before ended."""


class RowCounts(NamedTuple):
    """The extents and counts of rows by stream: the columns of `StreamRows`. Shapes: (t)."""

    first: Ints
    end: Ints
    broken_at: Ints
    """`_WHOLE` if all rows follow each other."""
    counts: Mapping[str, Ints]
    """By name, those of `COUNTED`."""

    def of_stream(self, number: int) -> StreamRows:
        """Return the counts of one stream."""
        broken_at = int(self.broken_at[number])
        return StreamRows(
            None,
            int(self.first[number]),
            int(self.end[number]),
            None if broken_at == _WHOLE else broken_at,
            **{name: int(column[number]) for name, column in self.counts.items()},
        )

    def of_streams(self, start: int, stop: int) -> RowCounts:
        """Return the counts of consecutive streams."""
        numbers = slice(start, stop)
        counts = {name: column[numbers] for name, column in self.counts.items()}
        return RowCounts(self.first[numbers], self.end[numbers], self.broken_at[numbers], counts)


def count_rows(batch: pa.RecordBatch, bounds: Ints) -> RowCounts:
    """Count the rows of several streams; those of stream k begin at row ``bounds[k]``."""
    starts, lengths = batch["offset"].to_numpy(), batch["length"].to_numpy()
    begins, stops = bounds[:-1], starts + lengths
    end = stops[bounds[1:] - 1]
    broken_at = np.full(len(begins), _WHOLE)
    apart = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    apart = np.setdiff1d(apart, begins)
    broken, places = np.unique(bounds.searchsorted(apart, "right") - 1, return_index=True)
    broken_at[broken] = starts[apart[places]]
    counts = {"rows": np.diff(bounds)}
    for status in (OK, MALFORMED, GARBAGE, TAIL, GAP):
        has_status = pc.equal(batch["status"], status).to_numpy(zero_copy_only=False)
        counts[f"bytes_{status}"] = np.add.reduceat(lengths * has_status, begins)
        if status in (OK, MALFORMED):
            counts[f"packets_{status}"] = np.add.reduceat(has_status, begins, dtype=np.int64)
    return RowCounts(starts[begins], end, broken_at, counts)


def make_ledger(
    source: str,
    stream: str,
    written: Sequence[StreamRows],
    read: int,
    facts: Mapping[str, Any] = MappingProxyType({}),
    format: str | None = None,
) -> StreamLedger:
    """Return the ledger of a stream from the counts of all its rows, in stream order.

    `read` is the number of bytes of the stream, gaps included, and `format` the format of a stream
    without rows. `facts` are further columns of the table `streams`, for a stream of a capture. A
    `LedgerError` is raised if a byte is in no row, or in two.
    """
    total = {count: sum(getattr(each, count) for each in written) for count in LEDGER[1:]}
    gaps = sum(each.bytes_gap for each in written)
    name = source if stream == source else f"{source}, {stream}"
    position = 0
    for each in written:
        if each.first != position or each.broken_at is not None:
            at = position if each.first != position else each.broken_at
            raise LedgerError(f"{name}: rows do not follow each other at offset {at}")
        position = each.end
    counted = gaps + sum(total[count] for count in total if count.startswith("bytes_"))
    if not counted == position == read:
        raise LedgerError(f"{name}: out of balance, {read} bytes were read, {counted} are in rows")
    format = next((each.format for each in written if each.format), format)
    counts = {"bytes_read": read - gaps, **total}
    return StreamLedger(source, stream, format, counts, {**facts, "bytes_gap": gaps})


class BundleLedgers(NamedTuple):
    """The ledgers of several streams of one format: their rows of the two tables, and the sum."""

    streams: pa.Table
    ledger: pa.Table
    total: LedgerSum


def make_ledgers(
    source: str,
    format: str,
    described: pa.Table,
    stated: Mapping[str, Any],
    rows: RowCounts,
    read: Ints,
) -> BundleLedgers:
    """Return the ledgers of several streams of one format, as `make_ledger` would.

    `described` has their names and columns of `describe_stream`, `stated` the columns that are the
    same in all of the capture; `rows` the counts of all their rows, and `read` the number of bytes
    of each, gaps included. A `LedgerError` is raised if a byte is in no row, or in two.
    """
    counts = rows.counts
    counted = sum(counts[name] for name in counts if name.startswith("bytes_"))
    balances = (rows.first == 0) & (rows.broken_at == _WHOLE)
    balances &= (rows.end == read) & (counted == read)
    for number in np.flatnonzero(~balances).tolist():  # raises at the first one
        name = described["stream"][number].as_py()
        make_ledger(source, name, [rows.of_stream(number)], int(read[number]))
    gaps = counts["bytes_gap"]
    columns = {"bytes_read": read - gaps, **{name: counts[name] for name in LEDGER[1:]}}
    sums = {name: int(column.sum()) for name, column in columns.items()}
    is_bad = columns["bytes_ok"] != columns["bytes_read"]
    sources, formats = (repeat_texts([text], [len(read)]) for text in (source, format))
    streams = described.append_column("source", sources).append_column("format", formats)
    for name, value in stated.items():
        column = pa.repeat(pa.scalar(value, STREAMS.field(name).type), len(read))
        streams = streams.append_column(name, column)
    streams = streams.append_column("bytes_read", pa.array(columns["bytes_read"]))
    streams = streams.append_column("bytes_gap", pa.array(gaps))
    names = {"source": sources, "stream": described["stream"]}
    return BundleLedgers(
        with_timestamps(streams),
        pa.table({**names, **columns}, schema=LEDGER_TABLE),
        LedgerSum(len(read), int(is_bad.sum()), **sums),
    )
