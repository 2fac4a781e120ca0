"""The clients of one ring in this process, and their domains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wireyard.errors import UsageError

ALL_DOMAINS = 0
"""The domain number of a client that is in every domain."""
_LARGEST = 0xFFFF
_MAX_CACHED = 4096
"""The most cached results: peers choose the domains, which could be as many as there are numbers.
"""


@dataclass(frozen=True, slots=True)
class _Client:
    domains: frozenset[int]
    own: bool


class Clients:
    """The clients, in the order in which they registered.

    Registering is local and takes effect at once: messages are filtered when they are delivered,
    not when they arrive.
    """

    def __init__(self) -> None:
        self._clients: dict[int, _Client] = {}
        self._cache: dict[tuple[int | None, int | None], tuple[int, ...]] = {}

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def register(
        self, client: int, domains: Iterable[int] = (ALL_DOMAINS,), own: bool = True
    ) -> None:
        """Add a client with a number from 1 on; 0 would be the process itself.

        `domains` are those it is in; `ALL_DOMAINS` is every one. A message without a domain is for
        every client, also for one that is in no domain. With `own` it receives its own messages. A
        UsageError is raised if the number is taken or out of range, or a domain is out of range.
        """
        if client in self._clients:
            raise UsageError(f"client {client} is registered already")
        if not 1 <= client <= _LARGEST:
            raise UsageError(f"client {client} is not from 1 to {_LARGEST}")
        self._set(client, domains, own)

    def set_domains(self, client: int, domains: Iterable[int]) -> None:
        """Change the domains of a client, which keeps its place in the order.

        A UsageError is raised if there is no such client, or a domain is out of range.
        """
        self._set(client, domains, self._get(client).own)

    def unregister(self, client: int) -> None:
        """Remove a client; raise a UsageError if there is no such client."""
        self._get(client)
        del self._clients[client]
        self._cache.clear()

    def destinations(self, domain: int | None, sender: int | None) -> tuple[int, ...] | None:
        """Return the clients that a message is for, None if there are none for any message.

        `domain` is 0 for none (errata R15); `sender` is None if the message is not from a client of
        this process.
        """
        clients = self._cache.get((domain, sender))
        if clients is None and self._clients:
            if len(self._cache) > _MAX_CACHED:
                self._cache.clear()
            clients = self._cache[domain, sender] = self._matching(domain or None, sender)
        return clients

    def _matching(self, domain: int | None, sender: int | None) -> tuple[int, ...]:
        return tuple(
            number
            for number, client in self._clients.items()
            if (domain is None or not client.domains.isdisjoint((ALL_DOMAINS, domain)))
            and (client.own or number != sender)
        )

    def _get(self, client: int) -> _Client:
        if client not in self._clients:
            raise UsageError(f"client {client} is not registered")
        return self._clients[client]

    def _set(self, client: int, domains: Iterable[int], own: bool) -> None:
        chosen = frozenset(domains)
        for domain in chosen:
            if not 0 <= domain <= _LARGEST:
                raise UsageError(f"domain {domain} is not from 0 to {_LARGEST}")
        self._clients[client] = _Client(chosen, own)
        self._cache.clear()
