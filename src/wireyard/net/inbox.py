"""Messages that wait for who iterates over them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

from wireyard.layers.rmp import Delivered, Event

__all__ = ["Client", "Inbox", "Replies"]

E = TypeVar("E", bound=Event)

MAX_INBOX_BYTES = 16 << 20
"""Data that waits in one inbox before nothing is taken from the ring any more: a message of the
longest kind, or a second of the fastest small ones."""
MESSAGE_BYTES = 512
"""What a message costs beside its data; with it a bound on bytes bounds messages too."""


class Inbox(Generic[E]):
    """Messages or other events, in order; it ends when it is closed, or as the ring ended.

    Parameters
    ----------
    drained
        What to call when an inbox that was full has room again.
    lossy
        Whether the ring may lose messages; then so may an inbox that is full.
    """

    def __init__(self, drained: Callable[[], None], lossy: bool) -> None:
        self.overrun = 0
        """Events that were lost because too much waited already."""
        self._lossy = lossy
        self._drained = drained
        self._events: deque[E] = deque()
        self._bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False
        self._error: Exception | None = None

    @property
    def full(self) -> bool:
        """Whether no more should be taken from a ring that loses nothing."""
        return self._bytes > MAX_INBOX_BYTES

    def put(self, event: E) -> None:
        """Add an event."""
        if self._lossy and self._bytes > MAX_INBOX_BYTES:
            self.overrun += 1
            return
        self._events.append(event)
        self._bytes += MESSAGE_BYTES
        if isinstance(event, Delivered):
            self._bytes += len(event.data)
        if self._waiting is not None:
            self._wake()

    def end(self, error: Exception | None = None) -> None:
        """Let the iteration end after what is there already."""
        self._closed = True
        self._error = error
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        if not self._events:
            await self._wait()
        event = self._events.popleft()
        size = len(event.data) if isinstance(event, Delivered) else 0
        self._take(MESSAGE_BYTES + size)
        return event

    async def batch(self) -> list[E]:
        """Return all that wait, none only if there will be no more.

        A loop over batches costs less than one over single messages.
        """
        if not self._events:
            with contextlib.suppress(StopAsyncIteration):
                await self._wait()
        found = list(self._events)
        self._events.clear()
        self._take(self._bytes)
        return found

    async def _wait(self) -> None:
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _take(self, size: int) -> None:
        before = self._bytes
        self._bytes -= size
        if before > MAX_INBOX_BYTES >= self._bytes:
            self._drained()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None


class Client(Inbox[Delivered]):
    """A client of this process: ``async for message in ring.client(7)``.

    Attributes
    ----------
    number
        Its number.
    """

    def __init__(
        self, number: int, drained: Callable[[], None], lossy: bool, leave: Callable[[], None]
    ) -> None:
        super().__init__(drained, lossy)
        self.number = number
        self._leave = leave

    def close(self) -> None:
        """Unregister; what is there already can still be iterated over."""
        if not self._closed:
            self._leave()
            self.end()


_Ask = Callable[["Replies"], Awaitable[Callable[[], None]]]


class Replies(Inbox[Delivered]):
    """The replies to a request: ``async for reply in ring.request(b"?", want=3)``.

    The request is sent when the iteration begins.
    """

    def __init__(self, drained: Callable[[], None], lossy: bool, ask: _Ask) -> None:
        super().__init__(drained, lossy)
        self.reason: str | None = None
        """Why there are no more, once there are none."""
        self._ask: _Ask | None = ask
        self._cancel: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Wait for no more; what is there already can still be iterated over."""
        if self._cancel is not None:
            self._cancel()

    def done(self, reason: str) -> None:
        """Let the iteration end, and say why."""
        self.reason = reason
        self.end()

    async def __anext__(self) -> Delivered:
        if self._ask is not None:
            ask, self._ask = self._ask, None
            self._cancel = await ask(self)
        return await super().__anext__()
