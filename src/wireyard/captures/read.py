"""Entry points of this package: read capture files into directed streams, and count every frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.arena import parts, room
from wireyard.captures.connections import Connections, StreamTable
from wireyard.captures.files import CaptureFile
from wireyard.captures.layout import Fate, Protocol
from wireyard.captures.stream import Content, Stream
from wireyard.captures.tcp import Reassembled, reassemble
from wireyard.captures.tcp_kernels import Verdict
from wireyard.captures.udp import gather
from wireyard.captures.units import Share, UnitReader, Units
from wireyard.captures.unread import name_unread
from wireyard.errors import UsageError, WireError
from wireyard.streams.scan import OpenedStream
from wireyard.streams.source import Source

__all__ = ["Capture", "FrameSpan", "put_together", "read_capture", "read_captures"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

OVERLAPS: Final = ("first", "last")


class FrameSpan(NamedTuple):
    """The frames in one file of a capture."""

    file: str
    first_frame: int
    """Number of its first frame; frames are numbered from 1 on over all files of the capture."""
    frames: int


@dataclass(frozen=True)
class Capture:
    """A capture's streams, in the order of their first packets, and counts of all frames and bytes.

    `frames` counts every frame once, by the name of its `Fate`; `unread` counts those that are
    neither TCP nor UDP by their protocol. `payload_bytes` counts every captured byte of TCP and UDP
    payload once: in streams, as a duplicate, as a keep-alive byte, as the text of a reset.
    `other_bytes` counts the other captured bytes: ``headers`` of TCP and UDP, and ``other`` frames.
    In a whole capture, unlike a share, these add up to all captured bytes. `cut_bytes` of its
    packets were not captured. `damage` is the error that ended reading before the end of the file,
    and `unread_bytes` is the number of bytes after it.
    """

    name: str
    files: list[Bytes]
    """The bytes of its files, in the order of their packets."""
    spans: list[FrameSpan]
    """The frames of its files, in the same order."""
    table: StreamTable
    guides: list[Stream]
    """Streams of other shares that are read too, because they show the formats of this share's."""
    frames: dict[str, int]
    unread: dict[str, int]
    payload_bytes: dict[str, int]
    other_bytes: dict[str, int]
    cut_bytes: int
    damage: WireError | None
    unread_bytes: int

    @cached_property
    def streams(self) -> list[Stream]:
        """All streams of the table."""
        return list(self.table)


def read_capture(source: Source | OpenedStream, overlap: str = "first") -> Capture:
    """Read a capture file, pcap or pcapng, and reassemble its streams.

    Parameters
    ----------
    source
        As for `open_source`, or a stream of windows that was not read yet.
    overlap
        The segment that overlapping bytes are taken from: the ``first`` that was captured, or the
        ``last``.

    Raises
    ------
    SourceError
        The source cannot be read, or is no capture. An error after the first records is no
        exception, but the capture's `damage`.
    UsageError
        An unknown overlap.

    Limits
    ------
    The whole capture is in memory, up to `MAX_CAPTURE_BYTES`; if it is a local file that is not
    compressed, only its columns.
    """
    return read_captures([source], overlap)


def read_captures(
    sources: Sequence[Source | OpenedStream], overlap: str = "first", share: Share | None = None
) -> Capture:
    """Read the files of one capture, in the order of the times of their first packets.

    Frames are numbered over all of them, as in one file.

    Parameters
    ----------
    share
        The conversations to read; all if None. Those that are included only because of the share's
        port are the `guides` of the capture.
    """
    if overlap not in OVERLAPS:
        raise UsageError(f"overlap '{overlap}' is unknown; known: {', '.join(OVERLAPS)}")
    files = sorted(map(CaptureFile.open, sources), key=lambda file: (file.begun_ns, file.name))
    reader = UnitReader(share)
    begun: list[tuple[str, int]] = []
    for file in files:
        begun.append((file.name, reader.packets.count))
        reader.begin(file.data)
        for records in file.records():
            reader.read(records)
    return put_together(
        reader,
        begun,
        [file.data for file in files],
        next((file.damage for file in files if file.damage is not None), None),
        sum(file.unread_bytes for file in files),
        newest=overlap == "last",
    )


def put_together(
    reader: UnitReader,
    begun: Sequence[tuple[str, int]],
    files: list[Bytes],
    damage: WireError | None = None,
    unread_bytes: int = 0,
    *,
    newest: bool = False,
) -> Capture:
    """Reassemble the streams of a capture all of whose packets were read.

    Parameters
    ----------
    begun
        The names of its files, and the number of packets before each.
    files, damage, unread_bytes
        See `Capture`.
    newest
        Whether overlapping bytes are taken from the segment captured last, instead of the first.
    """
    packets, flows, share = reader.packets, reader.flows, reader.share
    units, times_ns = reader.units()
    content = Content(packets.places, units.records, times_ns, packets.fragments)
    protocols = flows.protocols()
    tcp = reassemble(
        *_of_conversations(units, times_ns, protocols == Protocol.TCP), len(flows), newest=newest
    )
    udp = gather(_of_conversations(units, times_ns, protocols == Protocol.UDP)[0], len(flows))
    table = StreamTable((tcp.connections, udp), flows, content)
    guides: list[Stream] = []
    if share is not None:
        own = (flows.parts(0, share.of) == share.part)[table.conversations]
        table, guides = table.keep(own), list(table.keep(~own))
    payload, tally = _account(tcp, udp), packets.tally
    bounds = [*(count for _, count in begun), packets.count]
    return Capture(
        begun[0][0],
        files,
        [
            FrameSpan(file, first + 1, stop - first)
            for (file, _), (first, stop) in zip(begun, pairwise(bounds), strict=True)
        ],
        table,
        guides,
        {
            fate.name.lower(): count
            for fate, count in zip(Fate, tally.fates.tolist(), strict=True)
            if count
        },
        name_unread(tally.endings),
        payload,
        _rest(tally.frame_bytes, sum(payload.values())),
        tally.cut_bytes,
        damage,
        unread_bytes,
    )


def _of_conversations(
    units: Units, times_ns: Ints, wanted: npt.NDArray[np.bool_]
) -> tuple[Units, Ints]:
    """Return the units of wanted conversations, and their times.

    If all or none are wanted, as mostly, nothing is copied.
    """
    if wanted.all() or not wanted.any():
        rows = slice(len(units) if wanted.any() else 0)
        return units.take(rows), times_ns[rows]
    columns = [*units.columns(), times_ns]
    outputs = [room(len(units), column.dtype) for column in columns]
    count = 0
    for part in parts(len(units)):
        rows_of_part = np.flatnonzero(wanted[units.flows[part] >> 1])
        stop = count + len(rows_of_part)
        for column, output in zip(columns, outputs, strict=True):
            output[count:stop] = column[part][rows_of_part]
        count = stop
    *own_columns, own_times_ns = (output[:count] for output in outputs)
    return Units(*own_columns), own_times_ns


def _rest(frame_bytes: Ints, payload_bytes: int) -> dict[str, int]:
    """Count the captured bytes that are not payload."""
    carried = int(frame_bytes[[Fate.TCP, Fate.UDP]].sum())
    return {"headers": carried - payload_bytes, "other": int(frame_bytes.sum()) - carried}


def _account(tcp: Reassembled, udp: Connections) -> dict[str, int]:
    """Count the captured bytes of payload by their use."""
    in_streams = int(tcp.connections.runs.lengths.sum())
    captured = tcp.captured_bytes.tolist()
    return {
        "tcp": in_streams,
        "udp": int(udp.runs.lengths.sum()),
        "duplicate": captured[Verdict.TAKEN] - in_streams,
        "keep_alive": captured[Verdict.KEEP_ALIVE],
        "reset": captured[Verdict.RESET],
    }
