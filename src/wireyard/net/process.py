"""The messaging layer of a process between its rings: one clock, one counter of message numbers."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import Protocol

from wireyard.errors import UsageError
from wireyard.layers.rmp import Limits, MessagingLayer
from wireyard.layers.rmp.events import Replied, RequestDone
from wireyard.layers.rmp.limits import NUMBERS
from wireyard.net.inbox import Handler, Inboxes, Message

__all__ = ["Process"]


class Joined(Protocol):
    """A ring of the process, as `Process` needs it."""

    @property
    def name(self) -> str:
        """The ring's name."""

    @property
    def inboxes(self) -> Inboxes:
        """Where its events are put."""

    def send_packets(self) -> None:
        """Send what the transport has room for."""

    def handle(self, handler: Handler, message: Message) -> None:
        """Put a message into the inbox of its handler."""

    def hold_back(self) -> None:
        """Receive nothing more for now if an inbox is full."""


class Process:
    """What the rings of one process share.

    A `Ring` has one of its own unless it is given one: ``Ring(transport, process=process)``. The
    process is known to each ring by the name that the ring's transport has for it; replies name
    that, and a message number which is that of no other message on any of its rings (errata R34).

    Parameters
    ----------
    limits
        Bounds and delays, the same at all members.
    """

    def __init__(self, *, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.layer = MessagingLayer(first_number=secrets.randbelow(NUMBERS), limits=self.limits)
        self._rings: dict[str, Joined] = {}
        self._requests: dict[int, Joined] = {}
        self._pump_due: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def register_layer(
        self, layer: int, handler: Handler | None = None, *, in_pieces: bool = False
    ) -> None:
        """Have messages for a destination layer delivered, on all rings of the process.

        Parameters
        ----------
        handler
            Is called with each message of the layer, own ones too; clients get none of them. The
            bytes it returns are the reply to a message that asks for one, for the same layer.
        in_pieces
            Whether the handler gets messages of several packets as they arrive, see
            `MessagingLayer.register_layer`.

        Raises
        ------
        UsageError
            No typing word has room for it, it has a handler, or pieces have none.
        """
        if in_pieces and handler is None:
            raise UsageError(f"layer {layer} needs a handler: clients get whole messages")
        put = None if handler is None else partial(self._handle, handler)
        self.layer.register_layer(layer, put, in_pieces=in_pieces)

    def register_foreign(self, typing: int, handler: Handler) -> None:
        """Have a handler called with the messages that begin with another protocol's typing word.

        Raises
        ------
        UsageError
            The word is of this protocol, from 0 to 4095, or has a handler.
        """
        self.layer.register_foreign(typing, partial(self._handle, handler))

    # --- what rings call --------------------------------------------------------------------

    def join(self, ring: Joined, max_packet_bytes: int, process_id: str) -> None:
        """Add a ring."""
        self.layer.add_ring(ring.name, max_packet_bytes, process_id)
        self._rings[ring.name] = ring

    def leave(self, ring: Joined) -> None:
        """Remove a ring, and all that waits for it."""
        if self._rings.get(ring.name) is not ring:
            return
        del self._rings[ring.name]
        self.layer.remove_ring(ring.name, now=asyncio.get_running_loop().time())
        self.pump()

    def ask(self, request: int, ring: Joined) -> None:
        """Have the replies to a request put into a ring."""
        self._requests[request] = ring

    def pump_soon(self) -> None:
        """Call `pump` in the next turn of the event loop."""
        if self._pump_due is None:
            self._pump_due = asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Do what is due, send packets, put events into inboxes, and set the clock."""
        loop = asyncio.get_running_loop()
        if self._pump_due is not None:
            self._pump_due.cancel()
            self._pump_due = None
        self.layer.handle_timer(loop.time())
        for ring in list(self._rings.values()):
            ring.send_packets()
        self.deliver()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.layer.get_timer()
        if due is not None:
            self._timer = loop.call_at(due, self.pump)

    def deliver(self) -> None:
        """Put the events of the layer into the inboxes of the rings where they happened."""
        next_event = self.layer.next_event
        while (event := next_event()) is not None:
            if isinstance(event, Replied):
                self._requests[event.request].inboxes.put(event)
            elif isinstance(event, RequestDone):
                self._requests.pop(event.request).inboxes.put(event)
            elif event.ring in self._rings:
                self._rings[event.ring].inboxes.put(event)
        for ring in self._rings.values():
            ring.hold_back()

    def _handle(self, handler: Handler, message: Message) -> None:
        ring = self._rings.get(message.ring)
        if ring is not None:
            ring.handle(handler, message)
