"""Plays what clients of a recording did to a broker.

Rules of this file:

1. A client takes a step at its time, and not before the broker has sent it what the recording shows
   before. What has not come `_PATIENCE_S` after all that the recording shows before it, of any
   client, and after the time that it took there, is not waited for any more. Each time that
   happens, this connection waits half as long from then on, for the broker may lose many messages.
2. It also waits for what other clients did and were sent before, so that a cause comes before its
   effect: until none of that has been done for `_SLACK_S`, but at the highest speed, where nothing
   else keeps the order, as long as they themselves do.
3. A client that ends its connection lets the broker end it too, for `_SLACK_S` at most: what comes
   next in the recording came after that.
4. An acknowledgement is sent once the message has come, also if that is late, under the packet
   identifier that it has.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from wireyard.broker.foreground import raise_file_limit
from wireyard.broker.recording import record_into
from wireyard.client.address import Address, why_unreachable
from wireyard.client.jmq import ask_port_mapper
from wireyard.errors import SourceError
from wireyard.formats import get_format
from wireyard.replay.brokers import Listeners, listener
from wireyard.replay.mqtt import MqttTalks
from wireyard.replay.script import Came, End, Key, Login, Pause, Recorded, Script, Send, Step, Talk
from wireyard.streams.decoder import Decoder
from wireyard.tap.proxy import Tap
from wireyard.tap.relay import reset
from wireyard.text import bytes_text

_PATIENCE_S: Final = 1.0
_LEAST_PATIENCE_S: Final = 0.02
_SLACK_S: Final = 0.2
_SECONDS_TO_CONNECT: Final = 10.0
_AT_ONCE: Final = 16
"""Scripts that are played at the same time."""
_MOST_SURPLUS_BYTES: Final = 64 << 20
"""Most bytes of packets that the broker sends beyond those that are recorded."""


@dataclass(slots=True)
class Played:
    """What became of a replay."""

    sent: int = 0
    unsent: Counter[str] = field(default_factory=Counter)
    """Packets that could not be sent, by client."""
    silent: set[str] = field(default_factory=set)
    """Clients that the broker sent nothing on a connection, though the recorded one did."""
    late_s: list[float] = field(default_factory=list)
    """How late each packet was sent; empty at the highest speed."""
    came: dict[Key, Any] = field(default_factory=dict)
    """The packets that the broker sent, of each connection in order."""
    ended: set[Recorded] = field(default_factory=set)
    """The connections that the broker ended."""


def run(
    scripts: Sequence[Script],
    listeners: Listeners,
    say: Callable[[str], None],
    *,
    speed: float | None = 1.0,
    logins: Mapping[str, Login] | None = None,
    record: str | None = None,
    patience_s: float = _PATIENCE_S,
) -> list[Played]:
    """Play scripts to a broker.

    Parameters
    ----------
    listeners
        The addresses of the broker.
    scripts
        Each is played by itself, some at the same time.
    say
        Is called with a line for each connection that the broker refuses.
    speed
        Factor of the recorded speed; None for as fast as the broker answers.
    logins
        By client id or user name.
    record
        Folder in which what passes is written as a capture.
    patience_s
        How long what has to come is waited for at first.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    raise_file_limit()
    player = partial(
        _Player, say=say, speed=speed, logins=logins or {}, patience_s=patience_s, room=_Room()
    )
    return asyncio.run(_run(scripts, listeners, say, record, player))


async def _run(
    scripts: Sequence[Script],
    listeners: Listeners,
    say: Callable[[str], None],
    record: str | None,
    make: Callable[[Listeners], _Player],
) -> list[Played]:
    recording, taps = None, {}
    if record is not None:
        recording = record_into(Path(record), "replay", time.time_ns, say)
        for port, address in listeners.items():
            taps[port] = Tap(
                ("127.0.0.1", 0), (address.host, address.port), say, upstream_tls=address.tls,
                record=lambda later: recording,
            )  # fmt: skip
            await taps[port].start()
        listeners = {port: Address(*tap.address) for port, tap in taps.items()}
    places = asyncio.Semaphore(_AT_ONCE)

    async def play(script: Script) -> _Player:
        async with places:
            player = make(listeners)
            await player.play(script)
            return player

    players = await asyncio.gather(*map(play, scripts))
    if recording is not None:
        recording.close()  # before the ends of connections that the recording shows no end of
    for player in players:
        player.close()
    for tap in taps.values():
        await tap.stop()
    return [player.played for player in players]


@dataclass(slots=True)
class _Room:
    """The bytes that all scripts of a run may still get beyond what is recorded."""

    left_bytes: int = field(default_factory=lambda: _MOST_SURPLUS_BYTES)

    def take(self, size: int) -> bool:
        """Take room for a packet; return whether there is any."""
        self.left_bytes -= size
        return self.left_bytes >= 0


class _Player:
    def __init__(
        self,
        listeners: Listeners,
        say: Callable[[str], None],
        speed: float | None,
        logins: Mapping[str, Login],
        patience_s: float,
        room: _Room,
    ) -> None:
        self.played = Played()
        self.listeners, self.say = listeners, say
        self._speed, self._logins, self._patience_s = speed, logins, patience_s
        self._room = room
        self._connections: dict[Recorded, _Connection] = {}
        self._ports: dict[tuple[Address, str | None], int] = {}
        """Those of the services of port mappers."""
        self._progress = _Progress()
        self._recorded: Set[Key] = frozenset()
        """What the broker sends in the script."""

    async def play(self, script: Script) -> None:
        """Take all steps."""
        talks = (script.talks or partial(MqttTalks, script))(self._logins)
        self._talks = {each: talks(each) for each in script.connections}
        for recorded in script.connections:
            await self._find_port(recorded)
        self._began, self._first_ns = self._now(), script.steps[0].time_ns
        turns: defaultdict[Recorded | None, list[tuple[int, Step]]] = defaultdict(list)
        for number, step in enumerate(script.steps):
            turns[None if self._speed is None else step.connection].append((number, step))
        self._progress.begin(len(script.steps))
        came = (step.what for step in script.steps)
        self._recorded = {what.key for what in came if isinstance(what, Came)}
        async with asyncio.TaskGroup() as group:
            for steps in turns.values():
                group.create_task(self._take(steps))
        for recorded, connection in self._connections.items():
            if connection.owed:
                self.played.unsent[recorded.client] += len(connection.owed)
            self.played.came |= connection.came
            if connection.is_ended:
                self.played.ended.add(recorded)
            if connection.is_silent and any(key[0] == recorded.number for key in self._recorded):
                self.played.silent.add(recorded.client)

    async def _take(self, steps: Sequence[tuple[int, Step]]) -> None:
        before_ns, done = steps[0][1].time_ns, self._now()
        for number, step in steps:
            due = self._due(step)
            connection = self._connections.get(step.connection)
            if isinstance(step.what, Came):
                if connection is not None:
                    if self._speed is not None:
                        due = max(due, done + (step.time_ns - before_ns) / 1e9 / self._speed)
                    await self._wait(connection, number, due, step.what.key)
            elif isinstance(step.what, Pause):
                await asyncio.sleep(step.what.seconds)
            else:
                await asyncio.sleep(due - self._now())
                await self._progress.reached(number)
                if isinstance(step.what, Send):
                    await self._send(step.connection, step.what, due)
                elif connection is not None:
                    await self._end(connection, step.what, number, due)
            self._progress.take(number)
            before_ns, done = step.time_ns, self._now()

    def close(self) -> None:
        """Close the connections that are open."""
        for connection in self._connections.values():
            connection.close()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _due(self, step: Step) -> float:
        if self._speed is None:
            return self._now()
        return self._began + (step.time_ns - self._first_ns) / 1e9 / self._speed

    async def _send(self, recorded: Recorded, what: Send, due: float) -> None:
        if recorded not in self._connections:
            self._connections[recorded] = await self._connect(recorded)
        connection = self._connections[recorded]
        if connection.is_over:
            self.played.unsent[recorded.client] += 1
        elif connection.send(what):
            self.played.sent += 1
            if self._speed is not None:
                self.played.late_s.append(self._now() - due)

    async def _find_port(self, recorded: Recorded) -> None:
        """Ask a port mapper for a service; a broker that has just started may not have it yet."""
        address, service = listener(self.listeners, recorded.port), self._talks[recorded].service
        until = self._now() + _SECONDS_TO_CONNECT
        while service and (address, service) not in self._ports and self._now() < until:
            with suppress(OSError, SourceError):
                self._ports |= {
                    (address, one.name): one.port
                    for one in await ask_port_mapper(address)
                    if one.port
                }
            await asyncio.sleep(_SLACK_S)

    async def _connect(self, recorded: Recorded) -> _Connection:
        connection = _Connection(
            recorded.client, self._talks[recorded], self.say, self._recorded, self._room
        )
        connection.patience_s = self._patience_s
        address = listener(self.listeners, recorded.port)
        port = self._ports.get((address, self._talks[recorded].service), address.port)
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, address.host, port, ssl=address.tls
                )
        except (OSError, TimeoutError) as error:
            self.say(f"{recorded.client}: {address}: {why_unreachable(error)}")
            connection.is_over = True
        return connection

    async def _end(self, connection: _Connection, what: End, number: int, due: float) -> None:
        if not what.by_client:
            await self._wait(connection, number, due)
        elif not what.is_reset and connection.finish():
            coming = connection.coming(None)
            asyncio.get_running_loop().call_later(_SLACK_S, _settle, coming, False)
            await coming
        connection.close(is_reset=what.by_client and what.is_reset)

    async def _wait(
        self, connection: _Connection, number: int, due: float, key: Key | None = None
    ) -> None:
        """Wait until a packet has come, or without a key until the broker ends the connection."""
        coming = connection.coming(key)
        loop = asyncio.get_running_loop()

        def begin() -> None:
            if not coming.done():
                loop.call_at(max(due, loop.time()) + connection.patience_s, _settle, coming, False)

        self._progress.when_reached(number, begin)
        if not await coming:
            connection.patience_s = max(connection.patience_s / 2, _LEAST_PATIENCE_S)


def _settle(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)


class _Progress:
    """Which steps have been taken, and who waits for that."""

    def begin(self, count: int) -> None:
        """Begin with none of so many steps taken."""
        self._taken, self._first = bytearray(count), 0
        self._waiting: defaultdict[int, list[Callable[[], object]]] = defaultdict(list)
        """What is called, by the number of the step that waits."""

    def take(self, number: int) -> None:
        """Take note of a step."""
        self._taken[number] = 1
        while self._first < len(self._taken) and self._taken[self._first]:
            self._first += 1
            for call in self._waiting.pop(self._first, ()):
                call()

    def when_reached(self, number: int, call: Callable[[], object]) -> None:
        """Call a function once all steps before this one have been taken."""
        if self._first >= number:
            call()
        else:
            self._waiting[number].append(call)

    async def reached(self, number: int) -> None:
        """Wait until all steps before this one have been taken, or none of them any more."""
        loop, first = asyncio.get_running_loop(), -1
        while first < self._first < number:
            first = self._first
            reached = loop.create_future()
            loop.call_later(_SLACK_S, _settle, reached, False)
            self.when_reached(number, partial(_settle, reached, True))
            await reached


class _Connection(asyncio.Protocol):
    """A client's connection to the broker."""

    def __init__(
        self,
        client: str,
        talk: Talk,
        say: Callable[[str], None],
        recorded: Set[Key],
        room: _Room,
    ) -> None:
        self.is_over = self.is_ended = False
        """Whether nothing more can be sent, and whether the broker ended the connection."""
        self.came: dict[Key, Any] = {}
        self.owed: list[Send] = []
        """What waits for something that has not come."""
        self.patience_s = _PATIENCE_S
        self._client, self._talk, self._say = client, talk, say
        self._recorded, self._room = recorded, room
        self._decoder = Decoder(get_format(talk.format))
        self._transport: asyncio.Transport | None = None
        self._is_closed = self._is_gone = self._is_given_up = False
        self._coming: tuple[Key | None, asyncio.Future[bool]] | None = None
        """What is waited for."""

    @property
    def is_silent(self) -> bool:
        """Whether the broker is there, and has sent nothing."""
        return self._transport is not None and not self.came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take note of the packets that came; after a refusal nothing more is sent."""
        if self._is_given_up:
            return
        self._decoder.receive_data(data)
        for event in self._decoder.events():
            if event.packet is None:
                self._give_up(f"the broker sends what is no packet: {event.error}")
                break
            key = self._talk.add(event.packet)
            if key not in self._recorded and not self._room.take(event.length):
                most = bytes_text(_MOST_SURPLUS_BYTES)
                self._give_up(f"the broker sends over {most} more than is recorded")
                break
            self.came[key] = event.packet
            owed, self.owed = self.owed, []
            for each in owed:
                self.send(each)
            if (answer := self._talk.answer(key, event.packet)) is not None:
                self._write(answer)
            if (text := self._talk.refusal(event.packet)) is not None:
                self._say(f"{self._client}: the broker refuses the connection: {text}")
                self.is_over = True
        self._check()

    def _give_up(self, why: str) -> None:
        """Drop what else comes, with a line; the broker may still end the connection."""
        self._say(f"{self._client}: {why}")
        self._is_given_up = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end."""
        self.is_ended |= not self._is_closed
        self.is_over = self._is_gone = True
        self._check()

    def coming(self, key: Key | None) -> asyncio.Future[bool]:
        """Return what is done once a packet, or without a key the end, has come."""
        future = asyncio.get_running_loop().create_future()
        self._coming = key, future
        self._check()
        return future

    def _check(self) -> None:
        if self._coming is not None and self._has_come(self._coming[0]):
            _settle(self._coming[1], True)

    def _has_come(self, key: Key | None) -> bool:
        """Return whether a packet, or without a key the end, has come or cannot any more."""
        if key is None:
            return self._is_gone or self._transport is None
        return self.is_over or key in self.came

    def send(self, what: Send) -> bool:
        """Send a packet, now or once all has come that it awaits; return whether it is sent."""
        if self.is_over or any(each not in self._talk.known for each in what.awaits):
            self.owed.append(what)
            return False
        self._write(self._talk.send(what))
        return True

    def _write(self, data: bytes) -> None:
        if not self.is_over and self._transport is not None:
            self._transport.write(data)

    def finish(self) -> bool:
        """End the direction to the broker, if it can be by itself; return whether it is."""
        if self._transport is None or not self._transport.can_write_eof():
            return False
        self.is_over = self._is_closed = True
        self._transport.write_eof()
        return True

    def close(self, *, is_reset: bool = False) -> None:
        """Close the connection once all is sent, or at once by a reset."""
        self.is_over = self._is_closed = True
        if self._transport is None:
            return
        if is_reset:
            reset(self._transport)
        else:
            self._transport.close()
