"""Results of commands, and a packet with a secret that they must not print."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

from tests.make import item, items, packet, section

__all__ = ["LOGIN", "Run", "notes_of", "one_line", "rows_of"]

Run = Callable[..., Result]

LOGIN = packet(
    packet_type=12,
    items=items(item(1, "nowhere")),
    properties=section(("JMQAuthType", 8, "basic")),
    body=b"\x00\x05guest\x00\x08c2VjcmV0",
)
"""An AUTHENTICATE with the password "secret"."""


def rows_of(result: Result) -> list[dict[str, Any]]:
    """Return the rows that a command printed as JSON Lines."""
    return [json.loads(line) for line in result.stdout_bytes.splitlines()]


def notes_of(errors: str) -> str:
    """Return the notes on standard error, without those on kernels and on written files."""
    lines = errors.splitlines(keepends=True)
    other = " kernels ", "wireyard: wrote "
    return "".join(line for line in lines if not any(each in line for each in other))


def one_line(result: Result) -> str:
    """Return the only line on standard error, besides those about kernels."""
    (line,) = notes_of(result.stderr).splitlines()
    assert line.startswith("wireyard: ")
    return line.removeprefix("wireyard: ")
