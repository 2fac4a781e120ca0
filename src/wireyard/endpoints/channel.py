"""Bytes of one connection: those not read yet, those to send, and what a record shows of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from wireyard.formats import get_format
from wireyard.formats.marks import masked

Tap = Callable[[bool, bytes], None]
"""Is given what passes, for a record: whether it arrived, and the bytes, without secrets."""
Span = tuple[int, int]
_SHOWN_BYTES: Final = 4
"""Bytes that a record shows of what is not read: the header of a packet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What this side accepts; the first two and `in_flight` are those of MQTT."""

    receive_maximum: int = 1000
    topic_alias_maximum: int = 10
    """Topics of up to 64 KiB that are kept for a connection."""
    max_packet_bytes: int = 10 << 20
    max_connect_bytes: int = 64 << 10
    """Largest packet of clients that nobody knows yet."""
    in_flight: int = 1000
    """Messages that are sent and not acknowledged, also if the peer takes more."""


class Ended(NamedTuple):
    """The connection is over: after `take` it is to be closed."""

    text: str | None
    """Why; None where that goes without saying."""
    code: int = 0
    packet: Any = None
    """The packet of the other side that ended it, if it was one."""


E = TypeVar("E")


class Channel(ABC, Generic[E]):
    """One side of a connection, apart from what its packets mean.

    Parameters
    ----------
    limits
        What this side accepts.
    tap
        Is called with all that passes, without secrets.

    Limits
    ------
    Holds one unfinished packet of at most `Limits.max_packet_bytes`, and what one call reads.
    """

    _FORMAT: ClassVar[str]
    """The format of its packets."""

    def __init__(self, limits: Limits | None = None, tap: Tap | None = None) -> None:
        self.limits = limits or Limits()
        self.state = "new"
        """The state in the table of connections of its protocol."""
        self.ended: Ended | None = None
        self.heard_at = 0.0
        """When bytes arrived last."""
        self.unsent_bytes = 0
        """Bytes that `take` will return."""
        self.context = 0
        """That of the packets, for their format."""
        self.is_paused = False
        """Whether nothing is read until `read_on`."""
        self.out: list[bytes | memoryview] = []
        self._tap = tap
        self._masked: dict[int, bytes] = {}
        """Packets in `out` that have a secret, without it, by their place."""
        self._buffer = bytearray()
        self._needed = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that are not read yet."""
        return len(self._buffer)

    def receive(self, data: bytes, now: float = 0.0) -> list[E]:
        """Read the next bytes of the other side; return what happened, in order."""
        self.heard_at = now
        if not self._buffer and not self.is_paused:
            return self._read(data, now)
        self._buffer += data
        if self.is_paused or len(self._buffer) < self._needed:
            return []
        return self.read_on(now)

    def read_on(self, now: float = 0.0) -> list[E]:
        """Read what arrived since reading paused; return what happened, in order."""
        self.is_paused = False
        data = bytes(self._buffer)
        self._buffer.clear()
        return self._read(data, now)

    @abstractmethod
    def _read(self, data: bytes, now: float) -> list[E]:
        """Read whole packets; `_leave` is called with what was read."""

    def _without_secrets(self, data: bytes, packets: Sequence[Span]) -> bytes:
        """Return bytes in which the secrets of some packets are replaced by as many asterisks."""
        shown = bytearray(data)
        for start, stop in packets:
            shown[start:stop] = masked(get_format(self._FORMAT), data[start:stop], self.context)
        return bytes(shown)

    def _leave(self, data: bytes, at: int, secret: Sequence[Span] = ()) -> None:
        """Show what was read, up to `at`, and keep the rest for later.

        What is not read any more may be a part of a login whose length is wrong.
        """
        if at < len(data) and self.ended is None:
            self._buffer += data[at:] if at else data
        if self._tap is None:
            return
        shown = self._without_secrets(data[:at], secret) if secret else data[:at]
        if self.ended is not None:
            shown += data[at : at + _SHOWN_BYTES] + b"*" * (len(data) - at - _SHOWN_BYTES)
        if shown:
            self._tap(True, shown)

    def write(self, data: bytes | memoryview, has_secret: bool = False) -> None:
        """Send bytes; a packet with a secret is shown without it."""
        if has_secret and self._tap is not None:
            self._masked[len(self.out)] = self._without_secrets(bytes(data), [(0, len(data))])
        self.out.append(data)
        self.unsent_bytes += len(data)

    def take(self) -> bytes:
        """Return the bytes to send, and forget them."""
        if not self.out:
            return b""
        data = b"".join(self.out)
        if self._tap is not None:
            shown = (self._masked.get(place, part) for place, part in enumerate(self.out))
            self._tap(False, b"".join(shown))
            self._masked.clear()
        self.out = []
        self.unsent_bytes = 0
        return data
