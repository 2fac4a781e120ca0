"""Packets over TCP in a total order, with views: a ring that needs no other software.

A ring is a list of addresses. Each member listens on the first free address of its machine, which
is its process id, and has a connection to every other member. The protocol is in
`layers.sequencer`; here are its sockets and its clock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import socket
from collections.abc import Callable, Sequence

from wireyard.layers.rmp import QoS
from wireyard_ring.sequencer import (
    Answer,
    Command,
    Dial,
    Drop,
    Failed,
    HangUp,
    NewView,
    Packet,
    Phase,
    RingMember,
    Settings,
    Write,
    read_addresses,
)
from wireyard_ring.transport import Receiver, RingFailed

__all__ = ["ADDRESSES", "Tcp"]

ADDRESSES = "127.0.0.1:7077-7092"
"""Addresses for sixteen processes of this machine."""
_BACKLOG = 128
_log = logging.getLogger("wireyard.ring")


class Tcp:
    """A ring of the processes that share a list of addresses.

    Parameters
    ----------
    addresses
        The list, the same at all members: parts ``ADDRESS:PORT`` or ``ADDRESS:PORT-PORT``,
        separated by commas.
    settings
        Bounds and delays, the same at all members.
    """

    qualities: Sequence[QoS] = (QoS.TOTALLY_ORDERED,)
    has_views = True

    def __init__(self, addresses: str = ADDRESSES, *, settings: Settings | None = None) -> None:
        self._addresses = read_addresses(addresses)
        self._settings = settings or Settings()
        self.name = f"tcp:{addresses}"
        self.max_packet_bytes = self._settings.max_packet_bytes
        self._server: asyncio.Server | None = None
        self._calls: dict[int, _Call] = {}
        self._accepted: dict[int, asyncio.Transport] = {}
        self._connections = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due: asyncio.Handle | None = None
        self._paused = True
        self._closed = False
        self._full = False
        self._had_waiting = False

    async def open(self, receiver: Receiver) -> str:
        """Join: listen, and wait for a view with this process."""
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._joined: asyncio.Future[None] = self._loop.create_future()
        listener, place = self._listen()
        self.member = RingMember(
            self._addresses, place, secrets.randbits(64), self._loop.time(), self._settings
        )
        try:
            self._server = await self._loop.create_server(
                lambda: _Accepted(self), sock=listener, backlog=_BACKLOG
            )
            self.act()
            await self._joined
        except BaseException:
            self.close()
            raise
        return self.member.process_id

    def _listen(self) -> tuple[socket.socket, int]:
        """Listen on the first free address of this machine; return the socket and its place."""
        reasons = []
        for place, address in enumerate(self._addresses):
            host, _, port = address.rpartition(":")
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, int(port)))
                listener.listen(_BACKLOG)
            except OSError as error:
                listener.close()
                reasons.append(error)
                if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                    break
            else:
                return listener, place
        others = [error for error in reasons if error.errno != errno.EADDRINUSE]
        if not others:
            raise RingFailed(f"{self.name}: all {len(reasons)} addresses are taken; list more")
        raise RingFailed(f"{self.name}: no address to listen on ({others[0].strerror})")

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were accepted and are not delivered yet."""
        return self.member.waiting_bytes

    def send(self, qos: QoS, packet: bytes) -> bool:
        """Send a packet; return whether the window has room for more."""
        self._full = not self.member.send(packet, self._loop.time())
        self._had_waiting = True
        self._act_soon()
        return not self._full

    def pause(self) -> None:
        """Stop receiving; the others wait, up to `Settings.give_up_s`."""
        self._paused = True
        self.member.pause()

    def resume(self) -> None:
        """Receive packets again."""
        self._paused = False
        self.member.resume(self._loop.time())
        self._act_soon()

    def close(self) -> None:
        """Leave the ring."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for handle in (self._timer, self._due):
            if handle is not None:
                handle.cancel()
        self.member.leave()
        while (command := self.member.next_command()) is not None:
            self._execute(command)

    # --- commands and events of the member --------------------------------------------------

    def act(self) -> None:
        """Execute the commands of the member, pass on its events, and set its timer."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        while (command := self.member.next_command()) is not None:
            self._execute(command)
        self._pass_events()
        due = self.member.get_timer()
        if due is not None and (self._timer is None or self._timer.when() != due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self.member.handle_timer(self._loop.time())
        self.act()

    def _pass_events(self) -> None:
        """Pass events on to the receiver, and report room; nothing happens before it resumes."""
        if not self._joined.done() and self.member.phase is Phase.MEMBER:
            self._joined.set_result(None)
        # The windows bound the number of events. A failure comes after all earlier events.
        while not self._closed and (self.member.gone or not self._paused):
            event = self.member.next_event()
            if event is None:
                break
            if isinstance(event, Packet):
                self._receiver.packet(event.source, QoS.TOTALLY_ORDERED, event.data)
            elif isinstance(event, NewView):
                self._receiver.view(event.members)
            else:
                self._fail(event)
        has_waiting = bool(self.member.waiting_bytes)
        if (self._full and self.member.writable) or (self._had_waiting and not has_waiting):
            self._full = False
            self._receiver.writable()
        self._had_waiting = has_waiting

    def _fail(self, event: Failed) -> None:
        error = RingFailed(f"{self.name}: {event.reason}")
        if self._joined.done():
            self._receiver.failed(error)
        else:
            self._joined.set_exception(error)
        self.close()

    def _act_soon(self) -> None:
        if self._due is None:
            self._due = self._loop.call_soon(self.act)

    def _execute(self, command: Command) -> None:
        if isinstance(command, Write):
            self._calls[command.place].write(command.data)
        elif isinstance(command, Dial):
            self._hang_up(command.place)
            self._calls[command.place] = _Call(
                self, command.place, self._addresses[command.place], self._settings.patience_s
            )
        elif isinstance(command, Drop):
            self._hang_up(command.place)
        elif isinstance(command, Answer):
            if (transport := self._accepted.get(command.connection)) is not None:
                transport.write(command.data)
        elif isinstance(command, HangUp):
            self._close_accepted(command.connection, command.reason)

    def _close_accepted(self, connection: int, reason: str | None) -> None:
        transport = self._accepted.pop(connection, None)
        if transport is None:
            return
        if reason is not None:
            host, port = transport.get_extra_info("peername", ("?", 0))
            _log.warning("%s: connection from %s:%d closed: %s", self.name, host, port, reason)
        transport.abort()

    def accept(self, transport: asyncio.Transport) -> int:
        """Add an accepted connection and return its number."""
        self._connections += 1
        self._accepted[self._connections] = transport
        self.member.accepted(self._connections, self._loop.time())
        self.act()
        return self._connections

    def hung_up(self, number: int) -> None:
        """Handle that the other side has closed an accepted connection."""
        if self._accepted.pop(number, None) is not None:
            self.member.closed(number, self._loop.time())
            self.act()

    def _hang_up(self, place: int) -> None:
        call = self._calls.pop(place, None)
        if call is not None:
            call.close()


class _Call(asyncio.Protocol):
    """A connection that this process opens."""

    def __init__(self, ring: Tcp, place: int, address: str, patience_s: float) -> None:
        self._ring = ring
        self._place = place
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_task(self._open(address, patience_s))

    async def _open(self, address: str, patience_s: float) -> None:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(patience_s):
                await self._loop.create_connection(lambda: self, host, int(port))
        except ConnectionRefusedError:
            self._ended(self._ring.member.refused)
        except OSError:  # a TimeoutError is one as well
            self._ended(self._ring.member.lost)

    def _ended(self, report: Callable[[int, float], None]) -> None:
        if not self._closed:
            self._closed = True
            report(self._place, self._loop.time())
            self._ring.act()

    def write(self, data: bytes) -> None:
        """Send bytes; on a lost connection they are dropped."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection without a report to the member."""
        self._closed = True
        self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection to the member."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._closed:
            transport.abort()
        else:
            self._ring.member.connected(self._place, self._loop.time())
            self._ring.act()

    def data_received(self, data: bytes) -> None:
        """Report an answer to the member."""
        if not self._closed:
            self._ring.member.answered(self._place, data, self._loop.time())
            self._ring.act()

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection to the member."""
        self._ended(self._ring.member.lost)


class _Accepted(asyncio.Protocol):
    """A connection that another process opened."""

    def __init__(self, ring: Tcp) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection to the member."""
        assert isinstance(transport, asyncio.Transport)
        self._number = self._ring.accept(transport)

    def data_received(self, data: bytes) -> None:
        """Report bytes to the member."""
        self._ring.member.receive(self._number, data, self._loop.time())
        self._ring.act()

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection to the member."""
        self._ring.hung_up(self._number)
