"""Ledgers of a bundle are those of its streams one by one, and have to balance like them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from wireyard.arrays import Ints
from wireyard.captures.stream_table import STREAMS
from wireyard.errors import LedgerError
from wireyard.lake.ledgers import LedgerSum, ledger_table, streams_table
from wireyard.pipeline.decoding.balance import count_rows, make_ledger, make_ledgers
from wireyard.pipeline.decoding.results import StreamRows

OFFSETS = np.array([0, 4, 10, 0, 0, 6, 9])
LENGTHS = np.array([4, 6, 2, 5, 6, 3, 1])
STATUS = ["ok", "malformed", "garbage", "ok", "ok", "gap", "tail"]
BOUNDS = np.array([0, 3, 4, 7])
SIZES = np.array([12, 5, 10])
STATED = {"sliced": True}
TIME = STREAMS.field("first_at").type


def batch(offsets: Ints = OFFSETS) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": offsets, "length": LENGTHS, "status": STATUS})


def described() -> pa.Table:
    counted = {"source", "format", "bytes_read", "bytes_gap", *STATED}
    facts = [each for each in STREAMS if each.name not in counted and each.type != TIME]
    return pa.Table.from_pylist(
        [{"stream": name, "src_port": 1} for name in "abc"], pa.schema(facts)
    )


def test_ledgers_of_a_bundle_are_those_of_its_streams() -> None:
    counts = count_rows(batch(), BOUNDS)
    made = make_ledgers("x", "mqtt", described(), STATED, counts, SIZES)
    facts = described().to_pylist()
    ledgers = []
    for number, size in enumerate(SIZES.tolist()):
        rows = StreamRows("mqtt", first=0)
        rows.add(counts.of_stream(number))
        name = facts[number].pop("stream")
        ledgers.append(make_ledger("x", name, [rows], size, {**facts[number], **STATED}))
    assert made.streams.equals(streams_table(ledgers))
    assert made.ledger.equals(ledger_table(ledgers))
    assert made.total == LedgerSum.total(map(LedgerSum.of, ledgers))
    assert made.total == LedgerSum(3, 2, 24, 15, 6, 2, 1, 3, 1)


@pytest.mark.parametrize(
    ("offsets", "sizes", "problem"),
    [
        ([0, 5, 10, 0, 0, 6, 9], SIZES, "x, a: rows do not follow each other at offset 5"),
        ([0, 4, 10, 1, 0, 6, 9], SIZES, "x, b: rows do not follow each other at offset 0"),
        ([0, 4, 10, 0, 0, 6, 8], SIZES, "x, c: rows do not follow each other at offset 8"),
        (OFFSETS, [12, 5, 11], "x, c: out of balance, 11 bytes were read, 10 are in rows"),
    ],
)
def test_a_byte_in_no_row_or_in_two_is_an_error(
    offsets: list[int], sizes: list[int], problem: str
) -> None:
    counts = count_rows(batch(np.array(offsets)), BOUNDS)
    with pytest.raises(LedgerError, match=problem):
        make_ledgers("x", "mqtt", described(), STATED, counts, np.array(sizes))


def test_rows_of_a_later_batch_follow_those_before() -> None:
    rows = StreamRows("mqtt", first=0)
    for offsets in ([0], [4], [9]):
        part = pa.RecordBatch.from_pydict({"offset": offsets, "length": [4], "status": ["ok"]})
        rows.add(count_rows(part, np.array([0, 1])).of_stream(0))
    assert (rows.end, rows.rows, rows.bytes_ok, rows.broken_at) == (13, 3, 12, 9)
