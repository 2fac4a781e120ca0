"""The client: what it gives, what it survives, and what it says."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import wireyard
from wireyard.broker.access import Access
from wireyard.broker.settings import Settings
from wireyard.broker.thread import BrokerThread
from wireyard.client import Client, ConnectionLost, Message, Refused
from wireyard.errors import UsageError
from wireyard.formats.mqtt.control import Connect
from wireyard.formats.mqtt.filters import Filter

SECONDS = 60


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await main()

    asyncio.run(limited())


async def taken(client: Client, count: int) -> list[Message]:
    found: list[Message] = []
    async for message in client:
        found.append(message)
        if len(found) == count:
            break
    return found


class Cutter:
    """A relay to a broker that can cut its connections."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(200):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for one in self._open:
            one.close()


@pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])
def test_a_conversation(version: str) -> None:
    async def talk() -> None:
        async with Client(broker.url, version=version) as client:
            assert await client.subscribe(["a/#", "b"], 2) == (2, 2)
            for qos in (0, 1, 2):
                assert await client.publish("a/b", f"é{qos}", qos, qos == 1) == 0
            found = await taken(client, 3)
            assert [(one.topic, one.payload, one.qos, one.retain) for one in found] == [
                ("a/b", f"é{qos}".encode(), qos, False) for qos in (0, 1, 2)
            ]
            await client.unsubscribe("a/#")
            assert await client.publish("a/b", "x", 1) == (16 if version == "5" else 0)
            await client.subscribe(Filter.of("a/#", 1))
            assert (await taken(client, 1))[0].retain

    with wireyard.broker() as broker:
        run(talk)
    assert not any("violates" in line for line in broker.lines)
    assert sum("disconnected" in line for line in broker.lines) == 1


def test_a_conversation_in_a_websocket(tmp_path: Path) -> None:
    async def talk() -> None:
        async with Client(f"ws://127.0.0.1:{broker.port}") as client:
            await client.subscribe("a", 2)
            for size in (0, 200, 70_000):
                await client.publish("a", bytes(size), 2)
            assert [len(one.payload) for one in await taken(client, 3)] == [0, 200, 70_000]

    with wireyard.broker(record=tmp_path) as broker:
        run(talk)
    assert sum("disconnected" in line for line in broker.lines) == 1
    (capture,) = tmp_path.glob("*.pcapng")
    assert wireyard.read(str(capture))["packet_type_name"].to_pylist().count("PUBLISH") == 6


def test_a_server_that_speaks_no_websocket() -> None:
    async def connect() -> None:
        with pytest.raises(ConnectionLost, match="the WebSocket with 'HTTP/1\\.1 404 x'"):
            async with Client(f"ws://127.0.0.1:{server.getsockname()[1]}/x"):
                pass

    def answer() -> None:
        near, _ = server.accept()
        with near:
            near.recv(10_000)
            near.sendall(b"HTTP/1.1 404 x\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        run(connect)
        thread.join()


def test_enhanced_authentication() -> None:
    """Both sides prove that they know a word; a connection is proven anew."""

    def asked(connect: Connect) -> Generator[bytes, bytes, bool]:
        number: Any = dict(connect.properties)["authentication_data"]
        numbers.append(number)
        answer = yield b"word after %s?" % number
        return answer == b"sesame%d" % int(number)

    def knowing(word: bytes) -> Callable[[], Generator[bytes, bytes, None]]:
        def begin() -> Generator[bytes, bytes, None]:
            number = b"%d" % len(numbers)
            question = yield number
            if question != b"word after %s?" % number:
                raise Refused("who are you?", 135)
            yield word + number

        return begin

    async def talk() -> None:
        async with Client(broker.url, authentication=("word", knowing(b"sesame"))) as client:
            await client.authenticate()
            assert numbers == [b"0", b"1"]
            client._authentication = ("word", knowing(b"please"))
            with pytest.raises(Refused, match="Not authorized"):
                await client.authenticate()
        for method, begin, line in (
            ("word", knowing(b"please"), "Not authorized"),
            ("other", knowing(b"sesame"), "Bad authentication method"),
            ("word", lambda: iter_once(b"7"), "does not keep to the authentication"),
        ):
            with pytest.raises(Refused, match=line):
                await Client(broker.url, authentication=(method, begin)).__aenter__()

    def iter_once(data: bytes) -> Generator[bytes, bytes, None]:
        yield data

    numbers: list[bytes] = []
    with wireyard.broker(Settings(enhanced={"word": asked})) as broker:
        run(talk)
    with pytest.raises(UsageError, match="has no enhanced authentication"):
        Client(version="3.1.1", authentication=("word", knowing(b"")))


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_nothing_is_lost_when_connections_are_cut(version: str) -> None:
    said: list[str] = []

    async def talk() -> None:
        url = f"mqtt://127.0.0.1:{cutter.port}"
        named: dict[str, Any] = {"version": version, "keep_session": version != "5"}
        reader = Client(url, client_id="reader", say=said.append, **named)
        writer = Client(url, client_id="writer", say=said.append, **named)
        async with reader, writer:
            await reader.subscribe("t", 2)
            found: set[bytes] = set()
            for batch in range(3):
                numbers = range(20 * batch, 20 * batch + 20)
                sending = [
                    asyncio.create_task(writer.publish("t", str(number), 1 + number % 2))
                    for number in numbers
                ]
                await asyncio.sleep(0.001 * batch)
                cutter.cut()
                await asyncio.gather(*sending)
                while len(found) <= numbers[-1]:
                    found |= {one.payload for one in await taken(reader, 1)}
            while sum("connected again" in line for line in said) < 2:
                await asyncio.sleep(0.01)

    with wireyard.broker() as broker:
        cutter = Cutter(broker.port)
        try:
            run(talk)
        finally:
            cutter.close()
    assert not any("violates" in line for line in broker.lines)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_session_that_the_broker_has_lost_is_made_anew(version: str) -> None:
    async def talk() -> None:
        async with Client(first.url, version=version) as client:
            await client.subscribe("t", 1)
            first.__exit__(None, None, None)
            with wireyard.broker(port=first.port) as second:
                assert await client.publish("t", "1", 1) == 0
                assert [one.payload for one in await taken(client, 1)] == [b"1"]
            assert any("connected" in line for line in second.lines)

    first = wireyard.broker()
    first.__enter__()
    run(talk)


def test_what_the_broker_refuses() -> None:
    async def talk() -> None:
        async with Client(broker.url) as client:
            with pytest.raises(Refused, match="a/b: Not authorized") as caught:
                await client.publish("a/b", "x", 1)
            assert caught.value.code == 135
            with pytest.raises(Refused, match="#: Not authorized"):
                await client.subscribe("#")
            await client.publish("ok", "x", 1)
            with pytest.raises(UsageError, match="packets of"):
                await client.publish("ok", bytes(11 << 20))
        with pytest.raises(ConnectionLost, match="closed"):
            await client.publish("ok")

    settings = Settings(access=Access(reads={None: ["ok"]}, writes={None: ["ok"]}))
    with wireyard.broker(settings) as broker:
        run(talk)


def test_a_login_that_is_refused_and_a_broker_that_is_not_there() -> None:
    async def connect(url: str, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            async with Client(url, version="3.1.1"):
                pass

    with wireyard.broker(Settings(access=Access(users={}))) as broker:
        asyncio.run(connect(broker.url, Refused, "bad user name or password"))
    asyncio.run(connect(broker.url, ConnectionLost, f"127.0.0.1:{broker.port}: "))


def test_a_client_that_is_taken_over_stays_away() -> None:
    async def talk() -> None:
        async with Client(broker.url, client_id="a") as old, Client(broker.url, client_id="a"):
            with pytest.raises(Refused, match="Session taken over"):
                await taken(old, 1)

    with wireyard.broker() as broker:
        run(talk)


def test_messages_that_nobody_takes_stop_the_reading() -> None:
    async def talk(broker: BrokerThread) -> None:
        async with Client(broker.url) as reader, Client(broker.url) as writer:
            await reader.subscribe("t")
            for _ in range(60):
                await asyncio.gather(*(writer.publish("t", bytes(1000)) for _ in range(50)))
            assert len(reader._messages) < 2500
            await taken(reader, 3000)

    with wireyard.broker(Settings(max_unsent_bytes=16 << 20)) as broker:
        run(lambda: talk(broker))


@pytest.mark.parametrize(
    "url",
    [
        *("http://x", "mqtt://", "mqtt://x:99999", "mqtt://x/path"),
        *("[", "a[2Jb", "\udcff", "a..b", "x" * 70, "mqtt://[::1"),
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="mqtt://HOST:PORT"):
        Client(url)
