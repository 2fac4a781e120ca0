"""Framing of a directed stream: packets, garbage between them, an unfinished tail.

Rules of this file:

1. Frames are contiguous: each begins where the one before ended, the last ends with the stream.
2. While the framing is in step, the format's `frame_size` decides. If it raises, all bytes up to
   the next header with consistent fields are one garbage frame.
3. The result depends on the bytes alone, never on how they are divided into views.
4. No frame spans bytes that were not captured. After such a gap the next packet is found by its
   header, or at a TCP segment from which whole packets follow each other, unless the size of the
   packet that the gap truncated gives its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Final, cast

from wireyard.errors import (
    DecodeError,
    LimitExceeded,
    Malformed,
    Truncated,
    UnsupportedVersion,
)
from wireyard.formats.base import UNPROVEN, Format, View

if TYPE_CHECKING:
    from wireyard.arrays import Ints

OK, MALFORMED, GARBAGE, TAIL, GAP = "ok", "malformed", "garbage", "tail", "gap"
"""The `status` of a row. A framed packet is OK until decoding finds it malformed."""

MOST_BYTES: Final = 1 << 60
"""No stream is as long: sums of two positions fit into their columns."""

_ERRORS: Final[Mapping[str, type[DecodeError]]] = {
    kind.__name__: kind
    for kind in (DecodeError, LimitExceeded, Malformed, Truncated, UnsupportedVersion)
}


_ARGUMENTS: Final = (str, str, int, str, str, str)
_ARGUMENTS_OF_TRUNCATED: Final = (str, str, int, int, int, str)
"""Types of the arguments of errors; the third is the offset."""


def _error_of(name: str, *args: Any) -> DecodeError:
    """Return the error that a state describes."""
    kind = _ERRORS[name]
    types = _ARGUMENTS_OF_TRUNCATED if kind is Truncated else _ARGUMENTS
    if tuple(map(type, args)) != types or not 0 <= args[2] < 1 << 31:
        raise ValueError(f"no {name}")
    return kind(*args)


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes ``[start, stop)`` of the stream; `error` is the reason for garbage or a tail."""

    start: int
    stop: int
    status: str
    context: int
    error: DecodeError | None = None


def gap_frame(format: Format, start: int, stop: int, context: int) -> Frame:
    """Return bytes of a stream that were not captured as a frame."""
    return Frame(start, stop, GAP, context, _lost(format, "was not captured"))


def _lost(format: Format, problem: str) -> DecodeError:
    return Malformed(format.name, "packet", 0, problem, "capture", "gap")


class Framer:
    """The framing state of one stream: its position, and whether a frame begins there.

    `position` is the offset of the next byte in the stream, and `context` that of the frame there;
    None for that of a stream's first frame. Packets have up to `max_packet_bytes`; None for the
    format's default.
    """

    def __init__(
        self,
        format: Format,
        max_packet_bytes: int | None = None,
        position: int = 0,
        context: int | None = None,
    ) -> None:
        self.format = format
        self.max_packet_bytes = max_packet_bytes or format.framing.max_packet_bytes
        self.position = position
        self.context = format.context if context is None else context
        self._garbage_from: int | None = None
        self._why: DecodeError | None = None
        self._cut_until: int | None = None
        """End of a packet whose beginning is the tail before a gap."""
        self.segment_starts: Sequence[int] | Ints = ()
        """Offsets in the stream where TCP segments begin, ascending, as far as they are known."""
        self._presumed: int | None = None
        """Offset where a packet is presumed to begin, unless the bytes there refute it."""
        self.is_settled = False
        """Whether bytes that do not refute it are enough for a presumed packet, though more may
        follow."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values, for `restore` of a framer with the same parameters."""
        why: list[Any] | None = None
        if self._why is not None:
            kind, args = cast(tuple[type, tuple[Any, ...]], self._why.__reduce__()[:2])
            why = [kind.__name__, *args]
        return {
            "position": self.position,
            "context": self.context,
            "garbage_from": self._garbage_from,
            "why": why,
            "cut_until": self._cut_until,
            "presumed": self._presumed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another framer.

        An invalid state raises `KeyError`, `TypeError` or `ValueError`.
        """
        self.position, self.context = index(state["position"]), index(state["context"])
        self._garbage_from, self._cut_until, self._presumed = (
            None if state[name] is None else index(state[name])
            for name in ("garbage_from", "cut_until", "presumed")
        )
        self._why = None if state["why"] is None else _error_of(*state["why"])
        garbage_from = self.position if self._garbage_from is None else self._garbage_from
        cut_until = self.position if self._cut_until is None else self._cut_until
        if not 0 <= garbage_from <= self.position <= cut_until <= MOST_BYTES:
            raise ValueError("no state of a framer")
        if (self._garbage_from is None) != (self._why is None):
            raise ValueError("no state of a framer")

    @property
    def is_aligned(self) -> bool:
        """Whether the next byte is known to begin a frame."""
        return self._garbage_from is None

    @property
    def frame_start(self) -> int:
        """Start of the current frame: `position`, or an earlier offset in garbage."""
        return self.position if self._garbage_from is None else self._garbage_from

    def next_frame(self, view: View, at_end: bool) -> Frame | None:
        """Return the next frame, None if more bytes are needed.

        `view` has bytes of the stream from `position` on; with `at_end` the stream ends where it
        ends. After None, the next view has to begin at `position`, which may have advanced, and has
        to have more bytes.
        """
        if not view and self.is_aligned:
            return None
        if self.is_aligned:
            try:
                size = self.format.framing.frame_size(
                    view, 0, len(view), self.max_packet_bytes, self.context, at_end
                )
            except DecodeError as error:
                self._garbage_from, self._why = self.position, error
                return self._resync(view, 1, at_end)
            if size is not None and size <= len(view):
                if at_end and size == len(view):
                    self.context = self.format.contexts.last(self.context)
                frame = self._take(size, OK)
                self.context = self.format.contexts.next(view[:size], frame.context)
                return frame
            return self._tail(view, size) if at_end else None
        if self._cut_until is not None:
            return self._rest(view, self._cut_until, at_end)
        return self._resync(view, 0, at_end)

    def begin(self) -> None:
        """Begin a packet here, with the context of a stream's first frame."""
        self._garbage_from = self._why = self._cut_until = None
        self.context = self.format.context

    def presume_packet(self, offset: int) -> None:
        """Presume that a packet begins at `offset`, where the captured part of a stream begins."""
        if self.format.evidence.confirm_start is not None:
            self._garbage_from, self._presumed = self.position, offset
            self._why = _lost(self.format, "begins in bytes that were not captured")

    def skip_gap(self, stop: int, *, sized: bool = True) -> Frame:
        """Return the gap up to `stop` as a frame, and continue after it.

        All frames before the gap have to be taken. With `sized`, the gap has as many bytes as were
        lost, so that the packet that it interrupted ends where its size says.
        """
        frame = gap_frame(self.format, self.position, stop, self.context)
        self.position = stop
        if not sized:
            self._cut_until = None
        if self._cut_until == stop:
            self._cut_until = None
            return frame
        if self._cut_until is not None and self._cut_until < stop:
            self._cut_until = None
        self._garbage_from = stop
        self._why = _lost(self.format, "begins in bytes that were not captured")
        return frame

    def _take(self, size: int, status: str, error: DecodeError | None = None) -> Frame:
        start = self.position
        self.position += size
        return Frame(start, self.position, status, self.context, error)

    def _tail(self, view: View, size: int | None) -> Frame:
        _, error = self.format.read_row(view, self.context)
        frame = self._take(len(view), TAIL, error)
        if size is not None:
            self._cut_until = frame.start + size
            self.context = self.format.contexts.next(view, frame.context)
        return frame

    def _rest(self, view: View, stop: int, at_end: bool) -> Frame | None:
        """Skip the rest of a packet that a gap truncated."""
        self.position = min(stop, self.position + len(view))
        if self.position < stop and not at_end:
            return None
        if self.position == stop:
            self._cut_until = None
        return self._garbage()

    def _resync(self, view: View, start: int, at_end: bool) -> Frame | None:
        """Find the next packet; return the garbage before it, or the packet if there is none."""
        stop = len(view)
        header_at, certain = self.format.framing.find_header(
            view, start, stop, self.max_packet_bytes
        )
        while at_end and not certain and not self._may_begin(view, header_at):
            header_at, certain = self.format.framing.find_header(
                view, header_at + 1, stop, self.max_packet_bytes
            )
        confirmed = None
        for at in self._segments(start, header_at):
            confirmed = self._confirm(view, at, at_end)
            if confirmed is None or confirmed >= 0:
                header_at, certain = at, confirmed is not None
                break
        self.position += header_at
        if not at_end and (not certain or header_at == stop):
            return None
        frame = None if self._garbage_from == self.position else self._garbage()
        self._garbage_from = self._why = None
        if confirmed is not None and confirmed >= 0:
            self.context = confirmed
        elif frame is not None and header_at < stop:
            self.context = self.format.context
        return frame or self.next_frame(view, at_end)

    def _may_begin(self, view: View, at: int) -> bool:
        """Return whether the last bytes of a stream may be the beginning of a packet."""
        try:
            self.format.framing.frame_size(
                view, at, len(view), self.max_packet_bytes, self.context, True
            )
        except DecodeError:
            return False
        return True

    def _segments(self, start: int, stop: int) -> Iterator[int]:
        """Yield the starts of TCP segments in ``[start, stop)``, counted from `position`."""
        if self.format.evidence.confirm_start is None:
            return
        starts = self.segment_starts
        for place in range(bisect_left(starts, self.position + start), len(starts)):
            if starts[place] >= self.position + stop:
                return
            yield int(starts[place]) - self.position

    def _confirm(self, view: View, at: int, at_end: bool) -> int | None:
        """Return the context of a packet at `at`, negative if none is confirmed.

        None if more bytes are needed.
        """
        assert self.format.evidence.confirm_start is not None
        is_presumed = self.position + at == self._presumed
        if is_presumed and self.is_settled and self._is_whole(view, at):
            at_end = True
        confirmed = self.format.evidence.confirm_start(
            view, at, len(view), self.max_packet_bytes, self.context, at_end
        )
        return self.context if confirmed == UNPROVEN and is_presumed else confirmed

    def _is_whole(self, view: View, at: int) -> bool:
        """Return whether a packet at `at` would be complete."""
        try:
            size = self.format.framing.frame_size(
                view, at, len(view), self.max_packet_bytes, self.context, False
            )
        except DecodeError:
            return False
        return size is not None and at + size <= len(view)

    def _garbage(self) -> Frame:
        assert self._garbage_from is not None
        frame = Frame(self._garbage_from, self.position, GARBAGE, self.context, self._why)
        self._garbage_from = self._why = None
        return frame
