"""Sources of a stream's bytes: a path, a URL, bytes, a file object, standard input.

Compression is detected by content, not by name.
"""

from __future__ import annotations

import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

import pyarrow as pa

from wireyard.errors import SourceError
from wireyard.streams.urls import shown_text, shown_url

if TYPE_CHECKING:
    from pyarrow import fs

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]
"""Anything a stream can be read from."""
_EDGE_BYTES: Final = 64 << 10
"""Bytes of each end of a file that tell it from others."""

MAGIC_BYTES: Final = 4
"""First bytes that show a compression."""
_COMPRESSIONS: Final[Mapping[str, re.Pattern[bytes]]] = MappingProxyType(
    {
        "gzip": re.compile(rb"\x1f\x8b\x08"),  # the third byte is the only method that there is
        "bzip2": re.compile(rb"BZh[1-9]"),
        "xz": re.compile(rb"\xfd7zX"),
        "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
        "lz4": re.compile(rb"\x04\x22\x4d\x18"),
    }
)
_UNSUPPORTED: Final[Mapping[bytes, tuple[str, str]]] = MappingProxyType(
    {
        b"PK\3\4": ("zip", "unzip"),
        b"7z\xbc\xaf": ("7z", "7z x"),
        b"Rar!": ("rar", "unrar x"),
        b"\x1f\x9d": ("compress", "uncompress"),
        b"\x02\x21\x4c\x18": ("an old format of lz4", "lz4 -d"),
        b"LZIP": ("lzip", "lzip -d"),
        b"\x89LZO": ("lzop", "lzop -d"),
        b"\x5d\0\0": ("lzma", "unlzma"),
        b"\xff\6\0\0": ("snappy", "snzip -d"),
    }
)
"""Names of other compressions by their first bytes, with the command that unpacks them."""


class Damaged(OSError):
    """A source ends before its end; all bytes that it gives were read before.

    `problem` is the reason, without the name of the source. `unread_bytes` is the number of its
    bytes behind the end, as far as it is known.
    """

    def __init__(self, problem: str, unread_bytes: int = 0) -> None:
        super().__init__(problem)
        self.unread_bytes = unread_bytes


def open_source(source: Source, start: int = 0) -> tuple[str, Reading, int | None]:
    """Open a source for reading; the caller closes the returned file.

    ``-`` is standard input. `start` is an offset in bytes, which needs a source that can seek and
    is not compressed. Return the name of the source in rows, without secrets of a URL; its bytes;
    and their number, None if unknown. A source that cannot be read raises `SourceError` with a
    message of one line.
    """
    name, file, size, ours = _open(source)
    opened = Reading(file, ours)
    try:
        with reading(name):
            return name, *_ready(name, opened, size, start)
    except BaseException:
        opened.close()
        raise


def _ready(name: str, opened: Reading, size: int | None, start: int) -> tuple[Reading, int | None]:
    """Return the source decompressed if it is compressed, and at `start`."""
    codec = compression(opened.peek(MAGIC_BYTES))
    if codec and start:
        raise SourceError(f"{name}: is compressed, so it is read from its beginning only")
    if codec:
        from wireyard.streams.compressed import inflated

        return Reading(inflated(opened, codec), True), None
    if start:
        opened.seek(start)
    return opened, size


def compression(head: bytes) -> str | None:
    """Return the name of the compression whose magic number `head` begins with, if any."""
    return next((name for name, magic in _COMPRESSIONS.items() if magic.match(head)), None)


def unsupported_compression(head: bytes) -> str | None:
    """Return a text about bytes that begin like a compression that is not read; None if not."""
    for magic, (name, command) in _UNSUPPORTED.items():
        if head.startswith(magic):
            return f"compressed with {name}: not supported, unpack it ({command})"
    return None


def edges_crc32(read_at: Callable[[int, int], bytes], size: int) -> int:
    """Return the checksum of both ends of the first `size` bytes of a file.

    `read_at` returns so many bytes of the file from an offset on.
    """
    count = min(_EDGE_BYTES, size)
    return zlib.crc32(read_at(count, size - count), zlib.crc32(read_at(count, 0)))


def file_sha256(path: str) -> str | None:
    """Return the SHA-256 of a local file as ``sha256sum`` prints it, None for anything else.

    `SourceError` is raised if the file cannot be read.
    """
    if not os.path.isfile(path):
        return None
    with reading(path), open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


class Reading:
    """A binary file whose first bytes can be peeked at.

    `file` has `readinto`, or at least `read`; `close` closes it only if it is `ours`. `position` is
    the offset of the next byte. `damage` is the reason why it ended early, if its reader accepts
    that.
    """

    def __init__(self, file: Any, ours: bool) -> None:
        self._file = file
        self._ours = ours
        self._head = b""
        self.position = 0
        self.damage: Damaged | None = None
        self.closed = False

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def peek(self, count: int) -> bytes:
        """Return up to `count` of the first bytes without consuming them; those before damage."""
        try:
            while len(self._head) < count and (more := self._file.read(count - len(self._head))):
                if not isinstance(more, bytes):
                    raise OSError("is open as text, not as bytes")
                self._head += more
        except Damaged as damage:
            self.damage = damage
        return self._head[:count]

    def seek(self, offset: int) -> None:
        """Go to an offset of the file."""
        self._file.seek(offset)
        self._head = b""
        self.position = offset

    def readinto(self, buffer: memoryview) -> int:
        """Read into `buffer`; return the number of bytes, 0 at the end."""
        count = self._fill(buffer)
        self.position += count
        return count

    def _fill(self, buffer: memoryview) -> int:
        if self._head:
            count = min(len(self._head), len(buffer))
            buffer[:count] = self._head[:count]
            self._head = self._head[count:]
            return count
        if hasattr(self._file, "readinto"):
            count = self._file.readinto(buffer)
            if count is None:
                raise OSError("has no bytes yet, and does not wait for them")
            return int(count)
        piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes, none at the end."""
        buffer = bytearray(count)
        return bytes(buffer[: self.readinto(memoryview(buffer))])

    def close(self) -> None:
        """Close the file, if it is ours."""
        if self._ours and not self.closed:
            self._file.close()
        self.closed = True


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path inside it.

    `SourceError` is raised for a scheme that neither Arrow nor an installed fsspec package
    supports.
    """
    from pyarrow import fs  # slow to import: it has the clients of object stores

    if "://" not in path:
        return fs.LocalFileSystem(), os.path.abspath(path)
    scheme, rest = path.split("://", 1)
    # Hadoop's s3a is the same store; Arrow does not accept that scheme.
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    if scheme == "s3":  # a small file is written by one request instead of three
        rest += f"{'&' if '?' in rest else '?'}allow_delayed_open=true"
    try:
        return cast(tuple[fs.FileSystem, str], fs.FileSystem.from_uri(f"{scheme}://{rest}"))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError):
        return _through_fsspec(path)


def _through_fsspec(path: str) -> tuple[fs.FileSystem, str]:
    import fsspec
    from pyarrow import fs

    try:
        system, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise SourceError(f"{shown_url(path)}: {shown_text(str(error))}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(system)), str(inner)


def create_file(path: str, content: bytes) -> None:
    """Create a file with its content atomically: of several callers, one alone succeeds.

    On a disk a temporary file is linked to the name. On an object store it is a conditional put,
    which fsspec supports for S3 (s3fs), Google Cloud (gcsfs), Azure (adlfs) and its own memory.
    `FileExistsError` is raised if the file exists, another `OSError` if it cannot be written or the
    store has no conditional put.
    """
    if "://" in path:
        _put_if_absent(path, content)
        return
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    hidden = os.path.join(folder, f".{name}-{uuid4().hex}")
    try:
        with open(hidden, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(hidden, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(hidden)


_CONDITIONAL = frozenset({"s3", "s3a", "gcs", "gs", "abfs", "az", "memory"})
"""Protocols whose fsspec packages can create a file exclusively."""


def _put_if_absent(path: str, content: bytes) -> None:
    import fsspec

    url = urlsplit(path)
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    options: dict[str, Any] = {}
    plain = path.partition("?")[0]
    if url.scheme in ("s3", "s3a", "s3n"):
        # Arrow reads these options from the URL; s3fs takes them as arguments.
        plain = f"s3://{url.netloc.rpartition('@')[2]}{url.path}"
        if url.username:
            options = {"key": unquote(url.username), "secret": unquote(url.password or "")}
        if "endpoint_override" in query:
            scheme = query.get("scheme", "https")
            options["endpoint_url"] = f"{scheme}://{query['endpoint_override']}"
        if "region" in query:
            options["client_kwargs"] = {"region_name": query["region"]}
    try:
        system, inner = fsspec.core.url_to_fs(plain, **options)
    except (ValueError, ImportError) as error:
        raise OSError(f"a conditional put needs a package: {error}") from None
    names = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if names.isdisjoint(_CONDITIONAL):
        raise OSError(f"no conditional put is known for {url.scheme}://")
    system.pipe_file(inner, content, mode="create")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn an `OSError` into a `SourceError`, one line that names the source."""
    name = shown_url(name)
    try:
        yield
    except FileNotFoundError:
        # fsspec reports the same where no server answers.
        or_else = ", or its server does not answer" if name.startswith(("http:", "https:")) else ""
        raise SourceError(f"{name}: there is no such file{or_else}") from None
    except IsADirectoryError:
        raise SourceError(f"{name}: is a directory, not a file") from None
    except PermissionError:
        raise SourceError(f"{name}: may not be read (permission denied)") from None
    except OSError as error:
        raise SourceError(f"{name}: {shown_text(error.strerror or str(error))}") from None


@contextmanager
def utf8_names(name: str) -> Iterator[None]:
    """Convert the error of a file name that is not UTF-8, as text in tables has to be."""
    try:
        yield
    except UnicodeError:
        shown = shown_url(name)
        raise SourceError(f"{shown}: a file name that is not UTF-8; rename the file") from None


def _open(source: Source) -> tuple[str, Any, int | None, bool]:
    """Return the name, file and size of a source, and whether we opened the file."""
    if isinstance(source, bytes | bytearray | memoryview):
        return "<bytes>", io.BytesIO(source), memoryview(source).nbytes, True
    if not isinstance(source, str | os.PathLike):
        return str(getattr(source, "name", "<stream>")), source, None, False
    path = os.fspath(source)
    if path == "-":
        return path, sys.stdin.buffer, None, False
    with reading(path):
        if "://" not in path:
            file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - the caller closes it
            return path, file, os.fstat(file.fileno()).st_size, True
        system, inner = filesystem(path)
        remote = system.open_input_file(inner)
        return shown_url(path), remote, remote.size(), True
