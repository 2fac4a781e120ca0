"""A broker that is killed under load: what it has acknowledged is there when it is back."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from wireyard.client import Client, ConnectionLost, JmqClient, Refused

KILLS = 25
SECONDS = 40
OPEN = 40
"""Messages that wait for their acknowledgement at a time."""
TOPICS = 5


Ports = tuple[int, int]


@pytest.fixture
def ports() -> Ports:
    """Return ports that are free, and stay the same over restarts: of MQTT, and of JMQ."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        return one.getsockname()[1], other.getsockname()[1]


@dataclass
class Log:
    """What the clients have seen."""

    acknowledged: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """Not acknowledged when the broker was killed: their publisher publishes them again."""
    open: set[int] = field(default_factory=set)
    got: Counter[int] = field(default_factory=Counter)
    unflagged: Counter[int] = field(default_factory=Counter)
    """The same, only those without DUP."""


def qos_of(number: int) -> int:
    return 1 + number % 2


def is_retained(number: int) -> bool:
    """Return whether to retain a message: some of QoS 2, which are not published again."""
    return number % 14 == 7


class Killed:
    """The process of ``tests.broker.killed``."""

    def __init__(self, store: Path, ports: Ports, **environment: str) -> None:
        self._words = [sys.executable, "-m", "tests.broker.killed", str(store), *map(str, ports)]
        self._environment = {**os.environ, **environment}

    async def __aenter__(self) -> Killed:
        self._process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        await self.ready()
        return self

    async def ready(self) -> None:
        assert self._process.stdout is not None
        while not (await self._process.stdout.readline()).startswith(b"listens"):
            pass

    def kill(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"again\n")

    async def __aexit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def send_all(send: Callable[[int], Awaitable[object]], log: Log, stop: asyncio.Event) -> int:
    """Send numbers, several at a time, until a test has killed enough; return how many."""
    room = asyncio.Semaphore(OPEN)

    async def one(number: int) -> None:
        log.open.add(number)
        await send(number)
        log.open.discard(number)
        log.acknowledged.add(number)
        room.release()

    number = 0
    async with asyncio.TaskGroup() as tasks:
        while not stop.is_set():
            await room.acquire()
            tasks.create_task(one(number))
            number += 1
    return number


async def kill_often(broker: Killed, kills: int, log: Log) -> None:
    """Kill a broker again and again, each time when it has acknowledged some messages."""
    choose = random.Random(kills)
    for _ in range(kills):
        before = len(log.acknowledged)
        while len(log.acknowledged) < before + OPEN:
            await asyncio.sleep(0.005)
        await asyncio.sleep(choose.uniform(0, 0.1))
        broker.kill()
        log.unsure |= log.open
        await broker.ready()  # some were sent before the signal came
        log.unsure |= log.open
    await asyncio.sleep(0.2)


async def read_all(client: Client, log: Log) -> None:
    async for message in client:
        number = int(message.payload)
        assert message.qos == qos_of(number)
        log.got[number] += 1
        log.unflagged[number] += not message.dup


async def talk(broker: Killed, ports: Ports, kills: int, log: Log) -> int:
    """Publish and read while the broker is killed; return how many messages were published."""
    url, stop = f"mqtt://127.0.0.1:{ports[0]}", asyncio.Event()
    named: dict[str, Any] = {"version": "5", "keep_session": True}
    reader, writer = Client(url, client_id="r", **named), Client(url, client_id="w", **named)
    async with reader, writer:
        await reader.subscribe("n/#", 2)
        reading = asyncio.create_task(read_all(reader, log))

        def publish(number: int) -> Awaitable[object]:
            topic = f"n/{number % TOPICS}"
            return writer.publish(topic, str(number), qos_of(number), is_retained(number))

        writing = asyncio.create_task(send_all(publish, log, stop))
        await kill_often(broker, kills, log)
        stop.set()
        count = await writing
        while len(log.got) < count:
            await asyncio.sleep(0.01)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
    async with Client(url) as late:
        await late.subscribe("n/#", 2)
        messages = aiter(late)
        kept = [await anext(messages) for _ in range(TOPICS)]
        last = {f"n/{n % TOPICS}": b"%d" % n for n in range(count) if is_retained(n)}
        assert {one.topic: one.payload for one in kept if one.retain} == last
    return count


def judge(log: Log, count: int) -> None:
    assert count > 100 and log.acknowledged == set(range(count))
    assert set(log.got) == log.acknowledged
    assert {n for n, times in log.got.items() if qos_of(n) == 2 and times > 1} == set()
    assert {n for n, times in log.unflagged.items() if times > 1} <= log.unsure


Talk = Callable[[Killed, Ports, int, Log], Coroutine[Any, Any, int]]
Judge = Callable[[Log, int], None]


def run(
    tmp_path: Path, ports: Ports, kills: int, talk: Talk = talk, judge: Judge = judge,
    **environment: str,
) -> None:  # fmt: skip
    async def limited() -> int:
        async with (
            asyncio.timeout(SECONDS),
            Killed(tmp_path / "broker.db", ports, **environment) as broker,
        ):
            return await talk(broker, ports, kills, log)

    log = Log()
    judge(log, asyncio.run(limited()))


def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(tmp_path: Path, ports: Ports) -> None:
    run(tmp_path, ports, KILLS)


def test_what_was_not_synced_was_not_acknowledged(tmp_path: Path, ports: Ports) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for a disk that drops what was not synced")
    library = tmp_path / "unsynced.so"
    source = Path(__file__).with_name("unsynced.c")
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    subprocess.run(words, check=True)
    run(tmp_path, ports, KILLS // 2, LD_PRELOAD=str(library), UNSYNCED="1")


async def pass_on(client: JmqClient, log: Log) -> None:
    """Take messages of the subscription and send them to a queue, in transactions."""
    consumer = await client.consume(
        "n", is_topic=True, durable="d", prefetch=20, acknowledges=False
    )
    async for message in consumer:
        with suppress(ConnectionLost, Refused):
            async with client.transaction() as transaction:
                await transaction.acknowledge(message)
                await transaction.send("done", message.body)


async def take_all(client: JmqClient, log: Log) -> None:
    consumer = await client.consume("done")
    async for message in consumer:
        number = int(message.body)
        log.got[number] += 1
        log.unflagged[number] += not message.is_redelivered


async def talk_jmq(broker: Killed, ports: Ports, kills: int, log: Log) -> int:
    url, stop = f"mq://127.0.0.1:{ports[1]}", asyncio.Event()
    writer, worker, reader = JmqClient(url), JmqClient(url, client_id="w"), JmqClient(url)
    async with worker, writer, reader:
        reading = asyncio.create_task(take_all(reader, log))
        passing = asyncio.create_task(pass_on(worker, log))
        await asyncio.sleep(0.2)

        async def send(number: int) -> None:
            """Send to a topic that has a durable subscription, not far ahead of it."""
            while number > len(log.got) + 2 * OPEN:
                await asyncio.sleep(0.005)
            await writer.send("n", str(number), is_topic=True)

        writing = asyncio.create_task(send_all(send, log, stop))
        await kill_often(broker, kills, log)
        stop.set()
        count = await writing
        while len(log.got) < count:
            await asyncio.sleep(0.01)
        for task in (reading, passing):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return count


def judge_jmq(log: Log, count: int) -> None:
    """What was sent came once, but what was in flight at a kill, or is marked."""
    assert count > 100 and log.acknowledged == set(range(count))
    assert set(log.got) == log.acknowledged
    assert {n for n, times in log.unflagged.items() if times > 1} <= log.unsure


def test_persistent_jms_messages_survive(tmp_path: Path, ports: Ports) -> None:
    run(tmp_path, ports, KILLS // 2, talk_jmq, judge_jmq)
