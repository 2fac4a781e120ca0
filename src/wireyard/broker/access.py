"""Users with hashed passwords, and the topics that each may read and write.

Passwords are hashed with scrypt of the standard library (ADR 18). A line of the file of users is
``name:scrypt:n:r:p:salt:hash``, the last two in base64. The list of access has the form that
mosquitto's has: ``user NAME`` begins the lines of a user, lines before it are for everybody, and
``topic [read|write|readwrite] FILTER`` allows topics. ``%u`` and ``%c`` stand for user name and
client id. What no line allows is refused.
"""

from __future__ import annotations

import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import scrypt
from typing import Final

from wireyard.errors import UsageError
from wireyard.formats.mqtt.topics import has_wildcard
from wireyard.layers.mqtt.deliveries.topics import matches, split_shared

_N, _R, _P = 1 << 14, 8, 1
"""Cost of a hash: 16 MiB and some 50 ms."""
_MAX_N: Final = 1 << 17
_SALT_BYTES, _HASH_BYTES = 16, 32
_READS, _WRITES = ("read", "readwrite"), ("write", "readwrite")


CheckLogin = Callable[[str | None, bytes | None, Callable[[bool], None]], None]
"""Is called with user name, password and a function to call, once, with whether they are right."""


def hash_password(name: str, password: bytes) -> str:
    """Return the line of a user for the file of users."""
    if not name or name[0] == "#" or name.strip() != name or ":" in name or not name.isprintable():
        raise UsageError(
            f"'{name}' is no user name: it needs a character, has no colon, no spaces around it"
            " and no # in front"
        )
    salt = os.urandom(_SALT_BYTES)
    digest = _digest(password, salt, _N, _R, _P)
    return ":".join(
        (name, "scrypt", str(_N), str(_R), str(_P), b64encode(salt).decode(), digest.decode())
    )


def _digest(password: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    memory = 128 * r * (n + p + 2)
    return b64encode(scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=memory, dklen=_HASH_BYTES))


@dataclass(frozen=True, slots=True)
class _Hash:
    digest: bytes
    salt: bytes
    n: int
    r: int
    p: int

    def matches(self, password: bytes) -> bool:
        found = _digest(password, self.salt, self.n, self.r, self.p)
        return hmac.compare_digest(found, self.digest)


@dataclass(frozen=True)
class Access:
    """Users, and the topic filters that they may read and write.

    Parameters
    ----------
    users
        Hash of the password by user name; None if nobody needs to log in.
    reads, writes
        Allowed topic filters by user name; those under None are for everybody. None allows all.
    """

    users: Mapping[str, _Hash] | None = None
    reads: Mapping[str | None, list[str]] | None = None
    writes: Mapping[str | None, list[str]] | None = None
    _nobody: _Hash = field(default=_Hash(b"", b"nobody", _N, _R, _P), repr=False)

    def logs_in(self, name: str | None, password: bytes | None) -> bool:
        """Return whether name and password are those of a user; takes as long for any name."""
        if self.users is None:
            return True
        known = self.users.get(name or "", self._nobody)
        return known.matches(password or b"")

    def may_write(self, user: str | None, client_id: str, topic: str) -> bool:
        """Return whether a client may publish to a topic."""
        return self.writes is None or any(
            matches(filter, topic) for filter in _allowed(self.writes, user, client_id)
        )

    def may_read(self, user: str | None, client_id: str, filter: str) -> bool:
        """Return whether a client may read every topic that a topic filter matches."""
        wanted = split_shared(filter)[1]
        return self.reads is None or any(
            matches(allowed, wanted) and (allowed.endswith("#") or not wanted.endswith("#"))
            for allowed in _allowed(self.reads, user, client_id)
        )


def _allowed(
    lists: Mapping[str | None, list[str]], user: str | None, client_id: str
) -> Iterable[str]:
    names = (None,) if user is None else (None, user)
    is_plain = not has_wildcard(f"{user}{client_id}") and "/" not in f"{user}{client_id}"
    for filter in (filter for name in names for filter in lists.get(name, ())):
        if "%" not in filter:
            yield filter
        elif is_plain and (user is not None or "%u" not in filter):
            yield filter.replace("%c", client_id).replace("%u", user or "")


def read_users(path: str) -> dict[str, _Hash]:
    """Read a file of users.

    Raises
    ------
    UsageError
        A line is none of a user.
    """
    users = {}
    for number, line in _lines(path):
        try:
            name, kind, n, r, p, salt, digest = line.split(":")
            known = _Hash(digest.encode(), b64decode(salt, validate=True), int(n), int(r), int(p))
            is_valid = kind == "scrypt" and 1 < known.n <= _MAX_N and known.r * known.n <= 1 << 20
        except ValueError:
            is_valid = False
        if not is_valid or not 1 <= known.p <= _R:
            raise UsageError(f"{path}: line {number} is no user; --add-user NAME writes one")
        users[name] = known
    return users


def read_access(
    path: str,
) -> tuple[dict[str | None, list[str]], dict[str | None, list[str]]]:
    """Read a list of access; return the filters to read and those to write by user name.

    Raises
    ------
    UsageError
        A line has another form.
    """
    reads: dict[str | None, list[str]] = {}
    writes: dict[str | None, list[str]] = {}
    user: str | None = None
    for number, line in _lines(path):
        word, _, rest = line.partition(" ")
        kind, _, filter = rest.strip().partition(" ")
        if kind not in (*_READS, *_WRITES):
            kind, filter = "readwrite", rest
        if word == "user" and rest.strip():
            user = rest.strip()
        elif word in ("topic", "pattern") and filter.strip():
            for kinds, lists in ((_READS, reads), (_WRITES, writes)):
                if kind in kinds:
                    lists.setdefault(user if word == "topic" else None, []).append(filter.strip())
        else:
            form = "user NAME, or topic [read|write|readwrite] FILTER"
            raise UsageError(f"{path}: line {number} is not of the form {form}")
    return reads, writes


def _lines(path: str) -> Iterable[tuple[int, str]]:
    with open(path, encoding="utf-8") as file:
        try:
            lines = file.readlines()
        except UnicodeDecodeError:
            raise UsageError(f"{path}: is not UTF-8") from None
    for number, line in enumerate(lines, 1):
        if (text := line.strip()) and not text.startswith("#"):
            yield number, text
