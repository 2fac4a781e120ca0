"""Batches in one buffer are what Arrow makes of the same values one by one."""

from __future__ import annotations

import resource

import numpy as np
import pyarrow as pa
import pytest

from wireyard.arena import Arena, BatchLayout, Shape, Source, room
from wireyard.errors import SourceError
from wireyard.schema import arrow_type

KINDS = ("int32", "int64", "bool", "string", "binary", "error", "items", "int32s", "filters",
         "name_values", "properties")  # fmt: skip
PLAIN = pa.schema([("number", pa.int32()), ("nothing", pa.int64()), ("text", pa.string())])
SHAPES = {
    "numbers": Shape(np.int32, 32, 2),
    "ends": Shape(np.int32, 32, more=4),
    "bits": Shape(np.uint8, 1, 3),
}
SOURCES: dict[str, list[Source]] = {
    "number": [("bits", 2), ("numbers", 1)],
    "text": [None, ("ends", 0), ("letters", 0)],
}


def filled(layout: BatchLayout, rows: int, more: int = 0) -> tuple[Arena, bytes]:
    """Return an arena whose rows are null but for every third, and text of its own length."""
    arena = Arena(layout, rows, rows, more)
    arena.arrays["numbers"][1, :rows] = np.arange(rows)
    places = np.arange(rows)
    arena.arrays["bits"][2, : (rows + 7) // 8] = np.packbits(places % 3 == 0, bitorder="little")
    ends = arena.arrays["ends"][0, : rows + 1]
    np.cumsum(np.arange(rows + 1) % 5, out=ends)
    return arena, b"abcdefg" * (int(ends[-1]) // 7) + b"abcdefg"[: int(ends[-1]) % 7]


def check(batch: pa.RecordBatch, rows: int, letters: bytes) -> None:
    """Assert that a batch has what `filled` put into it."""
    batch.validate(full=True)
    assert batch.num_rows == rows and batch.schema == PLAIN
    numbers = [row if row % 3 == 0 else None for row in range(rows)]
    assert batch["number"].to_pylist() == numbers
    assert batch["number"].null_count == numbers.count(None)
    assert batch["nothing"].null_count == rows
    texts = batch["text"].to_pylist()
    assert "".join(texts).encode() == letters
    assert [len(text) for text in texts] == [(row + 1) % 5 for row in range(rows)]


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64, 1000])
def test_batches_have_what_was_filled_in(rows: int) -> None:
    layout = BatchLayout(PLAIN, SHAPES, SOURCES)
    for _ in range(2):  # The first batch does not know how much room it needs, the second does.
        arena, letters = filled(layout, rows)
        arena.put("letters", letters)
        check(arena.batch(), rows, letters)


def test_text_is_written_in_place() -> None:
    layout = BatchLayout(PLAIN, SHAPES, SOURCES)
    arena, letters = filled(layout, 100, more=1000)
    arena.rest[: len(letters)] = np.frombuffer(letters, np.uint8)
    arena.claim("letters", len(letters))
    check(arena.batch(), 100, letters)


def test_batches_outlive_those_that_follow() -> None:
    layout = BatchLayout(PLAIN, SHAPES, SOURCES)
    made = []
    for rows in (30, 500, 4):
        arena, letters = filled(layout, rows)
        arena.put("letters", letters)
        made.append((arena.batch(), rows, letters))
    for batch, rows, letters in made:
        check(batch, rows, letters)


def test_there_may_be_fewer_rows_than_foreseen() -> None:
    layout = BatchLayout(PLAIN, SHAPES, SOURCES)
    whole, some = (filled(layout, 100) for _ in range(2))
    for arena, letters in (whole, some):
        arena.put("letters", letters)
    batch = some[0].batch(rows=41)
    batch.validate(full=True)
    assert batch.equals(whole[0].batch().slice(0, 41))


def test_what_no_column_has_takes_no_room() -> None:
    layout = BatchLayout(pa.schema([("number", pa.int32())]), SHAPES, SOURCES)
    arena, letters = filled(layout, 9)
    assert not arena.has("letters")
    arena.put("letters", letters)
    assert len(arena.rest) == 0
    assert arena.batch().num_rows == 9


@pytest.mark.parametrize("rows", [0, 1, 9, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_any_kind_can_be_null_everywhere(kind: str, rows: int) -> None:
    schema = pa.schema([("one", arrow_type(kind)), ("other", arrow_type(kind))])
    batch = Arena(BatchLayout(schema, SHAPES, {}), rows, 0).batch()
    batch.validate(full=True)
    for column in batch.columns:
        assert column.null_count == rows and column.equals(pa.nulls(rows, arrow_type(kind)))


def test_lists_have_entries() -> None:
    kind = arrow_type("properties")
    parts = ("name", "type", "value")
    sources: dict[str, list[Source]] = {
        "properties": [
            ("bits", 0),
            ("ends", 0),
            *[source for part in parts for source in ((f"{part} ends", 0), (part, 0))],
        ]
    }
    layout = BatchLayout(pa.schema([("properties", kind)]), SHAPES, sources)
    arena = Arena(layout, 3, 3)
    arena.arrays["bits"][0, 0] = 0b101
    arena.arrays["ends"][0, :4] = [0, 1, 1, 3]
    for part in parts:
        arena.put(f"{part} ends", np.array([0, 1, 2, 3], np.int32))
        arena.put(part, part[:3].encode())
    batch = arena.batch(entries=3)
    batch.validate(full=True)
    assert batch["properties"].to_pylist() == [
        [("n", {"type": "t", "value": "v"})],
        None,
        [("a", {"type": "y", "value": "a"}), ("m", {"type": "p", "value": "l"})],
    ]


@pytest.mark.parametrize("texts", [("jmq", "ok"), ("", "é"), ("a" * 40, "b")])
def test_columns_that_are_the_same_everywhere(texts: tuple[str, str]) -> None:
    schema = pa.schema([("one", pa.string()), ("number", pa.int32()), ("other", pa.string())])
    layout = BatchLayout(schema, SHAPES, SOURCES, dict(zip(("one", "other"), texts, strict=True)))
    made = []
    for rows in (0, 5, 300, 7):
        arena, _ = filled(layout, rows)
        made.append((rows, arena.batch()))
    for rows, batch in made:
        batch.validate(full=True)
        for name, text in zip(("one", "other"), texts, strict=True):
            assert batch[name].to_pylist() == [text] * rows and not batch[name].null_count


def test_arrays_move_with_what_is_in_them() -> None:
    layout = BatchLayout(PLAIN, SHAPES, SOURCES)
    layout.claimed_share = 0.0
    arena, letters = filled(layout, 100)
    assert not arena.claimed(arena.used + 10_000)
    arena.arrays["numbers"][1, :100] = 7
    arena.used -= 10_000
    arena.put("letters", letters)
    batch = arena.batch()
    batch.validate(full=True)
    assert batch["number"].to_pylist() == [7 if row % 3 == 0 else None for row in range(100)]
    assert "".join(batch["text"].to_pylist()).encode() == letters


@pytest.mark.parametrize("large_bytes", [0, 1 << 30])
def test_large_arrays_lie_in_files(large_bytes: int) -> None:
    found = room((3, 5000), np.int32, large_bytes)
    assert found.shape == (3, 5000) and found.dtype == np.int32
    found[:] = np.arange(15_000).reshape(3, 5000)
    assert found.sum() == sum(range(15_000))
    assert isinstance(found.base, np.memmap) == (large_bytes == 0)


def test_no_room_for_a_large_array_is_an_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        assert len(room(1 << 10, np.uint8, 1 << 10)) == 1 << 10
        with pytest.raises(SourceError, match=r"no room for 2,097,152 bytes .* TMPDIR"):
            room(1 << 18, np.int64, 1 << 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
