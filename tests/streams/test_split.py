"""Splits: at any size, the parts are what one reader of the whole would have found."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Self

import fsspec
import pyarrow as pa
import pytest

from tests.make import item, items, nested, packet, random_packet, section, variety
from tests.mutations import damaged_stream
from tests.readings import JMQ, assert_same, forced, table_of
from wireyard.errors import SourceError
from wireyard.streams import split
from wireyard.streams.split import TO_THE_END, Segment, plan_segments, stitch, walk_pieces
from wireyard.streams.window import windows_of_bytes

LIMIT = 1 << 20


def _small(rng: Random) -> bytes:
    return packet(items=items(item(1, "q")), body=rng.randbytes(rng.randrange(60)))


def _nested(rng: Random, *, before: int = 0, after: int = 0) -> bytes:
    parts = []
    for _ in range(6):
        inner = b"".join(_small(rng) for _ in range(rng.randint(1, 4)))
        parts.append(nested(_small(rng), inner, before=before, after=after))
        parts.append(_small(rng))
    return b"".join(parts)


def _nested_deep(rng: Random) -> bytes:
    data = _small(rng)
    for _ in range(9):
        data = nested(_small(rng), data, before=rng.choice((0, 3)))
    return _small(rng) + data + _small(rng)


def _large(rng: Random) -> bytes:
    # A split in its middle has no packet to begin with, only what looks like some.
    inside = b"".join(_small(rng) for _ in range(12))
    return packet(body=bytes(700)) + nested(packet(), inside, after=1) + packet(body=b"\x1b" * 900)


CORPORA: dict[str, Callable[[Random], bytes]] = {
    "plain": lambda rng: b"".join(random_packet(rng) for _ in range(8)),
    "every version": lambda rng: b"".join(variety()[n] for n in (0, 2, 9, 10, 11, 12, 4, 6)),
    "nested aligned": _nested,
    "nested misaligned": lambda rng: _nested(rng, before=10, after=4),
    "nested deep": _nested_deep,
    "large": _large,
    "truncated head": lambda rng: packet(body=bytes(200))[50:] + _nested(rng)[:1500],
    "truncated tail": lambda rng: _nested(rng)[:1500] + packet(body=bytes(300))[:200],
    "damaged": lambda rng: damaged_stream("jmq", rng, 12)[:2000],
    "damaged more": lambda rng: damaged_stream("jmq", rng, 12)[:2000],
    "garbage only": lambda rng: rng.randbytes(400) + b"\x1b\xff\xe3" * 30,
    "no start for long": lambda rng: packet() + rng.randbytes(900) + packet(),
    "a size that lies": lambda rng: packet(size=400) + _nested(rng)[:1200] + packet(size=3000),
    "one byte": lambda _: b"\x1b",
    "one packet": lambda _: packet(properties=section(("a", 4, 1))),
}


@cache
def corpus(name: str) -> bytes:
    return CORPORA[name](Random(name))


@cache
def sequential(name: str) -> pa.Table:
    return table_of(corpus(name), compiled=False, max_packet_bytes=LIMIT)


@pytest.fixture(params=CORPORA)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_exact(segments: list[Segment], starts: list[int], size: int) -> None:
    """Assert that segments cover the stream, begin at rows, and count theirs."""
    at = 0
    for segment in segments:
        assert segment.start == at and segment.stop > at
        assert segment.start in starts
        inside = [start for start in starts if segment.start <= start < segment.stop]
        assert segment.rows == len(inside)
        at = segment.stop
    assert at == size


class NoThreads:
    """A pool that runs in the thread that calls it: starting one costs more than a short walk."""

    def __init__(self, threads: int) -> None:
        assert threads == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    map = staticmethod(map)


@pytest.mark.parametrize("compiled", [False, True])
def test_every_split_size_gives_the_sequential_rows(
    name: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "ThreadPoolExecutor", NoThreads)
    data = corpus(name)
    path = tmp_path / "stream.jmq"
    path.write_bytes(data)
    whole = sequential(name).drop_columns(["source", "stream"])
    starts = whole["offset"].to_pylist()
    scanned: dict[tuple[int, int], pa.Table] = {}
    with forced(compiled=compiled):
        for split_bytes in range(1, len(data) + 1):
            segments = walk_pieces(str(path), len(data), JMQ, LIMIT, split_bytes)
            assert_exact(segments, starts, len(data))
            # Sizes share most of their segments, so each is read once.
            for segment in segments:
                scanned.setdefault((segment.start, segment.stop), None)
    for start, stop in scanned:
        part = table_of(
            str(path), compiled=compiled, max_packet_bytes=LIMIT, start=start, limit=stop
        )
        rows = [n for n, at in enumerate(starts) if start <= at < stop]
        assert_same(part.drop_columns(["source", "stream"]), whole.take(pa.array(rows, pa.int64())))


@pytest.mark.parametrize("split_bytes", [1, 73, 200, 1000])
def test_segments_together_are_the_whole(name: str, split_bytes: int, tmp_path: Path) -> None:
    data = corpus(name)
    path = tmp_path / "stream.jmq"
    path.write_bytes(data)
    segments = plan_segments(str(path), JMQ, split_bytes, LIMIT)
    parts = [
        table_of(
            str(path), compiled=False, max_packet_bytes=LIMIT, start=part.start, limit=part.stop
        )
        for part in segments
    ]
    names = [name for name in sequential(name).schema.names if name not in ("source", "stream")]
    together = pa.concat_tables(parts).combine_chunks()
    assert_same(together.select(names), sequential(name).select(names))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("window_bytes", [16, 100, 1000])
def test_neither_threads_nor_windows_show(
    threads: int, window_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        split, "windows_of_bytes", partial(windows_of_bytes, window_bytes=window_bytes)
    )
    path = tmp_path / "stream.jmq"
    for name in ("nested aligned", "nested misaligned", "damaged", "no start for long"):
        path.write_bytes(corpus(name))
        starts = sequential(name)["offset"].to_pylist()
        for split_bytes in (1, 72, 100, 333, 1000):
            found = walk_pieces(
                str(path), len(corpus(name)), JMQ, LIMIT, split_bytes, threads=threads
            )
            assert_exact(found, starts, len(corpus(name)))


def test_a_guess_that_is_wrong_is_found_and_repaired(tmp_path: Path) -> None:
    """In a stream of nested packets most guesses are wrong; without repair rows would be too."""
    data = corpus("nested aligned")
    starts = set(sequential("nested aligned")["offset"].to_pylist())
    found = [
        at
        for at in range(1, len(data))
        if JMQ.framing.find_header(data, at, len(data), LIMIT)[0] == at
    ]
    wrong = [at for at in found if at not in starts]
    assert len(wrong) > len(found) // 3
    path = tmp_path / "stream.jmq"
    path.write_bytes(data)
    for at in wrong:
        segments = walk_pieces(str(path), len(data), JMQ, LIMIT, at)
        assert {segment.start for segment in segments} <= starts


def test_stitching_walks_again_only_what_was_walked_wrongly() -> None:
    walked = [Segment(0, 12, 1, 5, 6), Segment(13, 21, 1, 5, 5), None, Segment(33, 41, 1, 5, 5)]
    asked = []

    def again(start: int, stop: int, context: int) -> Segment:
        asked.append((start, stop, context))
        return Segment(start, {20: 33}[stop], 2, context, 7)

    segments = stitch([0, 10, 20, 30, 40], walked, again, 5)
    assert segments == [walked[0], Segment(12, 33, 2, 6, 7), walked[3]]
    assert asked == [(12, 20, 6)]


def test_what_was_not_walked_is_walked_with_the_context_before_it() -> None:
    def again(start: int, stop: int, context: int) -> Segment:
        return Segment(start, stop, 1, context, context + 1)

    segments = stitch([0, 10, 20], [None, None], again, 5)
    assert segments == [Segment(0, 10, 1, 5, 6), Segment(10, 20, 1, 6, 7)]


def test_real_streams_split_anywhere(shared: Path) -> None:
    rng = Random(2)
    for path in sorted((shared / "streams" / "real").glob("*.jmq")):
        size = path.stat().st_size
        starts = table_of(str(path), compiled=True, columns=["offset"])["offset"].to_pylist()
        sizes = [rng.randint(72, size) for _ in range(8)] + [size // 2, size - 1, 1000]
        for split_bytes in sizes:
            found = walk_pieces(str(path), size, JMQ, JMQ.framing.max_packet_bytes, split_bytes)
            assert_exact(found, starts, size)


# --- planning -------------------------------------------------------------------------------


def test_a_small_stream_is_one_segment_and_leaves_no_index(tmp_path: Path) -> None:
    path = tmp_path / "small.jmq"
    path.write_bytes(packet() * 3)
    assert plan_segments(str(path), JMQ, 1000) == [Segment(0, TO_THE_END, None, 0, 0)]
    assert plan_segments(str(path), JMQ, 100)[0].stop == 144
    path.write_bytes(b"")
    assert plan_segments(str(path), JMQ, 100) == [Segment(0, TO_THE_END, None, 0, 0)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.jmq"]


def test_a_compressed_stream_is_one_segment(tmp_path: Path) -> None:
    path = tmp_path / "packed.jmq"
    with pa.OSFile(str(path), "wb") as file, pa.CompressedOutputStream(file, "gzip") as packed:
        packed.write(b"".join(random_packet(Random(n)) for n in range(300)))
    assert path.stat().st_size > 1000
    assert plan_segments(str(path), JMQ, 1000) == [Segment(0, TO_THE_END, None, 0, 0)]


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        plan_segments(str(tmp_path / "nothing"), JMQ, 10)
    with pytest.raises(SourceError, match="directory"):
        plan_segments(str(tmp_path), JMQ, 10)


def test_a_remote_stream_is_split_the_same(tmp_path: Path) -> None:
    data = corpus("nested aligned")
    path = tmp_path / "stream.jmq"
    path.write_bytes(data)
    with fsspec.open("memory://splits/stream.jmq", "wb") as file:
        file.write(data)
    for split_bytes in (100, 555, 2000):
        local = plan_segments(str(path), JMQ, split_bytes, LIMIT)
        assert plan_segments(path.as_uri(), JMQ, split_bytes, LIMIT, threads=4) == local
        # All who open a file of this store share one position in it.
        in_memory = plan_segments("memory://splits/stream.jmq", JMQ, split_bytes, LIMIT, threads=1)
        assert in_memory == local


# --- the side index -------------------------------------------------------------------------


@pytest.fixture
def indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a stream that is large enough, with pieces made small, to get an index."""
    monkeypatch.setattr(split, "PIECE_BYTES", 500)
    path = tmp_path / "stream.jmq"
    path.write_bytes(corpus("nested aligned"))
    return path


def index_of(path: Path) -> Path:
    found = [entry for entry in path.parent.iterdir() if entry != path]
    assert len(found) == 1, found
    return found[0]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have walks of files counted; an index that is used needs none."""
    walks: list[int] = []
    inner = split.walk_pieces

    def walk_counted(*given: Any, **named: Any) -> list[Segment]:
        walks.append(1)
        return inner(*given, **named)

    monkeypatch.setattr(split, "walk_pieces", walk_counted)
    return walks


def test_the_first_plan_leaves_an_index_and_the_second_uses_it(
    indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = counted(monkeypatch)
    first = plan_segments(str(indexed), JMQ, 600, LIMIT)
    assert len(walks) == 1 and index_of(indexed).name.startswith(".")
    assert_exact(first, sequential("nested aligned")["offset"].to_pylist(), indexed.stat().st_size)
    assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first
    assert len(plan_segments(str(indexed), JMQ, 1500, LIMIT)) < len(first)
    assert len(walks) == 1
    plan_segments(str(indexed), JMQ, 600, LIMIT - 1)  # another limit may give other rows
    assert len(walks) == 2


def _touch(path: Path) -> None:
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(packet())


def _change_an_end_but_not_the_time(at: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        found = path.stat()
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    return change


@pytest.mark.parametrize(
    "change",
    [_touch, _append, _change_an_end_but_not_the_time(60), _change_an_end_but_not_the_time(-1)],
    ids=["time", "size", "first bytes", "last bytes"],
)
def test_an_index_is_not_used_when_anything_changed(
    change: Callable[[Path], None], indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_segments(str(indexed), JMQ, 600, LIMIT)
    change(indexed)
    walks = counted(monkeypatch)
    found = plan_segments(str(indexed), JMQ, 600, LIMIT)
    assert len(walks) == 1
    starts = table_of(str(indexed), compiled=False, max_packet_bytes=LIMIT)["offset"].to_pylist()
    assert_exact(found, starts, indexed.stat().st_size)
    assert plan_segments(str(indexed), JMQ, 600, LIMIT) == found
    assert len(walks) == 1  # it was written anew


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "{}", "7", '"text"', "\0", "[" * 99_999, '{"segments": 5}'),
        *('{"segments": [{}]}', '{"segments": [{"start": 0}]}', '{"segments": []}'),
    ],
    ids=range(13),
)
def test_an_index_that_is_none_is_made_again(text: str, indexed: Path) -> None:
    first = plan_segments(str(indexed), JMQ, 600, LIMIT)
    good = index_of(indexed).read_text()
    index_of(indexed).write_text(text)
    assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first
    assert index_of(indexed).read_text() == good


def test_no_single_wrong_character_in_an_index_is_believed(indexed: Path) -> None:
    first = plan_segments(str(indexed), JMQ, 600, LIMIT)
    index = index_of(indexed)
    good = index.read_text()
    rng = Random(3)
    for at in range(len(good)):
        index.write_text(good[:at] + rng.choice("0123456789, x") + good[at + 1 :])
        assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first, good[at - 10 : at + 10]
    index.write_bytes(b"\xff\xfe")
    assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (0, {"start": 100}),
        (1, {"start": 1}),
        (1, {"stop": 1 << 40}),
        (-1, {"stop": 1}),
        (1, {"start": 0.5}),
        (1, {"next_context": "x"}),
        (1, {"rows": -1}),
    ],
)
def test_an_index_that_others_wrote_leaves_out_no_bytes(
    place: int, change: dict[str, Any], indexed: Path
) -> None:
    first = plan_segments(str(indexed), JMQ, 600, LIMIT)
    index = index_of(indexed)
    found = json.loads(index.read_text())
    found["segments"][place] |= change
    found["segments_crc32"] = zlib.crc32(json.dumps(found["segments"]).encode())
    index.write_text(json.dumps(found))
    assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first


def test_an_index_of_another_format_is_not_used(indexed: Path) -> None:
    first = plan_segments(str(indexed), JMQ, 600, LIMIT)
    index = index_of(indexed)
    found = json.loads(index.read_text())
    for key in [key for key in found if key != "segments"]:
        for value in ("other", None, -1):
            index.write_text(json.dumps({**found, key: value}))
            assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first
            assert json.loads(index.read_text()) == found, key
        without = {name: value for name, value in found.items() if name != key}
        index.write_text(json.dumps(without))
        assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first
    index.write_text(json.dumps({**found, "segments": found["segments"][:-1]}))
    assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first


def test_a_folder_where_nothing_may_be_written_is_fine(indexed: Path) -> None:
    first = plan_segments(str(indexed), JMQ, 600, LIMIT)
    index = index_of(indexed)
    index.unlink()
    index.mkdir()
    assert plan_segments(str(indexed), JMQ, 600, LIMIT) == first
    assert index_of(indexed) == index  # and no part of an index is left
