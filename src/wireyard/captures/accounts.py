"""What became of each stream's bytes: in messages, undecoded, or never captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from wireyard.captures.inputs import Input
from wireyard.captures.stream import Stream
from wireyard.streams.framer import GAP, OK
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_stream

__all__ = ["StreamAccount", "account_streams"]


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
    """Bytes that the capture never saw; in a file of a store those that hold no packets."""
    payload_bytes: int
    """What TCP or UDP carried, gaps with it, counted by sequence numbers and lengths; inside TLS
    and WebSocket what these carried; of a file of a store its size."""

    @property
    def balances(self) -> bool:
        """Whether every byte is in one of the three."""
        found = self.message_bytes + self.undecoded_bytes + self.gap_bytes
        return found == self.payload_bytes


def account_streams(found: Input, max_packet_bytes: int | None = None) -> Iterator[StreamAccount]:
    """Yield the account of every stream of an input, those without a format last."""
    for format, opened in found.streams:
        plan = make_plan(format, ["length", "status"], max_packet_bytes=max_packet_bytes)
        sizes: Counter[str] = Counter()
        for batch in scan_stream(opened, plan):
            for status in pc.unique(batch["status"]).to_pylist():
                of_status = batch.filter(pc.equal(batch["status"], status))
                sizes[status] += pc.sum(of_status["length"]).as_py()
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


def _payload_bytes(stream: Stream) -> int:
    """Return the bytes that segments brought, each once, and those of gaps between them."""
    brought = int(stream.runs.lengths.sum())
    return brought + sum(int(stop - start) for start, stop in stream.gaps.tolist())
