"""A file's packets as a directed stream: the same rows however it is read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.captures.stores.judge import rows_of, store_file
from tests.captures.stores.make import message, packets, record, vrfile
from wireyard.captures.stores import stream as module
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.read import read_store
from wireyard.formats.jmq import columns
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_stream

P = packets(30)


def damaged() -> bytes:
    """Return a file with packets, and with damage."""
    parts = [record(message(one, (1, 0))) for one in P]
    parts[3] = parts[3][:8] + b"\xff" + parts[3][9:]
    parts[7] = record(message(P[7][:-1]))
    return vrfile(*parts)


def test_rows_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    file = store_file(Kind.MESSAGES, damaged())
    whole = rows_of(file)
    monkeypatch.setattr(module, "_BLOCK_ROWS", 1)
    assert rows_of(file) == whole
    assert {row["status"] for row in whole} == {"ok", "gap", "garbage"}


def test_a_read_may_begin_and_end_anywhere() -> None:
    file = store_file(Kind.MESSAGES, damaged())
    stream = file.stream
    assert stream is not None
    plan = make_plan(stream.format)
    whole = rows_of(file)
    cuts = [0, *(row["offset"] for row in whole[5::7]), stream.size]
    parts = []
    for start, limit in pairwise(cuts):
        framer = plan.framer(start)
        for batch in scan_stream(stream, plan, framer, limit):
            parts += batch.to_pylist()
    assert parts == whole


def test_kernels_and_the_reference_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    file = store_file(Kind.MESSAGES, damaged())
    whole = rows_of(file)
    monkeypatch.setattr("wireyard.streams.scan.load_fast_path", lambda format, size: columns)
    assert rows_of(file) == whole


def test_a_file_of_objects_has_no_stream(examples: Path) -> None:
    for file in read_store(examples / "store"):
        has = file.stream is not None
        assert has == (file.kind not in (Kind.MAP, Kind.TRANSACTIONS))
