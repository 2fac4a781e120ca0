"""Compressed bytes of a source: recognised by the first of them, and inflated piece by piece.

Everything that can be inflated is given before an error. Bytes behind the last member are ignored
if no other member begins there, as gzip, bzip2 and xz do: tapes and disks pad files with zeros.
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa

from wireyard.streams.source import MAGIC_BYTES, Damaged, compression

_INFLATED_BYTES: Final = 1 << 16
"""Most bytes of one read."""
_PIECE_BYTES: Final = 1 << 14
_SMALL_PIECE_BYTES: Final = 1 << 8
"""An error of bzip2 or xz loses what the piece with the error gives, so pieces are small."""
_DRAINED_BYTES: Final = 1 << 20
_UNLIKELY: Final = os.urandom(_INFLATED_BYTES)
_ERRORS: Final = (OSError, EOFError, zlib.error, lzma.LZMAError)


class _Raw(Protocol):
    """A binary file that counts the bytes that were read."""

    position: int

    def read(self, count: int, /) -> bytes: ...
    def close(self) -> None: ...


class _Inflater(Protocol):
    """The decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def inflated(raw: _Raw, codec: str) -> Any:
    """Return a binary file of the bytes that are compressed in another, which it closes.

    Its `read` returns at most 64 KiB, and raises `Damaged` behind the last byte of damaged data.
    """
    if codec in _INFLATERS:
        return _Inflated(raw, codec)
    return _ArrowInflated(raw, codec)


class _Inflated:
    """The members of a file of gzip, bzip2 or xz; parameters as of `inflated`."""

    def __init__(self, raw: _Raw, codec: str) -> None:
        self._raw, self._codec = raw, codec
        self._new, self._piece_bytes = _INFLATERS[codec]
        self._inflater: _Inflater | None = self._new()
        self._ahead = b""
        """Bytes that were read and are not inflated yet."""
        self._failure: Damaged | None = None

    def read(self, count: int) -> bytes:
        """Return the next bytes, at most `count`; none at the end."""
        while self._inflater is not None and self._failure is None:
            if self._inflater.eof:
                self._next_member(self._inflater.unused_data)
            elif data := self._inflate(self._inflater, min(count, _INFLATED_BYTES)):
                return data
        if self._failure is not None:
            raise self._failure
        return b""

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def _inflate(self, inflater: _Inflater, count: int) -> bytes:
        piece = b""
        if inflater.needs_input:
            self._ahead = self._ahead or self._raw.read(self._piece_bytes)
            piece, self._ahead = self._ahead[: self._piece_bytes], self._ahead[self._piece_bytes :]
            if not piece:
                self._failure = _cut_off(self._raw, self._codec)
                return b""
        try:
            return inflater.decompress(piece, count)
        except _ERRORS:
            refused = getattr(inflater, "refused", piece)
            self._failure = _damaged(self._raw, self._codec, len(refused) + len(self._ahead))
            return b""

    def _next_member(self, ahead: bytes) -> None:
        """Continue with the member behind one that has ended, or end."""
        ahead = (ahead + self._ahead).lstrip(b"\0")
        while len(ahead) < MAGIC_BYTES and (more := self._raw.read(_PIECE_BYTES)):
            ahead = (ahead + more).lstrip(b"\0")
        self._ahead = ahead
        self._inflater = self._new() if compression(ahead) == self._codec else None


class _Gzip:
    """A member of gzip, with the methods of a decompressor of bz2."""

    def __init__(self) -> None:
        self._state = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.refused = b""
        """The bytes from the one on that cannot be inflated."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended."""
        return self._state.eof

    @property
    def unused_data(self) -> bytes:
        """The bytes behind its end."""
        return self._state.unused_data

    @property
    def needs_input(self) -> bool:
        """Whether all bytes that it got are inflated."""
        return not (self._state.unconsumed_tail or self.refused)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Inflate more bytes; an error is raised once all bytes before it are returned."""
        before, data = self._state.copy(), self.refused + self._state.unconsumed_tail + data
        try:
            return self._state.decompress(data, max_length)
        except zlib.error:
            found = self._inflate_up_to_error(before, data)
            if not found:
                raise
            return found

    def _inflate_up_to_error(self, state: Any, data: bytes) -> bytes:
        """Inflate the bytes before the one that `decompress` fails at, halving what is tried."""
        found, step = b"", len(data)
        while step:
            tried = state.copy()
            try:
                found += tried.decompress(data[:step])
            except zlib.error:
                step //= 2
                continue
            state, data = tried, data[step:]
        self._state, self.refused = state, data
        return found


_INFLATERS: Final[Mapping[str, tuple[Callable[[], _Inflater], int]]] = MappingProxyType(
    {
        "gzip": (_Gzip, _PIECE_BYTES),
        "bzip2": (bz2.BZ2Decompressor, _SMALL_PIECE_BYTES),
        "xz": (lzma.LZMADecompressor, _SMALL_PIECE_BYTES),
    }
)


class _ArrowInflated:
    """A file of zstd or lz4, which Arrow inflates; parameters as of `inflated`."""

    def __init__(self, raw: _Raw, codec: str) -> None:
        self._raw, self._codec = raw, codec
        self._pieces = _Pieces(raw)
        self._file = pa.CompressedInputStream(pa.PythonFile(self._pieces, mode="r"), codec)
        self._failure: Damaged | None = None

    def read(self, count: int) -> bytes:
        """Return the next bytes, at most `count`; none at the end."""
        if self._failure is not None:
            raise self._failure
        unlikely = _UNLIKELY[: min(count, _INFLATED_BYTES)]
        data = bytearray(unlikely)
        try:
            filled = self._file.readinto(data)
        except OSError as error:
            if "Truncated" in str(error):
                self._failure = _cut_off(self._raw, self._codec)
            else:
                self._failure = _damaged(self._raw, self._codec, self._pieces.last_bytes)
            # Arrow does not say how many bytes it wrote before the error: up to the last new one.
            filled = len(data)
            while filled and data[filled - 1] == unlikely[filled - 1]:
                filled -= 1
            if not filled:
                raise self._failure from None
        return bytes(data[:filled])

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._raw.close()


class _Pieces:
    """A file that Arrow reads in small pieces, so that damage has a place in it."""

    def __init__(self, raw: _Raw) -> None:
        self._raw = raw
        self.last_bytes = 0
        self.closed = False

    def read(self, count: int) -> bytes:
        """Return the next bytes, at most a piece."""
        data = self._raw.read(min(count, _PIECE_BYTES))
        self.last_bytes = len(data) or self.last_bytes
        return data

    def close(self) -> None:
        """Do nothing: `_ArrowInflated` closes the file."""
        self.closed = True


def _cut_off(raw: _Raw, codec: str) -> Damaged:
    return Damaged(f"{codec} data is cut off at byte {raw.position}")


def _damaged(raw: _Raw, codec: str, left: int) -> Damaged:
    """Return the error for damage `left` bytes before the position; the rest is counted."""
    offset = raw.position - left
    while raw.read(_DRAINED_BYTES):
        pass
    return Damaged(f"{codec} data is damaged near byte {offset}", raw.position - offset)
