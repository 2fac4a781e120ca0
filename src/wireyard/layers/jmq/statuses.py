"""Names of the statuses of Open MQ's replies, and SQL that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.layers.symptoms import code_text

STATUSES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "bad request", 401: "unauthorized", 402: "payment required", 403: "forbidden",
        404: "not found", 405: "not allowed", 406: "not acceptable",
        407: "proxy authentication required", 408: "timeout", 409: "conflict", 410: "gone",
        411: "length required", 412: "precondition failed", 413: "invalid login",
        414: "resource full", 415: "unsupported type", 417: "expectation failed",
        423: "entity too large", 449: "retry", 500: "error", 501: "not implemented",
        503: "unavailable", 505: "bad version",
    }
)  # fmt: skip
"""The statuses of a refusal, as the class ``Status`` of the client library names them."""


def status_text(status: str, reason: str = "NULL") -> str:
    """Return SQL for a status with its name, and the broker's reason."""
    return code_text(status, STATUSES, reason)
