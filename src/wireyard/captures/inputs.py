"""What somebody asked to be read: a bare stream or a capture, opened as streams with formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from wireyard.captures.magic import is_capture
from wireyard.errors import SourceError, UsageError
from wireyard.formats import Format, labels, sniff
from wireyard.streams.blocks import DirectedStream
from wireyard.streams.scan import OpenedStream, open_windows
from wireyard.streams.source import Source

if TYPE_CHECKING:
    from wireyard.captures.assignment import Assigned

__all__ = ["Input", "Readable", "open_input"]

_SNIFFED_BYTES: Final = 1 << 16
_SHOWN_BYTES: Final = 16
_SHOWN_STREAMS: Final = 3


class Readable(NamedTuple):
    """A stream and its format."""

    format: Format
    opened: DirectedStream


@dataclass(frozen=True)
class Input:
    """A source, opened: its streams in order."""

    name: str
    captured: bool
    """Whether it is a capture, so that its rows have times, frames and endpoints."""
    streams: Sequence[Readable]
    unknown: Sequence[Assigned] = ()
    """The streams of a capture that have no format, and are no answer of a port mapper."""
    damage: str | None = None
    """Why a capture was not read to its end."""

    def of_one_format(self) -> Sequence[Readable]:
        """Return the streams if they are of one format, as a table needs them.

        Raises
        ------
        UsageError
            They are not, or there is none.
        """
        found = {stream.format.name for stream in self.streams}
        if len(found) == 1:
            return self.streams
        if found:
            raise UsageError(f"{self.name}: holds {' and '.join(sorted(found))}; name one of them")
        raise UsageError(f"{self.name}: no stream in it begins like any format{self._unknown()}")

    @property
    def unread(self) -> str | None:
        """Say what of a capture nothing told the format of, None if there is nothing."""
        if not self.unknown:
            return None
        size = sum(each.stream.size for each in self.unknown)
        return f"{len(self.unknown)} streams, {size} bytes, are of no known format{self._unknown()}"

    def close(self) -> None:
        """Close the source."""
        for one in self.streams:
            one.opened.close()

    def _unknown(self) -> str:
        if not self.unknown:
            return ""
        shown = ", ".join(each.stream.name for each in self.unknown[:_SHOWN_STREAMS])
        more = ", .." if len(self.unknown) > _SHOWN_STREAMS else ""
        port = self.unknown[0].stream.dst.port
        protocol = self.unknown[0].stream.protocol
        return f" ({shown}{more}); say it as in {protocol}.port=={port},mqtt"


def open_input(source: Source, named: Format | None = None, decode_as: Sequence[str] = ()) -> Input:
    """Open a source, and tell the formats of its streams.

    Parameters
    ----------
    source
        What `open_source` takes.
    named
        The format of a bare stream, or whose streams of a capture are wanted; by the first bytes
        if None.
    decode_as
        What ports of a capture are for, as in ``tcp.port==1884,mqtt``.

    Raises
    ------
    SourceError
        It cannot be read, or is empty and nothing says what it would hold.
    UsageError
        A bare stream that begins like no format.
    """
    opened = open_windows(source)
    try:
        head = bytes(opened.first.view[:_SNIFFED_BYTES])
        if not is_capture(head):
            return Input(opened.name, False, [Readable(named or _sniffed(opened, head), opened)])
    except BaseException:
        opened.close()
        raise
    return _open_capture(source, opened, named, decode_as)


def _sniffed(opened: OpenedStream, head: bytes) -> Format:
    if not head:
        raise SourceError(f"{opened.name}: is empty; 'format' says what to take it for")
    found = sniff(head)
    if found is None:
        shown = head[:_SHOWN_BYTES].hex(" ")
        known = ", ".join(labels())
        problem = f"begins like no format ({shown}); 'format' says what to take it for: {known}"
        raise UsageError(f"{opened.name}: {problem}")
    return found


def _open_capture(
    source: Source, opened: OpenedStream, named: Format | None, decode_as: Sequence[str]
) -> Input:
    # A bare stream is there before all this is loaded.
    from wireyard.captures.assignment import assign_formats, parse_decode_as
    from wireyard.captures.directed import CapturedStream
    from wireyard.captures.read import read_capture

    rules = [parse_decode_as(text) for text in decode_as]
    if isinstance(source, str | os.PathLike) and source != "-":
        opened.close()
        capture = read_capture(source)
    else:
        capture = read_capture(opened)
    assigned = assign_formats(capture.streams, rules, named)
    wanted = [each for each in assigned if named is None or _is(named, each.format)]
    size = sum(each.stream.size for each in wanted)
    return Input(
        capture.name,
        True,
        [
            Readable(each.format, CapturedStream(capture.name, each.stream, each.context, size))
            for each in wanted
            if each.format is not None
        ],
        [each for each in assigned if each.format is None and each.port_mapper is None],
        f"{capture.damage}; {capture.unread_bytes} bytes are not read" if capture.damage else None,
    )


def _is(named: Format, format: Format | None) -> bool:
    return format is not None and format.name == named.name
