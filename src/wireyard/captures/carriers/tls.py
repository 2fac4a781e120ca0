"""TLS 1.2 (RFC 5246) and 1.3 (RFC 8446): handshakes, and the decrypted streams.

Rules of this file:

1. Both directions are read in turns. Where the keys of one change, it waits until the other was
   read as far as its hello.
2. Plain text is used only after its cipher has authenticated it.
3. A direction ends, with a reason, at the first record that cannot be decrypted. Decryption needs
   the number of the record, so no record behind a gap can be decrypted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from wireyard.captures.carriers.inner import NO_KEY, Carrier, Part, Unreadable, inner_stream
from wireyard.captures.carriers.tls_handshake import (
    TLS12,
    TLS13,
    VERSIONS,
    ClientHello,
    EncryptedExtensions,
    ServerHello,
    read_client_hello,
    read_encrypted_extensions,
    read_server_hello,
)
from wireyard.captures.carriers.tls_keys import NOT_INSTALLED, KeyLog, has_ciphers
from wireyard.captures.connections.stream import Stream
from wireyard.captures.signatures import MAX_RECORD_BYTES, RECORD_START

if TYPE_CHECKING:
    from wireyard.captures.carriers.tls_ciphers import Opener, Suite

__all__ = ["OpenedTls", "open_tls"]

_HEADER_BYTES: Final = 5
_FIRST_BYTES: Final = 1 << 16
_GROWTH: Final = 4
"""Bytes of a direction that are loaded at first, and the factor by which they grow."""
_MAX_MESSAGE_BYTES: Final = 1 << 18
"""Largest handshake message: a Certificate; OpenSSL accepts chains of up to 100 KiB."""
_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _APPLICATION, _HEARTBEAT = range(20, 25)
_CLIENT_HELLO, _SERVER_HELLO, _END_OF_EARLY_DATA = 1, 2, 5
_ENCRYPTED_EXTENSIONS, _FINISHED, _KEY_UPDATE = 8, 20, 24
_FATAL: Final = 2


class OpenedTls(NamedTuple):
    """A TLS connection."""

    carrier: Carrier
    streams: list[Stream] | None
    """The decrypted streams, in the order of the encrypted ones; None if nothing was decrypted."""


def open_tls(streams: Sequence[Stream], keys: KeyLog) -> OpenedTls:
    """Read the handshake of a TLS connection, and decrypt it as far as its keys are known.

    Parameters
    ----------
    streams
        Its directions, one or both.
    """
    sides = [_Side(stream) for stream in streams]
    for side in sides:
        side.advance()
    connection = _Connection(*_roles(sides), keys)
    connection.open()
    carrier = connection.carrier(sides)
    opened = any(side.parts for side in sides) or all(side.is_opened for side in sides)
    inside = [inner_stream(side.stream, side.parts) for side in sides] if opened else None
    return OpenedTls(carrier, inside)


class _Record(NamedTuple):
    start: int
    stop: int
    kind: int
    header: bytes
    body: memoryview


class _Side:
    """One direction of a connection, read record by record."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.parts: list[Part] = []
        self.hellos: list[ClientHello | ServerHello] = []
        self.role: int | None = None
        """Message type of its first hello; None before that."""
        self.waits_at: int | None = None
        """Content type of the next record, if that needs new keys."""
        self.problem: str | None = None
        self.alert: int | None = None
        self.rejected_bytes = 0
        """Bytes of records before the first that is decrypted: rejected early data."""
        self.extensions = EncryptedExtensions((), False)
        self.epoch = 0
        """Number of key changes so far."""
        self.opener: Opener | None = None
        self.secrets: _Secrets | None = None
        """Traffic secrets of TLS 1.3, from its first encrypted record on."""
        self.is13 = False
        pieces = stream.pieces
        self._stop = int(pieces[0, 1]) if len(pieces) and pieces[0, 0] == 0 else 0
        """Offset of the first gap, or of the stream's end."""
        self._data = stream.head(_FIRST_BYTES)
        self._at = 0
        self._messages = bytearray()

    @property
    def is_opened(self) -> bool:
        """Whether its keys are known."""
        return self.opener is not None and self.problem is None

    def advance(self) -> None:
        """Read to its end, or to the next record that needs new keys."""
        try:
            while self.problem is None and self.waits_at is None and (record := self._next()):
                self._read(record)
                if self.waits_at is None:
                    self._at = record.stop
        except Unreadable as error:
            self.problem = f"record at byte {self._at} {error}"

    def _next(self) -> _Record | None:
        at = self._at
        if len(self._data) < min(at + _HEADER_BYTES + MAX_RECORD_BYTES, self._stop):
            self._data = self.stream.head(_GROWTH * len(self._data))
        left = len(self._data) - at
        if left == 0 and at == self.stream.size:
            return None
        header = bytes(self._data[at : at + _HEADER_BYTES])
        size = int.from_bytes(header[3:], "big")
        if len(header) == _HEADER_BYTES and not (
            RECORD_START.match(header) and size <= MAX_RECORD_BYTES
        ):
            raise Unreadable(f"begins with {header.hex(' ')}, which is no header of a record")
        if left < _HEADER_BYTES or left < _HEADER_BYTES + size:
            whole = self._stop == self.stream.size
            raise Unreadable("is not complete" if whole else "was not captured whole")
        stop = at + _HEADER_BYTES + size
        return _Record(at, stop, header[0], header, self._data[at + _HEADER_BYTES : stop])

    def skip(self) -> None:
        """Skip the record that it waits at."""
        self._at += _HEADER_BYTES + int.from_bytes(self._data[self._at + 3 : self._at + 5], "big")
        self.waits_at = None

    def _read(self, record: _Record) -> None:
        if self.is13:
            if record.kind == _CHANGE_CIPHER_SPEC:  # without meaning in TLS 1.3 (RFC 8446, 5)
                return
            if record.kind == _APPLICATION:
                self._open13(record)
                return
        elif record.kind == _CHANGE_CIPHER_SPEC:
            self.waits_at = record.kind
            return
        elif self.opener is not None:
            self._take(record, *self._opened(self.opener, record))
            return
        elif record.kind == _APPLICATION:
            self.waits_at = record.kind
            return
        self._take(record, record.kind, bytes(record.body))

    def _open13(self, record: _Record) -> None:
        if self.secrets is None:
            self.waits_at = record.kind
            return
        if self.secrets.skips:
            try:
                opened = self._opened(self.secrets.opener, record)
            except Unreadable:  # early data that the server ignores (RFC 8446, 4.2.10)
                self.rejected_bytes += record.stop - record.start
                return
            self.secrets.skips = False
        else:
            opened = self._opened(self.secrets.opener, record)
        self._take(record, *opened)

    def _opened(self, opener: Opener, record: _Record) -> tuple[int, bytes]:
        from wireyard.captures.carriers.tls_ciphers import BadRecord

        try:
            return opener.open(record.header, record.body)
        except BadRecord as error:
            raise Unreadable(str(error)) from None

    def _take(self, record: _Record, kind: int, data: bytes) -> None:
        """Handle the plain content of a record."""
        if kind == _HANDSHAKE:
            self._messages += data
            for message, body in self._whole_messages():
                self._take_message(message, body)
        elif kind == _APPLICATION:
            if data:
                self.parts.append(Part(record.start, record.stop, data))
        elif kind == _ALERT:
            if len(data) == 2 and data[0] == _FATAL:
                self.alert = data[1]
        elif kind != _HEARTBEAT:
            raise Unreadable(f"has the content type {kind}")

    def _whole_messages(self) -> Iterator[tuple[int, bytes]]:
        while len(self._messages) >= 4:
            size = int.from_bytes(self._messages[1:4], "big")
            if size > _MAX_MESSAGE_BYTES:
                raise Unreadable(f"has a handshake message of {size} bytes")
            if len(self._messages) < 4 + size:
                return
            kind, body = self._messages[0], bytes(self._messages[4 : 4 + size])
            del self._messages[: 4 + size]
            yield kind, body

    def _take_message(self, kind: int, body: bytes) -> None:
        if kind in (_CLIENT_HELLO, _SERVER_HELLO):
            self.role = self.role or kind
            self.hellos.append(
                read_client_hello(body) if kind == _CLIENT_HELLO else read_server_hello(body)
            )
        elif self.secrets is not None:
            if kind == _ENCRYPTED_EXTENSIONS:
                self.extensions = read_encrypted_extensions(body)
            elif kind in (_FINISHED, _END_OF_EARLY_DATA, _KEY_UPDATE):
                self.secrets.change(kind)


@dataclass(repr=False)
class _Secrets:
    """The traffic secrets of a direction of TLS 1.3, in the order of their use."""

    suite: Suite
    labels: list[str]
    """Key log labels of the next secrets."""
    keys: KeyLog
    random: bytes
    skips: bool = False
    """Whether records that these secrets do not decrypt (rejected early data) may come first."""
    opener: Opener = field(init=False)
    _secret: bytes = field(init=False)

    def __post_init__(self) -> None:
        self._use_next_label()

    def change(self, message: int) -> None:
        """Change to the next secret after a message, the last one under the current keys."""
        if message == _KEY_UPDATE:
            from wireyard.captures.carriers.tls_ciphers import next_secret

            self._use(next_secret(self.suite, self._secret))
        elif self.labels:  # none is left for the Finished of a later client authentication
            self._use_next_label()

    def _use_next_label(self) -> None:
        label = self.labels.pop(0)
        secret = self.keys.secret(label, self.random)
        if secret is None:
            raise Unreadable(f"needs {label}, {NO_KEY}")
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        from wireyard.captures.carriers.tls_ciphers import secret_opener

        self._secret, self.opener = secret, secret_opener(self.suite, secret)


def _roles(sides: Sequence[_Side]) -> tuple[_Side | None, _Side | None]:
    """Return the directions of the client and of the server, by their hellos if captured."""
    client = next((side for side in sides if side.role == _CLIENT_HELLO), None)
    server = next((side for side in sides if side.role == _SERVER_HELLO), None)
    for side in sides:
        if side is client or side is server:
            continue
        if client is None:
            client = side
        elif server is None:
            server = side
    return client, server


class _Connection:
    """Both directions of a connection, and the order in which their keys change."""

    def __init__(self, client: _Side | None, server: _Side | None, keys: KeyLog) -> None:
        self._client, self._server, self._keys = client, server, keys
        self._sides = [side for side in (server, client) if side is not None]

    @property
    def _server_hellos(self) -> list[ServerHello]:
        hellos = self._server.hellos if self._server else []
        return [hello for hello in hellos if isinstance(hello, ServerHello)]

    @property
    def _client_hellos(self) -> list[ClientHello]:
        hellos = self._client.hellos if self._client else []
        return [hello for hello in hellos if isinstance(hello, ClientHello)]

    def open(self) -> None:
        """Read both directions to their ends."""
        while any(side.waits_at for side in self._sides):
            # The server comes first, because its extensions show whether early data was accepted.
            waiting = next(
                (side for side in self._sides if side.waits_at and self._is_ready(side)), None
            )
            if waiting is None:
                for side in self._sides:
                    if side.waits_at and side.problem is None:
                        side.problem, side.waits_at = self._missing(), None
                return
            try:
                self._change_keys(waiting)
            except Unreadable as error:
                waiting.problem, waiting.waits_at = f"handshake {error}", None
            waiting.advance()
        for side in self._sides:
            if side.problem is None and side.rejected_bytes and side.secrets and side.secrets.skips:
                side.problem = "no record of it is decrypted by CLIENT_HANDSHAKE_TRAFFIC_SECRET"
                side.rejected_bytes = 0

    def carrier(self, sides: Sequence[_Side]) -> Carrier:
        """Return the facts from the handshake."""
        client = self._client_hellos[0] if self._client_hellos else None
        server = self._server_hellos[-1] if self._server_hellos else None
        encrypted = self._server.extensions.protocols if self._server else ()
        protocols = (server.protocols if server else ()) or encrypted
        problems = [f"{side.stream.name}: {side.problem}" for side in sides if side.problem]
        return Carrier(
            "tls",
            version=VERSIONS.get(server.version) if server else None,
            server_name=client.server_name if client else None,
            protocol=",".join(protocols or (client.protocols if client else ())) or None,
            alert=next((side.alert for side in sides if side.alert is not None), None),
            rejected_bytes=sum(side.rejected_bytes for side in sides),
            problem="; ".join(problems) or None,
        )

    def _missing(self) -> str:
        absent = [not self._client_hellos, not self._server_hellos]
        names = {(True, False): "ClientHello", (False, True): "ServerHello"}
        return f"its {names.get((absent[0], absent[1]), 'handshake')} was not captured whole"

    def _is_ready(self, side: _Side) -> bool:
        """Return whether both hellos that the next keys of a side depend on are known."""
        client, server = self._client_hellos, self._server_hellos
        if client and server and server[-1].version == TLS13:
            # Nothing is encrypted between a HelloRetryRequest and the ServerHello.
            return side.waits_at == _CHANGE_CIPHER_SPEC or not server[-1].retries
        return min(len(client), len(server)) > side.epoch

    def _change_keys(self, side: _Side) -> None:
        hello = self._server_hellos[-1]
        if hello.version == TLS13 and not side.is13:
            side.is13, side.waits_at = True, None
        elif hello.version == TLS13:
            side.secrets = self._secrets(side, hello)
            side.opener, side.waits_at = side.secrets.opener, None
        elif side.waits_at == _APPLICATION:
            raise Unreadable("has application data before its keys")
        else:
            side.opener = self._openers(side.epoch)[side is self._server]
            side.epoch += 1
            side.skip()

    def _suite(self, hello: ServerHello) -> Suite:
        """Return the cipher suite of a connection.

        Raises
        ------
        Unreadable
            Its version, suite or extensions are not supported, or the ciphers are not installed.
        """
        version = VERSIONS.get(hello.version, f"{hello.version:#06x}")
        if hello.version not in (TLS12, TLS13):
            raise Unreadable(f"is of TLS {version}, which is not supported")
        if not has_ciphers():
            raise Unreadable(f"cannot be opened: {NOT_INSTALLED}")
        from wireyard.captures.carriers.tls_ciphers import SUITES

        suite = SUITES.get(hello.suite)
        if suite is None or (hello.suite >> 8 == 0x13) != (hello.version == TLS13):
            raise Unreadable(f"has the cipher suite {hello.suite:#06x}, which is not supported")
        if hello.compressed:
            raise Unreadable("has compressed records, which are not supported")
        if hello.truncated_mac and suite.mac:
            raise Unreadable("has truncated HMACs, which are not supported")
        return suite

    def _secrets(self, side: _Side, hello: ServerHello) -> _Secrets:
        """Return the secrets of a direction of TLS 1.3."""
        client = self._client_hellos[0]  # a second ClientHello has the same random
        suite = self._suite(hello)
        name = "SERVER" if side is self._server else "CLIENT"
        labels = [f"{name}_HANDSHAKE_TRAFFIC_SECRET", f"{name}_TRAFFIC_SECRET_0"]
        early = side is self._client and client.early_data
        accepted = early and self._server is not None and self._server.extensions.early_data
        if accepted:
            labels.insert(0, "CLIENT_EARLY_TRAFFIC_SECRET")
        return _Secrets(suite, labels, self._keys, client.random, skips=early and not accepted)

    def _openers(self, epoch: int) -> tuple[Opener, Opener]:
        """Return the openers of client and server for an epoch of TLS 1.2."""
        client, server = self._client_hellos[epoch], self._server_hellos[epoch]
        suite = self._suite(server)
        master = self._keys.master_secret(client.random, server.session)
        if master is None:
            raise Unreadable(f"needs CLIENT_RANDOM, {NO_KEY}")
        from wireyard.captures.carriers.tls_ciphers import openers_of_master

        return openers_of_master(
            suite, master, client.random, server.random, mac_last=server.mac_last
        )
