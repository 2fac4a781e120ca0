"""The Python face: sources to tables, packets to bytes, and back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from wireyard.captures.inputs import Input, Readable, open_input
from wireyard.errors import UsageError
from wireyard.formats import Format, get_format, titles
from wireyard.streams.decoder import decode_blocks
from wireyard.streams.framer import Framer
from wireyard.streams.plan import Plan, Where, make_plan
from wireyard.streams.scan import scan_streams, thread_count
from wireyard.streams.source import Source
from wireyard.streams.write import write_stream

if TYPE_CHECKING:
    from wireyard.payloads import Decoder
    from wireyard.payloads.columns import PayloadColumns

__all__ = ["decode", "encode", "follow", "formats", "packets", "read", "scan", "segments", "write"]

Payloads: TypeAlias = "Mapping[str, str | Decoder | Callable[[bytes, str], Any]] | Sequence[str]"
KeyLogs: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def formats() -> dict[str, str]:
    """Return the names of all formats, each with what it is."""
    return titles()


def scan(
    source: Source,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    *,
    where: Where = (),
    payload: Payloads = (),
    decode_as: Sequence[str] = (),
    keylog: KeyLogs = (),
    max_packet_bytes: int | None = None,
    threads: int | None = None,
) -> pa.RecordBatchReader:
    """Open a source as a stream of Arrow record batches, in bounded memory.

    Parameters
    ----------
    source
        A path, a URL, bytes, a file object, or ``-`` for standard input; gzip and zstandard are
        opened by their content. A capture, pcap or pcapng, gives the rows of all its streams of the
        format, stream by stream, with when, in which frame and between whom they were sent.
    format
        Name of the format; by the first bytes if None.
    columns
        The columns wanted, in order; all if None. What nobody asks for is not decoded.
    mode
        ``permissive`` keeps bad rows with their `error`, ``dropmalformed`` leaves them out,
        ``failfast`` raises the first.
    where
        A condition as text, such as ``"topic == a/b OR (qos > 0 AND NOT retain == true)"``, or
        several that all have to hold, each as text or as ``("packet_type", "in", [1, 2])``. They
        are decided before properties and bodies are read. ``topic`` and ``destination`` stand for
        each other where a format has only one.
    payload
        By which rules payloads are opened, such as ``{"plant/#": "json"}``; a decoder may be a
        function of bytes and topic. What they carry is in further columns (docs/payloads.md).
    decode_as
        What ports of a capture are for where nothing else shows it, as in ``tcp.port==1884,mqtt``.
    keylog
        Path of a key log with the secrets of a capture's TLS connections, or several; a pcapng file
        may hold them itself.
    max_packet_bytes
        Larger sizes are not believed; the format's own bound if None.
    threads
        How many decode at the same time. If None, as many as there are cores, up to eight, but one
        for a bare stream of MQTT: a second costs processor time there and saves none.

    Raises
    ------
    SourceError
        The source cannot be read.
    UsageError
        An unknown format, column, operator or mode.
    DecodeError
        While reading, in mode ``failfast``.

    Warns
    -----
    UserWarning
        A capture is damaged, or a TLS connection that keys opened; what is before was read.

    Examples
    --------
    >>> import wireyard
    >>> wireyard.scan(b"", format="jmq").read_all().num_rows
    0
    """
    found = _open(source, format, decode_as, keylog)
    try:
        wanted = get_format(format) if format else found.one_format()
        opener = _opener(wanted, payload)
        names = columns
        if opener is not None and columns is not None:
            names = list(dict.fromkeys([*columns, *opener.needed]))
        shown = {one.label: one for one in (wanted, *(stream.format for stream in found.readables))}
        plans = {
            label: make_plan(one, names, where, mode, max_packet_bytes, captured=found.captured)
            for label, one in shown.items()
        }
    except BaseException:
        found.close()
        raise
    workers = threads or thread_count(wanted, captured=found.captured)
    streams = ((one.opened, plans[one.format.label]) for one in found.readables)
    batches = scan_streams(streams, workers)
    schema = plans[wanted.label].schema
    if opener is None:
        return pa.RecordBatchReader.from_batches(schema, batches)
    kept = [*(columns if columns is not None else schema.names), *(f.name for f in opener.fields)]
    whole = pa.schema([*schema, *opener.fields])
    schema = pa.schema([whole.field(name) for name in kept])
    opened = (opener.extend(batch).select(kept) for batch in batches)
    return pa.RecordBatchReader.from_batches(schema, opened)


def _opener(format: Format, payload: Payloads) -> PayloadColumns | None:
    if not payload:
        return None
    from wireyard.payloads import parse_rules
    from wireyard.payloads.columns import PayloadColumns

    return PayloadColumns(format, parse_rules(payload))


def read(
    source: Source,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    *,
    where: Where = (),
    payload: Payloads = (),
    decode_as: Sequence[str] = (),
    keylog: KeyLogs = (),
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
        payload=payload,
        decode_as=decode_as,
        keylog=keylog,
        max_packet_bytes=max_packet_bytes,
        threads=threads,
    ).read_all()


def follow(
    source: str | os.PathLike[str],
    format: str | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    *,
    where: Where = (),
    decode_as: Sequence[str] = (),
    keylog: KeyLogs = (),
    max_packet_bytes: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a capture or a stream while it is written, in bounded memory.

    Rows come as soon as the bytes of their packets are there, so those of several streams are
    mixed; within a stream they are in order. The iterator may be closed at any time, and rows of
    packets that are not whole then are not yielded.

    Parameters
    ----------
    source
        ``-`` for standard input or the path of a named pipe, which are read to their end; or the
        path of a file, or a pattern for several, which are read on for ever, with what is appended
        and what takes their place.
    format, columns, mode, where, decode_as, keylog, max_packet_bytes
        Those of `scan`; the format is that of the first stream that has one if None.

    Raises
    ------
    SourceError
        The source cannot be read.
    UsageError
        An unknown format, column, operator or mode.
    DecodeError
        In mode ``failfast``: the first bad row.

    Warns
    -----
    UserWarning
        At the end of a pipe: something in it was not read.

    Examples
    --------
    >>> import wireyard
    >>> for batch in wireyard.follow("traffic.pcap", "mqtt"):  # doctest: +SKIP
    ...     print(batch.num_rows)
    """
    # A source that is not followed does not need all this.
    from wireyard.captures.following import follow as open_following
    from wireyard.streams.growth import read_turns

    paths = [keylog] if isinstance(keylog, str | os.PathLike) else keylog
    named = get_format(format) if format else None
    found = open_following(source, named, decode_as, paths, max_packet_bytes=max_packet_bytes)
    plans: list[Plan] = []

    def plan_of(format: Format) -> Plan | None:
        if not plans:
            limit = max_packet_bytes
            plan = make_plan(format, columns, where, mode, limit, captured=found.captured)
            plans.append(plan)
        return plans[0] if plans[0].format.label == format.label else None

    with closing(found):
        yield from read_turns(found.turns(), plan_of)
        summary = found.summary()
        for note in (summary.damage, *summary.problems):
            if note:
                warnings.warn(f"{found.name}: {note}", stacklevel=2)


def segments(source: Source, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """Open a capture as a stream of its TCP segments and UDP datagrams, a row each.

    Nothing is put together but fragments: what was sent twice is there twice.

    Parameters
    ----------
    source
        A capture, pcap or pcapng, as `scan` takes it.
    columns
        The columns wanted, in order; all if None.

    Raises
    ------
    SourceError
        The source cannot be read, or is no capture; while reading, that it is damaged, after the
        rows before the damage.
    UsageError
        A column the table does not have.

    Examples
    --------
    >>> import wireyard
    >>> rows = wireyard.segments("traffic.pcap", ["frame", "flow", "seq"])  # doctest: +SKIP
    """
    # Formats are there before all this is loaded.
    from wireyard.captures.segments import scan_segments

    return scan_segments(source, columns)


def packets(
    source: Source,
    format: str | None = None,
    mode: str = "failfast",
    *,
    decode_as: Sequence[str] = (),
    keylog: KeyLogs = (),
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
    found = _open(source, format, decode_as, keylog)
    try:
        if format is None:
            found.one_format()
    except BaseException:
        found.close()
        raise
    read = partial(_packets, name=found.name, mode=mode, max_packet_bytes=max_packet_bytes)
    return chain.from_iterable(map(read, found.streams))


def _packets(one: Readable, name: str, mode: str, max_packet_bytes: int | None) -> Iterator[Any]:
    format, opened = one
    framer = Framer(format, max_packet_bytes, context=opened.context)
    with closing(opened):
        for event in decode_blocks(opened.blocks(framer, None), format):
            if event.packet is not None:
                yield event.packet
            elif event.error is not None and mode == "failfast":
                event.error.add_note(f"in {name}, offset {event.offset}")
                raise event.error


def _open(source: Source, format: str | None, decode_as: Sequence[str], keylog: KeyLogs) -> Input:
    paths = [keylog] if isinstance(keylog, str | os.PathLike) else keylog
    found = open_input(source, get_format(format) if format else None, decode_as, paths)
    for note in (found.damage, *found.problems):
        if note:
            warnings.warn(f"{found.name}: {note}", stacklevel=3)
    return found


def decode(data: bytes | bytearray | memoryview, format: str) -> Any:
    """Decode one whole packet; of RMP, a tuple of all its messages.

    Raises
    ------
    DecodeError
        The bytes are not exactly one well-formed packet.
    """
    found = get_format(format)
    decode_whole = found.decode_whole or found.decode
    return decode_whole(bytes(data), found.context)


def encode(packet: Any) -> bytes:
    """Encode a packet of any format, as `decode` or `packets` returned it.

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
