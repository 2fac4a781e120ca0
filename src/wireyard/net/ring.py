"""One ring as an application has it: a messaging layer, its transport, and the clock between."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from types import TracebackType
from typing import Any, Self

from wireyard.errors import UsageError
from wireyard.layers.rmp import (
    MESSAGING,
    Delivered,
    Drop,
    Event,
    Limits,
    MessageId,
    MessagingLayer,
    NotWritable,
    QoS,
    Want,
)
from wireyard.layers.rmp.events import Replied, RequestDone
from wireyard.layers.rmp.limits import NUMBERS
from wireyard.net.inbox import Client, Inbox, Replies
from wireyard.net.transport import RingFailed, Transport

__all__ = ["Ring"]

_BURST_BYTES = 1 << 16
"""How much is sent before the event loop gets its turn."""
_MESSAGE_BYTES = 32
"""What a message counts for beside its data."""
_BATCH = 1000
"""Messages of `send_all` before the event loop gets its turn."""
_LINGER_S = 5.0
"""How long leaving waits for the ring to take what was sent."""


class Ring:
    """A ring, joined: ``async with Ring(UdpMulticast()) as ring: await ring.send(b"hello")``.

    Parameters
    ----------
    transport
        What carries the packets: `UdpMulticast`, `Corosync`.
    limits
        Bounds and delays, the same at all members.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        limits: Limits | None = None,
    ) -> None:
        self._transport = transport
        self._limits = limits
        self._name = transport.name
        self._lossy = not all(qos.reliable for qos in transport.qualities)
        self._clients: dict[int, Client] = {}
        self._everything: list[Inbox[Event]] = []
        self._requests: dict[int, Replies] = {}
        self._unsent: tuple[QoS, bytes] | None = None
        self._burst_bytes = 0
        self._pump_due: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._leaving = False
        self._error: RingFailed | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        process_id = await self._transport.open(self)
        first = secrets.randbelow(NUMBERS)
        self._layer = MessagingLayer(process_id, first_number=first, limits=self._limits)
        self._layer.add_ring(self._name, self._transport.max_packet_bytes)
        self._transport.resume()
        try:
            if self._transport.tells_views:
                await self._until(lambda: self.members is not None)
        except BaseException:
            self._transport.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._error is None and error is None:
                await self._linger()
        finally:
            for handle in (self._pump_due, self._timer):
                if handle is not None:
                    handle.cancel()
            self._transport.close()
            self._end(None)

    async def _linger(self) -> None:
        """Wait until all that was sent is on its way, and nothing may have to be sent again."""
        self._leaving = True
        self._drained()
        self.flush()
        try:
            async with asyncio.timeout(_LINGER_S):
                await self._until(lambda: not self._waiting_bytes)
        except TimeoutError:
            left = f"{self._waiting_bytes} bytes were not taken"
            raise RingFailed(f"{self._name}: {left} within {_LINGER_S:g} seconds") from None

    @property
    def _waiting_bytes(self) -> int:
        held = 0 if self._unsent is None else len(self._unsent[1])
        return held + self._layer.waiting_bytes(self._name)

    # --- who is there -----------------------------------------------------------------------

    @property
    def process_id(self) -> str:
        """Who this member is to the others."""
        return self._layer.process_id(self._name)

    @property
    def members(self) -> tuple[str, ...] | None:
        """Who is in the ring, None if the transport does not tell."""
        return self._layer.members(self._name)

    @property
    def dropped(self) -> Mapping[Drop, int]:
        """How much was not delivered, by reason."""
        return self._layer.dropped

    def register_layer(self, layer: int) -> None:
        """Have messages for a destination layer delivered too."""
        self._layer.register_layer(layer)

    def register(self, number: int, domains: Iterable[int] = (0,), own: bool = True) -> None:
        """Register a client that `events` gives the messages of.

        Parameters
        ----------
        number
            Its number, from 1.
        domains
            The domains it is in; 0 is every one.
        own
            Whether it gets what it has sent itself.
        """
        self._layer.clients(self._name).register(number, domains, own)

    def client(self, number: int, domains: Iterable[int] = (0,), own: bool = True) -> Client:
        """Register a client, as `register` does, and return its messages to iterate over.

        Who does not read them holds up the ring, where the ring loses nothing; elsewhere messages
        that find too many before them are lost, and counted in `Client.overrun`.
        """
        self.register(number, domains, own)
        leave = partial(self._leave, number)
        made = self._clients[number] = Client(number, self._drained, self._lossy, leave)
        return made

    def events(self) -> Inbox[Event]:
        """Return all that happens from now on, in order, but for replies to requests.

        That is the messages for any client of this process, and views, what was aborted or
        malformed, what stalls.
        """
        made = Inbox[Event](self._drained, self._lossy)
        self._everything.append(made)
        return made

    # --- sending ----------------------------------------------------------------------------

    async def send(
        self,
        data: bytes,
        *,
        qos: QoS | None = None,
        layer: int = MESSAGING,
        client: int | None = None,
        domain: int | None = None,
        reply_to: MessageId | None = None,
        urgent: bool = False,
    ) -> None:
        """Send a message; wait while the ring is behind.

        The parameters are those of `MessagingLayer.send`. Small messages wait for others to share
        a packet, up to `Limits.max_delay_s`; `flush` and `urgent` end that.

        Raises
        ------
        SendRefused
            It is too big, or no message number is free.
        UsageError
            The transport does not promise that quality of service.
        RingFailed
            The ring is gone.
        """
        qos = self._promised(qos)
        while True:
            try:
                self._layer.send(
                    self._name, data, now=self._loop.time(), qos=qos, layer=layer, client=client,
                    domain=domain, reply_to=reply_to, urgent=urgent,
                )  # fmt: skip
            except NotWritable:
                await self._room()
            else:
                break
        if self._pump_due is None:
            self._pump_due = self._loop.call_soon(self._pump)
        self._burst_bytes += len(data) + _MESSAGE_BYTES
        if self._burst_bytes > _BURST_BYTES:
            await asyncio.sleep(0)

    async def send_all(
        self,
        messages: Iterable[bytes],
        *,
        qos: QoS | None = None,
        layer: int = MESSAGING,
        client: int | None = None,
        domain: int | None = None,
    ) -> None:
        """Send messages, as `send` one after the other, at less cost for each.

        Raises
        ------
        SendRefused, UsageError, RingFailed
            As of `send`. Those before it are sent.
        """
        chosen = self._promised(qos)
        rest = iter(messages)
        while batch := list(islice(rest, _BATCH)):
            while batch:
                sent = self._layer.send_all(
                    self._name, batch, now=self._loop.time(), qos=chosen, layer=layer,
                    client=client, domain=domain,
                )  # fmt: skip
                del batch[:sent]
                if batch:
                    await self._room()
            self._pump()
            await asyncio.sleep(0)
            self._promised(qos)

    def request(
        self,
        data: bytes,
        *,
        want: int | Want = 1,
        timeout_s: float = 1.0,
        stall_s: float | None = None,
        sentinel: Callable[[bytes], bool] | None = None,
        qos: QoS | None = None,
        layer: int = MESSAGING,
        client: int | None = None,
        domain: int | None = None,
    ) -> Replies:
        """Return the replies to a message, which is sent when they are first asked for.

        The parameters are those of `MessagingLayer.request`.
        """
        ask = partial(
            self._ask, data, want=want, timeout_s=timeout_s, stall_s=stall_s, sentinel=sentinel,
            qos=self._promised(qos), layer=layer, client=client, domain=domain,
        )  # fmt: skip
        return Replies(self._drained, self._lossy, ask)

    def flush(self) -> None:
        """Hand everything that was sent to the ring; what it has no room for goes when it has."""
        self._layer.flush(self._name)
        self._pump()

    async def _ask(self, data: bytes, replies: Replies, **named: Any) -> Callable[[], None]:
        """Send a request, and return what cancels it."""
        while True:
            now = self._loop.time()
            try:
                id_ = self._layer.request(self._name, data, now=now, **named)
            except NotWritable:
                await self._room()
            else:
                break
        self._requests[id_] = replies
        self._pump()
        return partial(self._cancel, id_)

    def _cancel(self, id_: int) -> None:
        self._layer.cancel(id_, self._loop.time())
        self._pump()

    def _promised(self, qos: QoS | None) -> QoS:
        if self._error is not None:
            raise self._error
        promised = self._transport.qualities
        if qos is None or qos in promised:
            return qos or promised[0]
        known = ", ".join(one.label for one in promised)
        raise UsageError(f"ring {self._name} is {known}; {qos.label} it cannot promise")

    async def _room(self) -> None:
        limits = self._limits or Limits()
        self.flush()
        await self._until(lambda: self._waiting_bytes <= limits.max_outgoing_bytes // 2)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    # --- what the transport tells -----------------------------------------------------------

    def packet(self, source: str, qos: QoS, packet: bytes) -> None:
        """Take a packet."""
        self._layer.receive(self._name, source, packet, qos=qos, now=self._loop.time())
        self._hand_out()
        if self._pump_due is None:
            self._pump_due = self._loop.call_soon(self._pump)

    def view(self, members: Sequence[str]) -> None:
        """Take a view."""
        self._layer.view(self._name, members, now=self._loop.time())
        self._pump()

    def writable(self) -> None:
        """Send what there was no room for."""
        self._pump()

    def failed(self, error: RingFailed) -> None:
        """End everything that waits."""
        self._error = error
        self._end(error)

    # --- inside -----------------------------------------------------------------------------

    def _pump(self) -> None:
        """Do what is due, hand packets to the ring and events to who waits, and set the clock."""
        if self._pump_due is not None:
            self._pump_due.cancel()
            self._pump_due = None
        self._burst_bytes = 0
        self._layer.handle_timer(self._loop.time())
        while self._error is None:
            packet = self._unsent or self._layer.next_packet(self._name)
            self._unsent = packet
            if packet is None or not self._transport.send(*packet):
                break
            self._unsent = None
        self._hand_out()
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._layer.get_timer()
        if due is not None:
            self._timer = self._loop.call_at(due, self._pump)

    def _hand_out(self) -> None:
        """Put what the layer has told into the inboxes, and take no more if one is full."""
        next_event = self._layer.next_event
        while (event := next_event()) is not None:
            if type(event) is Delivered:
                for number in event.destinations:
                    if number in self._clients:
                        self._clients[number].put(event)
            elif type(event) is Replied:
                self._requests[event.request].put(event.reply)
                continue
            elif type(event) is RequestDone:
                self._requests.pop(event.request).done(event.reason)
                continue
            for inbox in self._everything:
                inbox.put(event)
        if self._lossy or self._paused or self._leaving:
            return
        if any(inbox.full for inbox in self._inboxes()):
            self._paused = True
            self._transport.pause()

    def _inboxes(self) -> Iterator[Inbox[Any]]:
        return chain(self._clients.values(), self._everything, self._requests.values())

    def _drained(self) -> None:
        full = any(inbox.full for inbox in self._inboxes())
        if self._paused and (self._leaving or not full):
            self._paused = False
            self._transport.resume()

    def _leave(self, number: int) -> None:
        self._layer.clients(self._name).unregister(number)
        del self._clients[number]
        self._drained()

    def _end(self, error: RingFailed | None) -> None:
        for inbox in self._inboxes():
            inbox.end(error)
        self._changed.set()
