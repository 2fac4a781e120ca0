"""What the cores of both protocols have in common: connections within limits, and what is due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, ClassVar, Final, Generic, TypeVar

from wireyard.broker.access import CheckLogin
from wireyard.broker.settings import Settings
from wireyard.broker.store import Store
from wireyard.endpoints import Ended, Tap

_LONGEST_S: Final = 60.0


E = TypeVar("E")


class BaseLink(Generic[E]):
    """One connection of a client."""

    __slots__ = ("endpoint", "held_bytes", "is_slow", "name", "waits_for")
    client_id: Any
    """The client id, None as long as it is not known."""

    def __init__(self, endpoint: E, name: str) -> None:
        self.endpoint, self.name = endpoint, name
        self.held_bytes = 0
        """Of a packet that has not arrived whole."""
        self.is_slow = False
        """Whether the client has not read what was sent long ago."""
        self.waits_for = 0
        """Group of the store that has to be committed before what it has to send may leave."""

    @property
    def shown(self) -> str:
        """The client for a line of text: its client id and address."""
        return self.name if self.client_id is None else f"{self.client_id} ({self.name})"


L = TypeVar("L", bound=BaseLink[Any])


class Half(ABC, Generic[L]):
    """The core of a broker for one protocol, without sockets and clocks; its links are its own.

    `say` is called with one line for each notable cause. `check_login` compares a password; None
    accepts every login. `store` is where the state outlives the process; `restore` continues with
    what is there.
    """

    router: Any
    """Where messages go."""
    kept: Any
    """Writes the state to the store, if there is one."""
    _UNIDENTIFIED: ClassVar[str]
    """What connections that have not logged in lack."""
    _TOO_LATE: ClassVar[tuple[int, str]]
    _TOO_MUCH: ClassVar[int]
    _SHUT_DOWN: ClassVar[int]
    """Reasons to end a connection: that it did not log in in time, that too many bytes are held,
    that the broker ends."""

    def __init__(
        self,
        settings: Settings,
        say: Callable[[str], None],
        check_login: CheckLogin | None = None,
        store: Store | None = None,
    ) -> None:
        self.settings, self.say = settings, say
        self._check_login = check_login
        self._store = store
        self.links: set[L] = set()
        self.unidentified: set[L] = set()
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._is_full = False
        """Whether the last connection was refused."""
        self._held_bytes = 0
        self._changes = 0
        """Changes of the store for which some link waits already."""
        self._set_up(store)

    @abstractmethod
    def _set_up(self, store: Store | None) -> None:
        """Make the router, and what else is needed."""

    @abstractmethod
    def _new_link(self, name: str, tap: Tap | None) -> L:
        """Return the link of a new connection."""

    @abstractmethod
    def resume(self, link: L) -> None:
        """Send on to a client that has read what was sent."""

    @abstractmethod
    def restore(self) -> None:
        """Continue with what the store has: connections were lost when the process ended."""

    @abstractmethod
    def _handle(self, link: L, events: Iterable[Any]) -> None:
        """Act on what happened on a connection."""

    @abstractmethod
    def _on_ended(self, link: L, ended: Ended) -> None:
        """Act on the end of a connection."""

    # --- bytes ----------------------------------------------------------------------------

    def receive(self, link: L, data: bytes, now: float) -> None:
        """Read what a client sent."""
        self.set_time(now)
        self._handle(link, link.endpoint.receive(data, now))
        held = link.endpoint.held_bytes
        if held != link.held_bytes:
            self._hold(link, held)

    def _touch(self, link: L) -> None:
        """Have a link looked at; what it has to send waits for the changes that were made."""
        self.router.dirty.add(link)
        store = self._store
        if store is not None and store.changes != self._changes:
            self._changes = store.changes
            link.waits_for = store.last_group  # the other half may have made them

    def take_dirty(self) -> Iterator[L]:
        """Yield the links with something to send or to close, as long as there are any.

        Those that have ended come first: what follows from their end, a will, is sent after it.
        """
        dirty = self.router.dirty
        while dirty:
            links = sorted(dirty, key=lambda link: link.endpoint.ended is None)
            dirty.clear()
            yield from links

    # --- connections ----------------------------------------------------------------------

    def open_link(self, name: str, tap: Tap | None = None) -> L | None:
        """Return the link of a new connection, which has to log in in time.

        None is returned if there are too many; of several refusals in a row, only the first has a
        line.
        """
        reason = None
        if len(self.links) >= self.settings.max_connections:
            reason = f"there are {len(self.links)} connections"
        elif len(self.unidentified) >= self.settings.max_unidentified:
            reason = f"{len(self.unidentified)} connections {self._UNIDENTIFIED}"
        if reason is not None and not self._is_full:
            self.say(f"{name}: refused, {reason}")
        self._is_full = reason is not None
        if self._is_full:
            return None
        link = self._new_link(name, tap)
        self.links.add(link)
        self.unidentified.add(link)
        self._at(self.now + self.settings.connect_timeout_s, lambda: self._expect(link))
        return link

    def end(self, link: L, code: int, text: str | None, *, by_client: bool = False) -> None:
        """End a connection by a reason code; do nothing if it has ended."""
        ended = link.endpoint.end(code, text, by_client=by_client)
        if ended is not None:
            self._on_ended(link, ended)

    def lose(self, link: L) -> None:
        """Take note that a connection is gone."""
        self.end(link, 0, "lost", by_client=True)
        self.router.dirty.discard(link)

    def shut_down(self) -> None:
        """End all connections."""
        for link in list(self.links):
            self.end(link, self._SHUT_DOWN, "the broker shuts down")

    def _expect(self, link: L) -> None:
        if link in self.unidentified:
            code, text = self._TOO_LATE
            self.end(link, code, f"{text} within {self.settings.connect_timeout_s:g} s")

    def _hold(self, link: L, size: int) -> None:
        """Count the bytes of an unfinished packet; end the connection if all are too many."""
        self._held_bytes += size - link.held_bytes
        link.held_bytes = size
        if self._held_bytes > self.settings.max_held_bytes:
            text = f"{self._held_bytes} bytes of unfinished packets are held"
            self.end(link, self._TOO_MUCH, text)

    def _drop(self, link: L) -> None:
        """Remove a connection that has ended."""
        self.links.discard(link)
        self.unidentified.discard(link)
        self._held_bytes -= link.held_bytes
        link.held_bytes = 0
        self.router.dirty.add(link)

    # --- time -----------------------------------------------------------------------------

    def set_time(self, now: float) -> None:
        """Set the time, in seconds since 1970."""
        self.now = self.router.now = now

    def tick(self, now: float) -> float | None:
        """Do what is due; return when to call again at the latest."""
        self.set_time(now)
        while self._timers and self._timers[0][0] <= now:
            heappop(self._timers)[2]()
        return self._timers[0][0] if self._timers else None

    def _at(self, time: float, act: Callable[[], None]) -> None:
        """Call a function at a time, or earlier: it has to look whether it is time.

        So what has ended meanwhile is not kept until then.
        """
        due = min(time, self.now + _LONGEST_S)
        heappush(self._timers, (due, next(self._numbers), act))
