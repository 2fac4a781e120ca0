"""A broker to talk to: one that runs, or one that a command starts."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Final

from wireyard.client.address import Address, parse_address
from wireyard.errors import SourceError, UsageError

_PORT: Final = "{port}"
_SECONDS_TO_START: Final = 60.0
_SECONDS_TO_END: Final = 5.0
_SECONDS_A_TRY: Final = 0.02


def is_started(broker: str) -> bool:
    """Return whether a broker is given as a command, so that it can be started anew."""
    return _PORT in broker


@contextmanager
def running(broker: str) -> Iterator[Address]:
    """Yield the address of a broker, which runs, or until the end if a command starts it.

    A `UsageError` is raised if the address has another form or is that of a WebSocket, and a
    `SourceError` if the command starts no broker.
    """
    if not is_started(broker):
        address = parse_address(broker)
        if address.path is not None:
            raise UsageError("replay has no WebSocket: give mqtt:// or mqtts://")
        yield address
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address(*free.getsockname())
    command = shlex.split(broker.replace(_PORT, str(address.port)))
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
            yield address
        finally:
            _end(process)


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
