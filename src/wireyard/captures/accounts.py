"""What became of each byte of streams, and of the files of a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from wireyard.captures.bundled import BundledStreams
from wireyard.captures.inputs import Input
from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.layout import State
from wireyard.captures.stream import Stream
from wireyard.formats import Format
from wireyard.schema import as_numbers
from wireyard.streams.blocks import DirectedStream
from wireyard.streams.framer import GAP, OK
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_streams

__all__ = ["StoreAccount", "StreamAccount", "account_store", "account_streams"]

_COLUMNS = ["stream", "length", "status"]
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
            read = _sizes([(file.stream.format, file.stream)], max_packet_bytes)
            sizes = read[file.stream.stream]
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
    sizes = _sizes(found.readables, max_packet_bytes)
    for format, opened in found.readables:
        for stream, size in _payloads(opened):
            bytes_of = sizes[stream]
            gaps = bytes_of.pop(GAP, 0)
            well_formed = bytes_of.pop(OK, 0)
            undecoded = bytes_of.total()
            read = well_formed + gaps + undecoded
            whole = read if size is None else size
            yield StreamAccount(stream, format.label, well_formed, undecoded, gaps, whole)
    for each in (*found.port_mapper, *found.unknown):
        size = _payload_bytes(each.stream)
        gaps = sum(stop - start for start, stop in each.stream.gaps.tolist())
        name = "portmapper" if each.port_mapper else None
        if each.carriers:
            name = each.carriers[-1].name
        if size:
            yield StreamAccount(each.stream.name, name, 0, size - gaps, gaps, size)


def _sizes(
    readables: Iterable[tuple[Format, DirectedStream]], max_packet_bytes: int | None
) -> Mapping[str, Counter[str]]:
    """Return how many bytes of each stream are in rows of each status."""
    sizes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    given = [
        (opened, make_plan(format, _COLUMNS, max_packet_bytes=max_packet_bytes))
        for format, opened in readables
    ]
    for batch in scan_streams(given):
        streams, statuses = (batch[name].dictionary_encode() for name in ("stream", "status"))
        named = len(statuses.dictionary)
        keys = as_numbers(streams.indices).astype(np.int64) * named + as_numbers(statuses.indices)
        found, rows = np.unique(keys, return_inverse=True)
        totals = np.zeros(len(found), np.int64)
        np.add.at(totals, rows, as_numbers(batch["length"]))
        names, words = streams.dictionary.to_pylist(), statuses.dictionary.to_pylist()
        for key, total in zip(found.tolist(), totals.tolist(), strict=True):
            sizes[names[key // named]][words[key % named]] += total
    return sizes


def _payloads(opened: DirectedStream) -> Iterable[tuple[str, int | None]]:
    """Return the names of one stream or several, and the bytes of each; None if nobody counted."""
    if isinstance(opened, BundledStreams):
        return opened.payload_bytes()
    captured = getattr(opened, "captured", None)
    size = _payload_bytes(captured) if isinstance(captured, Stream) else opened.size
    return [(opened.stream, size)]


def _payload_bytes(stream: Stream) -> int:
    """Return the bytes that segments brought, each once, and those of gaps between them."""
    brought = int(stream.runs.lengths.sum())
    return brought + sum(int(stop - start) for start, stop in stream.gaps.tolist())
