"""Where a stream's bytes come from: a path, a URL, bytes, a file object, standard input.

Content decides about compression, not the name: gzip and zstandard are opened by their magic.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
from pyarrow import fs

from wireyard.errors import SourceError

__all__ = ["Source", "filesystem", "open_source", "reading"]

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]
"""Anything a stream can be read from."""

_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def open_source(source: Source, start: int = 0) -> tuple[str, IO[bytes], int | None]:
    """Open a source for reading; the caller closes the file.

    Parameters
    ----------
    source
        ``-`` is standard input.
    start
        Offset in bytes to begin at; needs a source that can seek and is not compressed.

    Returns
    -------
    name, file, size
        The source as it is named in rows; something with `readinto`; its size if it is known.

    Raises
    ------
    SourceError
        One line that says what is wrong with the source.
    """
    file: IO[bytes]
    size: int | None
    if isinstance(source, (bytes, bytearray, memoryview)):
        name, file, size = "<bytes>", io.BytesIO(source), len(source)
    elif isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        file, size = _open_path(name)
    else:
        name, file, size = str(getattr(source, "name", "<stream>")), source, None
    with reading(name):
        head = _peek(file, 4)
        for magic, codec in _COMPRESSIONS.items():
            if head.startswith(magic):
                return name, cast(IO[bytes], pa.CompressedInputStream(_arrow(file), codec)), None
        if start:
            file.seek(start)
    return name, file, size


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path inside it.

    Raises
    ------
    SourceError
        A URL of a scheme that neither Arrow nor an installed fsspec package knows.
    """
    if "://" not in path:
        return fs.LocalFileSystem(), os.path.abspath(path)
    scheme, rest = path.split("://", 1)
    # Hadoop spells the same store s3a; Arrow refuses that spelling.
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    try:
        return cast(tuple[fs.FileSystem, str], fs.FileSystem.from_uri(f"{scheme}://{rest}"))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError):
        return _through_fsspec(path)


def _through_fsspec(path: str) -> tuple[fs.FileSystem, str]:
    import fsspec

    try:
        found, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise SourceError(f"{path}: {error}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(found)), str(inner)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what an operating system or a store says into one line that names the source."""
    try:
        yield
    except FileNotFoundError:
        raise SourceError(f"{name}: there is no such file") from None
    except IsADirectoryError:
        raise SourceError(f"{name}: is a directory, not a file") from None
    except PermissionError:
        raise SourceError(f"{name}: may not be read (permission denied)") from None
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror or error}") from None


def _open_path(path: str) -> tuple[IO[bytes], int | None]:
    if path == "-":
        return sys.stdin.buffer, None
    with reading(path):
        if "://" not in path:
            opened = Path(path).open("rb", buffering=0)  # noqa: SIM115 - the caller closes it
            return cast(IO[bytes], opened), os.fstat(opened.fileno()).st_size
        system, inner = filesystem(path)
        remote = system.open_input_file(inner)
        return cast(IO[bytes], remote), remote.size()


def _peek(file: IO[bytes], count: int) -> bytes:
    """Look at the first bytes without losing them; a pipe keeps its own through `peek`."""
    if hasattr(file, "peek"):
        return bytes(file.peek(count)[:count])
    if not file.seekable():
        return b""
    at = file.tell()
    head = file.read(count)
    file.seek(at)
    return head


def _arrow(file: Any) -> Any:
    return file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, mode="r")
