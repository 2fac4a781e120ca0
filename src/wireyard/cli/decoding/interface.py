"""An interface of this machine as a capture that is still written, by dumpcap or tcpdump."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile
from typing import Final

from wireyard.errors import SourceError

__all__ = ["capturing"]

_PATIENCE_S: Final = 5
_STDIN: Final = 0


@contextmanager
def capturing(interface: str, filter: str | None) -> Iterator[None]:
    """Let standard input be what is captured of an interface, in pcapng or pcap.

    Parameters
    ----------
    filter
        A capture filter of libpcap, such as ``port 1883``; None for all packets.

    Raises
    ------
    SourceError
        There is no program to capture with, or it may not capture.
    """
    words = _program(interface, filter)
    with TemporaryFile() as said, Popen(words, stdout=PIPE, stderr=said) as process:
        assert process.stdout is not None
        os.dup2(process.stdout.fileno(), _STDIN)
        try:
            yield
        except SourceError:
            with suppress(TimeoutExpired):  # it was no fault of the program
                process.wait(_PATIENCE_S)
            if process.returncode:
                said.seek(0)
                raise SourceError(f"-i {interface}: {_reason(words[0], said.read())}") from None
            raise
        finally:
            process.terminate()


def _program(interface: str, filter: str | None) -> Sequence[str]:
    """Return the command that writes a capture to standard output."""
    if shutil.which("dumpcap"):
        return ["dumpcap", "-q", "-i", interface, "-w", "-", *(["-f", filter] if filter else [])]
    if shutil.which("tcpdump"):
        words = ["tcpdump", "--immediate-mode", "-U", "-i", interface, "-w", "-"]
        return [*words, *([filter] if filter else [])]
    raise SourceError(f"-i {interface}: needs dumpcap, of Wireshark, or tcpdump; neither is here")


def _reason(program: str, said: bytes) -> str:
    """Return why a program failed, in its own words."""
    text = said.decode(errors="replace")
    lines = [line.removeprefix(f"{program}: ").strip() for line in text.splitlines()]
    reasons = [
        line for line in lines if line and not line.startswith(("Capturing on", "Running as"))
    ]
    return f"{program}: {reasons[0] if reasons else 'cannot capture'}"
