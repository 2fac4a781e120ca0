"""The face of this room: a capture file in, directed streams out, and an account of every frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wireyard.captures import pcap, pcapng
from wireyard.captures.connections import Connections, streams_of
from wireyard.captures.layout import Fate, Protocol
from wireyard.captures.records import Records
from wireyard.captures.stream import Content, Stream
from wireyard.captures.tcp import Reassembled, reassemble
from wireyard.captures.tcp_kernels import Verdict
from wireyard.captures.udp import gather
from wireyard.captures.units import read_units
from wireyard.errors import SourceError, UsageError, WireError
from wireyard.streams.source import Reading, Source, compression, open_source, reading

__all__ = ["Capture", "is_capture", "read_capture"]

Bytes = npt.NDArray[np.uint8]

OVERLAPS: Final = ("first", "last")
MAX_CAPTURE_BYTES: Final = 1 << 34
"""A capture is held in memory, with about a third more for its columns."""
_CHUNK_BYTES: Final = 1 << 26
_SHOWN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture's streams, in the order of their first packets, and what became of everything.

    `frames` has every frame once, under the name of its `Fate`. `payload_bytes` has every captured
    byte of TCP and UDP payload once: in streams, as a duplicate, as a keep-alive byte, as the text
    of a reset. `damage` says where and why reading ended before the file did, `unread_bytes` how
    much is behind that.
    """

    name: str
    streams: list[Stream]
    frames: dict[str, int]
    payload_bytes: dict[str, int]
    damage: WireError | None
    unread_bytes: int


def is_capture(head: bytes) -> bool:
    """Tell whether a file's first bytes show a capture file."""
    return head[:4] in pcap.MAGICS or head[:4] == pcapng.MAGIC


def read_capture(source: Source, overlap: str = "first") -> Capture:
    """Read a capture file, pcap or pcapng, and put its streams together.

    Parameters
    ----------
    source
        What `open_source` takes.
    overlap
        Which segment counts where segments bring different bytes for the same place: the
        ``first`` that was captured, or the ``last``.

    Raises
    ------
    SourceError
        The source cannot be read, or is no capture. What is wrong behind a beginning that could
        be read is the capture's `damage`.
    UsageError
        An unknown overlap.

    Limits
    ------
    The whole capture is in memory, up to `MAX_CAPTURE_BYTES`.
    """
    if overlap not in OVERLAPS:
        raise UsageError(f"overlap '{overlap}' is unknown; known: {', '.join(OVERLAPS)}")
    name, data, failure = _load(source)
    records = _records(data, name)
    found = read_units(data, records)
    content = Content(data, found.extra, records.times_ns)
    protocols = found.flows.protocols()[found.units.flows >> 1]
    segments, datagrams = (
        found.units.take(protocols == protocol) for protocol in (Protocol.TCP, Protocol.UDP)
    )
    tcp = reassemble(segments, len(found.flows), newest=overlap == "last")
    udp = gather(datagrams)
    fates = np.bincount(found.fates, minlength=len(Fate)).tolist()
    return Capture(
        name,
        list(streams_of((tcp.connections, udp), found.flows, content)),
        {fate.name.lower(): count for fate, count in zip(Fate, fates, strict=True) if count},
        _account(tcp, udp),
        failure or records.damage,
        len(data) - records.stop,
    )


def _load(source: Source) -> tuple[str, Bytes, SourceError | None]:
    """Return a source's name and bytes, and what kept it from giving all of them."""
    if isinstance(source, bytes | bytearray | memoryview) and not compression(bytes(source[:4])):
        return "<bytes>", np.frombuffer(source, np.uint8), None
    name, file, size = open_source(source)
    with file:
        return name, *_read_all(file, name, size)


def _read_all(file: Reading, name: str, size: int | None) -> tuple[Bytes, SourceError | None]:
    chunks: list[Bytes] = []
    total, failure = 0, None
    # One byte more than the size shows the end, or that the file has grown.
    capacity = _CHUNK_BYTES if size is None else size + 1
    while failure is None:
        if total + capacity > MAX_CAPTURE_BYTES + _CHUNK_BYTES:
            limit = f"{MAX_CAPTURE_BYTES >> 30} GiB"
            raise SourceError(f"{name}: has over {limit}; cut it in pieces (editcap -c)")
        chunk = np.empty(capacity, np.uint8)
        filled, failure = _fill(file, name, chunk.data)
        chunks.append(chunk[:filled])
        total += filled
        capacity = _CHUNK_BYTES
        if filled < len(chunk):
            break
    if failure is not None and not total:
        raise failure
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks), failure


def _fill(file: Reading, name: str, buffer: memoryview) -> tuple[int, SourceError | None]:
    """Fill `buffer` as far as the file goes; a short read is not an end."""
    filled = 0
    try:
        with reading(name):
            while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
                filled += count
    except SourceError as failure:
        return filled, failure
    return filled, None


def _records(data: Bytes, name: str) -> Records:
    head = data[:_SHOWN_BYTES].tobytes()
    if head[:4] in pcap.MAGICS:
        return pcap.read_records(data)
    if head[:4] == pcapng.MAGIC:
        return pcapng.read_records(data)
    shown = f"begins like no capture ({head.hex(' ')})" if head else "is empty, so no capture"
    raise SourceError(f"{name}: {shown}")


def _account(tcp: Reassembled, udp: Connections) -> dict[str, int]:
    """Say where the captured bytes of all payloads are."""
    in_streams = int(tcp.connections.runs.lengths.sum())
    captured = tcp.captured_bytes.tolist()
    return {
        "tcp": in_streams,
        "udp": int(udp.runs.lengths.sum()),
        "duplicate": captured[Verdict.TAKEN] - in_streams,
        "keep_alive": captured[Verdict.KEEP_ALIVE],
        "reset": captured[Verdict.RESET],
    }
