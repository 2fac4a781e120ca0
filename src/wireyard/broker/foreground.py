"""A server that runs until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class _Server(Protocol):
    is_over: asyncio.Event
    """Set when it has to stop."""
    say: Callable[[str], None]

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


S = TypeVar("S", bound=_Server)


def serve(server: S, ready: Callable[[S], None]) -> None:
    """Run a server until SIGINT or SIGTERM, or until it is over; call `ready` once it listens.

    A `SourceError` is raised if it cannot listen.
    """
    raise_file_limit()
    asyncio.run(_serve(server, ready))


async def _serve(server: S, ready: Callable[[S], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.is_over.set)

    def say(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        server.say(f"{context['message']}: {context.get('exception', '')}")

    loop.set_exception_handler(say)
    await server.start()
    # What was loaded until now stays: no collection has to look at it again. What comes has hardly
    # any cycles, so that looking through waiting messages often would be in vain.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    ready(server)
    await server.is_over.wait()
    await server.stop()


def raise_file_limit() -> None:
    """Allow as many open sockets as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
