"""The interface of a ring for applications: a transport, the messaging layer, inboxes."""

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
from wireyard_ring.inbox import Client, Handler, Inbox, Inboxes, Message, Replies
from wireyard_ring.process import Process
from wireyard_ring.transport import RingFailed, Transport

__all__ = ["Ring"]

T = TypeVar("T")

_BURST_BYTES = 1 << 16
"""The bytes that are sent before other callbacks of the event loop run."""
_MESSAGE_BYTES = 32
"""The bytes that a message counts towards a burst besides its data."""
_BATCH = 1000
"""The messages of `send_all` before other callbacks of the event loop run."""
_LINGER_S = 5.0
"""The time that leaving waits for the ring to accept all packets."""


class Ring:
    """A member of a ring: ``async with Ring(Tcp()) as ring: await ring.send(b"hello")``.

    Parameters
    ----------
    transport
        The carrier of packets: `Tcp`, `UdpMulticast`, `Corosync`, or one of a `MemoryHub`.
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
        """The id of this process on the ring, once the ring is joined."""
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
        """Wait until the ring has accepted all packets and none may have to be sent again."""
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
        """Counts of dropped packets and messages by reason, on all rings of the process."""
        return self._layer.dropped

    def register_layer(
        self, layer: int, handler: Handler | None = None, *, in_pieces: bool = False
    ) -> None:
        """Register a destination layer; see `Process.register_layer`."""
        self._process.register_layer(layer, handler, in_pieces=in_pieces)

    def register_foreign(self, typing: int, handler: Handler) -> None:
        """Register a handler of another protocol's messages; see `Process.register_foreign`."""
        self._process.register_foreign(typing, handler)

    def register(self, number: int, domains: Iterable[int] = (0,), own: bool = True) -> None:
        """Register a client, whose messages are among `events`.

        Parameters
        ----------
        number
            Its number, from 1.
        domains
            The domains it is in; 0 is every one.
        own
            Whether it receives its own messages.
        """
        self._layer.clients(self.name).register(number, domains, own)

    def client(self, number: int, domains: Iterable[int] = (0,), own: bool = True) -> Client:
        """Register a client like `register`, and return its messages to iterate over.

        On a ring that loses no messages, unread messages hold up the ring. On other rings messages
        are lost when too many are unread, and counted in `Client.overrun`.
        """
        self.register(number, domains, own)
        clients = self._layer.clients(self.name)
        return self.inboxes.client(number, partial(clients.unregister, number))

    def events(self) -> Inbox[Event]:
        """Return all events from now on, in order, except replies and messages with a handler.

        These are the messages for any client of this process, views, aborted messages, malformed
        packets, and stalls.
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
        """Send a message; wait while there is no room for it.

        The parameters are those of `MessagingLayer.send`. Small messages wait for others to share
        a packet, up to `Limits.max_delay_s`; `flush` and `urgent` send them at once.

        Raises
        ------
        SendRefused
            It is too big, or no message number is free.
        UsageError
            The transport does not provide that quality of service.
        RingFailed
            The ring is gone.
        """
        await self._when_writable(
            self._layer.send, data, qos=self._checked_qos(qos), layer=layer, client=client,
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
            As in `send`.
        EncodeError
            It does not begin with a typing word of another protocol.
        """
        await self._when_writable(self._layer.send_foreign, data, qos=self._checked_qos(qos))
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
        """Send messages like `send` for one after the other, at less cost for each.

        Raises
        ------
        SendRefused, UsageError, RingFailed
            As in `send`. The messages before are sent.
        """
        chosen = self._checked_qos(qos)
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
            self._checked_qos(qos)

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
        """Return the replies to a message, which is sent when the iteration begins.

        The parameters are those of `MessagingLayer.request`.

        Raises
        ------
        UsageError
            The layer is not registered, or the transport does not provide that quality of service.
        """
        self._layer.check_layer(layer)
        ask = partial(
            self._ask, data, want=want, timeout_s=timeout_s, stall_s=stall_s, sentinel=sentinel,
            qos=self._checked_qos(qos), layer=layer, client=client, domain=domain,
        )  # fmt: skip
        return self.inboxes.replies(ask)

    def flush(self) -> None:
        """Pass all messages to the ring, as soon as it has room for them."""
        self._layer.flush(self.name)
        self._process.pump()

    async def _ask(self, data: bytes, replies: Replies, **named: Any) -> Callable[[], None]:
        """Send a request, and return a function that cancels it."""
        id_ = await self._when_writable(self._layer.request, data, **named)
        self.inboxes.add_request(id_, replies)
        self._process.ask(id_, self)
        self._process.pump()
        return partial(self._cancel, id_)

    def _cancel(self, id_: int) -> None:
        self._layer.cancel(id_, self._loop.time())
        self._process.pump()

    async def _when_writable(self, send: Callable[..., T], data: bytes, **named: Any) -> T:
        """Call a sending method of the layer, as soon as there is room."""
        while True:
            try:
                return send(self.name, data, now=self._loop.time(), **named)
            except NotWritable:
                await self._room()

    def _checked_qos(self, qos: QoS | None) -> QoS:
        if self._error is not None:
            raise self._error
        provided = self._transport.qualities
        if qos is None or qos in provided:
            return qos or provided[0]
        labels = ", ".join(quality.label for quality in provided)
        raise UsageError(f"ring {self.name} is {labels}; {qos.label} it cannot promise")

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

    # --- called by the transport ------------------------------------------------------------

    def packet(self, source: str, qos: QoS, packet: bytes) -> None:
        """Add a packet, and deliver the messages that are complete with it."""
        self._layer.receive(self.name, source, packet, qos=qos, now=self._loop.time())
        self._process.deliver()
        self._process.pump_soon()

    def view(self, members: Sequence[str]) -> None:
        """Deliver a view."""
        self._layer.view(self.name, members, now=self._loop.time())
        self._process.pump()

    def writable(self) -> None:
        """Send the packets that the transport had no room for."""
        self._process.pump()

    def failed(self, error: RingFailed) -> None:
        """End all iterations and calls that wait, with an error."""
        self._error = error
        self._end(error)

    # --- called by the process --------------------------------------------------------------

    def send_packets(self) -> None:
        """Send as many packets as the transport has room for."""
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
        """Stop receiving if an inbox is full."""
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
            pass  # `failed` has ended everything already
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
