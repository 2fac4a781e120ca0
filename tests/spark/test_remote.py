"""Captures in object stores: how much of them is fetched, and that their streams are right."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import pyarrow as pa
import pytest
from pyarrow import fs

from tests.captures.connections import make_capture
from tests.captures.make import BEGAN_NS, Packet, both_ways, ethernet, ipv4, pcap, tcp
from tests.captures.rfc8448 import CLIENT_STREAM, SERVER_STREAM
from tests.captures.test_parts import streams_of
from tests.captures.test_parts import traffic as damaged_traffic
from tests.spark.lakes import HELLO, Silent, message, run
from wireyard.captures.detection.assignment import PORT_MAPPER_PORT
from wireyard.captures.index import read_indexed
from wireyard.captures.inputs import open_captures
from wireyard.captures.packets.units import Share
from wireyard.captures.read import read_captures
from wireyard.lake import read_lake
from wireyard.lake.writer import Lake
from wireyard.pipeline.decoding import indexing
from wireyard.pipeline.decoding.indexing import HeaderPiece, cut_headers, index_of, join_headers
from wireyard.pipeline.decoding.results import HeadersResult
from wireyard.pipeline.inputs.captures import count_parts, cut_capture
from wireyard.pipeline.inputs.finding import FoundInput, list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.spark.running import SparkEngine
from wireyard.streams import mapped
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["damaged_traffic"]

AWS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")


class Counting(fs.FSSpecHandler):  # type: ignore[misc]
    """A store that counts what is fetched from it."""

    fetched = 0

    def open_input_file(self, path: str) -> Any:
        counting = self

        class File:
            closed = False

            def __init__(self) -> None:
                self._file = counting.fs.open(path, "rb")

            def read(self, count: int = -1) -> bytes:
                found: bytes = self._file.read(count)
                Counting.fetched += len(found)
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(self._file, name)

        return pa.PythonFile(File(), mode="r")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of a folder; what is mapped of its files is counted."""
    folder = f"captures-{uuid4().hex}"
    memory = fsspec.filesystem("memory")

    def counted(path: str) -> tuple[fs.FileSystem, str]:
        system, inner = filesystem(path)
        return fs.PyFileSystem(Counting(memory)) if "://" in path else system, inner

    monkeypatch.setattr(mapped, "filesystem", counted)
    Counting.fetched = 0
    yield f"memory://{folder}"
    memory.rm(f"/{folder}", recursive=True)


def put(url: str, content: bytes) -> str:
    with fsspec.open(url, "wb") as file:
        file.write(content)
    return url


def large_traffic(connections: int, packets: int) -> list[Packet]:
    """Connections whose packets come by turns, full of bytes."""
    rng = Random(5)
    sequences = dict.fromkeys(range(connections), 0)
    found = []
    for number in range(packets):
        one = rng.randrange(connections)
        payload = rng.randbytes(1400)
        data = tcp(40000 + one, 1883, sequences[one], payload)
        sequences[one] += len(payload)
        found.append(Packet(ethernet(ipv4(data, 6)), BEGAN_NS + 1000 * number))
    return found


def indexed(found: FoundInput, split_bytes: int, folder: Path) -> tuple[Any, int]:
    """Do what a run does up to the streams; return the index, and how many pieces were read."""
    pieces = cut_headers(found, split_bytes)
    written = written_headers(pieces, folder)
    joined = join_headers(pieces, written)
    return index_of(joined, [*written, *written_headers(joined.again, folder)]), len(pieces)


def written_headers(pieces: Iterable[HeaderPiece], folder: Path) -> list[HeadersResult]:
    found = (indexing.write_headers(piece, str(folder / uuid4().hex)) for piece in pieces)
    return [each for each in found if each is not None]


def input_of(paths: list[str], size: int) -> FoundInput:
    return FoundInput(paths[0], size, None, False, {}, tuple(paths))


def test_a_remote_capture_is_fetched_once(store: str, tmp_path: Path) -> None:
    content = pcap(large_traffic(50, 16_000))
    path = put(f"{store}/large.pcap", content)
    local = tmp_path / "large.pcap"
    local.write_bytes(content)
    split_bytes = 3 << 20
    index, pieces = indexed(input_of([path], len(content)), split_bytes, tmp_path)
    shares = count_parts(len(content), split_bytes, indexed=True)
    assert (shares, pieces) == (8, 8)
    ours = [
        read_indexed([path], index.extents, Share(part, shares, PORT_MAPPER_PORT))
        for part in range(shares)
    ]
    assert streams_of(*ours) == streams_of(read_captures([str(local)]))
    assert len(content) <= Counting.fetched < 1.2 * len(content)


def test_a_remote_pcap_is_not_searched_for_secrets(store: str, tmp_path: Path) -> None:
    """Only pcapng has them; of TLS without its keys no more is fetched than of anything else."""
    closed = [
        Packet(frame, BEGAN_NS)
        for number in range(40)
        for frame in both_ways(CLIENT_STREAM, SERVER_STREAM, (50000 + number, 8883))
    ]
    content = pcap([*large_traffic(50, 4000), *closed])
    path = put(f"{store}/large.pcap", content)
    split_bytes = 1 << 20
    index, _ = indexed(input_of([path], len(content)), split_bytes, tmp_path)
    shares = count_parts(len(content), split_bytes, indexed=True)
    parts = [
        open_captures([path], part=(part, shares), index=index.extents) for part in range(shares)
    ]
    assert sum(bool(part.closed) for part in parts) > 3
    assert Counting.fetched < 1.5 * len(content)


@pytest.mark.parametrize("damage", [None, "cut", "noise"])
def test_streams_of_remote_files_in_pieces(
    store: str,
    tmp_path: Path,
    damaged_traffic: list[Packet],
    damage: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wireyard.captures.files.file.REMOTE_AHEAD_BYTES", 64)
    monkeypatch.setattr(indexing, "REMOTE_AHEAD_BYTES", 64)
    half = len(damaged_traffic) // 2
    contents = [pcap(damaged_traffic[half:]), pcap(damaged_traffic[:half])]
    if damage == "cut":
        contents[0] = contents[0][:-7]
    elif damage == "noise":
        contents[1] = contents[1][:-3000] + b"\xff" * 3000
    paths = [put(f"{store}/{number}.pcap", each) for number, each in enumerate(contents)]
    local = [tmp_path / str(number) for number in range(2)]
    for file, each in zip(local, contents, strict=True):
        file.write_bytes(each)
    size = sum(map(len, contents))
    index, _ = indexed(input_of(paths, size), size // 12, tmp_path)
    assert list(index.files) == paths[::-1]
    shares = count_parts(size, size // 12, indexed=True)
    assert shares >= 3
    whole = read_captures([str(each) for each in local])
    ours = [
        read_indexed(index.files, index.extents, Share(part, shares, PORT_MAPPER_PORT))
        for part in range(shares)
    ]
    assert streams_of(*ours) == streams_of(whole)
    assert (index.damage is None) is (damage is None)
    if damage is not None:
        assert index.damage == f"{whole.damage}; {whole.unread_bytes} bytes are not read"


def test_a_remote_capture_without_an_index_is_one_part() -> None:
    options: dict[str, Any] = {
        "format": None,
        "decode_as": (),
        "keylog": (),
        "split_bytes": 1 << 20,
    }
    (part,) = cut_capture("s3://a/b", ("s3://a/b",), 1 << 30, **options)
    assert (part.part, part.of, part.bytes) == (0, 1, 1 << 30)
    assert len(list(cut_capture("/a/b", ("/a/b",), 1 << 30, **options))) == 256


def test_ranges_of_a_remote_file(store: str) -> None:
    content = Random(3).randbytes(3 << 20)
    path = put(f"{store}/file", content)
    data = mapped.map_bytes(path, 1 << 20, 2 << 20)
    assert data is not None
    assert len(data) == len(content)
    assert data[1 << 20 : 2 << 20].tobytes() == content[1 << 20 : 2 << 20]
    assert Counting.fetched == (1 << 20) + 4096
    whole = mapped.map_bytes(path)
    assert whole is not None
    assert whole.tobytes() == content
    assert mapped.map_bytes(put(f"{store}/empty", b"")) is None
    assert mapped.map_bytes(put(f"{store}/packed", b"\x1f\x8b\x08" + bytes(99))) is None
    assert mapped.map_bytes(f"{store}/nothing") is None


def test_pieces_of_a_remote_file(store: str) -> None:
    """A large one is cut when it has more than one part, a local one when that is worth a walk."""
    content = pcap(large_traffic(3, 300))
    path = put(f"{store}/small.pcap", content)
    size = len(content)
    pieces = cut_headers(input_of([path], size), size // 6)
    assert pieces[0].start == 0
    assert all(isinstance(piece, HeaderPiece) for piece in pieces)
    assert pieces[-1].stop == size
    assert cut_headers(input_of([path], size), size) == []


def listed(bucket: str, prefix: str) -> list[dict[str, Any]]:
    """Return the objects of a bucket."""
    import boto3  # which moto needs

    found: list[dict[str, Any]] = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix)[
        "Contents"
    ]
    return found


MOST_OF_PIECES, MOST_FETCHES = 250, 16
"""Requests of a run over a capture in three pieces, and how many of them are for its bytes."""
MOST_REQUESTS = {0: 120, 3: 35}
"""Requests of a run over three small files, by how many of them are in the lake already."""


def requests(log: Path) -> int:
    """Return how many requests the S3 server has answered."""
    return log.read_bytes().count(b" HTTP/1.1")


@pytest.mark.spark
def test_inputs_and_lake_on_s3(
    spark: SparkSession, s3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fills it, in few requests; executors have what they need in their environment."""
    for name in AWS:
        monkeypatch.setitem(spark.sparkContext.environment, name, os.environ[name])
    engine = SparkEngine(lambda: spark)
    system, _ = filesystem("s3://bucket")
    contents = {f"{name}.jmq": HELLO + message(name) for name in range(3)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with system.open_output_stream(f"bucket/in/{name}") as file:
            file.write(content)
    for unchanged in (0, 3):
        before = requests(s3)
        with Lake.open("s3://bucket/lake") as lake:
            found = list_inputs(["s3://bucket/in"]).inputs
            report = fill_lake(lake, found, engine, Silent())
        assert (len(report.added), report.unchanged) == (3 - unchanged, unchanged)
        assert requests(s3) - before <= MOST_REQUESTS[unchanged]
    remote = read_lake("s3://bucket/lake")
    assert remote.commits == 1
    run(tmp_path / "lake", None, *(tmp_path / name for name in contents))
    local = read_lake(str(tmp_path / "lake"))
    assert {name: remote.read(name).num_rows for name in remote.files} == {
        name: local.read(name).num_rows for name in local.files
    }
    packets = [
        lake.read("packets_jmq").sort_by([("source", "ascending"), ("offset", "ascending")])
        for lake in (remote, local)
    ]
    assert (
        packets[0]
        .drop_columns(["source", "stream"])
        .equals(packets[1].drop_columns(["source", "stream"]))
    )
    assert not remote.damage(checksums=True)
    tags = {each["Key"]: each["ETag"] for each in listed("bucket", "lake/_wireyard/data/")}
    # No folder without files, and each file is written by one request.
    assert len(tags) > 10 and not any(name.endswith("/headers/") for name in tags)
    assert not any("-" in tag for tag in tags.values()), "written in parts"


def test_a_large_capture_on_s3(s3: Path, tmp_path: Path) -> None:
    """It is fetched once, in pieces, and all that is made of it takes few requests."""
    content = make_capture(Random(3), 2_000)
    local = tmp_path / "large.pcap"
    local.write_bytes(content)
    system, _ = filesystem("s3://bucket")
    with system.open_output_stream("bucket/large/large.pcap") as file:
        file.write(content)
    before = s3.stat().st_size
    with Lake.open("s3://bucket/large-lake") as lake:
        found = list_inputs(["s3://bucket/large"]).inputs
        fill_lake(lake, found, None, Silent(), split_bytes=len(content) // 3 + 1)
    asked = s3.read_bytes()[before:].decode()
    assert asked.count(" HTTP/1.1") <= MOST_OF_PIECES
    fetched = [line for line in asked.splitlines() if "GET /bucket/large/" in line]
    assert len(fetched) <= MOST_FETCHES
    run(tmp_path / "lake", None, local)
    remote, here = read_lake("s3://bucket/large-lake"), read_lake(str(tmp_path / "lake"))
    assert {name: remote.read(name).num_rows for name in remote.files} == {
        name: here.read(name).num_rows for name in here.files
    }
