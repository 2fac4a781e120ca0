"""A broker to talk to: one that runs, or one that a command starts.

It may have several listeners: ``localhost:1885,1884=localhost:1886`` has another one for the
clients that used port 1884 of the recorded broker, and so has a command with ``{1884}``.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryFile
from typing import Final

from wireyard.client.address import Address, parse_address
from wireyard.errors import SourceError, UsageError

Listeners = Mapping[int | None, Address]
"""The addresses of a broker by the ports that the recorded one had; None is for all others."""
_PLACE: Final = re.compile(r"\{(?:port|(\d{1,5}))\}")
_SECONDS_TO_START: Final = 60.0
_SECONDS_TO_END: Final = 5.0
_SECONDS_A_TRY: Final = 0.02


def is_started(broker: str) -> bool:
    """Return whether a broker is given as a command, so that it can be started anew."""
    return "{port}" in broker


def listener(listeners: Listeners, port: int | None) -> Address:
    """Return the address for clients that used a port of the recorded broker."""
    return listeners.get(port, listeners[None])


@contextmanager
def running(broker: str, scheme: str = "mqtt") -> Iterator[Listeners]:
    """Yield the addresses of a broker, which runs, or until the end if a command starts it.

    `scheme` is that of an address without one. A `UsageError` is raised if an address has another
    form or is that of a WebSocket, and a `SourceError` if the command starts no broker.
    """
    if not is_started(broker):
        if " " in broker.strip():
            raise UsageError(
                f"'{broker}' is no address; a command that starts a broker has {{port}}"
            )
        yield {port: _address(text, scheme) for port, text in _parts(broker)}
        return
    listeners: dict[int | None, Address] = {}
    with ExitStack() as stack:
        for place in _PLACE.finditer(broker):
            port = None if place[1] is None else int(place[1])
            free = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listeners.setdefault(port, Address(*free.getsockname()))
    address = listeners[None]
    command = shlex.split(
        _PLACE.sub(lambda place: str(listeners[int(place[1]) if place[1] else None].port), broker)
    )
    with TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SourceError(f"{command[0]}: {error.strerror}") from None
        try:
            if not _listens(process, address):
                output.seek(0)
                last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
                reason = last or "it says nothing"
                raise SourceError(f"{command[0]}: no broker on port {address.port}: {reason}")
            yield listeners
        finally:
            _end(process)


def _parts(broker: str) -> Iterator[tuple[int | None, str]]:
    """Yield the addresses in ``ADDRESS,PORT=ADDRESS``, each with its port of the recording."""
    first, *others = broker.split(",")
    yield None, first
    for other in others:
        port, _, text = other.partition("=")
        if not (port.isdecimal() and text):
            raise UsageError(f"'{other}' is not PORT=ADDRESS, with a port of the recording")
        yield int(port), text


def _address(text: str, scheme: str) -> Address:
    address = parse_address(text, scheme)
    if address.path is not None:
        raise UsageError("replay has no WebSocket: give mqtt:// or mqtts://")
    return address


def _listens(process: subprocess.Popen[bytes], address: Address) -> bool:
    """Wait until a broker listens; return False if it has ended, or takes too long."""
    until = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection((address.host, address.port)):
            return True
        time.sleep(_SECONDS_A_TRY)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a broker, and all that its command has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
            return
