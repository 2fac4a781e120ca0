"""The Python API: sources to tables, packets to bytes, and back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa

from wireyard.captures.inputs import Input, Readable, open_input
from wireyard.errors import SourceError, UsageError
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

T = TypeVar("T")
Payloads: TypeAlias = "Mapping[str, str | Decoder | Callable[[bytes, str], Any]] | Sequence[str]"
KeyLogs: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def formats() -> dict[str, str]:
    """Return the title of each format by its name."""
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
        A path, a URL, bytes, a file object, or ``-`` for standard input; compression is
        detected by content. A capture, pcap or pcapng, gives the rows of all its streams of the
        format, stream by stream, with capture time, frame number and endpoints.
    format
        Name of the format; None to detect it from the first bytes.
    columns
        The wanted columns in order; None for all. Other columns are not decoded.
    mode
        ``permissive`` keeps bad rows with their `error`, ``dropmalformed`` leaves them out,
        ``failfast`` raises the first error.
    where
        A condition as text, such as ``"topic == a/b OR (qos > 0 AND NOT retain == true)"``, or
        several that all have to hold, each as text or as ``("packet_type", "in", [1, 2])``. They
        are evaluated before properties and bodies are decoded. ``topic`` and ``destination`` are
        aliases in formats that have only one of them.
    payload
        Rules to decode payloads by, such as ``{"plant/#": "json"}``; a decoder may be a function of
        payload and topic. The decoded values are additional columns (docs/payloads.md).
    decode_as
        Formats of ports of a capture that are not detected, as in ``tcp.port==1884,mqtt``.
    keylog
        Path of a key log with the secrets of a capture's TLS connections, or several paths; a
        pcapng file may hold them itself.
    max_packet_bytes
        Largest valid packet; None for the format's default.
    threads
        Number of threads that decode. If None, one per core, up to eight, but one alone for a bare
        stream of MQTT, where more would cost processor time and save nothing.

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
        A capture, or a decrypted TLS connection, is damaged; the part before the damage was read.

    Examples
    --------
    >>> import wireyard
    >>> wireyard.scan(b"", format="jmq").read_all().num_rows
    0
    """
    input = _open(source, format, decode_as, keylog)
    try:
        wanted = get_format(format) if format else input.one_format()
        payloads = _payload_columns(wanted, payload)
        names = columns
        if payloads is not None and columns is not None:
            names = list(dict.fromkeys([*columns, *payloads.needed]))
        of_streams = {stream.format.label: stream.format for stream in input.readables}
        plans = {
            label: make_plan(each, names, where, mode, max_packet_bytes, captured=input.captured)
            for label, each in {wanted.label: wanted, **of_streams}.items()
        }
    except BaseException:
        input.close()
        raise
    workers = threads or thread_count(wanted, captured=input.captured)
    streams = ((stream.opened, plans[stream.format.label]) for stream in input.readables)
    batches = _whole(scan_streams(streams, workers), input)
    schema = plans[wanted.label].schema
    if payloads is None:
        return pa.RecordBatchReader.from_batches(schema, batches)
    kept = [*(columns if columns is not None else schema.names), *(f.name for f in payloads.fields)]
    whole = pa.schema([*schema, *payloads.fields])
    schema = pa.schema([whole.field(name) for name in kept])
    extended = (payloads.extend(batch).select(kept) for batch in batches)
    return pa.RecordBatchReader.from_batches(schema, extended)


def _payload_columns(format: Format, payload: Payloads) -> PayloadColumns | None:
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
    """Read a whole source into one Arrow table; parameters as of `scan`."""
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

    A row is yielded as soon as all bytes of its packet have arrived, so rows of several streams are
    interleaved; within a stream they are in order. The iterator may be closed at any time; packets
    that are incomplete then have no rows.

    Parameters
    ----------
    source
        ``-`` for standard input or the path of a named pipe, which are read to their end; or the
        path of a file or a pattern, which are followed for ever, with appended bytes and successors
        of rotated files.
    format, columns, mode, where, decode_as, keylog, max_packet_bytes
        As of `scan`; if None, the format is that of the first stream that has one.

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
        At the end of a pipe: a part of it was not read.

    Examples
    --------
    >>> import wireyard
    >>> for batch in wireyard.follow("traffic.pcap", "mqtt"):  # doctest: +SKIP
    ...     print(batch.num_rows)
    """
    # Imported here because only followed sources need it.
    from wireyard.captures.live.following import follow as open_following
    from wireyard.streams.scan import read_turns

    paths = [keylog] if isinstance(keylog, str | os.PathLike) else keylog
    named = get_format(format) if format else None
    input = open_following(source, named, decode_as, paths, max_packet_bytes=max_packet_bytes)
    plans: list[Plan] = []

    def plan_of(format: Format) -> Plan | None:
        if not plans:
            limit = max_packet_bytes
            plan = make_plan(format, columns, where, mode, limit, captured=input.captured)
            plans.append(plan)
        return plans[0] if plans[0].format.label == format.label else None

    with closing(input):
        yield from read_turns(input.turns(), plan_of)
        summary = input.summary()
        for note in (summary.damage, *summary.problems):
            if note:
                warnings.warn(f"{input.name}: {note}", stacklevel=2)


def segments(source: Source, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """Open a capture as a stream of its TCP segments and UDP datagrams, one row each.

    IP fragments are reassembled, TCP segments are not: retransmissions have rows too.

    Parameters
    ----------
    source
        A capture, pcap or pcapng, as `scan` accepts it.
    columns
        The wanted columns in order; None for all.

    Raises
    ------
    SourceError
        The source cannot be read, or is no capture; while reading, if it is damaged, after the rows
        before the damage.
    UsageError
        A column that the table does not have.

    Examples
    --------
    >>> import wireyard
    >>> rows = wireyard.segments("traffic.pcap", ["frame", "flow", "seq"])  # doctest: +SKIP
    """
    # Imported here because only captures need it.
    from wireyard.captures.packets.segments import scan_segments

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
    """Return an iterator over the packets of a source, as frozen values.

    Parameters
    ----------
    mode
        ``failfast`` raises the first error; ``dropmalformed`` leaves malformed packets out. There
        is no ``permissive``, because a packet cannot hold an error: for that, see `scan` and
        `Decoder`.

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
    input = _open(source, format, decode_as, keylog)
    try:
        if format is None:
            input.one_format()
    except BaseException:
        input.close()
        raise
    read = partial(_packets, name=input.name, mode=mode, max_packet_bytes=max_packet_bytes)
    return _whole(chain.from_iterable(map(read, input.streams)), input)


def _packets(
    readable: Readable, name: str, mode: str, max_packet_bytes: int | None
) -> Iterator[Any]:
    format, opened = readable
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
    input = open_input(source, get_format(format) if format else None, decode_as, paths)
    for note in (input.broken, *input.problems):
        if note:
            warnings.warn(f"{input.name}: {note}", stacklevel=3)
    return input


def _whole(items: Iterator[T], input: Input) -> Iterator[T]:
    """Yield items that are read of an input; raise if its bare stream then ends before its end."""
    yield from items
    if input.damage is not None and input.broken is None:
        raise SourceError(f"{input.name}: {input.damage}")


def decode(data: bytes | bytearray | memoryview, format: str) -> Any:
    """Decode one whole packet; of RMP, a tuple of all its messages.

    Raises
    ------
    DecodeError
        The bytes are not exactly one well-formed packet.
    """
    known = get_format(format)
    decode_whole = known.several.decode_whole or known.decode
    return decode_whole(bytes(data), known.context)


def encode(packet: Any) -> bytes:
    """Encode a packet of any format, such as one of `decode` or `packets`.

    Raises
    ------
    EncodeError
        A value that the wire cannot represent.
    UsageError
        The argument is no packet.
    """
    # The module of a packet class names its format: wireyard.formats.<name>.packet.
    home = type(packet).__module__.split(".")
    if home[:2] != ["wireyard", "formats"]:
        raise UsageError(f"a {type(packet).__name__} is no packet of any format")
    return get_format(home[2]).encode(packet)


def write(table: Any, path: str | os.PathLike[str], format: str) -> int:
    """Write a table of packets as a stream of the format; return its size in bytes.

    Parameters
    ----------
    table
        An Arrow table, a reader, or any object that exports an Arrow stream, such as a polars
        frame. Missing columns have the format's defaults.
    path
        Path or URL. A local file is written atomically.

    Raises
    ------
    EncodeError
        A row that is no packet, or that the wire cannot represent.
    SourceError
        The target cannot be written.
    """
    reader = pa.RecordBatchReader.from_stream(table)
    return write_stream(reader, os.fspath(path), get_format(format))
