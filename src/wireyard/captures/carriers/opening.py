"""Carriers of streams: TLS, WebSocket, and WebSocket inside TLS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from wireyard.captures.carriers.inner import Budget, Carrier
from wireyard.captures.connections.stream import Stream
from wireyard.captures.signatures import SNIFFED_BYTES, is_http, is_tls, is_websocket
from wireyard.formats import sniff

if TYPE_CHECKING:
    from wireyard.captures.carriers.tls_keys import KeyLog

_MOST_TRIES: Final = 1 << 18
"""Numbers that are tried for the records of TLS behind gaps, in all streams of a capture."""
_MOST_INFLATED_BYTES: Final = 1 << 30
"""Inflated bytes of all streams of a capture together, which are in memory."""


class Carriers:
    """Opens the connections of a capture that are inside TLS or WebSocket.

    `keys` has the secrets of TLS connections.
    """

    def __init__(self, keys: KeyLog) -> None:
        self._keys = keys
        self._tries = Budget(_MOST_TRIES)
        self._inflated = Budget(_MOST_INFLATED_BYTES)

    def open(
        self, streams: Sequence[Stream], heads: Sequence[bytes]
    ) -> tuple[tuple[Carrier, ...], Sequence[Stream] | None]:
        """Return the carriers of a connection, the outermost first, and the streams inside.

        `streams` are its directions, one or both, and `heads` their `first_bytes`. The streams
        inside are None if they cannot be read, and `streams` themselves if there is no carrier.
        """
        carriers: list[Carrier] = []
        inside: Sequence[Stream] | None = streams
        if streams[0].protocol == "tcp" and _begins(heads, is_tls):
            from wireyard.captures.carriers.tls import open_tls

            carrier, inside = open_tls(streams, self._keys, self._tries)
            carriers.append(carrier)
            heads = [first_bytes(stream) for stream in inside or ()]
        if inside is not None and _begins(heads, is_http):
            from wireyard.captures.carriers.websocket import open_http

            carrier, inside = open_http(inside, self._inflated)
            carriers.append(carrier)
        elif inside is not None and inside[0].protocol == "tcp" and _are_frames(heads):
            from wireyard.captures.carriers.websocket import open_frames

            carrier, inside = open_frames(inside, heads, self._inflated)
            carriers.append(carrier)
        return tuple(carriers), inside


def first_bytes(stream: Stream) -> bytes:
    """Return the first bytes of a stream, for detection; empty if they were not captured.

    Those of a stream that began before the capture are the first that were captured.
    """
    pieces = stream.pieces
    if stream.begun or not len(pieces):
        return stream.head(SNIFFED_BYTES).tobytes()
    start, stop = pieces[0].tolist()
    return stream.read(start, min(stop, start + SNIFFED_BYTES)).tobytes()


def _are_frames(heads: Sequence[bytes]) -> bool:
    """Return whether a connection is a WebSocket whose handshake was not captured."""
    if any(map(sniff, filter(None, heads))):
        return False
    masked = [is_websocket(head, masked=True) for head in heads]
    return any(masked) and all(
        one or not head or is_websocket(head, masked=False)
        for one, head in zip(masked, heads, strict=True)
    )


def _begins(heads: Sequence[bytes], test: Callable[[bytes], bool]) -> bool:
    return any(map(test, heads)) and not any(map(sniff, filter(None, heads)))
