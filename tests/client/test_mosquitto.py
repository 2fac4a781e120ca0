"""The client, ``wireyard pub`` and ``wireyard sub`` with mosquitto."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from getpass import getuser
from typing import Any

import pytest

from tests.client.test_client import Cutter, run, taken
from wireyard.client import Client, ConnectionLost, Message, Refused

pytestmark = pytest.mark.peer
SECONDS = 20.0
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
    with subprocess.Popen([program, "-c", str(settings)], stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", free_port)):
                break
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        try:
            yield free_port
        finally:
            process.terminate()


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
    topic, wireyard = f"plant/words/{version}", [sys.executable, "-m", "wireyard"]
    where = ["-h", "127.0.0.1", "-p", str(port), "-V", version, "-t", topic]
    kept = ["-m", "kept", "-r", "-q", "1"]
    subprocess.run([*wireyard, "pub", *where, *kept], check=True, timeout=SECONDS)
    words = [*wireyard, "sub", *where, "-q", "2", "-C", "2", "--out", "text"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        sent = [*wireyard, "pub", *where, "-m", "42", "-q", "2"]
        subprocess.run(sent, check=True, timeout=SECONDS)
        second, _ = watching.communicate(timeout=SECONDS)
    assert [line.split("  ", 1)[1] for line in (first, second)] == [
        f"{topic}  1r  kept\n",
        f"{topic}  2   42\n",
    ]
