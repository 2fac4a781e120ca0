"""Key schedules and record protection of TLS 1.2 (RFC 5246) and 1.3 (RFC 8446).

The package cryptography has the ciphers. This file has the rest: the ciphers of each suite, the
derivation of keys from secrets, nonces, and the authenticated data.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

_TAG_BYTES: Final = 16
_BLOCK_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_EXPLICIT_BYTES: Final = 8
"""Bytes of the AES-GCM nonce that are in each record of TLS 1.2 (RFC 5288, 3)."""


class BadRecord(Exception):
    """A record that cannot be decrypted: it is damaged, or its keys are different."""


class Kind(Enum):
    """Record protection of a suite."""

    GCM = "AES-GCM"
    CHACHA = "ChaCha20-Poly1305"
    CBC = "AES-CBC"


class Suite(NamedTuple):
    """A cipher suite, without its key exchange: key logs have the secrets that result from it."""

    kind: Kind
    key_bytes: int
    hash: str
    """Hash of the key schedule."""
    mac: str = ""
    """Hash of the HMAC, for AES-CBC."""


class Opened(NamedTuple):
    """A decrypted record."""

    kind: int
    """Content type."""
    data: bytes


class Opener(Protocol):
    """Decrypts the records of one direction and one epoch, in order."""

    number: int
    """Number of the next record."""

    def open(self, header: bytes, body: memoryview) -> Opened:
        """Decrypt the next record.

        `BadRecord` is raised if the record is not the next one under these keys.
        """


_CODES: Final = {
    Suite(Kind.GCM, 16, "sha256"): (
        *(0x1301, 0x009C, 0x009E, 0x00A0, 0x00A2, 0x00A4, 0x00A6, 0x00A8, 0x00AA, 0x00AC),
        *(0xC02B, 0xC02D, 0xC02F, 0xC031, 0xD001),
    ),
    Suite(Kind.GCM, 32, "sha384"): (
        *(0x1302, 0x009D, 0x009F, 0x00A1, 0x00A3, 0x00A5, 0x00A7, 0x00A9, 0x00AB, 0x00AD),
        *(0xC02C, 0xC02E, 0xC030, 0xC032, 0xD002),
    ),
    Suite(Kind.CHACHA, 32, "sha256"): (0x1303, *range(0xCCA8, 0xCCAF)),
    Suite(Kind.CBC, 16, "sha256", "sha1"): (
        *range(0x002F, 0x0035),
        *(0x008C, 0x0090, 0x0094, 0xC004, 0xC009, 0xC00E, 0xC013, 0xC018, 0xC035),
    ),
    Suite(Kind.CBC, 32, "sha256", "sha1"): (
        *range(0x0035, 0x003B),
        *(0x008D, 0x0091, 0x0095, 0xC005, 0xC00A, 0xC00F, 0xC014, 0xC019, 0xC036),
    ),
    Suite(Kind.CBC, 16, "sha256", "sha256"): (
        *(0x003C, 0x003E, 0x003F, 0x0040, 0x0067, 0x006C, 0x00AE, 0x00B2, 0x00B6),
        *(0xC023, 0xC025, 0xC027, 0xC029, 0xC037),
    ),
    Suite(Kind.CBC, 32, "sha256", "sha256"): (0x003D, 0x0068, 0x0069, 0x006A, 0x006B, 0x006D),
    Suite(Kind.CBC, 32, "sha384", "sha384"): (
        *(0x00AF, 0x00B3, 0x00B7, 0xC024, 0xC026, 0xC028, 0xC02A, 0xC038),
    ),
}
SUITES: Final = {code: suite for suite, codes in _CODES.items() for code in codes}
"""Suites by their number in a ServerHello (IANA, TLS Cipher Suites); 0x13xx are of TLS 1.3."""


# --- key schedules --------------------------------------------------------------------------


def expand_label(hash: str, secret: bytes, label: str, size: int) -> bytes:
    """Return HKDF-Expand-Label with an empty context (RFC 8446, 7.1)."""
    name = b"tls13 " + label.encode()
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
    block = hmac.digest(secret, info + b"\x01", hash)
    assert size <= len(block)  # one block is enough for keys, nonces and secrets
    return block[:size]


def next_secret(suite: Suite, secret: bytes) -> bytes:
    """Return the traffic secret after a KeyUpdate (RFC 8446, 7.2)."""
    return expand_label(suite.hash, secret, "traffic upd", len(secret))


def secret_opener(suite: Suite, secret: bytes) -> Opener:
    """Return the opener for a traffic secret (RFC 8446, 7.3)."""
    expand = partial(expand_label, suite.hash, secret)
    return _Aead13(_aead(suite, expand("key", suite.key_bytes)), expand("iv", _NONCE_BYTES))


def prf(hash: str, secret: bytes, label: bytes, seed: bytes) -> Iterator[int]:
    """Yield the unlimited output of the pseudorandom function of TLS 1.2 (RFC 5246, 5)."""
    block = seed = label + seed
    while True:
        block = hmac.digest(secret, block, hash)
        yield from hmac.digest(secret, block + seed, hash)


def openers_of_master(
    suite: Suite, master: bytes, client_random: bytes, server_random: bytes, *, mac_last: bool
) -> tuple[Opener, Opener]:
    """Return the openers of the client's and the server's records (RFC 5246, 6.3).

    With `mac_last`, AES-CBC is encrypt-then-MAC (RFC 7366).
    """
    block = prf(suite.hash, master, b"key expansion", server_random + client_random)

    def both(size: int) -> tuple[bytes, bytes]:
        client, server = (bytes(next(block) for _ in range(size)) for _ in range(2))
        return client, server

    if suite.kind is Kind.CBC:
        macs = both(hmac.new(b"", digestmod=suite.mac).digest_size)
        keys = both(suite.key_bytes)
        client, server = (
            _Cbc(key, mac, suite.mac, mac_last) for key, mac in zip(keys, macs, strict=True)
        )
        return client, server
    keys = both(suite.key_bytes)
    explicit = _EXPLICIT_BYTES if suite.kind is Kind.GCM else 0
    nonces = both(_NONCE_BYTES - explicit)
    first, second = (
        _Aead12(_aead(suite, key), nonce, explicit) for key, nonce in zip(keys, nonces, strict=True)
    )
    return first, second


# --- records --------------------------------------------------------------------------------


def _aead(suite: Suite, key: bytes) -> AESGCM | ChaCha20Poly1305:
    return ChaCha20Poly1305(key) if suite.kind is Kind.CHACHA else AESGCM(key)


def _open_aead(
    aead: AESGCM | ChaCha20Poly1305, nonce: bytes, sealed: memoryview, authenticated: bytes
) -> bytes:
    if len(sealed) < _TAG_BYTES:
        raise BadRecord("is too short to be authenticated")
    try:
        return aead.decrypt(nonce, sealed, authenticated)
    except InvalidTag:
        raise BadRecord("is not authentic") from None


@dataclass(slots=True, repr=False)
class _Aead13:
    """Records of TLS 1.3, whose content type follows their content (RFC 8446, 5.2)."""

    _cipher: AESGCM | ChaCha20Poly1305
    _nonce: bytes
    number: int = 0

    def open(self, header: bytes, body: memoryview) -> Opened:
        data = _open_aead(self._cipher, _numbered(self._nonce, self.number), body, header)
        self.number += 1
        content = data.rstrip(b"\0")
        if not content:
            raise BadRecord("has no content type")
        return Opened(content[-1], content[:-1])


@dataclass(slots=True, repr=False)
class _Aead12:
    """Records of AES-GCM (RFC 5288, 3) and ChaCha20-Poly1305 (RFC 7905, 2) in TLS 1.2."""

    _cipher: AESGCM | ChaCha20Poly1305
    _nonce: bytes
    _explicit: int
    """Number of bytes of the nonce that are in each record."""
    number: int = 0

    def open(self, header: bytes, body: memoryview) -> Opened:
        explicit, sealed = body[: self._explicit], body[self._explicit :]
        nonce = self._nonce + explicit if explicit else _numbered(self._nonce, self.number)
        size = max(len(sealed) - _TAG_BYTES, 0)
        data = _open_aead(self._cipher, nonce, sealed, _stamp(self.number, header, size))
        self.number += 1
        return Opened(header[0], data)


@dataclass(slots=True, repr=False)
class _Cbc:
    """Records of AES-CBC, MAC-then-encrypt (RFC 5246, 6.2.3.2) or encrypt-then-MAC (RFC 7366)."""

    _key: bytes
    _mac_key: bytes
    _mac: str
    _mac_last: bool
    number: int = 0

    def open(self, header: bytes, body: memoryview) -> Opened:
        data = self._after_mac(header, body) if self._mac_last else self._before_mac(header, body)
        self.number += 1
        return Opened(header[0], data)

    def _after_mac(self, header: bytes, body: memoryview) -> bytes:
        size = len(body) - self._mac_bytes
        self._check(header, bytes(body[: max(size, 0)]), bytes(body[max(size, 0) :]))
        return _unpadded(self._decrypt(body[:size]))

    def _before_mac(self, header: bytes, body: memoryview) -> bytes:
        data = _unpadded(self._decrypt(body))
        size = max(len(data) - self._mac_bytes, 0)
        self._check(header, data[:size], data[size:])
        return data[:size]

    @property
    def _mac_bytes(self) -> int:
        return hmac.new(b"", digestmod=self._mac).digest_size

    def _check(self, header: bytes, data: bytes, mac: bytes) -> None:
        stamp = _stamp(self.number, header, len(data))
        if not hmac.compare_digest(hmac.digest(self._mac_key, stamp + data, self._mac), mac):
            raise BadRecord("is not authentic")

    def _decrypt(self, body: memoryview) -> bytes:
        vector, sealed = bytes(body[:_BLOCK_BYTES]), body[_BLOCK_BYTES:]
        if len(sealed) < _BLOCK_BYTES or len(sealed) % _BLOCK_BYTES:
            raise BadRecord("is no whole number of blocks")
        decryptor = Cipher(algorithms.AES(self._key), modes.CBC(vector)).decryptor()
        return decryptor.update(sealed) + decryptor.finalize()


def _unpadded(data: bytes) -> bytes:
    """Remove the padding: n + 1 bytes of value n."""
    count = data[-1] + 1
    if count > len(data) or data[-count:] != bytes([data[-1]]) * count:
        raise BadRecord("has a bad padding")
    return data[:-count]


def _numbered(nonce: bytes, number: int) -> bytes:
    """Return the nonce of the record with this number (RFC 8446, 5.3)."""
    return (int.from_bytes(nonce, "big") ^ number).to_bytes(_NONCE_BYTES, "big")


def _stamp(number: int, header: bytes, size: int) -> bytes:
    """Return the additional authenticated data of TLS 1.2 (RFC 5246, 6.2.3.3)."""
    return number.to_bytes(8, "big") + header[:3] + size.to_bytes(2, "big")
