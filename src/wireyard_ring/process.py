"""The messaging layer that the rings of a process share, with one timer and one set of numbers."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import Protocol

from wireyard.errors import UsageError
from wireyard.layers.rmp import Limits, MessagingLayer
from wireyard.layers.rmp.events import Replied, RequestDone
from wireyard.layers.rmp.limits import NUMBERS
from wireyard_ring.inbox import Handler, Inboxes, Message

__all__ = ["Process"]


class Joined(Protocol):
    """The interface of a ring that `Process` uses."""

    @property
    def name(self) -> str:
        """The name of the ring."""

    @property
    def inboxes(self) -> Inboxes:
        """The inboxes for its events."""

    def send_packets(self) -> None:
        """Send as many packets as the transport has room for."""

    def handle(self, handler: Handler, message: Message) -> None:
        """Put a message into the inbox of its handler."""

    def hold_back(self) -> None:
        """Stop receiving if an inbox is full."""


class Process:
    """The messaging layer and the timer of one process, shared by its rings.

    A `Ring` has its own unless one is passed to it: ``Ring(transport, process=process)``. On each
    ring the process has the id that the ring's transport assigns. Replies name a message by that id
    and a message number, which is unique across all rings of the process (errata R34).

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
        """Register a destination layer on all rings of the process, so its messages are delivered.

        Parameters
        ----------
        handler
            Called with each message of the layer, own ones too, instead of delivering it to
            clients. The bytes that it returns are the reply to a message that requests one, for the
            same layer.
        in_pieces
            Whether the handler receives messages of several packets as they arrive, see
            `MessagingLayer.register_layer`.

        Raises
        ------
        UsageError
            The layer is out of range, has a handler already, or needs one for pieces.
        """
        if in_pieces and handler is None:
            raise UsageError(f"layer {layer} needs a handler: clients get whole messages")
        put = None if handler is None else partial(self._handle, handler)
        self.layer.register_layer(layer, put, in_pieces=in_pieces)

    def register_foreign(self, typing: int, handler: Handler) -> None:
        """Register a handler of the messages that begin with another protocol's typing word.

        Raises
        ------
        UsageError
            The word belongs to this protocol, from 0 to 4095, or has a handler already.
        """
        self.layer.register_foreign(typing, partial(self._handle, handler))

    # --- called by rings --------------------------------------------------------------------

    def join(self, ring: Joined, max_packet_bytes: int, process_id: str) -> None:
        """Add a ring."""
        self.layer.add_ring(ring.name, max_packet_bytes, process_id)
        self._rings[ring.name] = ring

    def leave(self, ring: Joined) -> None:
        """Remove a ring, and the packets that wait for it."""
        if self._rings.get(ring.name) is not ring:
            return
        del self._rings[ring.name]
        self.layer.remove_ring(ring.name, now=asyncio.get_running_loop().time())
        self.pump()

    def ask(self, request: int, ring: Joined) -> None:
        """Set the ring whose inboxes receive the replies to a request."""
        self._requests[request] = ring

    def pump_soon(self) -> None:
        """Call `pump` in the next iteration of the event loop."""
        if self._pump_due is None:
            self._pump_due = asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Handle due timers, send packets, put events into inboxes, and set the timer."""
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
        """Put the events of the layer into the inboxes of their rings."""
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
