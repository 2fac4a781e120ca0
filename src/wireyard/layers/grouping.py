"""Grouping and ordering of rows by integer keys: the building blocks of the columnar engines.

Keys are compared in full, never by a hash alone. Text is replaced by dictionary codes first
(`text_codes`), so all keys are integers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.accelerate import kernel
from wireyard.arrays import Bytes, Grid, Int32s, Ints, UInt64s

_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_long: Final[Any] = np.int64


# --- hashes ---------------------------------------------------------------------------------


def hash_keys(*columns: npt.ArrayLike) -> UInt64s:
    """Return a 64-bit hash of each row of integer columns, for partitioning and for hash tables.

    Equal rows have equal hashes in every process; unequal rows may have equal ones too.
    """
    hashes: UInt64s | None = None
    for column in columns:
        words = np.asarray(column)
        words = (words if words.dtype == np.uint64 else words.astype(np.int64)).view(np.uint64)
        hashes = words * _FIRST if hashes is None else (hashes ^ words) * _FIRST
        hashes ^= hashes >> np.uint64(29)
        hashes *= _SECOND
        hashes ^= hashes >> np.uint64(32)
    assert hashes is not None, "a key has a column"
    return hashes


def text_hashes(texts: pa.Array | pa.ChunkedArray) -> UInt64s:
    """Return a 64-bit hash of the bytes of each text, 0 for null; the same in every process."""
    parts = []
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        if pa.types.is_dictionary(chunk.type):
            codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            of_dictionary = np.append(text_hashes(chunk.dictionary), np.uint64(0))
            parts.append(of_dictionary[codes])
            continue
        found = np.zeros(len(chunk), np.int64)
        _, offsets, data = chunk.buffers()
        if data is not None:
            ends = np.frombuffer(offsets, np.int32, len(chunk) + 1, 4 * chunk.offset)
            _hash_texts(np.frombuffer(data, np.uint8).copy(), ends.copy(), found)
        if chunk.null_count:
            found[~chunk.is_valid().to_numpy(zero_copy_only=False)] = 0
        parts.append(hash_keys(found))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


@kernel
def _hash_texts(data: Bytes, ends: Int32s, found: Ints) -> None:
    """Hash each text by two 32-bit hashes in the manner of FNV-1a; `hash_keys` mixes the result."""
    for i in range(len(found)):
        low, high = 0x811C9DC5, 0x1000193
        for at in range(ends[i], ends[i + 1]):
            byte = _long(data[at])
            low = ((low ^ byte) * 0x01000193) & 0xFFFFFFFF
            high = ((high + byte) * 0x0105A6B5) & 0xFFFFFFFF
        found[i] = (high & 0x7FFFFFFF) << 32 | low


# --- texts ----------------------------------------------------------------------------------


def text_codes(texts: pa.Array | pa.ChunkedArray) -> tuple[Int32s, pa.Array]:
    """Return the dictionary code of each text, -1 for null, and the dictionary."""
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    if isinstance(whole, pa.ChunkedArray):  # of more than 2 GB
        whole = pa.concat_arrays(whole.dictionary_encode().chunks)
    coded = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.require(codes, np.int32, ["C", "W"]), coded.dictionary


def decode_texts(codes: npt.ArrayLike, texts: pa.Array) -> pa.DictionaryArray:
    """Return a dictionary column of codes and their texts; null where a code is negative."""
    found = np.asarray(codes, np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(found, mask=found < 0), texts)


# --- groups ---------------------------------------------------------------------------------


def dense_ids(*columns: npt.ArrayLike) -> tuple[Int32s, int]:
    """Assign ids to the distinct rows of some columns; return each row's id and how many there are.

    Ids count from 0 in the order in which distinct rows first appear.
    """
    words = np.stack([np.asarray(column, np.int64) for column in columns])
    rows = words.shape[1]
    found = np.empty(rows, np.int32)
    if rows == 0:
        return found, 0
    size = 1 << int(2 * rows - 1).bit_length()
    hashes = (hash_keys(*words) & np.uint64(size - 1)).astype(np.int64)
    firsts = np.empty(rows, np.int64)
    table = np.full(size, -1, np.int32)
    return found, _dense(words, hashes, table, firsts, found)


@kernel
def _dense(words: Grid, hashes: Ints, table: Int32s, firsts: Ints, found: Int32s) -> int:
    count, last = 0, len(table) - 1
    for i in range(len(found)):
        at = hashes[i]
        while True:
            number = table[at]
            if number < 0:
                table[at] = count
                firsts[count] = i
                found[i] = count
                count += 1
                break
            first, same = firsts[number], True
            for column in range(len(words)):
                if words[column, first] != words[column, i]:
                    same = False
                    break
            if same:
                found[i] = number
                break
            at = (at + 1) & last
    return count


def by_group(groups: npt.ArrayLike, count: int) -> tuple[Ints, Ints]:
    """Return the rows group by group, and the start of each group, then the end of the last."""
    numbers = np.require(groups, np.int32, ["C", "W"])
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(numbers, minlength=count), out=starts[1:])
    rows = np.empty(len(numbers), np.int64)
    _scatter(numbers, starts[:-1].copy(), rows)
    return rows, starts


def split_rows(table: pa.Table, groups: npt.ArrayLike, count: int) -> list[pa.Table]:
    """Return a table for each of `count` groups, with row order and dictionaries of `table`."""
    order, starts = by_group(groups, count)
    rows = table.take(pa.array(order))
    return [rows.slice(start, stop - start) for start, stop in pairwise(starts.tolist())]


@kernel
def _scatter(groups: Int32s, at: Ints, rows: Ints) -> None:
    for i in range(len(groups)):
        rows[at[groups[i]]] = i
        at[groups[i]] += 1


def order_groups(groups: npt.ArrayLike, count: int, *columns: npt.ArrayLike) -> tuple[Ints, Ints]:
    """Return what `by_group` does, with the rows of each group sorted by `columns`."""
    rows, starts = by_group(groups, count)
    words = np.stack([np.asarray(column, np.int64) for column in columns])
    _sort_groups(words, starts, rows, np.empty(len(rows), np.int64))
    return rows, starts


@kernel
def _sort_groups(words: Grid, starts: Ints, rows: Ints, spare: Ints) -> None:
    """Sort each group by a stable bottom-up merge sort.

    Two runs that are already in order cost one comparison.
    """
    for group in range(len(starts) - 1):
        start, stop = starts[group], starts[group + 1]
        width = 1
        while width < stop - start:
            left = start
            while left + width < stop:
                middle, end = left + width, min(left + 2 * width, stop)
                one, other = rows[middle - 1], rows[middle]
                before = False
                for column in range(len(words)):
                    if words[column, other] != words[column, one]:
                        before = words[column, other] < words[column, one]
                        break
                if before:
                    for at in range(left, middle):
                        spare[at] = rows[at]
                    i, j, at = left, middle, left
                    while i < middle and j < end:
                        one, other = spare[i], rows[j]
                        before = False
                        for column in range(len(words)):
                            if words[column, other] != words[column, one]:
                                before = words[column, other] < words[column, one]
                                break
                        if before:
                            rows[at] = other
                            j += 1
                        else:
                            rows[at] = one
                            i += 1
                        at += 1
                    while i < middle:
                        rows[at] = spare[i]
                        i += 1
                        at += 1
                left = left + 2 * width
            width *= 2


def first_of_groups(groups: npt.ArrayLike, count: int, *columns: npt.ArrayLike) -> Int32s:
    """Return for each group the row that is smallest by `columns`, -1 for an empty group.

    Rows whose group is negative belong to no group.
    """
    words = np.stack([np.asarray(column, np.int64) for column in columns])
    found = np.full(count, -1, np.int32)
    _first(np.require(groups, np.int32, ["C", "W"]), words, found)
    return found


@kernel
def _first(groups: Int32s, words: Grid, found: Int32s) -> None:
    for i in range(len(groups)):
        if groups[i] < 0:
            continue
        first = found[groups[i]]
        before = first < 0
        if not before:
            for column in range(len(words)):
                if words[column, i] != words[column, first]:
                    before = words[column, i] < words[column, first]
                    break
        if before:
            found[groups[i]] = i
