"""Coroutines in tests: an event loop for each, and an end to each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

__all__ = ["eventually", "free_port", "in_a_loop", "needs_multicast"]

_PATIENCE_S = 60.0
"""Machines that run tests stall; a test that waits longer than this never ends."""


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), _PATIENCE_S))

    return run


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():
        await asyncio.sleep(0.001)


def free_port() -> int:
    """Return a UDP port that nobody has, so that tests beside each other do not hear each other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def needs_multicast() -> None:
    """Skip where loopback has no multicast."""
    group = socket.inet_aton("239.255.77.77") + socket.inet_aton("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        except OSError as error:
            pytest.skip(f"loopback has no multicast here: {error}")
