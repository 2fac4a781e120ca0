"""Connections that a broker has to survive: ``python -m tests.broker.hostile SECONDS SEED``.

They send damaged packets behind a login or at once, one byte at a time, a part of a packet and no
more, nothing, or do not read what they are sent. Meanwhile two clients, of MQTT and of JMQ, send
themselves messages, which have to arrive. It prints the memory of the broker, and the number of
lines that it wrote.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

from tests.mutations import damaged_stream, recorded_examples
from wireyard import mqtt
from wireyard.client import Client, JmqClient
from wireyard.formats.mqtt.writing import encode

AT_A_TIME = 40
"""Hostile connections."""
SECONDS_TO_ECHO = 20.0
SLOW_S, PATIENCE_S = 0.02, 3.0
LABELS = ("mqtt/3.1", "mqtt/3.1.1", "mqtt/5.0", "jmq")
_LIMITS = ("--max-connections", "300")


class Found(NamedTuple):
    """What a run has come to."""

    connections: int
    echoes: int
    first_mb: int
    last_mb: int
    lines: int
    """That the broker wrote, one for each cause."""


def resident_mb(pid: int) -> int:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def logins(label: str, rng: Random) -> bytes:
    """Return packets by which a client logs in."""
    if label == "jmq":
        packets = [packet for _, packet in recorded_examples("jmq")]
        return b"".join(one for one in packets if one[7] in (10, 12))[: rng.choice((400, 4000))]
    version = {"mqtt/3.1": 3, "mqtt/3.1.1": 4, "mqtt/5.0": 5}[label]
    connect = mqtt.Connect(client_id=f"h{rng.randrange(50)}", version_in_force=version)
    subscribe = mqtt.Subscribe(packet_id=1, filters=[("#", 1)], version_in_force=version)
    return encode(connect) + encode(subscribe)


async def attack(port: int, label: str, rng: Random) -> None:
    """Be one hostile connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = logins(label, rng) if rng.random() < 0.5 else b""
    data += damaged_stream(label, rng, rng.randrange(1, 60))
    manner = rng.choice(("all", "all", "all", "slow", "part", "silent", "deaf"))
    try:
        if manner == "slow":
            for at in range(min(len(data), 100)):
                writer.write(data[at : at + 1])
                await asyncio.sleep(SLOW_S)
        elif manner == "part":
            writer.write(data[: rng.randrange(len(data) + 1)])
            await asyncio.sleep(rng.uniform(0, PATIENCE_S))
        elif manner == "deaf":
            cast(asyncio.Transport, writer.transport).pause_reading()
            writer.write(data * rng.randrange(1, 20))
            await asyncio.sleep(rng.uniform(0, PATIENCE_S))
        elif manner == "silent":
            await asyncio.sleep(rng.uniform(0, PATIENCE_S))
        else:
            writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                while await reader.read(1 << 16):
                    pass
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        writer.close()


async def echo(send: Callable[[str], Awaitable[object]], got: asyncio.Queue[str]) -> int:
    """Send messages and wait for each, until it is cancelled; return how many came."""
    number = 0
    with suppress(asyncio.CancelledError):
        while True:
            await send(str(number))
            async with asyncio.timeout(SECONDS_TO_ECHO):
                while await got.get() != str(number):
                    pass
            number += 1
            await asyncio.sleep(0.05)
    return number


async def besiege(port: int, jmq_port: int, seconds: float, seed: int) -> tuple[int, int]:
    """Attack a broker; return how many connections there were, and how many messages came."""
    rng = Random(seed)
    got: dict[str, asyncio.Queue[str]] = {"mqtt": asyncio.Queue(), "jmq": asyncio.Queue()}
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    count = 0

    async def keep_on(rng: Random) -> None:
        nonlocal count
        while loop.time() < until:
            label = rng.choice(LABELS)
            count += 1
            with suppress(OSError, TimeoutError):
                await attack(jmq_port if label == "jmq" else port, label, rng)

    async with (
        Client(f"mqtt://127.0.0.1:{port}", client_id="good") as one,
        JmqClient(f"mq://127.0.0.1:{jmq_port}") as other,
    ):
        await one.subscribe("good", 1)
        consumer = await other.consume("good")

        async def read_mqtt() -> None:
            async for message in one:
                got["mqtt"].put_nowait(message.payload.decode())

        async def read_jmq() -> None:
            async for message in consumer:
                got["jmq"].put_nowait(str(message.body))

        readers = [asyncio.create_task(read()) for read in (read_mqtt, read_jmq)]
        echoes = [
            asyncio.create_task(echo(lambda text: one.publish("good", text, 1), got["mqtt"])),
            asyncio.create_task(echo(lambda text: other.send("good", text), got["jmq"])),
        ]
        await asyncio.gather(*(keep_on(Random(rng.random())) for _ in range(AT_A_TIME)))
        for task in (*echoes, *readers):
            task.cancel()
        return count, sum([await task for task in echoes])


def run(seconds: float, seed: int) -> Found:
    """Attack a broker of its own for some time."""
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        words = [sys.executable, "-m", "wireyard", "broker", "-p", "0", "--jmq", "0", *_LIMITS]
        with (
            log.open("w") as errors,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as broker,
        ):
            assert broker.stdout is not None
            port, jmq_port = (int(broker.stdout.readline().rpartition(":")[2]) for _ in range(2))
            first = resident_mb(broker.pid)
            try:
                count, echoes = asyncio.run(besiege(port, jmq_port, seconds, seed))
                last = resident_mb(broker.pid)
            finally:
                broker.terminate()
        assert broker.returncode == 0
        lines = log.read_text().splitlines()
    assert not any("Traceback" in line or "Error" in line for line in lines)
    return Found(count, echoes, first, last, len(lines))


if __name__ == "__main__":
    print(run(float(sys.argv[1]), int(sys.argv[2])))
