"""The state of one token ring in the layer: members, clients, incoming and outgoing messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from wireyard.errors import UsageError
from wireyard.layers.rmp.clients import Clients
from wireyard.layers.rmp.events import Piece
from wireyard.layers.rmp.limits import Drops, Limits
from wireyard.layers.rmp.numbers import Numbers
from wireyard.layers.rmp.outgoing import Outgoing
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import Order
from wireyard.layers.rmp.reassembly import Reassembly

_MIN_PACKET_BYTES = 64
"""The smallest limit on packets of a ring: a third of that may be header fields already."""
_MAX_SOURCES = 1024
"""The most sources of source-ordered messages whose empty reassemblies are kept."""


class Ring:
    """One ring of a process.

    Parameters
    ----------
    name
        Its name in this process.
    process_id
        The id of this process on the ring.
    wants_pieces
        Returns whether a message with these fields is delivered in pieces.
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
        if max_packet_bytes < _MIN_PACKET_BYTES:
            raise UsageError(f"packets of {max_packet_bytes} bytes, {_MIN_PACKET_BYTES} at least")
        self.name = name
        self.process_id = process_id
        self.max_packet_bytes = max_packet_bytes
        self.clients = Clients()
        self.members: tuple[str, ...] | None = None
        """None before the first view, and on a ring without views."""
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
        """All reassemblies of the ring."""
        return chain(self._shared.values(), self._of_source.values())

    def reassembly(self, order: Order, source: str) -> Reassembly:
        """Return the reassembly for packets of a source.

        With `Order.SOURCE` each source has its own: packets of others must not affect it, because
        members see them at different points (errata R30).
        """
        if order is not Order.SOURCE:
            return self._shared[order]
        reassembly = self._of_source.get(source)
        if reassembly is None:
            if len(self._of_source) >= _MAX_SOURCES:
                busy = {name: other for name, other in self._of_source.items() if not other.idle}
                self._of_source = busy
            reassembly = self._of_source[source] = self._new(order)
        return reassembly

    def destinations(
        self, source: str, domain: int | None, client: int | None
    ) -> tuple[int, ...] | None:
        """Return the clients here that a message of `source` is for; None if none is registered."""
        sender = client if source == self.process_id else None
        return self.clients.destinations(domain, sender)

    def members_reached(self, domain: int | None, client: int | None) -> frozenset[str] | None:
        """Return the members that a message of this process reaches, None if they are not known.

        This process is one of them if another of its clients receives the message.
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
