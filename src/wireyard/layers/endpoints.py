"""The text form of endpoints in all tables, and the key that both streams of a connection share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["connection_of", "endpoint", "endpoints_of"]


def endpoint(address: str, port: int) -> str:
    """Return ``address:port``, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def endpoints_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return source and destination of a row as ``address:port``.

    A raw stream has no addresses: its name is the source, and the destination is empty.
    """
    if row.get("src_addr") is None:
        return row["stream"], ""
    return endpoint(row["src_addr"], row["src_port"]), endpoint(row["dst_addr"], row["dst_port"])


def connection_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key of a connection, which is the same for both of its streams.

    When the same two endpoints connect again, the ordinal after ``#`` in the names of the streams
    distinguishes the connections.
    """
    if row.get("src_addr") is None:
        return row["source"], row["stream"]
    _, _, ordinal = row["stream"].partition("#")
    return row["source"], *sorted(endpoints_of(row)), ordinal
