"""What holds of every file of a store, whatever is in it."""

from __future__ import annotations

from collections.abc import Sequence

from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.record import Record
from wireyard.captures.stores.rows import SCHEMA, record_rows
from wireyard.formats.base import Row
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_stream

__all__ = ["judged", "rows_of", "store_file"]


def store_file(kind: Kind, data: bytes) -> StoreFile:
    """Return bytes as a file of a store."""
    return StoreFile("store", "file", kind, None, data, kind.value.read(data))


def rows_of(file: StoreFile) -> list[Row]:
    """Return the rows of the packets in a file."""
    stream = file.stream
    if stream is None:
        return []
    batches = scan_stream(stream, make_plan(stream.format))
    return [row for batch in batches for row in batch.to_pylist()]


def judged(kind: Kind, data: bytes) -> list[Record]:
    """Return the records of a file, after checking that every byte is accounted for, twice."""
    file = store_file(kind, data)
    assert_contiguous([(one.start, one.stop - one.start) for one in file.records], len(data))
    assert sum(file.ledger.values()) == len(data)
    for one in file.records:
        assert (one.error is None) == (one.status == "ok")
        assert all(
            one.start <= packet.start < packet.stop <= one.stop for packet in one.contents.packets
        )
    rows = list(record_rows(file))
    assert [set(row) for row in rows] == [set(SCHEMA.names)] * len(rows)
    if file.stream is not None:
        packets = rows_of(file)
        assert_contiguous([(row["offset"], row["length"]) for row in packets], len(data))
        kept = sum(row["length"] for row in packets if row["status"] != "gap")
        assert kept == file.stream.bytes_ahead
        assert kept + sum(stop - start for start, stop in file.stream.gaps.tolist()) == len(data)
    return file.records


def assert_contiguous(places: Sequence[tuple[int, int]], size: int) -> None:
    """Check that places follow each other from 0 to `size`, none of them empty."""
    assert all(length > 0 for _, length in places)
    ends = [0, *(start + length for start, length in places)]
    assert [start for start, _ in places] == ends[:-1]
    assert ends[-1] == size
