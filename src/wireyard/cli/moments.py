"""Formatting of times."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["moment"]


def moment(time_ns: int, digits: int = 9) -> str:
    """Return nanoseconds since 1970 as ISO 8601 in UTC, with `digits` of the second's fraction."""
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ns)  # a capture may have any year
    return f"{found:%Y-%m-%dT%H:%M:%S}.{fraction:09d}"[: 20 + digits] + "Z"
