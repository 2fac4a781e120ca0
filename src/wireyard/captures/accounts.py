"""What became of each byte of streams, and of the files of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from wireyard.captures.inputs import Input
from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.layout import State
from wireyard.captures.stream import Stream
from wireyard.formats import Format
from wireyard.streams.blocks import DirectedStream
from wireyard.streams.framer import GAP, OK
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_stream

__all__ = ["StoreAccount", "StreamAccount", "account_store", "account_streams"]

_FREE = (State.FREE, State.PENDING, State.STALE, State.UNREACHED)


@dataclass(frozen=True)
class StreamAccount:
    """The bytes of one directed stream."""

    stream: str
    format: str | None
    """Of what is not decoded the name of what carries it (``tls``), None if that is unknown."""
    message_bytes: int
    """In well-formed packets."""
    undecoded_bytes: int
    """In malformed packets, garbage and an unfinished tail; all of a stream without a format."""
    gap_bytes: int
    """Bytes that the capture never saw."""
    payload_bytes: int
    """What TCP or UDP carried, gaps with it, counted by sequence numbers and lengths; inside TLS
    and WebSocket what these carried."""

    @property
    def balances(self) -> bool:
        """Whether every byte is in one of the three."""
        found = self.message_bytes + self.undecoded_bytes + self.gap_bytes
        return found == self.payload_bytes


@dataclass(frozen=True)
class StoreAccount:
    """The bytes of one file of a store."""

    file: str
    holds: str
    """A destination, or the kind of file."""
    message_bytes: int
    """In well-formed packets that the broker would load."""
    undecoded_bytes: int
    """In other bytes where it has packets."""
    free_bytes: int
    """In records that are free or were never finished, and in those of a log that are done with."""
    own_bytes: int
    """Headers, states of consumers, entries of maps, and room behind the last record."""
    file_bytes: int

    @property
    def balances(self) -> bool:
        """Whether every byte is in one of the four."""
        found = self.message_bytes + self.undecoded_bytes + self.free_bytes + self.own_bytes
        return found == self.file_bytes


def account_store(
    files: Iterable[StoreFile], max_packet_bytes: int | None = None
) -> Iterator[StoreAccount]:
    """Yield the account of every file of a store, in their order."""
    for file in files:
        sizes: Counter[str] = Counter()
        if file.stream is not None:
            sizes = _sizes(file.stream.format, file.stream, max_packet_bytes)
        well_formed = sizes.pop(OK, 0)
        rest = sizes.pop(GAP, 0) if file.stream is not None else len(file.data)
        free = sum(size for state, size in file.ledger.items() if state in _FREE)
        yield StoreAccount(
            file.name,
            file.destination or file.kind.value.title,
            well_formed,
            sizes.total(),
            free,
            rest - free,
            len(file.data),
        )


def account_streams(found: Input, max_packet_bytes: int | None = None) -> Iterator[StreamAccount]:
    """Yield the account of every stream of an input, those without a format last."""
    for format, opened in found.streams:
        sizes = _sizes(format, opened, max_packet_bytes)
        captured = getattr(opened, "captured", None)
        size = _payload_bytes(captured) if isinstance(captured, Stream) else opened.size
        gaps = sizes.pop(GAP, 0)
        well_formed = sizes.pop(OK, 0)
        read = well_formed + gaps + sizes.total()
        yield StreamAccount(
            opened.stream,
            format.label,
            well_formed,
            sizes.total(),
            gaps,
            read if size is None else size,
        )
    for each in (*found.port_mapper, *found.unknown):
        size = _payload_bytes(each.stream)
        gaps = sum(stop - start for start, stop in each.stream.gaps.tolist())
        name = "portmapper" if each.port_mapper else None
        if each.carriers:
            name = each.carriers[-1].name
        if size:
            yield StreamAccount(each.stream.name, name, 0, size - gaps, gaps, size)


def _sizes(format: Format, opened: DirectedStream, max_packet_bytes: int | None) -> Counter[str]:
    """Return how many bytes of a stream are in rows of each status."""
    plan = make_plan(format, ["length", "status"], max_packet_bytes=max_packet_bytes)
    sizes: Counter[str] = Counter()
    for batch in scan_stream(opened, plan):
        for status in pc.unique(batch["status"]).to_pylist():
            of_status = batch.filter(pc.equal(batch["status"], status))
            sizes[status] += pc.sum(of_status["length"]).as_py()
    return sizes


def _payload_bytes(stream: Stream) -> int:
    """Return the bytes that segments brought, each once, and those of gaps between them."""
    brought = int(stream.runs.lengths.sum())
    return brought + sum(int(stop - start) for start, stop in stream.gaps.tolist())
