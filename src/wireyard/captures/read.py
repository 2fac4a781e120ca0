"""Entry points of this package: read capture files into directed streams, and count every frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from wireyard.arrays import Bools, Bytes, Grid, Ints
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.connections.stream import Content, Stream
from wireyard.captures.connections.table import Connections, StreamTable
from wireyard.captures.connections.tcp import Reassembly
from wireyard.captures.connections.tcp_kernels import Count, Verdict
from wireyard.captures.connections.times import Clock, continue_times
from wireyard.captures.connections.udp import Datagrams
from wireyard.captures.files.file import CaptureFile
from wireyard.captures.layout import Fate, Protocol, Unit
from wireyard.captures.packets.headers import Cut, Headers, PacketReader
from wireyard.captures.packets.units import Columns, Share, Units
from wireyard.captures.packets.unread import name_unread
from wireyard.captures.records import Records
from wireyard.captures.repairs import NO_REPAIRS, Repairs, first_of
from wireyard.errors import UsageError, WireError
from wireyard.streams.scan import OpenedStream
from wireyard.streams.source import Damaged, Source

OVERLAPS: Final = ("first", "last")


class FrameSpan(NamedTuple):
    """The frames in one file of a capture."""

    file: str
    first_frame: int
    """Number of its first frame; frames are numbered from 1 on over all files of the capture."""
    frames: int
    last_ns: int | None = None
    """Time of its last frame; None if it has none."""


@dataclass(frozen=True)
class Capture:
    """A capture's streams, in the order of their first packets, and counts of all frames and bytes.

    `frames` counts every frame once, by the name of its `Fate`; `unread` counts those that are
    neither TCP nor UDP by their protocol. `payload_bytes` counts every captured byte of TCP and UDP
    payload once: in streams, as a duplicate, as a keep-alive byte, as the text of a reset.
    `other_bytes` counts the other captured bytes: ``headers`` of TCP and UDP, and ``other`` frames.
    In a whole capture, unlike a share, these add up to all captured bytes. `cut` counts the packets
    of which bytes were not captured. `damage` is the error that ended reading before the end of the
    file, and `unread_bytes` is the number of bytes after it.
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
    cut: Cut
    repairs: Repairs = NO_REPAIRS
    damage: WireError | Damaged | None = None
    unread_bytes: int = 0

    @cached_property
    def streams(self) -> list[Stream]:
        """All streams of the table."""
        return list(self.table)


def read_capture(source: Source | OpenedStream, overlap: str = "first") -> Capture:
    """Read a capture file, pcap or pcapng, and reassemble its streams.

    `source` is as for `open_source`, or a stream of windows that was not read yet. Overlapping
    bytes are taken from the segment that was captured ``first`` or ``last``; an unknown `overlap`
    raises `UsageError`. `SourceError` is raised if the source cannot be read, or is no capture; an
    error after the first records is no exception, but the capture's `damage`. A capture has up to
    `MAX_CAPTURE_BYTES`. Its columns are in memory; its packets are mapped from a local file, or
    from an unnamed temporary one if it is compressed or arrives in a pipe.
    """
    return read_captures([source], overlap)


def read_captures(
    sources: Sequence[Source | OpenedStream], overlap: str = "first", share: Share | None = None
) -> Capture:
    """Read the files of one capture, in the order of the times of their first packets.

    Frames are numbered over all of them, as in one file. `share` has the conversations to read; all
    if None. Those that are included only because of the share's port are the `guides` of the
    capture.
    """
    if overlap not in OVERLAPS:
        raise UsageError(f"overlap '{overlap}' is unknown; known: {', '.join(OVERLAPS)}")
    files = sorted(map(CaptureFile.open, sources), key=lambda file: (file.begun_ns, file.name))
    builder = CaptureBuilder(share)
    for file in files:
        builder.begin_file(file.name)
        builder.begin_bytes(file.data)
        for records in file.records():
            builder.read(records)
    capture = builder.capture(newest=overlap == "last")
    damage = next((file.damage for file in files if file.damage is not None), None)
    return replace(capture, damage=damage, unread_bytes=sum(file.unread_bytes for file in files))


class CaptureBuilder:
    """Builds a capture packet by packet: numbers flows, and places segments in their streams.

    `share` has the conversations to keep; all if None.
    """

    def __init__(self, share: Share | None = None) -> None:
        self.packets = PacketReader()
        self._flows = FlowTable()
        self._share = share
        self._wanted = np.empty(0, np.bool_)
        self._begun: list[tuple[str, int]] = []
        self._ends_ns: list[int | None] = []
        """Of each file before the current one, the time of its last frame."""
        self._files: list[Bytes] = []
        self._units = Columns({"records": np.int32, "times_ns": np.int64})
        self._tcp, self._udp = Reassembly(), Datagrams()
        self.clock = Clock()
        self._stepped_ns = 0

    def begin_file(self, name: str) -> None:
        """Continue with another file."""
        if self._begun:
            self._ends_ns.append(self.clock.now_ns)
        self._begun.append((name, self.packets.count))

    def begin_bytes(self, data: Bytes) -> None:
        """Continue with packets in these bytes of the file."""
        self.packets.begin(data)
        self._files.append(data)

    def read(self, records: Records) -> None:
        """Read the next packets of the file."""
        grid, times_ns = self.packets.read(records)
        self.clock.see(records.times_ns)
        self._add(grid, self.clock.steady(times_ns, grid[Unit.CAPTURED] > 0))

    def take(self, headers: Headers, delays: Ints, latest_ns: int, last_ns: Ints) -> None:
        """Add some packets of the next extent, whose headers were read already: `Clock.follow`.

        `last_ns` are the times of the last frames of the extent, as of its own clock.
        """
        self.clock.see(last_ns)
        has_bytes = headers.units[Unit.CAPTURED] > 0
        times_ns = self.clock.follow(headers.times_ns, has_bytes, delays, latest_ns)
        self._add(*self.packets.take(headers._replace(times_ns=times_ns)))

    def _add(self, grid: Grid, times_ns: Ints) -> None:
        grid = np.ascontiguousarray(grid)
        flows = self._flows.number(grid, grid.shape[1])
        rows = self._rows_of_share(flows)
        if not rows.all():
            grid, times_ns, flows = grid[:, rows], times_ns[rows], flows[rows]
        self._units.append((grid[Unit.RECORD], times_ns))
        is_udp = grid[Unit.PROTOCOL] == Protocol.UDP
        if is_udp.any():
            self._udp.add(Units.of(grid[:, is_udp], flows[is_udp]))
            grid, times_ns, flows = grid[:, ~is_udp], times_ns[~is_udp], flows[~is_udp]
        if len(flows):
            self._tcp.add(Units.of(grid, flows), times_ns, len(self._flows))

    def capture(self, *, newest: bool = False) -> Capture:
        """Return the capture, all of whose packets were read, with the streams put together.

        With `newest`, overlapping bytes are taken from the segment captured last, instead of the
        first.
        """
        packets, tally = self.packets, self.packets.tally
        records, times_ns = self._units["records"], self._units["times_ns"]
        content = Content(packets.places, records, times_ns, packets.fragments)
        spans = self._spans()
        is_whole = self._share is None or self._share.of == 1
        if is_whole and len(times_ns):
            counts = self._tcp.counts
            if counts[Count.EARLY_ACKS] > counts[Count.LATE_DATA]:
                clock_ns = times_ns.copy()
                self._stepped_ns = continue_times(times_ns)
                spans = [_moved(span, records, clock_ns, times_ns) for span in spans]
        tcp = self._tcp.connections(self._flows, content, newest=newest)
        udp = self._udp.connections(self._flows)
        if self._tcp.has_copies:  # the last frame may be by another clock
            spans = [span._replace(last_ns=None) for span in spans]
        table = StreamTable((tcp, udp), self._flows, content)
        guides: list[Stream] = []
        if (share := self._share) is not None:
            own = (self._flows.parts(0, share.of) == share.part)[table.conversations]
            table, guides = table.keep(own), list(table.keep(~own))
        payload = _account(tcp, udp, self._tcp.captured_bytes)
        return Capture(
            name=self._begun[0][0],
            files=self._files,
            spans=spans,
            table=table,
            guides=guides,
            frames={
                fate.name.lower(): count
                for fate, count in zip(Fate, tally.fates.tolist(), strict=True)
                if count
            },
            unread=name_unread(tally.endings),
            payload_bytes=payload,
            other_bytes=_rest(tally.frame_bytes, sum(payload.values())),
            cut=tally.cut,
            repairs=self._repairs(),
        )

    def _spans(self) -> list[FrameSpan]:
        """Return the frames of the files."""
        bounds = [*(count for _, count in self._begun), self.packets.count]
        ends_ns = [*self._ends_ns, self.clock.now_ns]
        return [
            FrameSpan(file, first + 1, stop - first, end_ns if stop > first else None)
            for (file, _), (first, stop), end_ns in zip(
                self._begun, pairwise(bounds), ends_ns, strict=True
            )
        ]

    def _repairs(self) -> Repairs:
        """Return what was repaired, of the conversations of the share."""
        copied, different = self._tcp.copied(self._flows), self._tcp.conflicts(self._flows)
        if self._share is not None:
            own = self._flows.parts(0, self._share.of) == self._share.part
            copied, different = (
                [one for one in each if own[one[0]]] for each in (copied, different)
            )
        return Repairs(
            copies=len(copied),
            copied=first_of(placed for _, placed in copied),
            differing=len(different),
            different=first_of(placed for _, placed in different),
            moved_ns=max(self.clock.moved_ns, self._tcp.moved_ns),
            stepped_ns=self._stepped_ns,
        )

    def _rows_of_share(self, flows: Ints) -> Bools:
        """Return a mask of the packets of conversations to keep."""
        share, first = self._share, len(self._wanted)
        if share is None:
            return np.ones(len(flows), np.bool_)
        new = self._flows.parts(first, share.of) == share.part
        new |= self._flows.has_port(first, share.port)
        self._wanted = np.concatenate([self._wanted, new])
        rows: Bools = self._wanted[flows >> 1]
        return rows


def _moved(span: FrameSpan, records: Ints, clock_ns: Ints, times_ns: Ints) -> FrameSpan:
    """Return the frames of a file with the time of the last by the clock of repaired times.

    `records` are the numbers of packets in their order, `clock_ns` their times as captured, and
    `times_ns` their repaired times.
    """
    last = int(np.searchsorted(records, span.first_frame - 1 + span.frames)) - 1
    if span.last_ns is None or last < 0:
        return span
    later_ns = max(span.last_ns - int(clock_ns[last]), 0)
    return span._replace(last_ns=int(times_ns[last]) + later_ns)


def _rest(frame_bytes: Ints, payload_bytes: int) -> dict[str, int]:
    """Count the captured bytes that are not payload."""
    carried = int(frame_bytes[[Fate.TCP, Fate.UDP]].sum())
    return {"headers": carried - payload_bytes, "other": int(frame_bytes.sum()) - carried}


def _account(tcp: Connections, udp: Connections, captured_bytes: Ints) -> dict[str, int]:
    """Count the captured bytes of payload by their use; those of TCP are given by `Verdict`."""
    in_streams = int(tcp.runs.lengths.sum())
    captured = captured_bytes.tolist()
    return {
        "tcp": in_streams,
        "udp": int(udp.runs.lengths.sum()),
        "duplicate": captured[Verdict.TAKEN] - in_streams,
        "keep_alive": captured[Verdict.KEEP_ALIVE],
        "reset": captured[Verdict.RESET],
    }
