"""A capture of one file or several that are still written: bytes in, streams out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from wireyard.captures.files.growing import GrowingFile
from wireyard.captures.inputs import Input, describe_unknown
from wireyard.captures.live.capture import LiveCapture
from wireyard.captures.live.state import StateError
from wireyard.captures.records import describe_damage
from wireyard.errors import UsageError
from wireyard.streams.blocks import Grown

_VERSION: Final = 7
"""Version of the stored state; an input whose state has another one is read again."""


class GrowingCapture:
    """A capture that grows: its bytes are those of one file, or of several one after the other.

    Each list of streams that it yields has to be read before the next one.
    """

    def __init__(self, capture: LiveCapture) -> None:
        self.capture = capture
        self.file = GrowingFile(capture.reader.keys.add)
        """The file that is being read."""
        self._damage: str | None = None
        self._unread_bytes = 0

    def feed(self, data: bytes, *, idle: bool = True) -> Iterator[list[Grown]]:
        """Add the next bytes; yield the streams that can be read.

        With `idle`, no further bytes are available now.
        """
        for part, records in self.file.receive(np.frombuffer(data, np.uint8), idle=idle):
            yield self.capture.receive(part, records)

    def next_file(self) -> Iterator[list[Grown]]:
        """Continue at the beginning of another file; yield the rest of the previous one."""
        for part, records in self.file.end():
            yield self.capture.receive(part, records)
        if self.file.damage is not None:
            self._damage = self._damage or str(self.file.damage)
            self._unread_bytes += self.file.unread_bytes
        self.file = GrowingFile(self.capture.reader.keys.add)

    def end(self) -> Iterator[list[Grown]]:
        """Yield the rest of all streams."""
        yield from self.next_file()
        yield from self.capture.end()

    def state(self) -> dict[str, Any] | None:
        """Return the state from which another one continues; see `live.state`.

        Everything that was yielded has to be read before. None while too little of the file has
        arrived, or if the file is damaged.
        """
        file = self.file.state()
        if file is None:
            return None
        damage = [self._damage, self._unread_bytes]
        capture = self.capture.state()
        return {"version": _VERSION, "file": file, "damage": damage, "capture": capture}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a stored state with the same settings.

        `StateError` is raised if `state` is no state of a capture, or is of another version.
        """
        try:
            if state["version"] != _VERSION:
                raise StateError("the state of a capture is another version's")
            self._damage, self._unread_bytes = state["damage"]
            self.file.restore(state["file"])
            self.capture.restore(state["capture"])
        except (LookupError, TypeError, ValueError, AttributeError, UsageError) as error:
            raise StateError(f"the state of a capture is damaged ({error})") from None

    def summary(self, damage: Sequence[str] = ()) -> Input:
        """Return the unknown streams and losses at the end, as an `Input` without streams.

        `damage` has further problems with the source.
        """
        capture = self.capture
        if self._damage is not None:
            damage = [*damage, describe_damage(self._damage, self._unread_bytes)]
        return describe_unknown(
            capture.name,
            capture.unknown,
            capture.tally,
            capture.reader.proxies,
            capture.repairs,
            damage="; ".join(damage) or None,
            problems=[*capture.reader.problems, *_losses(capture)],
            keyed=len(capture.reader.keys) > 0,
        )


def _losses(capture: LiveCapture) -> Iterator[str]:
    """Yield notes on bytes that were lost to the limits of `LiveCapture`."""
    if capture.unnamed:
        counts = capture.unnamed
        yield f"{counts['streams']} more streams of unknown format, {counts['bytes']} bytes"
    if capture.dropped_bytes:
        yield f"{capture.dropped_bytes} bytes are in gaps, because too many were held"
    if capture.late_bytes:
        yield f"{capture.late_bytes} bytes arrived after later bytes of their stream had been read"
