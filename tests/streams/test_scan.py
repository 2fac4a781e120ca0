"""Streams to batches: the result depends on the bytes alone, not on buffers, batches or threads."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.make import item, items, packet, random_packet, section, variety
from tests.mutations import damaged_stream, damaged_streams, subject_of
from tests.readings import (
    JMQ,
    assert_contiguous,
    assert_same,
    forced,
    scan_source,
    table_of,
)
from wireyard.errors import DecodeError, UsageError
from wireyard.formats import get_format, names
from wireyard.schema import COMMON, schema_of
from wireyard.streams import batches, blocks, scan
from wireyard.streams.batches import BlockReader
from wireyard.streams.plan import Plan, make_plan
from wireyard.streams.window import (
    WINDOW_BYTES,
    Window,
    Windows,
    even_bytes,
    windows_of_bytes,
    windows_of_file,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stream() -> bytes:
    """Return a stream with packets, damage and an unfinished end."""
    return damaged_stream("jmq", Random(77), 100) + packet(body=bytes(50))[:100]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("window_bytes", [1, 100, 1000, 4096, 100_000])
def test_the_size_of_windows_does_not_show(
    stream: bytes, window_bytes: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = table_of(stream, compiled=False, max_packet_bytes=4096)
    assert_contiguous(whole, len(stream))
    monkeypatch.setattr(scan, "even_bytes", lambda size: window_bytes)
    in_memory = table_of(stream, compiled=compiled, max_packet_bytes=4096)
    assert_same(in_memory, whole)
    from_file = table_of(io.BytesIO(stream), compiled=compiled, max_packet_bytes=4096)
    names = [name for name in whole.schema.names if name not in ("source", "stream")]
    assert_same(from_file.select(names), whole.select(names))


@pytest.mark.parametrize("label", [label for name in names() for label in subject_of(name).labels])
def test_the_size_of_blocks_does_not_show(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are equal whether blocks end after three rows, and whether equal packets are known."""
    rng, subject = Random(9), subject_of(label)
    packets = [*damaged_streams(subject, subject.corpus(None), rng, 60)[:12], b"\0\0" * 20]
    streams = [rng.choice(packets)[:200] * 2 for _ in range(12)] + packets
    for mode in ("permissive", "dropmalformed"):
        wholes = [table_of(one, compiled=False, format=label, mode=mode) for one in streams]
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "MOST_ROWS", 3)
            patch.setattr(batches, "_SHORT_BYTES", -1)
            for stream, whole in zip(streams, wholes, strict=True):
                assert_same(table_of(stream, compiled=True, format=label, mode=mode), whole)


@pytest.mark.parametrize("compiled", [False, True])
def test_threads_keep_the_order(
    stream: bytes, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = table_of(stream, compiled=False)
    monkeypatch.setattr(scan, "even_bytes", lambda size: 3000)
    for threads in (1, 2, 7):
        assert_same(table_of(stream, compiled=compiled, threads=threads), whole)


def test_a_reader_that_stops_early_leaves_nothing_going_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut: list[int] = []

    def windows(data: Any, start: int, _window_bytes: int) -> Windows:
        for window in windows_of_bytes(data, start, 1000):
            cut.append(window.start)
            yield window

    monkeypatch.setattr(scan, "windows_of_bytes", windows)
    alive = []
    for _ in range(3):
        batches = scan_source(packet() * 5000, make_plan(JMQ), threads=3)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        before = len(cut)
        time.sleep(0.05)
        assert len(cut) == before
        alive.append(threading.active_count())
    assert alive[0] == alive[2]  # the threads are kept for the next


def test_a_forked_process_has_threads_of_its_own(stream: bytes) -> None:
    whole = table_of(stream, compiled=True, threads=2)
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        rows = pool.apply_async(_count_rows, (stream,)).get(60)
    assert rows == whole.num_rows


def _count_rows(stream: bytes) -> int:
    return int(table_of(stream, compiled=True, threads=2).num_rows)


def test_a_failure_in_a_thread_is_that_of_the_first_bad_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "even_bytes", lambda size: 1000)
    data = packet() * 100 + packet(version=1) + packet() * 100 + packet(version=2) + packet() * 9
    for threads in (1, 4):
        with pytest.raises(DecodeError, match="is 1, not one of") as caught:
            table_of(data, compiled=True, mode="failfast", threads=threads)
        assert any("offset 7200" in note for note in caught.value.__notes__)


def test_readers_side_by_side_do_not_disturb_each_other() -> None:
    """In one thread taking turns, and in several at once: no scratch memory is shared."""
    streams = [b"".join(random_packet(rng) for _ in range(150)) for rng in map(Random, range(4))]
    expected = [table_of(data, compiled=False) for data in streams]
    plan = make_plan(JMQ)
    with forced(compiled=True):
        turns = [scan_source(data, plan) for data in streams]
        batches = list(zip(*turns, strict=True))
    for place, whole in enumerate(expected):
        assert_same(pa.Table.from_batches([turn[place] for turn in batches]), whole)

    found: list[list[pa.Table]] = [[] for _ in streams]

    def read_often(place: int) -> None:
        for _ in range(20):
            part = pa.Table.from_batches(scan_source(streams[place], plan), plan.schema)
            found[place].append(part.combine_chunks())

    with forced(compiled=True):
        threads = [threading.Thread(target=read_often, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for tables, whole in zip(found, expected, strict=True):
        assert len(tables) == 20 and all(table.equals(whole) for table in tables)


def test_a_scan_leaves_its_reader_to_the_next_by_such_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    class Counted(BlockReader):
        def __init__(self, plan: Plan, fast: Any) -> None:
            made.append(plan)
            super().__init__(plan, fast)

    monkeypatch.setattr(scan, "BlockReader", Counted)
    monkeypatch.setattr(scan._Readers, "_idle", deque(maxlen=4))
    data = packet(items=items(item(1, "queue"))) * 20

    def read(**wanted: Any) -> pa.Table:
        plan = make_plan(JMQ, **wanted)
        return pa.Table.from_batches(scan_source(data, plan), plan.schema)

    assert read().equals(read())
    assert len(made) == 1
    under_way = scan_source(data, make_plan(JMQ))
    next(under_way)
    assert read().equals(read())
    assert len(made) == 2, "a reader that is in use is nobody else's"
    assert read(columns=["size"]).schema.names == ["size"]
    assert read(columns=["size"], mode="failfast").equals(read(columns=["size"]))
    assert len(made) == 4
    sizes = [read(where=[("size", sign, 1)]).num_rows for sign in (">", "<")]
    assert sizes == [20, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_do_not_change_with_the_bytes_they_came_from(compiled: bool) -> None:
    data = bytearray(packet(items=items(item(1, "queue")), body=b"body") * 50)
    table = table_of(data, compiled=compiled)
    data[:] = bytes(len(data))
    assert set(table["destination"].to_pylist()) == {"queue"}
    assert set(table["body"].to_pylist()) == {b"body"}


@pytest.mark.parametrize("compiled", [False, True])
def test_any_part_between_boundaries_has_its_rows(stream: bytes, compiled: bool) -> None:
    whole = table_of(stream, compiled=False)
    starts = whole["offset"].to_pylist()
    rng = Random(1)
    for _ in range(25):
        first = rng.randrange(len(starts))
        limit = rng.randrange(starts[first], len(stream) + 2)
        rows = [n for n, at in enumerate(starts) if starts[first] <= at < limit]
        part = table_of(stream, compiled=compiled, start=starts[first], limit=limit)
        assert_same(part, whole.take(pa.array(rows, pa.int64())))


def test_the_last_row_before_a_limit_is_whole() -> None:
    data = packet(body=b"x" * 1000) * 3
    assert table_of(data, compiled=True, limit=1)["length"].to_pylist() == [1072]
    assert table_of(data, compiled=True, limit=1072)["length"].to_pylist() == [1072]
    assert table_of(data, compiled=True, limit=1073)["length"].to_pylist() == [1072] * 2
    noise = packet() + b"#" * 500 + packet()
    assert table_of(noise, compiled=True, limit=73)["length"].to_pylist() == [72, 500]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_packet_larger_than_many_windows(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "even_bytes", lambda size: 100)
    large = packet(body=bytes(range(256)) * 100)
    data = packet() + large + packet() + large + packet()
    for source in (data, io.BytesIO(data)):
        table = table_of(source, compiled=compiled)
        assert table["length"].to_pylist() == [72, len(large), 72, len(large), 72]
        assert table["body"][1].as_py() == large[72:]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_packet_is_as_large_as_the_limit_and_no_larger(compiled: bool) -> None:
    data = packet(body=bytes(1000)) * 2
    found = table_of(data, compiled=compiled, max_packet_bytes=1072)
    assert found["status"].to_pylist() == ["ok", "ok"]
    found = table_of(data, compiled=compiled, max_packet_bytes=1071)
    assert found["status"].to_pylist() == ["garbage"]


def test_rows_say_where_they_come_from() -> None:
    data = packet() + packet(version=0) + b"?" + packet()
    plan = make_plan(JMQ)
    for compiled in (False, True):
        with forced(compiled=compiled):
            table = pa.Table.from_batches(scan_source(io.BytesIO(data), plan))
        rows = table.to_pylist()
        assert {row["source"] for row in rows} == {"<stream>"}
        assert {row["stream"] for row in rows} == {"<stream>"}
        assert {row["format"] for row in rows} == {"jmq"}
        assert [row["status"] for row in rows] == ["ok", "malformed", "garbage", "ok"]
        table = pa.Table.from_batches(scan_source(data, plan))
        assert set(table["stream"].to_pylist()) == {"<bytes>"}


def test_rows_that_are_no_packets_have_the_values_of_an_unfinished_header_at_most() -> None:
    for compiled in (False, True):
        noise, whole, tail = table_of(
            b"noise" + packet() + packet()[:40], compiled=compiled
        ).to_pylist()
        common = {column.name for column in COMMON}
        assert all(value is None for name, value in noise.items() if name not in common)
        known = {name for name, value in tail.items() if value is not None} - common
        assert {"version", "packet_type"} <= known
        assert all(tail[name] == whole[name] for name in known)
        assert (noise["error"]["code"], tail["error"]["code"]) == ("bad_magic", "truncated")


def test_one_schema_whatever_is_in_a_stream() -> None:
    schema = schema_of((*COMMON, *get_format("jmq").columns))
    for data in (b"", b"noise", packet(), packet(items=b"\0\1"), b"".join(variety())):
        for compiled in (False, True):
            assert table_of(data, compiled=compiled).schema == schema
    kinds = {str(field.type) for field in schema}
    assert kinds <= {
        "string", "int64", "int32", "binary", str(schema.field("error").type),
        str(schema.field("properties").type), str(schema.field("unknown_items").type),
        str(schema.field("timestamps").type),
    }  # fmt: skip
    assert str(schema.field("properties").type).startswith("map<string, struct<type")


def test_no_batch_is_empty() -> None:
    with forced(compiled=True):
        assert list(scan_source(b"", make_plan(JMQ))) == []
        only_bad = scan_source(b"noise", make_plan(JMQ, mode="dropmalformed"))
        assert list(only_bad) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": ["nothing"]}, "no column 'nothing'"),
        ({"columns": ["body", "body"]}, "twice"),
        ({"mode": "strict"}, "unknown mode"),
        ({"where": [("nothing", "==", 1)]}, "no column"),
        ({"where": [("version", "=~", 1)]}, "unknown operator"),
        ({"where": [("version", "~", 1)]}, "~ is for text"),
        ({"where": [("version", "==", "new")]}, "version"),
        ({"where": [("version", "in", 301)]}, "version"),
        ({"where": [("properties", "==", 1)]}, "cannot be filtered"),
        ({"where": [("error", "==", None)]}, "cannot be filtered"),
    ],
)
def test_what_does_not_exist_is_a_mistake_of_the_caller(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan(JMQ, **given)  # type: ignore[arg-type]


def test_modes_are_taken_in_any_case() -> None:
    assert make_plan(JMQ, mode="PERMISSIVE").mode == "permissive"


def test_small_work_is_not_given_to_kernels() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, wireyard\n"
            "from tests.make import packet\n"
            "assert wireyard.read(packet() * 1000).num_rows == 1000\n"
            "assert 'llvmlite' not in sys.modules, 'kernels were loaded for 72 kB'\n"
            "assert wireyard.read(packet() * 120_000).num_rows == 120_000\n"
            "assert 'llvmlite' in sys.modules, 'kernels were not asked for 8.6 MB'\n",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


# --- windows --------------------------------------------------------------------------------


class Dribble(io.RawIOBase):
    """A file that gives a few bytes at a time, as pipes and sockets do."""

    def __init__(self, data: bytes, rng: Random) -> None:
        self.inner = io.BytesIO(data)
        self.rng = rng

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        return self.inner.readinto(view[: self.rng.randint(1, 50)])


def test_a_short_read_is_not_the_end() -> None:
    rng = Random(9)
    data = b"".join(random_packet(rng) for _ in range(100))
    table = table_of(Dribble(data, rng), compiled=False)  # type: ignore[arg-type]
    assert_contiguous(table, len(data))
    assert set(table["status"].to_pylist()) == {"ok"}


@pytest.mark.parametrize("window_bytes", [1, 10, 64])
def test_windows_cover_a_file_however_far_each_is_consumed(window_bytes: int) -> None:
    rng = Random(window_bytes)
    data = rng.randbytes(3000)
    seen = bytearray()
    file = io.BytesIO(data)
    last: Window | None = None
    for window in windows_of_file(file, "x", 500, window_bytes):  # type: ignore[arg-type]
        assert window.base + window.start == 500 + len(seen)
        take = len(window.view) if window.at_end else rng.randint(0, len(window.view))
        seen += window.view[:take]
        window.start += take
        last = window
    assert last is not None and last.at_end and bytes(seen) == data


def test_a_window_that_grows_is_in_memory_once() -> None:
    windows = windows_of_file(io.BytesIO(bytes(1000)), "x", 0, 100)  # type: ignore[arg-type]
    before = weakref.ref(next(windows).data)
    window = next(windows)  # nothing was consumed, so it has the same bytes and more
    assert len(window.view) == 200 and before() is None


def test_windows_of_bytes_are_not_copies() -> None:
    import numpy as np

    data = np.frombuffer(bytes(1000), np.uint8)
    windows = windows_of_bytes(data, 10, 100)
    first = next(windows)
    assert np.shares_memory(first.data, data) and len(first.view) == 100
    second = next(windows)  # nothing was consumed, so it has to grow
    assert len(second.view) == 200 and second.base + second.start == 10
    second.start += 150
    third = next(windows)  # and is small again as soon as something was
    assert len(third.view) == 100 and third.base + third.start == 160


# --- memory ---------------------------------------------------------------------------------

MEMORY = """
import io, resource, sys
from tests.make import item, items, packet, section
from tests.readings import forced, format_of, scan_source
from wireyard.streams.plan import make_plan

name, (threads, few) = sys.argv[1], map(int, sys.argv[2:])
bodies = {
    "jmq": packet(items=items(item(1, "q")), properties=section(("n", 4, 1)), body=bytes(900)),
    "mqtt": bytes(2),
}
block = bodies[name] * 1000

class Endless(io.RawIOBase):
    def __init__(self, blocks):
        self.left, self.rest = blocks, memoryview(b"")
    def readable(self):
        return True
    def readinto(self, buffer):
        if not self.rest and self.left:
            self.left, self.rest = self.left - 1, memoryview(block)
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count

def peak_after(blocks, threads):
    rows = 0
    for batch in scan_source(Endless(blocks), make_plan(format_of(name)), threads=threads):
        rows += batch.num_rows
    assert rows == 1000 * blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

with forced(compiled=True):
    small, large = peak_after(few, threads), peak_after(600, threads)
print(small, large)
assert large - small < 64, f"{small} MiB for {few} blocks, {large} MiB for 600"
"""


@pytest.mark.parametrize(
    ("name", "threads", "few"), [("jmq", 1, 60), ("jmq", 2, 60), ("mqtt", 1, 300)]
)
def test_memory_does_not_grow_with_the_stream(name: str, threads: int, few: int) -> None:
    """Neither with packets, nor with bytes each two of which are a malformed one."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, name, str(threads), str(few)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-1500:]


@pytest.mark.parametrize("compiled", [False, True])
def test_sizes_that_lie_allocate_nothing(compiled: bool) -> None:
    import tracemalloc

    most = 2**31 - 1
    lies = [
        packet(size=most),
        packet(property_offset=most),
        packet(property_size=most),
        packet(properties=section(("a", 4, 1), count=most)),
        packet(properties=section() [:4] + b"\0\0\0\1\0\1a\0\x09\x7f\xff\xff\xff"),
    ]  # fmt: skip
    table_of(packet(), compiled=compiled)
    for data in lies:
        tracemalloc.start()
        try:
            before = pa.total_allocated_bytes()
            table = table_of(packet() + data, compiled=compiled, max_packet_bytes=most)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert table["status"].to_pylist()[1] != "ok"
        assert peak < 8 << 20 and pa.total_allocated_bytes() - before < 8 << 20


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 3 << 20, (3 << 20) + 1, 7 << 20, 10**8, 10**9 + 7])
def test_every_core_has_as_many_windows(
    size: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    taken = even_bytes(size)
    assert taken <= WINDOW_BYTES * 1.01
    # A window ends before the packet that does not fit it: here one of 1,000 bytes.
    count = -(-size // (taken - 1000))
    assert count <= 1 or count % cores == 0 or count < cores
    assert even_bytes(None) == WINDOW_BYTES


@pytest.mark.parametrize(("cores", "threads"), [(None, 1), (1, 1), (2, 2), (8, 8), (64, 8)])
def test_a_thread_for_each_core_as_long_as_memory_feeds_them(
    cores: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert scan.thread_count(get_format("jmq"), captured=False) == threads
    assert scan.thread_count(get_format("mqtt"), captured=True) == threads


def test_one_thread_reads_what_its_decoder_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would have to wait for frames that are not found while decoding."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    wanted = {name: scan.thread_count(get_format(name), captured=False) for name in ("jmq", "mqtt")}
    assert wanted == {"jmq": 4, "mqtt": 1}
    assert scan.thread_count(get_format("mqtt"), captured=True) == 4
    for name in names():
        columns = import_module(get_format(name).columnar.module).ColumnDecoder
        assert get_format(name).columnar.finds_frames == hasattr(columns, "scan_frames")
