"""Byte accounts of streams, and of the files of a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from wireyard.captures.bundled import BundledStreams
from wireyard.captures.connections.stream import Stream
from wireyard.captures.inputs import Input
from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.layout import State
from wireyard.formats import Format
from wireyard.schema import as_numbers
from wireyard.streams.blocks import DirectedStream
from wireyard.streams.framer import GAP, OK
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_streams

_COLUMNS = ["stream", "length", "status"]
_FREE = (State.FREE, State.PENDING, State.STALE, State.UNREACHED)


@dataclass(frozen=True)
class StreamAccount:
    """The bytes of one directed stream."""

    stream: str
    format: str | None
    """The format; of a stream that is not decoded its carrier (``tls``), or None if unknown."""
    message_bytes: int
    """Bytes in well-formed packets."""
    undecoded_bytes: int
    """Bytes in malformed packets, garbage and an unfinished tail; all of an unknown stream."""
    gap_bytes: int
    """Bytes that were not captured."""
    payload_bytes: int
    """Bytes of TCP or UDP payload including gaps, by sequence numbers and lengths; for streams
    inside TLS and WebSocket, the bytes inside."""

    @property
    def balances(self) -> bool:
        """Whether every byte is counted in one of the three parts."""
        counted = self.message_bytes + self.undecoded_bytes + self.gap_bytes
        return counted == self.payload_bytes


@dataclass(frozen=True)
class StoreAccount:
    """The bytes of one file of a store."""

    file: str
    holds: str
    """Its destination, or the kind of file."""
    message_bytes: int
    """Bytes in well-formed packets that the broker would load."""
    undecoded_bytes: int
    """Other bytes in records of packets."""
    free_bytes: int
    """Bytes in free and unfinished records, and in records of a log that are obsolete."""
    own_bytes: int
    """Headers, states of consumers, entries of maps, and unused space after the last record."""
    file_bytes: int

    @property
    def balances(self) -> bool:
        """Whether every byte is counted in one of the four parts."""
        counted = self.message_bytes + self.undecoded_bytes + self.free_bytes + self.own_bytes
        return counted == self.file_bytes


def account_store(
    files: Iterable[StoreFile], max_packet_bytes: int | None = None
) -> Iterator[StoreAccount]:
    """Yield the account of every file of a store, in order."""
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


def account_streams(source: Input, max_packet_bytes: int | None = None) -> Iterator[StreamAccount]:
    """Yield the account of every stream of an input, those of unknown format last."""
    sizes = _sizes(source.readables, max_packet_bytes)
    for format, opened in source.readables:
        for stream, size in _payloads(opened):
            bytes_of = sizes[stream]
            gaps = bytes_of.pop(GAP, 0)
            well_formed = bytes_of.pop(OK, 0)
            undecoded = bytes_of.total()
            read = well_formed + gaps + undecoded
            whole = read if size is None else size
            yield StreamAccount(stream, format.label, well_formed, undecoded, gaps, whole)
    for each in (*source.port_mapper, *source.unknown):
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
    """Return the bytes of each stream by the status of their rows."""
    sizes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    given = [
        (opened, make_plan(format, _COLUMNS, max_packet_bytes=max_packet_bytes))
        for format, opened in readables
    ]
    for batch in scan_streams(given):
        streams, statuses = (batch[name].dictionary_encode() for name in ("stream", "status"))
        named = len(statuses.dictionary)
        keys = as_numbers(streams.indices).astype(np.int64) * named + as_numbers(statuses.indices)
        unique_keys, rows = np.unique(keys, return_inverse=True)
        totals = np.zeros(len(unique_keys), np.int64)
        np.add.at(totals, rows, as_numbers(batch["length"]))
        names, words = streams.dictionary.to_pylist(), statuses.dictionary.to_pylist()
        for key, total in zip(unique_keys.tolist(), totals.tolist(), strict=True):
            sizes[names[key // named]][words[key % named]] += total
    return sizes


def _payloads(opened: DirectedStream) -> Iterable[tuple[str, int | None]]:
    """Return the names of the streams, and the bytes of each; None if they were not counted."""
    if isinstance(opened, BundledStreams):
        return opened.payload_bytes()
    captured = getattr(opened, "captured", None)
    size = _payload_bytes(captured) if isinstance(captured, Stream) else opened.size
    return [(opened.stream, size)]


def _payload_bytes(stream: Stream) -> int:
    """Return the captured bytes of a stream, each counted once, plus those of its gaps."""
    captured = int(stream.runs.lengths.sum())
    return captured + sum(int(stop - start) for start, stop in stream.gaps.tolist())
