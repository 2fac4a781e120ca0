"""The two ends of a request: it is accepted, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wireyard.broker.jmq.connections import Connection
from wireyard.endpoints.jmq import Request
from wireyard.layers.jmq.rules import OK

_MAX_TEXT: Final = 300
"""Characters of a line, which may quote what a client sent."""


class Refusal(Exception):
    """A request is not done.

    `status` is that of the reply. `text` is the reason, for the reply and for a line behind the
    client's name; there is a line only if `is_notable`. `properties` are those of the reply besides
    status and reason.
    """

    def __init__(
        self,
        status: int,
        text: str,
        properties: Mapping[str, Any] | None = None,
        *,
        is_notable: bool = True,
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.properties = status, text[:_MAX_TEXT], properties
        self.is_notable = is_notable


def accept(
    link: Connection,
    request: Request,
    properties: Mapping[str, Any] | None = None,
    body: bytes = b"",
) -> None:
    """Answer a request that was done, if the client waits."""
    if request.wants_reply:
        link.endpoint.reply(request.packet_type, request.id, OK, None, properties, body)
