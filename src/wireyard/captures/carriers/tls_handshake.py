"""TLS handshake messages: ClientHello, ServerHello and extensions (RFC 5246, 7.4; RFC 8446, 4)."""

from __future__ import annotations

from typing import Final, NamedTuple

from wireyard.captures.carriers.inner import Unreadable

_SERVER_NAME, _TRUNCATED_HMAC, _ALPN, _MAC_LAST, _EARLY_DATA, _VERSIONS = 0, 4, 16, 22, 42, 43
_HELLO_RETRY: Final = bytes.fromhex(
    "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"
)
"""The random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3)."""
TLS12, TLS13 = 0x0303, 0x0304
VERSIONS: Final = {0x0300: "SSL 3.0", 0x0301: "1.0", 0x0302: "1.1", TLS12: "1.2", TLS13: "1.3"}


class ClientHello(NamedTuple):
    """The fields of a ClientHello that are needed here."""

    random: bytes
    server_name: str | None
    protocols: tuple[str, ...]
    early_data: bool


class EncryptedExtensions(NamedTuple):
    """The encrypted choices of a TLS 1.3 server."""

    protocols: tuple[str, ...]
    early_data: bool
    """Whether it accepted the client's early data."""


class ServerHello(NamedTuple):
    """The fields of a ServerHello that are needed here."""

    version: int
    random: bytes
    session: bytes
    suite: int
    compressed: bool
    protocols: tuple[str, ...]
    mac_last: bool
    truncated_mac: bool

    @property
    def retries(self) -> bool:
        """Whether it is a HelloRetryRequest."""
        return self.random == _HELLO_RETRY


class _Cursor:
    """A bounds-checked reader of a handshake message."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Number of bytes that are left."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > self.left:
            raise Unreadable("has a handshake message that ends in the middle of a field")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        """Return the next bytes as an integer."""
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """Return a vector, whose length precedes it in `size` bytes."""
        return self.take(self.number(size))


def read_client_hello(body: bytes) -> ClientHello:
    """Read the body of a ClientHello.

    `Unreadable` is raised if it ends in the middle of a field.
    """
    cursor = _Cursor(body)
    cursor.take(2)
    random = cursor.take(32)
    for size in (1, 2, 1):  # session id, cipher suites, compression methods
        cursor.vector(size)
    extensions = _extensions(cursor)
    early = _EARLY_DATA in extensions
    return ClientHello(random, _server_name(extensions), _protocols(extensions), early)


def read_server_hello(body: bytes) -> ServerHello:
    """Read the body of a ServerHello or HelloRetryRequest; raises like `read_client_hello`."""
    cursor = _Cursor(body)
    version, random, session = cursor.number(2), cursor.take(32), cursor.vector(1)
    suite, compression = cursor.number(2), cursor.number(1)
    extensions = _extensions(cursor)
    if _VERSIONS in extensions:
        version = int.from_bytes(extensions[_VERSIONS], "big")
    return ServerHello(
        version,
        random,
        session,
        suite,
        compression != 0,
        _protocols(extensions),
        _MAC_LAST in extensions,
        _TRUNCATED_HMAC in extensions,
    )


def read_encrypted_extensions(body: bytes) -> EncryptedExtensions:
    """Read the body of EncryptedExtensions; raises like `read_client_hello`."""
    extensions = _extensions(_Cursor(body))
    return EncryptedExtensions(_protocols(extensions), _EARLY_DATA in extensions)


def _extensions(cursor: _Cursor) -> dict[int, bytes]:
    extensions = {}
    if cursor.left:
        inner = _Cursor(cursor.vector(2))
        while inner.left:
            kind = inner.number(2)
            extensions[kind] = inner.vector(2)
    return extensions


def _server_name(extensions: dict[int, bytes]) -> str | None:
    """Return the host name of the extension server_name (RFC 6066, 3)."""
    if not extensions.get(_SERVER_NAME):
        return None
    names = _Cursor(_Cursor(extensions[_SERVER_NAME]).vector(2))
    names.take(1)
    return _text(names.vector(2))


def _protocols(extensions: dict[int, bytes]) -> tuple[str, ...]:
    """Return the protocols of ALPN (RFC 7301)."""
    if _ALPN not in extensions:
        return ()
    names = _Cursor(_Cursor(extensions[_ALPN]).vector(2))
    protocols = []
    while names.left:
        protocols.append(_text(names.vector(1)))
    return tuple(protocols)


def _text(data: bytes) -> str:
    return data.decode("ascii", "backslashreplace")
