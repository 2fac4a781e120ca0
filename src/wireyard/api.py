"""The Python face: sources to tables, packets to bytes, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from wireyard.errors import SourceError, UsageError
from wireyard.formats import get_format, labels, sniff, titles
from wireyard.formats.base import Format
from wireyard.streams.decoder import decode_windows
from wireyard.streams.plan import Condition, make_plan
from wireyard.streams.scan import OpenedStream, open_windows, scan_windows
from wireyard.streams.source import Source
from wireyard.streams.write import write_stream

__all__ = ["decode", "encode", "formats", "packets", "read", "scan", "write"]

_MOST_THREADS = 8
_SNIFFED_BYTES = 1 << 12
_SHOWN_BYTES = 16


def formats() -> dict[str, str]:
    """Return the names of all formats, each with what it is."""
    return titles()


def scan(
    source: Source,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    *,
    where: Sequence[Condition] = (),
    max_packet_bytes: int | None = None,
    threads: int | None = None,
) -> pa.RecordBatchReader:
    """Open a source as a stream of Arrow record batches, in bounded memory.

    Parameters
    ----------
    source
        A path, a URL, bytes, a file object, or ``-`` for standard input; gzip and zstandard are
        opened by their content.
    format
        Name of the format; by the first bytes if None.
    columns
        The columns wanted, in order; all if None. What nobody asks for is not decoded.
    mode
        ``permissive`` keeps bad rows with their `error`, ``dropmalformed`` leaves them out,
        ``failfast`` raises the first.
    where
        Conditions that all have to hold, such as ``("packet_type", "in", [1, 2])`` or
        ``("timestamp", ">=", 0)``. They are decided before properties and bodies are read.
    max_packet_bytes
        Larger sizes are not believed; the format's own bound if None.
    threads
        How many decode at the same time; as many as there are cores, up to eight, if None.

    Raises
    ------
    SourceError
        The source cannot be read.
    UsageError
        An unknown format, column, operator or mode.
    DecodeError
        While reading, in mode ``failfast``.

    Examples
    --------
    >>> import wireyard
    >>> wireyard.scan(b"", format="jmq").read_all().num_rows
    0
    """
    opened = open_windows(source)
    try:
        plan = make_plan(_format_of(opened, format), columns, where, mode, max_packet_bytes)
    except BaseException:
        opened.close()
        raise
    workers = threads or min(os.cpu_count() or 1, _MOST_THREADS)
    batches = scan_windows(opened, plan, opened.name, threads=workers)
    return pa.RecordBatchReader.from_batches(plan.schema, batches)


def read(
    source: Source,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    *,
    where: Sequence[Condition] = (),
    max_packet_bytes: int | None = None,
    threads: int | None = None,
) -> pa.Table:
    """Read a whole source into one Arrow table; the parameters are those of `scan`."""
    return scan(
        source,
        format,
        columns,
        mode,
        where=where,
        max_packet_bytes=max_packet_bytes,
        threads=threads,
    ).read_all()


def packets(
    source: Source,
    format: str | None = None,
    mode: str = "failfast",
    *,
    max_packet_bytes: int | None = None,
) -> Iterator[Any]:
    """Return the packets of a source as frozen values, read while they are asked for.

    Parameters
    ----------
    mode
        ``failfast`` raises the first fault; ``dropmalformed`` leaves faults out. A packet has no
        place to carry an error, so there is no third: `scan` and `Decoder` keep everything.

    Raises
    ------
    SourceError
        The source cannot be read.
    UsageError
        An unknown format or mode.
    DecodeError
        While reading, in mode ``failfast``.
    """
    if mode not in ("failfast", "dropmalformed"):
        raise UsageError(f"mode '{mode}' is for tables; packets take failfast or dropmalformed")
    opened = open_windows(source)
    try:
        found = _format_of(opened, format)
    except BaseException:
        opened.close()
        raise
    return _packets(opened, found, mode, max_packet_bytes)


def _packets(
    opened: OpenedStream, format: Format, mode: str, max_packet_bytes: int | None
) -> Iterator[Any]:
    with closing(opened):
        for event in decode_windows(opened.windows, format, max_packet_bytes):
            if event.packet is not None:
                yield event.packet
            elif event.error is not None and mode == "failfast":
                event.error.add_note(f"in {opened.name}, offset {event.offset}")
                raise event.error


def decode(data: bytes | bytearray | memoryview, format: str) -> Any:
    """Decode one whole packet.

    Raises
    ------
    DecodeError
        The bytes are not exactly one well-formed packet.
    """
    found = get_format(format)
    return found.decode(bytes(data), found.context)


def encode(packet: Any) -> bytes:
    """Encode a packet of any format.

    Raises
    ------
    EncodeError
        A value that has no form on the wire.
    UsageError
        Something that is no packet.
    """
    # A packet class lives in its format's folder: wireyard.formats.<name>.packet.
    home = type(packet).__module__.split(".")
    if home[:2] != ["wireyard", "formats"]:
        raise UsageError(f"a {type(packet).__name__} is no packet of any format")
    return get_format(home[2]).encode(packet)


def write(table: Any, path: str | os.PathLike[str], format: str) -> int:
    """Write a table of packets as a stream of the format; return its bytes.

    Parameters
    ----------
    table
        An Arrow table, reader, or anything that exports an Arrow stream, such as a polars frame.
        Columns that are not there get the format's defaults.
    path
        Path or URL. A local file appears whole or not at all.

    Raises
    ------
    EncodeError
        A row that is no packet, or that has no form on the wire.
    SourceError
        The target cannot be written.
    """
    reader = pa.RecordBatchReader.from_stream(table)
    return write_stream(reader, os.fspath(path), get_format(format))


def _format_of(opened: OpenedStream, format: str | None) -> Format:
    """Return the format that was named, or that the stream's first bytes show."""
    if format is not None:
        return get_format(format)
    head = bytes(opened.first.view[:_SNIFFED_BYTES])
    if not head:
        raise SourceError(f"{opened.name}: is empty, so its format cannot be told; name it")
    found = sniff(head)
    if found is None:
        known = ", ".join(labels())
        shown = head[:_SHOWN_BYTES].hex(" ")
        raise UsageError(f"{opened.name}: begins like no format ({shown}); name one: {known}")
    return found
