"""TLS 1.2 (RFC 5246) and 1.3 (RFC 8446): handshakes, and the decrypted streams.

Rules of this file:

1. Both directions are read in turns. Where the keys of one change, it waits until the other was
   read as far as its hello.
2. Plain text is used only after its cipher has authenticated it.
3. A direction ends, with a reason, at the first record that cannot be decrypted.
4. Behind a gap, a record begins where the one that the gap interrupted says that it ends, or else
   at the first bytes that can be a record and that a cipher authenticates. Its number is the first
   with which it is authentic, among those that the gap has room for, under the keys of before or
   the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from wireyard.captures.carriers.inner import NO_KEY, Budget, Carrier, Outer, Unreadable
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
from wireyard.captures.signatures import MAX_RECORD_BYTES, RECORD_START, is_chain

if TYPE_CHECKING:
    from wireyard.captures.carriers.tls_ciphers import Opener, Suite

_HEADER_BYTES: Final = 5
_LEAST_RECORD_BYTES: Final = _HEADER_BYTES + 17
"""Size of the smallest encrypted record."""
_MOST_LOST: Final = 1 << 12
"""Records that a gap has at most, for those behind it to be decrypted."""
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


def open_tls(streams: Sequence[Stream], keys: KeyLog, tries: Budget) -> OpenedTls:
    """Read the handshake of a TLS connection, and decrypt it as far as its keys are known.

    `streams` are its directions, one or both. `tries` limits how many more numbers may be tried for
    records behind gaps.
    """
    sides = [_Side(stream, tries) for stream in streams]
    for side in sides:
        side.advance()
    connection = _Connection(*_roles(sides), keys)
    connection.open()
    carrier = connection.carrier(sides)
    opened = any(side.has_data for side in sides) or all(side.is_opened for side in sides)
    return OpenedTls(carrier, [side.inner_stream() for side in sides] if opened else None)


class _Record(NamedTuple):
    start: int
    stop: int
    kind: int
    header: bytes
    body: memoryview


class _Side(Outer):
    """One direction of a connection, read record by record."""

    def __init__(self, stream: Stream, tries: Budget) -> None:
        super().__init__(stream)
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
        self.lost = 0
        """Most records that may have been lost since the last one that was decrypted."""
        self._is_guess = False
        """Whether it is not certain that a record begins at `at`."""
        self._tries = tries
        self._messages = bytearray()
        self._is_torn = False
        """Whether handshake messages may begin in bytes that were not captured."""
        self.may_be_early = False
        """Whether data may precede the handshake's end."""

    @property
    def is_opened(self) -> bool:
        """Whether its keys are known."""
        return self.opener is not None and self.problem is None

    def advance(self) -> None:
        """Read to its end, or to the next record that needs new keys."""
        try:
            while self.problem is None and self.waits_at is None and (record := self._next()):
                try:
                    self._read(record)
                except Unreadable:
                    if not self._is_guess or self._tries.left <= 0:
                        raise
                    if not self.seek(record.start + 1):
                        self.resume(None)
                    continue
                if self.waits_at is None:
                    self.at = record.stop
        except Unreadable as error:
            begun = self.at if self.lost_from is None else self.lost_from
            self.problem = f"record at byte {begun} {error}"

    def _next(self) -> _Record | None:
        while True:
            view = self.view(_HEADER_BYTES + MAX_RECORD_BYTES)
            if not view and self.at == self.stream.size:
                return None
            header = bytes(view[:_HEADER_BYTES])
            size = int.from_bytes(header[3:], "big")
            stop = None
            if len(header) == _HEADER_BYTES:
                if not RECORD_START.match(header) or size > MAX_RECORD_BYTES:
                    raise Unreadable(
                        f"begins with {header.hex(' ')}, which is no header of a record"
                    )
                stop = self.at + _HEADER_BYTES + size
                if len(view) >= _HEADER_BYTES + size:
                    body = view[_HEADER_BYTES : _HEADER_BYTES + size]
                    return _Record(self.at, stop, header[0], header, body)
            self.resume(stop)

    def resume(self, stop: int | None) -> int:
        """Go on behind a gap, at the next record, whose number is not known then."""
        self._messages.clear()
        self._is_torn = True
        gap = super().resume(None if self._is_guess else stop)
        self.lost = min(self.lost + 2 + gap // _LEAST_RECORD_BYTES, _MOST_LOST)
        return gap

    def seek(self, start: int) -> bool:
        """Go to the next bytes of the piece that may be a record, from `start` on."""
        self.at, self._is_guess = start, True
        view = self.view(self.piece[1] - start)
        for found in RECORD_START.finditer(view):
            at = found.start()
            # Of what is not encrypted, only records that follow each other show that one begins.
            is_sealed = view[at] == _APPLICATION or (self.opener is not None and not self.is13)
            if is_sealed or is_chain(view, at):
                self.at += at
                return True
        return False

    def go_on(self) -> None:
        """Stop waiting for keys, and skip the record that said that they change."""
        if self.waits_at == _CHANGE_CIPHER_SPEC:
            self.at += _HEADER_BYTES + int.from_bytes(self.view(_HEADER_BYTES)[3:5], "big")
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
            opened = self._opened(self.opener, record)
            if self.epoch == 1 and self.opener.number <= 2:  # the first one is Finished
                self._note_first()
            self._take(record, *opened)
            return
        elif record.kind == _APPLICATION:
            self.waits_at = record.kind
            return
        self._take(record, record.kind, bytes(record.body))

    def _open13(self, record: _Record) -> None:
        if self.secrets is None:
            self.waits_at = record.kind
            return
        reason = None
        for secrets in (self.secrets, *(self.secrets.following() if self.lost else ())):
            try:
                opened = self._opened(secrets.opener, record)
            except Unreadable as error:
                reason = reason or error
                continue
            self.secrets, secrets.skips = secrets, False
            if secrets.is_first and secrets.opener.number == 1 and not self.may_be_early:
                self._note_first()
            self._take(record, *opened)
            return
        assert reason is not None
        if not self.secrets.skips:
            raise reason
        # Early data that the server ignores (RFC 8446, 4.2.10).
        self.rejected_bytes += record.stop - record.start

    def _opened(self, opener: Opener, record: _Record) -> tuple[int, bytes]:
        """Decrypt a record; behind a gap, find its number."""
        from wireyard.captures.carriers.tls_ciphers import BadRecord

        first, reason = opener.number, ""
        tries = max(min(self.lost, self._tries.left), 0)
        for opener.number in range(first, first + 1 + tries):
            self._tries.left -= self.lost > 0
            try:
                opened = opener.open(record.header, record.body)
            except BadRecord as error:
                reason = reason or str(error)
                continue
            self.lost, self._is_guess = 0, False
            return opened
        opener.number = first
        raise Unreadable(reason)

    def _note_first(self) -> None:
        """Note that the next record is the first that can have data: no data was lost before."""
        if not self.has_data:
            self.lost_from = None

    def _take(self, record: _Record, kind: int, data: bytes) -> None:
        """Handle the plain content of a record."""
        if kind == _HANDSHAKE:
            self._messages += data
            try:
                for message, body in self._whole_messages():
                    self._take_message(message, body)
            except Unreadable:
                if not self._is_torn:
                    raise
                self._messages.clear()
        elif kind == _APPLICATION:
            if data:
                self.add(record.start, record.stop, data)
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
    _is_updated: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.labels = [*self.labels]
        self._use_next_label()

    @property
    def is_first(self) -> bool:
        """Whether these are the first secrets behind the handshake."""
        return not self.labels and not self._is_updated

    def following(self) -> Iterator[_Secrets]:
        """Yield the secrets that may be next, as far as they are known."""
        for at in range(len(self.labels)):
            if self.keys.secret(self.labels[at], self.random) is None:
                return
            yield replace(self, labels=self.labels[at:], skips=False)
        if not self.labels:
            updated = copy(self)
            updated.change(_KEY_UPDATE)
            yield updated

    def change(self, message: int) -> None:
        """Change to the next secret after a message, the last one under the current keys."""
        if message == _KEY_UPDATE:
            from wireyard.captures.carriers.tls_ciphers import next_secret

            self._use(next_secret(self.suite, self._secret))
            self._is_updated = True
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
        elif side.waits_at == _APPLICATION and not side.lost:
            raise Unreadable("has application data before its keys")
        else:
            side.opener = self._openers(side.epoch)[side is self._server]
            side.epoch += 1
            side.go_on()

    def _suite(self, hello: ServerHello) -> Suite:
        """Return the cipher suite of a connection.

        `Unreadable` is raised if its version, suite or extensions are not supported, or if the
        ciphers are not installed.
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
        side.may_be_early = early = side is self._client and client.early_data
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
