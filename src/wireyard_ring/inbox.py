"""Inboxes: messages and other events that wait for the application to iterate over them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Any, Generic, Self, TypeVar

from wireyard.layers.rmp import Delivered, Event, Foreign, Piece
from wireyard.layers.rmp.events import Replied, RequestDone

__all__ = ["Client", "Handler", "Inbox", "Inboxes", "Message", "Replies"]

Message = Delivered | Piece | Foreign
Handler = Callable[[Message], Awaitable[bytes | None]]
"""A coroutine function for the messages of a destination layer, or of another protocol.

It is called with one message of a ring after the other. Bytes that it returns are the reply to a
message that requests one.
"""

E = TypeVar("E", bound=Event)

MAX_INBOX_BYTES = 16 << 20
"""Data that waits in one inbox before the ring stops receiving: one message of the greatest length,
or a second of the fastest small ones."""
MESSAGE_BYTES = 512
"""The memory of a message besides its data. It counts towards the bound, which so bounds the number
of messages too."""


class Inbox(Generic[E]):
    """Messages or other events in order, until the inbox is closed or the ring ends.

    `drained` is called when a full inbox has room again. If the ring may lose messages (`lossy`), a
    full inbox loses messages too.
    """

    def __init__(self, drained: Callable[[], None], lossy: bool) -> None:
        self.overrun = 0
        """The number of events that were lost because the inbox was full."""
        self._lossy = lossy
        self._drained = drained
        self._events: deque[E] = deque()
        self._bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False
        self._error: Exception | None = None

    @property
    def full(self) -> bool:
        """Whether a ring that loses no messages should stop receiving."""
        return self._bytes > MAX_INBOX_BYTES

    def put(self, event: E) -> None:
        """Add an event."""
        if self._lossy and self._bytes > MAX_INBOX_BYTES:
            self.overrun += 1
            return
        self._events.append(event)
        self._bytes += _cost(event)
        if self._waiting is not None:
            self._wake()

    def end(self, error: Exception | None = None) -> None:
        """End the iteration after the events that wait already."""
        self._closed = True
        self._error = error
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        if not self._events:
            await self._wait()
        event = self._events.popleft()
        self._remove(_cost(event))
        return event

    async def batch(self) -> list[E]:
        """Return all events that wait, or an empty list at the end of the iteration.

        A loop over batches costs less than one over single messages.
        """
        if not self._events:
            with contextlib.suppress(StopAsyncIteration):
                await self._wait()
        events = list(self._events)
        self._events.clear()
        self._remove(self._bytes)
        return events

    async def _wait(self) -> None:
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _remove(self, size: int) -> None:
        before = self._bytes
        self._bytes -= size
        if before > MAX_INBOX_BYTES >= self._bytes:
            self._drained()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None


def _cost(event: Event) -> int:
    """Return the bytes that a waiting event counts towards the bound."""
    if isinstance(event, (Delivered, Piece, Foreign)):
        return MESSAGE_BYTES + len(event.data)
    return MESSAGE_BYTES


class Client(Inbox[Delivered]):
    """A client of this process: ``async for message in ring.client(7)``.

    Attributes
    ----------
    number
        The number of the client.
    """

    def __init__(
        self, number: int, drained: Callable[[], None], lossy: bool, leave: Callable[[], None]
    ) -> None:
        super().__init__(drained, lossy)
        self.number = number
        self._leave = leave

    def close(self) -> None:
        """Unregister the client; messages that wait already can still be iterated over."""
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
        """The reason of the end, once the request has ended."""
        self._ask: _Ask | None = ask
        self._cancel: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the request; replies that wait already can still be iterated over."""
        if self._cancel is not None:
            self._cancel()

    def done(self, reason: str) -> None:
        """End the iteration with a reason."""
        self.reason = reason
        self.end()

    async def __anext__(self) -> Delivered:
        if self._ask is not None:
            ask, self._ask = self._ask, None
            self._cancel = await ask(self)
        return await super().__anext__()


class Inboxes:
    """All inboxes of one ring; `drained` and `lossy` are the parameters of each `Inbox`."""

    def __init__(self, drained: Callable[[], None], lossy: bool) -> None:
        self._drained = drained
        self._lossy = lossy
        self._clients: dict[int, Client] = {}
        self._everything: list[Inbox[Event]] = []
        self._requests: dict[int, Replies] = {}
        self._handled: dict[Handler, Inbox[Message]] = {}

    @property
    def full(self) -> bool:
        """Whether one of them is full."""
        return any(inbox.full for inbox in self._all())

    def client(self, number: int, leave: Callable[[], None]) -> Client:
        """Add the inbox of a client; `leave` is called when the client closes it."""

        def close() -> None:
            del self._clients[number]
            leave()
            self._drained()

        client = self._clients[number] = Client(number, self._drained, self._lossy, close)
        return client

    def events(self) -> Inbox[Event]:
        """Add an inbox of all events."""
        inbox = Inbox[Event](self._drained, self._lossy)
        self._everything.append(inbox)
        return inbox

    def replies(self, ask: _Ask) -> Replies:
        """Return the inbox of a request; `add_request` adds it when the request is sent."""
        return Replies(self._drained, self._lossy, ask)

    def add_request(self, request: int, replies: Replies) -> None:
        """Add the inbox of a request that was sent."""
        self._requests[request] = replies

    def handled(self, handler: Handler) -> tuple[Inbox[Message], bool]:
        """Return the inbox of a handler, and whether it is new."""
        is_new = handler not in self._handled
        if is_new:
            self._handled[handler] = Inbox(self._drained, self._lossy)
        return self._handled[handler], is_new

    def put(self, event: Event) -> None:
        """Put an event into the inboxes that it is for."""
        if type(event) is Delivered:
            for number in event.destinations:
                if number in self._clients:
                    self._clients[number].put(event)
        elif type(event) is Replied:
            self._requests[event.request].put(event.reply)
            return
        elif type(event) is RequestDone:
            self._requests.pop(event.request).done(event.reason)
            return
        for inbox in self._everything:
            inbox.put(event)

    def end(self, error: Exception | None) -> None:
        """End every iteration after the events that wait already."""
        for inbox in self._all():
            inbox.end(error)

    def _all(self) -> Iterator[Inbox[Any]]:
        return chain(
            self._clients.values(), self._everything, self._requests.values(),
            self._handled.values(),
        )  # fmt: skip
