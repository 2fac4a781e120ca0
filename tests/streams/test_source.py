"""Where bytes come from: every kind of source gives the same rows, every bad one says one line."""

from __future__ import annotations

import gzip
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import fsspec
import pyarrow as pa
import pytest

import wireyard
from tests.make import packet, variety
from tests.readings import JMQ, scan_source, table_of
from wireyard.errors import SourceError, UsageError
from wireyard.streams.plan import make_plan
from wireyard.streams.source import filesystem

DATA = b"".join(variety()) * 5
ROWS = len(variety()) * 5


def zstd(data: bytes) -> bytes:
    target = pa.BufferOutputStream()
    with pa.CompressedOutputStream(target, "zstd") as packed:
        packed.write(data)
    return bytes(target.getvalue())


PACKED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd}


@pytest.fixture(params=["plain", "gzip", "zstd"])
def sent(request: pytest.FixtureRequest) -> bytes:
    """Return the stream as a source may hold it."""
    return PACKED.get(request.param, bytes)(DATA)


def rows(source: Any) -> int:
    table = wireyard.read(source)
    assert table["offset"].to_pylist()[-1] + table["length"].to_pylist()[-1] == len(DATA)
    assert set(table["status"].to_pylist()) == {"ok"}
    return int(table.num_rows)


def test_a_path_a_name_and_a_url(sent: bytes, tmp_path: Path) -> None:
    # What the name says about compression is not asked.
    path = tmp_path / "stream.txt"
    path.write_bytes(sent)
    assert rows(path) == rows(str(path)) == rows(path.as_uri()) == ROWS
    assert set(wireyard.read(str(path))["source"].to_pylist()) == {str(path)}


def test_a_path_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "-dash.jmq").write_bytes(DATA)
    monkeypatch.chdir(tmp_path)
    assert rows("-dash.jmq") == ROWS


def test_bytes_of_every_kind(sent: bytes) -> None:
    assert rows(sent) == rows(bytearray(sent)) == rows(memoryview(b"." + sent)[1:]) == ROWS


def test_bytes_that_change_size_later_are_let_go() -> None:
    data = bytearray(DATA)
    table = wireyard.read(data)
    del data[:]
    assert table.num_rows == ROWS


def test_file_objects_stay_open_and_belong_to_the_caller(sent: bytes, tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(sent)
    for file in (path.open("rb"), path.open("rb", buffering=0), io.BytesIO(sent)):
        with file:
            assert rows(file) == ROWS
            assert not file.closed


def test_a_file_object_is_read_from_where_it_stands() -> None:
    file = io.BytesIO(packet() + DATA)
    file.seek(72)
    assert rows(file) == ROWS


class OnlyRead:
    """The least that can be called a file."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self._inner.read(min(size, 1000))


def test_a_file_object_with_nothing_but_read(sent: bytes) -> None:
    assert rows(OnlyRead(sent)) == ROWS


@contextmanager
def piped(sent: bytes, *, slowly: bool, buffering: int) -> Iterator[IO[bytes]]:
    """Give the reading end of a pipe that somebody writes to; slowly: byte by byte at first."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0) as file:
            for at in range(6 if slowly else 0):
                file.write(sent[at : at + 1])
                time.sleep(0.01)
            file.write(sent[6 if slowly else 0 :])

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(reading, "rb", buffering=buffering) as file:
        yield file
        writer.join(10)


@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize("buffering", [0, -1])
def test_a_pipe(sent: bytes, slowly: bool, buffering: int) -> None:
    with piped(sent, slowly=slowly, buffering=buffering) as file:
        assert rows(file) == ROWS


@pytest.mark.parametrize("slowly", [False, True])
def test_standard_input(sent: bytes, slowly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(sent, slowly=slowly, buffering=-1) as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        table = wireyard.read("-")
        assert table.num_rows == ROWS and set(table["source"].to_pylist()) == {"-"}
        assert not file.closed


def test_a_socket(sent: bytes) -> None:
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            theirs.sendall(sent)

    sender = threading.Thread(target=send)
    sender.start()
    with ours, ours.makefile("rb", buffering=0) as file:
        assert rows(file) == ROWS
    sender.join(10)


def test_a_store_behind_fsspec(sent: bytes) -> None:
    with fsspec.open("memory://bucket/stream", "wb") as file:
        file.write(sent)
    assert rows("memory://bucket/stream") == ROWS
    with fsspec.open("memory://bucket/stream", "rb") as file:
        assert rows(file) == ROWS


def test_gzip_members_one_after_the_other() -> None:
    half = len(variety()[0])
    assert rows(gzip.compress(DATA[:half]) + gzip.compress(DATA[half:])) == ROWS


def test_packets_of_every_source(sent: bytes, tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(sent)
    for source in (path, io.BytesIO(sent), OnlyRead(sent), sent):
        assert len(list(wireyard.packets(source))) == ROWS  # type: ignore[arg-type]


# --- what is wrong with a source ------------------------------------------------------------


def complaint(source: Any, **given: Any) -> str:
    with pytest.raises((SourceError, UsageError)) as caught:
        wireyard.read(source, **given)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def test_a_missing_path(tmp_path: Path) -> None:
    path = str(tmp_path / "nothing.jmq")
    assert complaint(path) == f"{path}: there is no such file"
    assert "no such file" in complaint("memory://bucket/nothing")
    assert "no such file" in complaint(f"file://{path}")


def test_a_directory(tmp_path: Path) -> None:
    advice = "is a folder, and no file store of Open MQ; 'wireyard run' reads all in a folder"
    assert complaint(tmp_path) == f"{tmp_path}: {advice}"
    assert "directory" in complaint(tmp_path.as_uri())


def test_a_file_nobody_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.jmq"
    path.write_bytes(DATA)
    path.chmod(0)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # so that no folder above has to be open to others
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)  # root reads everything
    try:
        text = complaint(path.name)
    finally:
        if as_root:
            os.seteuid(0)
    assert text == f"{path.name}: may not be read (permission denied)"


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="no file here fails when it is read"
)
@pytest.mark.parametrize("format", [None, "jmq"])
def test_a_file_that_fails_while_it_is_read(format: str | None) -> None:
    assert "Input/output error" in complaint("/proc/self/mem", format=format)


class Failing(io.RawIOBase):
    """A file that gives some bytes and then an error."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._inner.readinto(buffer)
        if count == 0:
            raise OSError(5, "Input/output error")
        return count


def test_rows_before_a_failure_come_out_first() -> None:
    batches = scan_source(Failing(DATA), make_plan(JMQ))  # type: ignore[arg-type]
    found: list[pa.RecordBatch] = []
    with pytest.raises(SourceError, match="Input/output error"):
        found.extend(batches)
    assert sum(batch.num_rows for batch in found) == ROWS
    assert complaint(Failing(DATA))


@pytest.mark.parametrize("codec", PACKED)
def test_a_compressed_stream_cut_short_gives_its_rows_and_says_so(codec: str) -> None:
    # Incompressible bodies: what is cut is the end of the stream, not all of it.
    data = b"".join(packet(body=os.urandom(500), sequence=n) for n in range(2000))
    batches = scan_source(PACKED[codec](data)[:-3000], make_plan(JMQ))
    found: list[pa.RecordBatch] = []
    with pytest.raises(SourceError) as caught:
        found.extend(batches)
    assert "\n" not in str(caught.value)
    assert sum(batch.num_rows for batch in found) > 1000


@pytest.mark.parametrize("codec", PACKED)
def test_a_compressed_stream_that_is_damaged_says_so(codec: str) -> None:
    packed = bytearray(PACKED[codec](os.urandom(9000)))
    packed[5:20] = b"\xff" * 15
    with pytest.raises(SourceError):
        list(scan_source(bytes(packed), make_plan(JMQ)))


def test_a_compressed_source_has_no_middle(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(gzip.compress(DATA))
    for source in (path, path.read_bytes()):
        with pytest.raises(SourceError, match="compressed"):
            plan = make_plan(JMQ)
            list(scan_source(source, plan, framer=plan.framer(72)))


def test_a_file_that_does_not_wait_is_refused_where_it_has_nothing() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.write(theirs, DATA[:100])
    with (
        open(ours, "rb", buffering=0) as file,
        open(theirs, "wb"),
        pytest.raises(SourceError, match="does not wait for them"),
    ):
        list(scan_source(file, make_plan(JMQ)))


def test_an_empty_source_needs_a_format(tmp_path: Path) -> None:
    path = tmp_path / "empty.jmq"
    path.touch()
    for source in (path, b"", io.BytesIO(), gzip.compress(b"")):
        assert "is empty" in complaint(source)
        assert wireyard.read(source, "jmq").num_rows == 0


def test_a_source_that_begins_like_no_format_shows_its_bytes() -> None:
    text = complaint(b"GET / HTTP/1.1\r\n\r\n")
    assert "47 45 54 20" in text and "jmq" in text


def test_a_text_file_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(DATA)
    for text in (io.StringIO("text"), path.open(encoding="latin-1")):
        with text:
            assert "text" in complaint(text)


def test_an_unknown_scheme_names_itself() -> None:
    assert "nosuchscheme" in complaint("nosuchscheme://x/y")


def test_a_format_that_does_not_exist_is_named() -> None:
    assert "'amqp'" in complaint(DATA, format="amqp")


def test_paths_and_urls_have_a_file_system(tmp_path: Path) -> None:
    system, inner = filesystem(str(tmp_path))
    assert system.type_name == "local" and inner == str(tmp_path)
    system, inner = filesystem(tmp_path.as_uri())
    assert system.type_name == "local" and inner == str(tmp_path)
    system, inner = filesystem("memory://a/b")
    assert "memory" in system.type_name and inner.endswith("a/b")


def test_every_file_that_is_opened_is_closed(tmp_path: Path) -> None:
    """Also where reading ends early; this fails by the warning that an open file leaves."""
    path = tmp_path / "stream"
    path.write_bytes(DATA)
    table_of(path, compiled=False, limit=100)
    batches = scan_source(path, make_plan(JMQ))
    next(batches)
    del batches
    wireyard.scan(path)
    next(wireyard.packets(path))
    path.write_bytes(b"no format at all")
    assert complaint(path)
