"""The client, ``wireyard pub`` and ``wireyard sub`` with mosquitto and three other brokers."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from getpass import getuser
from typing import Any

import pytest

from peers.mqtt import BROKERS, Unavailable
from tests.client.test_client import Cutter, run, taken
from wireyard.client import Client, ConnectionLost, Message, Refused

pytestmark = pytest.mark.peer
SECONDS = 20.0
WIREYARD = [sys.executable, "-m", "wireyard"]
UNCUT = "moquette"
"""Acknowledges nothing that is sent again on a new connection."""
VERSIONS = pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])
CONFIGURATION = """
listener {port} 127.0.0.1
allow_anonymous true
acl_file {folder}/access
user {user}
"""
"""The user is that of the test: as root it would become one that cannot read the folder."""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run mosquitto; return its port."""
    folder = tmp_path_factory.mktemp("mosquitto")
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        pytest.skip("mosquitto is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        free_port = int(free.getsockname()[1])
    settings = folder / "mosquitto.conf"
    settings.write_text(CONFIGURATION.format(port=free_port, folder=folder, user=getuser()))
    (folder / "access").write_text("topic readwrite plant/#\n")
    with running([program, "-c", str(settings)], free_port):
        yield free_port


@contextmanager
def running(words: list[str], port: int) -> Iterator[None]:
    """Run a broker that listens on a port."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdout=quiet, stderr=quiet) as process:
        end = time.monotonic() + SECONDS
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.01)
            yield
        finally:
            process.terminate()


@pytest.fixture(scope="module", params=list(BROKERS))
def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Run another broker; return its port and the versions that it speaks."""
    command, versions = BROKERS[request.param]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    try:
        words = command(port, tmp_path_factory.mktemp(request.param))
    except Unavailable as missing:
        pytest.skip(str(missing))
    with running(words, port):
        yield port, versions


async def converse(url: str, version: str, topic: str) -> None:
    async with Client(url, version=version) as client:
        assert await client.subscribe([f"{topic}/#"], 2) == (2,)
        for qos in (0, 1, 2):
            await client.publish(f"{topic}/x", f"é{qos}", qos, qos == 1)
        found = await taken(client, 3)
        assert {(one.payload, one.qos) for one in found} == {
            (f"é{qos}".encode(), qos) for qos in (0, 1, 2)
        }
        await client.unsubscribe(f"{topic}/#")
        await client.subscribe(f"{topic}/+", 1)
        assert (await taken(client, 1))[0].retain
        await client.publish(f"{topic}/x", "", 1, True)


@VERSIONS
def test_a_conversation(port: int, version: str) -> None:
    run(lambda: converse(f"mqtt://127.0.0.1:{port}", version, f"plant/{version}"))


def test_others(other: tuple[int, tuple[str, ...]], request: pytest.FixtureRequest) -> None:
    """What is published over a connection that is cut arrives, as often as the broker likes."""
    port, versions = other

    async def talk(version: str) -> None:
        topic = f"plant/{version}"
        named: dict[str, Any] = {"version": version, "keep_session": True}
        reader = Client(f"mqtt://127.0.0.1:{port}", client_id=f"reader {version}", **named)
        writer = Client(f"mqtt://127.0.0.1:{cutter.port}", client_id=f"writer {version}", **named)
        async with reader, writer:
            assert await reader.subscribe(topic, 1) == (1,)
            sending = [
                asyncio.create_task(writer.publish(topic, str(number), 1)) for number in range(30)
            ]
            await asyncio.sleep(0.002)
            if request.node.callspec.id != UNCUT:
                cutter.cut()
            await asyncio.gather(*sending)
            found: set[bytes] = set()
            while len(found) < 30:
                found |= {one.payload for one in await taken(reader, 1)}
            await reader.unsubscribe(topic)

    cutter = Cutter(port)
    try:
        for version in versions:
            run(partial(talk, version))
    finally:
        cutter.close()
    where = ["-h", "127.0.0.1", "-p", str(port), "-V", versions[-1], "-t", "plant/words"]
    listen = [*WIREYARD, "sub", *where, "-C", "1", "--out", "text"]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as watching:
        while watching.poll() is None:
            subprocess.run([*WIREYARD, "pub", *where, "-m", "42"], check=True, timeout=SECONDS)
        assert watching.stdout is not None
        assert watching.stdout.read().endswith("  plant/words  0   42\n")


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_nothing_is_lost_when_connections_are_cut(port: int, version: str) -> None:
    async def talk() -> None:
        url, topic = f"mqtt://127.0.0.1:{cutter.port}", f"plant/cut/{version}"
        named: dict[str, Any] = {"version": version, "keep_session": version != "5"}
        reader = Client(url, client_id=f"reader {version}", **named)
        writer = Client(url, client_id=f"writer {version}", **named)
        async with reader, writer:
            await reader.subscribe(topic, 2)
            found: list[int] = []
            for batch in range(3):
                numbers = range(15 * batch, 15 * batch + 15)
                sending = [
                    asyncio.create_task(writer.publish(topic, str(number), 1 + number % 2))
                    for number in numbers
                ]
                await asyncio.sleep(0.002 * batch)
                cutter.cut()
                await asyncio.gather(*sending)
                while not set(numbers) <= set(found):
                    found += [int(one.payload) for one in await taken(reader, 1)]
            assert all(found.count(number) == 1 for number in range(1, 45, 2))

    cutter = Cutter(port)
    try:
        run(talk)
    finally:
        cutter.close()


def test_a_will_and_a_refusal(port: int) -> None:
    async def talk() -> None:
        async with Client(f"mqtt://127.0.0.1:{port}") as watcher:
            await watcher.subscribe("plant/gone", 1)
            cutter = Cutter(port)
            will = Message("plant/gone", b"by accident", 1)
            url = f"mqtt://127.0.0.1:{cutter.port}"
            async with Client(url, will=will, reconnect=False) as lost:
                cutter.close()
                with pytest.raises(ConnectionLost):
                    await taken(lost, 1)
            assert (await taken(watcher, 1))[0].payload == b"by accident"
            with pytest.raises(Refused, match="Not authorized"):
                await watcher.publish("elsewhere", "x", 1)

    run(talk)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_pub_and_sub(port: int, version: str) -> None:
    topic = f"plant/words/{version}"
    where = ["-h", "127.0.0.1", "-p", str(port), "-V", version, "-t", topic]
    kept = ["-m", "kept", "-r", "-q", "1"]
    subprocess.run([*WIREYARD, "pub", *where, *kept], check=True, timeout=SECONDS)
    words = [*WIREYARD, "sub", *where, "-q", "2", "-C", "2", "--out", "text"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        sent = [*WIREYARD, "pub", *where, "-m", "42", "-q", "2"]
        subprocess.run(sent, check=True, timeout=SECONDS)
        second, _ = watching.communicate(timeout=SECONDS)
    assert [line.split("  ", 1)[1] for line in (first, second)] == [
        f"{topic}  1r  kept\n",
        f"{topic}  2   42\n",
    ]
