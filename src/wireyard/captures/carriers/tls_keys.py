"""Secrets of TLS connections: key logs, and the Decryption Secrets Blocks of pcapng files.

Browsers and OpenSSL write key logs to ``SSLKEYLOGFILE`` (draft-ietf-tls-keylogfile): lines of a
label, the random of the ClientHello and a secret. Secrets are never shown and never written.
"""

from __future__ import annotations

import os
import re
from binascii import unhexlify
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import Final

import numpy as np

from wireyard.arrays import Bytes
from wireyard.captures import signatures
from wireyard.captures.files.record_kernels import SECRETS, seek_block
from wireyard.errors import SourceError, UsageError
from wireyard.streams.source import open_source, reading

NOT_INSTALLED: Final = "the package cryptography is not installed: pip install 'wireyard[tls]'"
MAX_KEY_LOG_BYTES: Final = 1 << 28
"""Largest key log: about a million connections of TLS 1.3, with five lines each."""
_PIECE_BYTES: Final = 1 << 20

_LINE: Final = re.compile(rb"^([A-Z_0-9]+) ([0-9A-Fa-f]{64}) ((?:[0-9A-Fa-f]{2}){1,128})\s*$", re.M)
_SESSION_LINE: Final = re.compile(
    rb"^RSA Session-ID:((?:[0-9A-Fa-f]{2}){1,32}) Master-Key:([0-9A-Fa-f]{96})\s*$", re.M
)
"""A line as Java programs and ``openssl s_client`` print it."""
_TLS_KEY_LOG: Final = 0x544C534B
"""The Secrets Type of a block that contains a key log."""
_BLOCK_HEAD_BYTES: Final = 16


class KeyLog:
    """The secrets of key logs, by label and random of the ClientHello.

    `embedded` returns the key logs inside the capture. It is called once, when the others lack a
    secret.
    """

    def __init__(self, embedded: Callable[[], Iterable[bytes]] = tuple) -> None:
        self._secrets: dict[tuple[bytes, bytes], bytes] = {}
        self._sessions: dict[bytes, bytes] = {}
        self._embedded: Callable[[], Iterable[bytes]] | None = embedded

    def __repr__(self) -> str:
        return f"<KeyLog of {len(self)} secrets>"

    def __len__(self) -> int:
        return len(self._secrets) + len(self._sessions)

    def add(self, text: bytes) -> int:
        """Add the secrets in the lines of a key log; return their number."""
        lines, sessions = _LINE.findall(text), _SESSION_LINE.findall(text)
        for label, random, secret in lines:
            self._secrets[label, unhexlify(random)] = unhexlify(secret)
        for session, secret in sessions:
            self._sessions[unhexlify(session)] = unhexlify(secret)
        return len(lines) + len(sessions)

    def secret(self, label: str, client_random: bytes) -> bytes | None:
        """Return a secret of a connection; None if it is not known."""
        return self._lookup(lambda: self._secrets.get((label.encode(), client_random)))

    def master_secret(self, client_random: bytes, session: bytes) -> bytes | None:
        """Return the master secret of a TLS 1.2 connection, by its random or its session id."""
        return self.secret("CLIENT_RANDOM", client_random) or self._lookup(
            lambda: self._sessions.get(session)
        )

    def _lookup(self, find: Callable[[], bytes | None]) -> bytes | None:
        secret = find()
        if secret is None and self._embedded is not None:
            logs, self._embedded = self._embedded(), None
            for text in logs:
                self.add(text)
            secret = find()
        return secret


def has_ciphers() -> bool:
    """Return whether the package with the ciphers is installed."""
    return find_spec("cryptography") is not None


def read_key_logs(
    paths: Sequence[str | os.PathLike[str]], embedded: Callable[[], Iterable[bytes]] = tuple
) -> KeyLog:
    """Read key logs.

    `paths` are as for `open_source`; compression is detected by content. `embedded` is as for
    `KeyLog`. `SourceError` is raised if a file cannot be read or is over `MAX_KEY_LOG_BYTES`,
    `UsageError` if a file has no secret or the ciphers are not installed.
    """
    if paths and not has_ciphers():
        raise UsageError(f"keylog: {NOT_INSTALLED}")
    keys = KeyLog(embedded)
    for path in paths:
        name, opened, _ = open_source(path)
        with closing(opened), reading(name):
            text = bytearray()
            while len(text) <= MAX_KEY_LOG_BYTES and (piece := opened.read(_PIECE_BYTES)):
                text += piece
        if len(text) > MAX_KEY_LOG_BYTES:
            raise SourceError(f"{name}: has over {MAX_KEY_LOG_BYTES >> 20} MiB, for a key log")
        if not keys.add(bytes(text)):
            raise UsageError(f"{name}: is no key log: no line of it is LABEL CLIENT_RANDOM SECRET")
    return keys


def embedded_secrets(files: Iterable[Bytes]) -> Iterator[bytes]:
    """Yield the key logs in the Decryption Secrets Blocks of pcapng files; skip other files."""
    for data in files:
        if data[:4].tobytes() == signatures.PCAPNG:
            yield from secrets_of_blocks(data)


def secrets_of_blocks(data: Bytes, *, little: bool = True) -> Iterator[bytes]:
    """Yield the key logs in the Decryption Secrets Blocks among pcapng blocks.

    `little` shows whether the section of the first block is little-endian.
    """
    place = np.array([0, little], np.int64)
    while (at := seek_block(data, SECRETS, place)) >= 0:
        begin, stop = at + _BLOCK_HEAD_BYTES, int(place[0]) - 4
        kind, size = data[at + 8 : begin].view("<u4" if place[1] else ">u4").tolist()
        if kind == _TLS_KEY_LOG and size <= min(stop - begin, MAX_KEY_LOG_BYTES):
            yield data[begin : begin + size].tobytes()
