"""The answer of Open MQ's port mapper, rewritten so that clients connect through the proxy."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from wireyard.formats.port_mapper import MAX_ANSWER_BYTES, decode_answer, is_answer

_END: Final = re.compile(rb"\n\.\r?\n\Z")
_TYPES: Final = ("NORMAL", "ADMIN")
"""Types of the services that clients connect to."""
_LINE: Final = re.compile(rb"^(\S+\s+\S+\s+(?:NORMAL|ADMIN)\s+)(\d+)(?=\s)", re.MULTILINE)


class AnswerHold:
    """The first bytes of a server, held as long as they may be the answer of a port mapper.

    It holds up to `MAX_ANSWER_BYTES`.
    """

    def __init__(self) -> None:
        self._held = b""

    def add(self, data: bytes) -> bytes | None:
        """Add bytes; return all once they are no beginning of an answer, or a whole one."""
        data = self._held + data
        if is_answer(data) and not _END.search(data) and len(data) <= MAX_ANSWER_BYTES:
            self._held = data
            return None
        self._held = b""
        return data

    def rest(self) -> bytes:
        """Return what is held at the end of the direction."""
        held, self._held = self._held, b""
        return held


async def rewritten(answer: bytes, port_of: Callable[[str, int], Awaitable[int]]) -> bytes:
    """Return an answer with the ports of the proxy.

    `port_of` returns the port of the proxy for a service, by its name and port. `DecodeError` is
    raised if the bytes are no answer.
    """
    services = decode_answer(answer).services
    ports = {
        service.port: await port_of(service.name, service.port)
        for service in services
        if service.type in _TYPES and service.port
    }

    def replaced(line: re.Match[bytes]) -> bytes:
        return line[1] + b"%d" % ports.get(int(line[2]), int(line[2]))

    return _LINE.sub(replaced, answer)
