"""One token ring as the layer keeps it: members, clients, what arrives, what waits to be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from wireyard.errors import UsageError
from wireyard.layers.rmp.clients import Clients
from wireyard.layers.rmp.counters import Drops
from wireyard.layers.rmp.events import Piece
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.rmp.numbers import Numbers
from wireyard.layers.rmp.outgoing import Outgoing
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import Order
from wireyard.layers.rmp.reassembly import Reassembly

__all__ = ["Ring"]

_LEAST_PACKET_BYTES = 64
"""Shortest packets of a ring: a third of that may be heads already."""
_SOURCES = 1024
"""Sources of source ordered messages kept though nothing of theirs is unfinished."""


class Ring:
    """One ring of a process.

    Parameters
    ----------
    name
        Its name in this process.
    process_id
        The name of this process on the ring.
    wants_pieces
        Whether a message with these fields is delivered in pieces.
    """

    def __init__(
        self,
        name: str,
        process_id: str,
        max_packet_bytes: int,
        limits: Limits,
        numbers: Numbers,
        drops: Drops,
        wants_pieces: Callable[[Fields], bool],
    ) -> None:
        if max_packet_bytes < _LEAST_PACKET_BYTES:
            raise UsageError(f"packets of {max_packet_bytes} bytes, {_LEAST_PACKET_BYTES} at least")
        self.name = name
        self.process_id = process_id
        self.max_packet_bytes = max_packet_bytes
        self.clients = Clients()
        self.members: tuple[str, ...] | None = None
        """None until the first view, so on a ring without views."""
        self.outgoing = Outgoing(max_packet_bytes, numbers)
        self.first_pieces: dict[tuple[Order, str, int], Piece | None] = {}
        """The first piece of each message that is delivered in pieces, by its order, source and
        number; None where the message is for no client here."""
        self._limits = limits
        self._drops = drops
        self._wants_pieces = wants_pieces
        self._shared = {order: self._new(order) for order in (Order.NONE, Order.TOTAL)}
        self._of_source: dict[str, Reassembly] = {}

    @property
    def reassemblies(self) -> Iterable[Reassembly]:
        """All messages that are being put together."""
        return chain(self._shared.values(), self._of_source.values())

    def reassembly(self, order: Order, source: str) -> Reassembly:
        """Return the messages that those of a source wait for.

        Where the order is that of the source, the packets of others decide nothing for it, for
        members see them at other places (errata R30).
        """
        if order is not Order.SOURCE:
            return self._shared[order]
        found = self._of_source.get(source)
        if found is None:
            if len(self._of_source) >= _SOURCES:
                kept = {name: one for name, one in self._of_source.items() if not one.idle}
                self._of_source = kept
            found = self._of_source[source] = self._new(order)
        return found

    def destinations(
        self, source: str, domain: int | None, client: int | None
    ) -> tuple[int, ...] | None:
        """Return the clients here that a message of `source` is for, None if there are none."""
        sender = client if source == self.process_id else None
        return self.clients.destinations(domain, sender)

    def members_reached(self, domain: int | None, client: int | None) -> frozenset[str] | None:
        """Return the members that a message of this process reaches, None if they are not known.

        This process is one of them if another of its clients gets the message.
        """
        if self.members is None:
            return None
        here = self.clients.destinations(domain, None) or ()
        others = set(self.members) - {self.process_id}
        return frozenset(others | {self.process_id} if set(here) - {client} else others)

    def _new(self, order: Order) -> Reassembly:
        return Reassembly(
            order, self.name, self.max_packet_bytes, self._limits, self._drops, self._wants_pieces
        )
