"""The answer of a broker's port mapper: a list of services and their ports.

Services may get new ports at every start, so a capture shows them only in this answer. A client may
send its version, ``101``, on a line; the broker answers in any case, in lines of ASCII, and
closes::

    101 imqbroker 301                    version, instance, packet version
    jms tcp NORMAL 40001 [hostname=..]   service, protocol, type, port, properties
    .
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from wireyard.errors import DecodeError, LimitExceeded, Malformed, Truncated, UnsupportedVersion
from wireyard.formats.base import View

MAX_ANSWER_BYTES: Final = 1 << 16
"""Room for 32 of the longest lines that clients accept, 2048 bytes; brokers send less than ten."""

_NAME: Final = "portmapper"
_SPEC: Final = "Open MQ, port mapper 101"
_VERSION: Final = "101"
_END: Final = "."
_MOST_PORT_DIGITS: Final = 5
_MOST_PORT: Final = 0xFFFF
_HEAD: Final = re.compile(rb"101 [!-~]+(?: [0-9.]*(?:\r?\n|\r?\Z)|\Z)")
"""The first line, or the beginning of it."""

_FORMATS: Final = MappingProxyType(
    {("tcp", "NORMAL"): "jmq", ("tcp", "ADMIN"): "jmq", ("tcp", "CLUSTER"): "gpacket"}
)
"""Format by protocol and type; services of ``ssl`` are TLS from the first byte on."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service of a broker."""

    name: str
    protocol: str
    """``tcp``, ``ssl``, ``rmi``."""
    type: str
    """``NORMAL``, ``ADMIN``, ``CLUSTER``, ``PORTMAPPER``, ``CLUSTER_DISCOVERY``, ``JMX``."""
    port: int
    """0 if the service is paused or has no port of its own."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def format(self) -> str | None:
        """Name of the format of its connections; None if we do not read it."""
        return _FORMATS.get((self.protocol, self.type))


@dataclass(frozen=True, slots=True)
class PortMapper:
    """The answer of a port mapper."""

    version: str
    broker: str
    """Name of the broker's instance."""
    packet_version: str
    """Newest version of JMQ packets that the broker writes, such as ``301``."""
    services: tuple[Service, ...]


def is_answer(head: bytes) -> bool:
    """Return whether a stream's first bytes, even a few, begin the answer of a port mapper.

    A client's request, a line with only ``101``, is no answer.
    """
    return _HEAD.match(head) is not None


def decode_answer(view: View) -> PortMapper:
    """Decode the answer of a port mapper: all bytes from the broker, at most `MAX_ANSWER_BYTES`.

    A DecodeError is raised if the answer ends before its line ``.`` or continues after it, a line
    is no service, or the version is not 101.
    """
    if len(view) > MAX_ANSWER_BYTES:
        problem = f"has {len(view)} bytes, at most {MAX_ANSWER_BYTES} are believed"
        raise LimitExceeded(_NAME, "answer", 0, problem, _SPEC)
    data = bytes(view)
    at, stop, head = _line(data, 0)
    version, _, rest = head.partition(" ")
    if version != _VERSION:
        raise UnsupportedVersion(_NAME, "version", at, f"is {version[:16]!r}, not 101", _SPEC)
    words = rest.split()
    if len(words) != 2:
        raise _fault("first line", at, f"has {len(words) + 1} words, not 3")
    services = []
    while True:
        at, stop, line = _line(data, stop)
        if line == _END:
            break
        services.append(_service(line, at))
    if stop < len(data):
        raise _fault("end", stop, f"is followed by {len(data) - stop} bytes")
    return PortMapper(version, words[0], words[1], tuple(services))


def _fault(field: str, offset: int, problem: str) -> DecodeError:
    return Malformed(_NAME, field, offset, problem, _SPEC)


def _line(data: bytes, start: int) -> tuple[int, int, str]:
    """Return the offset of a line, the offset of the next one, and the text of the line."""
    end = data.find(b"\n", start)
    if end < 0:
        left = len(data) - start
        raise Truncated(_NAME, "line", start, left + 1, left, _SPEC)
    line = data[start:end].removesuffix(b"\r")
    try:
        return start, end + 1, line.decode("ascii")
    except UnicodeDecodeError as error:
        raise _fault("line", start + error.start, "is not ASCII") from None


def _service(line: str, at: int) -> Service:
    words = line.split(maxsplit=4)
    if len(words) < 4:
        raise _fault("service", at, f"has {len(words)} words, at least 4 are needed")
    name, protocol, type, port, *rest = words
    if not port.isdigit() or len(port) > _MOST_PORT_DIGITS or int(port) > _MOST_PORT:
        raise _fault("port", at, f"is {port[:16]!r}, not a number up to {_MOST_PORT}")
    properties = MappingProxyType(_properties(rest[0].rstrip(), at) if rest else {})
    return Service(name, protocol, type, int(port), properties)


def _properties(text: str, at: int) -> dict[str, str]:
    """Return the properties in brackets; a value may hold ``=``, but no ``,`` and no ``]``."""
    if not (text.startswith("[") and text.find("]") == len(text) - 1):
        raise _fault("properties", at, "do not stand in brackets at the end of the line")
    pairs = [entry.partition("=") for entry in text[1:-1].split(",") if entry]
    if not all(equals for _, equals, _ in pairs):
        raise _fault("properties", at, "have an entry that is no name=value")
    return {name.strip(): value for name, _, value in pairs}
