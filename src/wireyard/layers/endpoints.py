"""Endpoints as all tables write them."""

from __future__ import annotations

__all__ = ["endpoint"]


def endpoint(address: str, port: int) -> str:
    """Return ``address:port``, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
