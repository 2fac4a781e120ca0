"""The text form of endpoints in all tables, and the key that both streams of a connection share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ENDS: Final = ("src_addr", "src_port", "dst_addr", "dst_port")


def endpoint(address: str, port: int) -> str:
    """Return ``address:port``, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def endpoints_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return source and destination of a row as ``address:port``.

    A raw stream has no addresses: its name is the source, and the destination is empty.
    """
    return stream_endpoints(row["stream"], *map(row.get, _ENDS))


def stream_endpoints(
    stream: str,
    src_addr: str | None,
    src_port: int | None,
    dst_addr: str | None,
    dst_port: int | None,
) -> tuple[str, str]:
    """Return source and destination of a stream, as `endpoints_of` does."""
    if src_addr is None or src_port is None or dst_addr is None or dst_port is None:
        return stream, ""
    return endpoint(src_addr, src_port), endpoint(dst_addr, dst_port)


def connection_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key of a connection, which is the same for both of its streams.

    When the same two endpoints connect again, the ordinal after ``#`` in the names of the streams
    distinguishes the connections.
    """
    return stream_connection(row["source"], row["stream"], *endpoints_of(row))


def stream_connection(source: str, stream: str, src: str, dst: str) -> tuple[str, ...]:
    """Return the key of the connection of a stream, as `connection_of` does.

    The endpoints are those of `stream_endpoints`.
    """
    if not dst:
        return source, stream
    _, _, ordinal = stream.partition("#")
    return (source, src, dst, ordinal) if src < dst else (source, dst, src, ordinal)
