"""The face of this room: a capture file in, directed streams out, and an account of every frame."""

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
    """Which frames of a capture a file of it holds."""

    file: str
    first_frame: int
    """The number of its first frame, from 1 on over all files of the capture."""
    frames: int


@dataclass(frozen=True)
class Capture:
    """A capture's streams, in the order of their first packets, and what became of everything.

    `frames` has every frame once, under the name of its `Fate`, and `unread` those that are neither
    TCP nor UDP by what they are. `payload_bytes` has every captured
    byte of TCP and UDP payload once: in streams, as a duplicate, as a keep-alive byte, as the text
    of a reset; `other_bytes` the rest of what was captured: ``headers`` of TCP and UDP, ``other``
    frames. Of a whole capture, not of a share, they are together all captured bytes. `cut_bytes` of
    its packets were not captured. `damage` says where and why reading ended before the file did,
    `unread_bytes` how much is behind that.
    """

    name: str
    files: list[Bytes]
    """The bytes of its files, in the order of their packets."""
    spans: list[FrameSpan]
    """The frames of its files, in the same order."""
    table: StreamTable
    guides: list[Stream]
    """Streams of the share of others that are here for what they show of these."""
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
    """Put the streams of a capture together, of which all packets were read.

    Parameters
    ----------
    begun
        The names of its files, and how many packets were read before each.
    files, damage, unread_bytes
        Those of the capture.
    newest
        Whether the segment captured last counts where segments overlap, instead of the first.
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

    All of them or none, as mostly, take no copy.
    """
    if wanted.all() or not wanted.any():
        rows = slice(len(units) if wanted.any() else 0)
        return units.take(rows), times_ns[rows]
    columns = [*units.columns(), times_ns]
    found = [room(len(units), column.dtype) for column in columns]
    count = 0
    for part in parts(len(units)):
        places = np.flatnonzero(wanted[units.flows[part] >> 1])
        stop = count + len(places)
        for column, own in zip(columns, found, strict=True):
            own[count:stop] = column[part][places]
        count = stop
    *own_columns, own_times_ns = (own[:count] for own in found)
    return Units(*own_columns), own_times_ns


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
