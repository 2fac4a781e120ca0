"""Encoding of tables to streams of packets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import IO, cast

import pyarrow as pa

from wireyard.errors import EncodeError, SourceError
from wireyard.formats.base import Format, Row
from wireyard.streams.framer import OK
from wireyard.streams.source import filesystem


def encode_batches(batches: Iterable[pa.RecordBatch], format: Format) -> Iterator[bytes]:
    """Yield the encoded packets of a stream's rows, given as batches.

    `EncodeError` is raised for a row whose status is not ``ok``, because the table does not have
    its bytes, and for a value that the wire cannot represent.
    """
    return encode_rows(chain.from_iterable(_rows(batch, format) for batch in batches), format)


def encode_rows(rows: Iterable[Row], format: Format) -> Iterator[bytes]:
    """Yield the encoded packets of a stream's rows, which all have the status ``ok``.

    `EncodeError` is raised for a value that the wire cannot represent.
    """
    for row in format.several.join_rows(rows, format.context):
        yield format.encode(format.packet_of(row, format.context))


def write_stream(batches: Iterable[pa.RecordBatch], path: str, format: Format) -> int:
    """Write batches as one stream of packets; return its size in bytes."""
    with whole_file(path) as file:
        return sum(map(file.write, encode_batches(batches, format)))


def _rows(batch: pa.RecordBatch, format: Format) -> Iterator[Row]:
    known = {"status", *(column.name for column in format.columns)}
    rows = batch.select([name for name in batch.schema.names if name in known]).to_pylist()
    maps = [column.name for column in format.columns if column.kind == "properties"]
    for row in rows:
        if row.get("status", OK) != OK:
            raise EncodeError("status", row["status"], "only packets can be written, not faults")
        row |= {name: dict(row[name]) for name in maps if row.get(name) is not None}
        yield row


@contextmanager
def whole_file(
    path: str, final: Callable[[], str] | None = None, *, private: bool = False
) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name only after all of it is written.

    A `private` one is for its owner alone. `final` is called at the end and returns the name of a
    local file; without it the name is `path`. `SourceError` has the reason why the file cannot be
    written, such as a full disk.
    """
    try:
        if "://" in path:
            system, inner = filesystem(path)
            with system.open_output_stream(inner) as remote:
                yield cast(IO[bytes], remote)
            return
        if Path(path).exists() and not Path(path).is_file():
            # A device or a pipe is written directly; a rename would replace it by a file.
            with Path(path).open("wb") as device:
                yield device
            return
        part = Path(path).with_name(f".{Path(path).name}.{token_hex(4)}.part")
        # Exclusively, so never through a link that others have put there.
        flags, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666
        try:
            with open(os.open(part, flags, mode), "wb") as file:
                yield file
            part.replace(final() if final else path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be written ({error.strerror or error})") from None
