"""The face of this room: a capture file in, directed streams out, and an account of every frame."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from wireyard.captures import magic, pcap, pcapng
from wireyard.captures.connections import Connections, streams_of
from wireyard.captures.layout import Fate, Protocol
from wireyard.captures.records import NO_TIME, Records
from wireyard.captures.stream import Content, Stream
from wireyard.captures.tcp import Reassembled, reassemble
from wireyard.captures.tcp_kernels import Verdict
from wireyard.captures.udp import gather
from wireyard.captures.units import Share, UnitReader
from wireyard.errors import SourceError, UsageError, WireError
from wireyard.streams.mapped import map_bytes
from wireyard.streams.scan import OpenedStream, open_windows
from wireyard.streams.source import Source

__all__ = ["Capture", "read_capture", "read_captures"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

OVERLAPS: Final = ("first", "last")
MAX_CAPTURE_BYTES: Final = 1 << 34
"""A capture is held in memory if its file cannot be mapped, with about a third more for columns."""
_SHOWN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture's streams, in the order of their first packets, and what became of everything.

    `frames` has every frame once, under the name of its `Fate`. `payload_bytes` has every captured
    byte of TCP and UDP payload once: in streams, as a duplicate, as a keep-alive byte, as the text
    of a reset; `other_bytes` the rest of what was captured: ``headers`` of TCP and UDP, ``other``
    frames. Of a whole capture, not of a share, they are together all captured bytes. `cut_bytes` of
    its packets were not captured. `damage` says where and why reading ended before the file did,
    `unread_bytes` how much is behind that.
    """

    name: str
    files: list[Bytes]
    """The bytes of its files, in the order of their packets."""
    streams: list[Stream]
    guides: list[Stream]
    """Streams of the share of others that are here for what they tell of these."""
    frames: dict[str, int]
    payload_bytes: dict[str, int]
    other_bytes: dict[str, int]
    cut_bytes: int
    damage: WireError | None
    unread_bytes: int


def read_capture(source: Source | OpenedStream, overlap: str = "first") -> Capture:
    """Read a capture file, pcap or pcapng, and put its streams together.

    Parameters
    ----------
    source
        What `open_source` takes, or a stream of windows that nobody has looked at.
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
    The whole capture is in memory, up to `MAX_CAPTURE_BYTES`; of a local file that is not
    compressed its columns only.
    """
    return read_captures([source], overlap)


def read_captures(
    sources: Sequence[Source | OpenedStream], overlap: str = "first", share: Share | None = None
) -> Capture:
    """Read the files of one capture, in the order of the times of their first packets.

    Frames are numbered over all of them, as if nobody had begun a new file.

    Parameters
    ----------
    share
        Which conversations to put together; all if None. Those that only the share's port brought
        here are the `guides` of the capture.
    """
    if overlap not in OVERLAPS:
        raise UsageError(f"overlap '{overlap}' is unknown; known: {', '.join(OVERLAPS)}")
    files = sorted(map(_File.open, sources), key=lambda file: file.begun_ns)
    reader = UnitReader(share)
    for file in files:
        reader.begin(file.data)
        for records in file.blocks:
            reader.read(records)
            file.note(records)
    units, times_ns = reader.units()
    content = Content(reader.places, units.records, times_ns, reader.fragments)
    protocols = reader.flows.protocols()[units.flows >> 1]
    segments, datagrams = (
        units.take(protocols == protocol) for protocol in (Protocol.TCP, Protocol.UDP)
    )
    tcp = reassemble(segments, len(reader.flows), newest=overlap == "last")
    udp = gather(datagrams)
    streams = list(streams_of((tcp.connections, udp), reader.flows, content))
    own = np.ones(len(reader.flows), np.bool_)
    if share is not None:
        own = reader.flows.parts(0, share.of) == share.part
    payload = _account(tcp, udp)
    damaged = next((file for file in files if file.damage is not None), None)
    return Capture(
        files[0].name,
        [file.data for file in files],
        [stream for conversation, stream in streams if own[conversation]],
        [stream for conversation, stream in streams if not own[conversation]],
        {
            fate.name.lower(): count
            for fate, count in zip(Fate, reader.fates.tolist(), strict=True)
            if count
        },
        payload,
        _rest(reader.frame_bytes, sum(payload.values())),
        reader.cut_bytes,
        None if damaged is None else damaged.damage,
        sum(file.unread_bytes for file in files),
    )


class _File:
    """One file of a capture while it is read."""

    def __init__(self, name: str, data: Bytes, failure: SourceError | None) -> None:
        self.name, self.data = name, data
        self.damage: WireError | None = failure
        self.unread_bytes = 0
        found = _records(data, name)
        first = next(found)
        self.blocks = chain([first], found)
        self.begun_ns = int(first.times_ns[0]) if len(first) else NO_TIME

    @classmethod
    def open(cls, source: Source | OpenedStream) -> Self:
        """Load a file."""
        return cls(*_load(source))

    def note(self, records: Records) -> None:
        """Take note of how far reading has come."""
        self.damage = self.damage or records.damage
        self.unread_bytes = len(self.data) - records.stop


def _load(source: Source | OpenedStream) -> tuple[str, Bytes, SourceError | None]:
    """Return a source's name and bytes, and what kept it from giving all of them."""
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        pages = map_bytes(path)
        if pages is not None:
            _check_size(path, len(pages))
            return path, pages, None
    opened = source if isinstance(source, OpenedStream) else open_windows(source)
    parts: list[Bytes] = []
    failure = None
    with closing(opened):
        windows = opened.windows
        while failure is None:
            try:
                window = next(windows, None)
            except SourceError as error:
                failure = error
                continue
            if window is None:
                break
            parts.append(window.data[window.start : window.stop])
            window.start = window.stop
            _check_size(opened.name, sum(map(len, parts)))
    return opened.name, parts[0] if len(parts) == 1 else np.concatenate(parts), failure


def _check_size(name: str, size: int) -> None:
    if size > MAX_CAPTURE_BYTES:
        limit = f"{MAX_CAPTURE_BYTES >> 30} GiB"
        raise SourceError(f"{name}: has over {limit}; cut it in pieces (editcap -c)")


def _records(data: Bytes, name: str) -> Iterator[Records]:
    head = data[:_SHOWN_BYTES].tobytes()
    if head[:4] in pcap.MAGICS:
        return pcap.read_records(data)
    if head[:4] == magic.PCAPNG:
        return pcapng.read_records(data)
    shown = f"begins like no capture ({head.hex(' ')})" if head else "is empty, so no capture"
    raise SourceError(f"{name}: {shown}")


def _rest(frame_bytes: Ints, payload_bytes: int) -> dict[str, int]:
    """Say where the captured bytes are that are no payload."""
    carried = int(frame_bytes[[Fate.TCP, Fate.UDP]].sum())
    return {"headers": carried - payload_bytes, "other": int(frame_bytes.sum()) - carried}


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
