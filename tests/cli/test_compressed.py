"""Compressed sources: every compression and any damage gives all bytes before it, and one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import re
import zlib
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from tests.captures.make import one_way
from tests.captures.test_live import connect, publish
from tests.cli.results import Run, one_line
from tests.make import packet
from wireyard.captures.files import file as files
from wireyard.captures.read import read_capture
from wireyard.errors import SourceError
from wireyard.streams import mapped
from wireyard.streams.source import Damaged, open_source

SENT = [connect(1) + publish(20), publish(30), publish(40)]
CAPTURE = one_way([(len(b"".join(SENT[:n])), sent) for n, sent in enumerate(SENT)])
STREAM = b"".join(packet(body=b"text %d" % number, sequence=number) for number in range(20))
TEXT = random.Random(1).randbytes(200_000)


def arrow(codec: str) -> Callable[[bytes], bytes]:
    def packed(data: bytes) -> bytes:
        target = pa.BufferOutputStream()
        with pa.CompressedOutputStream(target, codec) as stream:
            stream.write(data)
        return bytes(target.getvalue())

    return packed


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": arrow("zstd"),
    "lz4": arrow("lz4"),
}


def inflated(packed: bytes) -> tuple[bytes, Damaged | None]:
    """Return the bytes before damage, and the damage."""
    found = bytearray()
    _, file, _ = open_source(packed)
    with file:
        try:
            while data := file.read(10_000):
                found += data
        except Damaged as damage:
            return bytes(found), damage
    return bytes(found), None


@pytest.mark.parametrize("codec", PACKED)
def test_members_follow_each_other(codec: str) -> None:
    pack = PACKED[codec]
    for data in (b"", TEXT, bytes(5_000_000)):
        assert inflated(pack(data)) == (data, None)
    assert inflated(pack(TEXT) + pack(b"more")) == (TEXT + b"more", None)


@pytest.mark.parametrize("codec", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("tail", [bytes(512), b"garbage", bytes(20_000) + b"\x1f", b"\x1f\x8b"])
def test_a_tail_is_ignored(codec: str, tail: bytes) -> None:
    assert inflated(PACKED[codec](TEXT) + tail) == (TEXT, None)


def test_members_behind_padding_are_read() -> None:
    packed = gzip.compress(TEXT) + bytes(512)
    assert inflated(packed * 2) == (TEXT * 2, None)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_data_that_is_cut_off_gives_what_inflates(codec: str, left: float) -> None:
    packed = PACKED[codec](TEXT)
    size = int(len(packed) * left)
    found, damage = inflated(packed[:size])
    assert str(damage) == f"{codec} data is cut off at byte {size}"
    assert TEXT.startswith(found)
    # Random bytes do not get smaller; bzip2 gives blocks of 900 kB, others of 128 kB at most.
    assert len(found) >= (0 if codec == "bzip2" else size - (1 << 17) - 200)


@pytest.mark.parametrize("size", [100, 300, 461])
def test_gzip_and_xz_give_the_last_byte_before_the_end(size: int) -> None:
    text = " ".join(map(str, range(1000))).encode()
    for codec in ("gzip", "xz"):
        packed = PACKED[codec](text)
        found, damage = inflated(packed[:size])
        assert damage is not None and text.startswith(found)
        inflater = lzma.LZMADecompressor() if codec == "xz" else zlib.decompressobj(31)
        assert found == inflater.decompress(packed[:size])


def test_gzip_is_read_up_to_the_damage_and_its_rest_is_counted() -> None:
    member, text = gzip.compress(TEXT), gzip.compress(b"text" * 9)
    middle = bytearray(member)
    middle[100_000:100_008] = b"\xff" * 8
    found, damage = inflated(bytes(middle) + text)
    assert damage is not None and len(found) > 90_000 and TEXT.startswith(found[:90_000])
    offset = int(str(damage).rpartition(" ")[2])
    assert offset >= 100_000 and damage.unread_bytes == len(member) + len(text) - offset
    checksum = bytearray(text)
    checksum[-8] ^= 1
    found, damage = inflated(bytes(checksum))
    assert (found, damage is not None) == (b"text" * 9, True)


@pytest.mark.parametrize("codec", PACKED)
def test_captures_streams_and_pipes(codec: str, run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for data in (CAPTURE, STREAM):
        path = tmp_path / "plain"
        path.write_bytes(data)
        wanted = run("decode", path, "--out", "csv", "--columns", "offset,length").stdout
        assert len(wanted.splitlines()) > 3
        path.write_bytes(PACKED[codec](data))
        for source in (path, "-", pipe):
            writer = Thread(target=pipe.write_bytes, args=(path.read_bytes(),), daemon=True)
            if source is pipe:
                writer.start()
            stdin = path.read_bytes() if source == "-" else b""
            command = ("decode", source, "--out", "csv", "--columns", "offset,length")
            result = run(*command, stdin=stdin)
            assert (result.exit_code, result.stdout) == (0, wanted)
            assert result.stderr.count("is a pipe") == result.stderr.count("\n") == (source is pipe)


def test_a_pipe_of_a_capture_is_read_once(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    for data in (CAPTURE, gzip.compress(CAPTURE)):
        pipe = tmp_path / f"pipe-{len(data)}"
        os.mkfifo(pipe)
        Thread(target=pipe.write_bytes, args=(data,), daemon=True).start()
        result = run("sql", pipe, "SELECT count(*) AS n FROM packets_mqtt", "--out", "csv")
        assert (result.exit_code, result.stdout.split()) == (0, ['"n"', "4"])


@pytest.mark.parametrize("command", ["decode", "flows", "inspect"])
def test_a_capture_that_is_cut_off_gives_its_packets_and_one_line(
    command: str, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "cut.pcap.gz"
    path.write_bytes(gzip.compress(CAPTURE)[:-20])
    result = run(command, path)
    assert result.exit_code == 1 and result.stdout
    assert re.fullmatch(
        rf"{path}: gzip data is cut off at byte \d+; \d+ bytes are not read", one_line(result)
    )


def test_damage_before_that_of_the_compression_is_named(run: Run, tmp_path: Path) -> None:
    """Damaged codes often inflate, to other bytes, and only the checksum at the end shows it."""
    first = CAPTURE.index(SENT[0]) + len(SENT[0])
    data = CAPTURE[: first + 8] + b"\xff" * 8 + CAPTURE[first + 16 :]
    packed = bytearray(gzip.compress(data))
    packed[-8] ^= 1
    (tmp_path / "in.pcap.gz").write_bytes(packed)
    result = run("decode", tmp_path / "in.pcap.gz")
    assert result.exit_code == 1
    assert f"at byte {first + 8} " in one_line(result)
    assert f"; {len(data) - first} bytes are not read" in one_line(result)


@pytest.mark.parametrize("words", [["why"], ["sql", "FROM messages"]])
def test_a_file_of_which_nothing_inflates_is_no_answer(
    words: list[str], run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "cut.pcap.gz"
    path.write_bytes(gzip.compress(CAPTURE)[:9])
    result = run(words[0], path, *words[1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert one_line(result) == f"{path}: gzip data is cut off at byte 9"


def test_a_stream_that_is_cut_off_gives_its_tail_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(STREAM)[:-20])
    result = run("decode", path, "--out", "csv", "--columns", "status")
    assert result.exit_code == 1
    assert result.stdout.split()[-2:] == ['"ok"', '"tail"']
    assert result.stderr.splitlines()[-1].startswith(f"wireyard: {path}: gzip data is cut off")


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"PK\3\4", "zip: not supported, unpack it (unzip)"),
        (b"7z\xbc\xaf\x27\x1c", "7z: not supported, unpack it (7z x)"),
        (b"\x1f\x9d\x90", "compress: not supported, unpack it (uncompress)"),
        (b"\x02\x21\x4c\x18", "an old format of lz4: not supported, unpack it (lz4 -d)"),
    ],
)
def test_other_compressions_are_named(head: bytes, text: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(head + bytes(100))
    assert one_line(run("decode", path)) == f"{path}: compressed with {text}"
    assert one_line(run("flows", path)) == f"{path}: compressed with {text}"


def test_a_large_capture_is_in_a_file_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_LARGE_BYTES", 100)
    whole = read_capture(gzip.compress(CAPTURE))
    assert bytes(whole.files[0]) == CAPTURE
    held = whole.files[0].base
    assert isinstance(held, memoryview) and isinstance(held.obj, mmap)


def test_what_a_capture_inflates_to_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_CAPTURE_BYTES", 1 << 20)
    bomb = gzip.compress(CAPTURE[:24] + bytes(50 << 20))
    with pytest.raises(SourceError, match="has over 0 GiB"):
        read_capture(io.BytesIO(bomb))
