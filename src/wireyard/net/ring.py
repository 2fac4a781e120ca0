"""One ring as an application has it: a transport, its part of the messaging layer, inboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from wireyard.errors import UsageError
from wireyard.layers.rmp import (
    MESSAGING,
    Drop,
    Event,
    Foreign,
    Limits,
    MessageId,
    NotWritable,
    QoS,
    Want,
)
from wireyard.net.inbox import Client, Handler, Inbox, Inboxes, Message, Replies
from wireyard.net.process import Process
from wireyard.net.transport import RingFailed, Transport

__all__ = ["Ring"]

T = TypeVar("T")

_BURST_BYTES = 1 << 16
"""How much is sent before the event loop gets its turn."""
_MESSAGE_BYTES = 32
"""What a message counts for beside its data."""
_BATCH = 1000
"""Messages of `send_all` before the event loop gets its turn."""
_LINGER_S = 5.0
"""How long leaving waits for the ring to take what was sent."""


class Ring:
    """A ring, joined: ``async with Ring(Tcp()) as ring: await ring.send(b"hello")``.

    Parameters
    ----------
    transport
        What carries the packets: `Tcp`, `UdpMulticast`, `Corosync`, one of a `MemoryHub`.
    limits
        Bounds and delays, the same at all members.
    process
        The `Process` that this ring shares with others; one of its own, with `limits`, if None.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        limits: Limits | None = None,
        process: Process | None = None,
    ) -> None:
        if process is not None and limits is not None:
            raise UsageError("rings that share a process have its limits")
        self.name = transport.name
        self.process_id: str
        """The name that other members have for this process, once the ring is joined."""
        self._transport = transport
        self._process = process or Process(limits=limits)
        self._layer = self._process.layer
        self._lossy = not all(qos.reliable for qos in transport.qualities)
        self.inboxes = Inboxes(self._drained, self._lossy)
        self._tasks: list[asyncio.Task[None]] = []
        self._unsent: tuple[QoS, bytes] | None = None
        self._burst_bytes = 0
        self._paused = False
        self._leaving = False
        self._error: RingFailed | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.process_id = await self._transport.open(self)
        try:
            self._process.join(self, self._transport.max_packet_bytes, self.process_id)
            self._transport.resume()
            if self._transport.has_views:
                await self._until(lambda: self.members is not None)
        except BaseException:
            self._close()
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
            self._close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _close(self) -> None:
        self._process.leave(self)
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
            raise RingFailed(f"{self.name}: {left} within {_LINGER_S:g} seconds") from None

    @property
    def _waiting_bytes(self) -> int:
        held = 0 if self._unsent is None else len(self._unsent[1])
        return held + self._layer.waiting_bytes(self.name) + self._transport.waiting_bytes

    # --- members, layers, clients -----------------------------------------------------------

    @property
    def members(self) -> tuple[str, ...] | None:
        """The members of the ring, None if the transport does not know them."""
        return self._layer.members(self.name)

    @property
    def dropped(self) -> Mapping[Drop, int]:
        """How much was not delivered, by reason, on all rings of the process."""
        return self._layer.dropped

    def register_layer(
        self, layer: int, handler: Handler | None = None, *, in_pieces: bool = False
    ) -> None:
        """Have messages for a destination layer delivered too; see `Process.register_layer`."""
        self._process.register_layer(layer, handler, in_pieces=in_pieces)

    def register_foreign(self, typing: int, handler: Handler) -> None:
        """Have another protocol's messages handled; see `Process.register_foreign`."""
        self._process.register_foreign(typing, handler)

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
        self._layer.clients(self.name).register(number, domains, own)

    def client(self, number: int, domains: Iterable[int] = (0,), own: bool = True) -> Client:
        """Register a client, as `register` does, and return its messages to iterate over.

        Messages that are not read hold up the ring, where the ring loses nothing; elsewhere those
        that find too many before them are lost, and counted in `Client.overrun`.
        """
        self.register(number, domains, own)
        clients = self._layer.clients(self.name)
        return self.inboxes.client(number, partial(clients.unregister, number))

    def events(self) -> Inbox[Event]:
        """Return all that happens from now on, in order, except replies and handled messages.

        That is the messages for any client of this process, and views, what was aborted or
        malformed, what stalls.
        """
        return self.inboxes.events()

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
        await self._when_writable(
            self._layer.send, data, qos=self._promised(qos), layer=layer, client=client,
            domain=domain, reply_to=reply_to, urgent=urgent,
        )  # fmt: skip
        self._process.pump_soon()
        self._burst_bytes += len(data) + _MESSAGE_BYTES
        if self._burst_bytes > _BURST_BYTES:
            await asyncio.sleep(0)

    async def send_foreign(self, data: bytes, *, qos: QoS | None = None) -> None:
        """Send a message of another protocol, which begins with its typing word.

        Raises
        ------
        SendRefused, UsageError, RingFailed
            As of `send`.
        EncodeError
            It begins with no typing word of another protocol.
        """
        await self._when_writable(self._layer.send_foreign, data, qos=self._promised(qos))
        self._process.pump_soon()

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
                    self.name, batch, now=self._loop.time(), qos=chosen, layer=layer,
                    client=client, domain=domain,
                )  # fmt: skip
                del batch[:sent]
                if batch:
                    await self._room()
            self._process.pump()
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
        return self.inboxes.replies(ask)

    def flush(self) -> None:
        """Give the ring all that was sent; what it has no room for follows when it has."""
        self._layer.flush(self.name)
        self._process.pump()

    async def _ask(self, data: bytes, replies: Replies, **named: Any) -> Callable[[], None]:
        """Send a request, and return what cancels it."""
        id_ = await self._when_writable(self._layer.request, data, **named)
        self.inboxes.add_request(id_, replies)
        self._process.ask(id_, self)
        self._process.pump()
        return partial(self._cancel, id_)

    def _cancel(self, id_: int) -> None:
        self._layer.cancel(id_, self._loop.time())
        self._process.pump()

    async def _when_writable(self, send: Callable[..., T], data: bytes, **named: Any) -> T:
        """Call a method of the layer that sends, when there is room."""
        while True:
            try:
                return send(self.name, data, now=self._loop.time(), **named)
            except NotWritable:
                await self._room()

    def _promised(self, qos: QoS | None) -> QoS:
        if self._error is not None:
            raise self._error
        promised = self._transport.qualities
        if qos is None or qos in promised:
            return qos or promised[0]
        known = ", ".join(one.label for one in promised)
        raise UsageError(f"ring {self.name} is {known}; {qos.label} it cannot promise")

    async def _room(self) -> None:
        room_bytes = self._process.limits.max_outgoing_bytes // 2
        self.flush()
        await self._until(lambda: self._waiting_bytes <= room_bytes)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    # --- what the transport calls -----------------------------------------------------------

    def packet(self, source: str, qos: QoS, packet: bytes) -> None:
        """Deliver what is complete with a packet."""
        self._layer.receive(self.name, source, packet, qos=qos, now=self._loop.time())
        self._process.deliver()
        self._process.pump_soon()

    def view(self, members: Sequence[str]) -> None:
        """Deliver a view."""
        self._layer.view(self.name, members, now=self._loop.time())
        self._process.pump()

    def writable(self) -> None:
        """Send what there was no room for."""
        self._process.pump()

    def failed(self, error: RingFailed) -> None:
        """End everything that waits."""
        self._error = error
        self._end(error)

    # --- what the process calls -------------------------------------------------------------

    def send_packets(self) -> None:
        """Send what the transport has room for."""
        self._burst_bytes = 0
        while self._error is None:
            packet = self._unsent or self._layer.next_packet(self.name)
            self._unsent = packet
            if packet is None or not self._transport.send(*packet):
                break
            self._unsent = None
        self._changed.set()

    def handle(self, handler: Handler, message: Message) -> None:
        """Put a message into the inbox of its handler."""
        inbox, is_new = self.inboxes.handled(handler)
        if is_new:
            self._tasks.append(self._loop.create_task(self._handle_all(inbox, handler)))
        inbox.put(message)

    def hold_back(self) -> None:
        """Receive nothing more for now if an inbox is full."""
        if self._lossy or self._paused or self._leaving:
            return
        if self.inboxes.full:
            self._paused = True
            self._transport.pause()

    # --- inside -----------------------------------------------------------------------------

    async def _handle_all(self, inbox: Inbox[Message], handler: Handler) -> None:
        """Call a handler with one message after the other, and send its replies."""
        try:
            async for message in inbox:
                reply = await handler(message)
                if reply is None or isinstance(message, Foreign) or not message.reply_requested:
                    continue
                await self.send(
                    reply, qos=message.qos, layer=message.layer, reply_to=message.message_id
                )
        except RingFailed:
            pass  # it is known
        except Exception as error:
            failed = RingFailed(f"{self.name}: a handler failed: {error!r}")
            failed.__cause__ = error
            self.failed(failed)

    def _drained(self) -> None:
        if self._paused and (self._leaving or not self.inboxes.full):
            self._paused = False
            self._transport.resume()

    def _end(self, error: RingFailed | None) -> None:
        self.inboxes.end(error)
        self._changed.set()
