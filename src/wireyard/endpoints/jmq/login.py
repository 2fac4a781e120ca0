"""The bodies of AUTHENTICATE packets."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import md5
from typing import Final, NamedTuple

from wireyard.endpoints.jmq.packets import Request
from wireyard.errors import Malformed
from wireyard.formats.cursor import Cursor
from wireyard.formats.jmq.layout import SPEC

_BASIC: Final = "basic"


class Login(NamedTuple):
    """Who logs in; the password of a login by `basic`, None of any other."""

    user: str
    password: bytes | None


def login_body(kind: str, user: str, password: str, challenge: Request) -> bytes:
    """Return the body by which a client logs in, as a challenge asks for it."""
    secret = b64encode(password.encode()).decode()
    if kind != _BASIC:
        secret = _digest(f"{_digest(f'{user}:{password}')}:{challenge.body.decode()}")
    return b"".join(len(one).to_bytes(2, "big") + one for one in (user.encode(), secret.encode()))


def _digest(text: str) -> str:
    """Return the digest of a text, as Java prints a signed number."""
    data = md5(text.encode(), usedforsecurity=False).digest()
    return f"{int.from_bytes(data, 'big', signed=True):x}"


def read_login(request: Request) -> Login:
    """Read the body of an AUTHENTICATE.

    A `DecodeError` is raised if it is no user and password, or no user and digest.
    """
    cursor = Cursor(request.body, "jmq", 0, f"{SPEC}, AUTHENTICATE")
    user, secret = cursor.text("user name"), cursor.text("password")
    if request.get("JMQAuthType", str) != _BASIC:
        return Login(user, None)
    try:
        # The shipped encoder breaks lines after 76 characters.
        return Login(user, b64decode("".join(secret.split()), validate=True))
    except ValueError:
        raise cursor.fault(Malformed, "password", 0, "is not base64") from None
