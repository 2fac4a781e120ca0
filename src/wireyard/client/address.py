"""The address of a broker: ``mqtt://user:password@host:port``, ``ws://``, ``mq://``, or by TLS."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from wireyard.errors import UsageError

_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443, "mq": 7676, "mqs": 7676}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens, and the login that the address has."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = None
    path: str | None = None
    """What to ask for, if MQTT is inside a WebSocket."""
    is_jmq: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def why_unreachable(error: Exception) -> str:
    """Return why an address cannot be reached, or bound: asyncio puts its own words around that."""
    if numbered := re.search(
        r"\[Errno (\d+)\] (?:Connect call failed|error while attempting to bind)", str(error)
    ):
        return os.strerror(int(numbered[1]))
    return getattr(error, "strerror", None) or str(error) or "gives no answer"


def parse_address(url: str, scheme: str = "mqtt") -> Address:
    """Return the address that a URL, or a host and a port, stands for.

    `scheme` is that of a host without one. A `UsageError` is raised if the URL has another form.
    """
    form = "mqtt://HOST:PORT, or mqtts:// for TLS, ws:// and wss:// for WebSocket, mq:// for JMQ"
    problem = UsageError(f"a broker's address is of the form {form}")
    try:
        parts = urlsplit(url if "://" in url else f"{scheme}://{url}")
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as it is for the system
    except ValueError:
        raise problem from None
    is_socket = parts.scheme in ("ws", "wss")
    has_path = bool(parts.path.strip("/")) and not is_socket and parts.path != "/jms"
    if parts.scheme not in _PORTS or not host or has_path:
        raise problem
    query = f"?{parts.query}" if parts.query else ""
    return Address(
        host,
        port or _PORTS[parts.scheme],
        ssl.create_default_context() if parts.scheme in ("mqtts", "wss", "mqs") else None,
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
        quote(parts.path or "/mqtt") + query if is_socket else None,
        parts.scheme in ("mq", "mqs"),
    )
