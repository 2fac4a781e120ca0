"""The JMQ client: what it sends, takes, survives and says."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wireyard
from peers import openmq
from tests.broker.certificate import write_certificate
from tests.client.test_client import Cutter, run
from wireyard.answers import open_tables
from wireyard.broker.access import Access, hash_password, read_users
from wireyard.broker.settings import JmqLimits, Settings
from wireyard.broker.thread import BrokerThread
from wireyard.client import Client, ConnectionLost, JmqClient, Refused
from wireyard.client.jmq import Consumer, Received
from wireyard.errors import UsageError


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[BrokerThread]:
    """Run a broker that records, and judge the recording at the end."""
    with wireyard.broker(jmq=0, record=tmp_path) as broker:
        yield broker
    with open_tables([str(path) for path in tmp_path.glob("*.pcapng")]) as tables:
        assert tables.sql("SELECT rule, text FROM violations").to_pylist() == []


async def taken(consumer: Consumer, count: int) -> list[Received]:
    found: list[Received] = []
    async for message in consumer:
        found.append(message)
        if len(found) == count:
            break
    return found


async def talk(url: str) -> None:
    """A conversation that our broker and Open MQ answer alike."""
    async with JmqClient(url, client_id="ann") as client:
        orders = await client.consume("orders", prefetch=2)
        bodies: list[Any] = ["é", b"\0\1", {"a": 1, "b": "x"}, [1, "two"], None]
        for number, body in enumerate(bodies):
            await client.send(
                "orders", body, persistent=number % 2 == 0, properties={"number": number},
                correlation_id=f"c{number}",
            )  # fmt: skip
        got = await taken(orders, 5)
        assert [(one.body, one.properties["number"]) for one in got] == [
            (body, number) for number, body in enumerate(bodies)
        ]
        assert [one.packet.correlation_id for one in got] == [f"c{n}" for n in range(5)]
        assert not any(one.is_redelivered for one in got)
        news = await client.consume("news", is_topic=True, selector="n > 1", durable="d")
        for number in range(4):
            await client.send("news", str(number), is_topic=True, properties={"n": number})
        assert [one.body for one in await taken(news, 2)] == ["2", "3"]

        work = await client.consume("work", acknowledges=False)
        for number in range(3):
            await client.send("work", str(number))
        first, second, third = await taken(work, 3)
        await client.acknowledge(first)
        async with client.transaction() as transaction:
            await transaction.acknowledge(second)
            await transaction.send("orders", "done")
        assert [one.body for one in await taken(orders, 1)] == ["done"]
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as transaction:
                await transaction.acknowledge(third)
                await transaction.send("orders", "never")
                _ = 1 / 0
        with pytest.raises(UsageError, match="not held"):
            await client.acknowledge(first)
    async with JmqClient(url) as client:
        again = await client.consume("work")
        assert [(one.body, one.is_redelivered) for one in await taken(again, 1)] == [("2", True)]
        with pytest.raises(Refused, match="selector"):
            await client.consume("work", selector="a =")


def test_a_conversation(judged: BrokerThread) -> None:
    run(lambda: talk(judged.jmq_url))


@pytest.mark.peer
@pytest.mark.slow
def test_a_conversation_with_open_mq(tmp_path: Path) -> None:
    try:
        java = Path(openmq.jdk_tool("java")).resolve().parent.parent
        home = openmq.fetch()
    except openmq.Unavailable as missing:
        pytest.skip(str(missing))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        str(home / "bin" / "imqbrokerd"), "-javahome", str(java), "-varhome", str(tmp_path),
        "-name", "peer", "-port", str(port), "-tty", "-Dimq.portmapper.hostname=127.0.0.1",
        "-Dimq.hostname=127.0.0.1",
    ]  # fmt: skip
    with subprocess.Popen(words, stderr=subprocess.STDOUT, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            for line in program.stdout:
                if b"B1039" in line:
                    break
            run(lambda: talk(f"mq://127.0.0.1:{port}"))
        finally:
            children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
            for child in children.read_text().split():
                subprocess.run(["kill", child], check=False)
            program.terminate()


def test_nothing_is_lost_or_unmarked_when_connections_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 300

    async def talk() -> None:
        cutter = Cutter(broker.jmq_port)
        url = f"mq://127.0.0.1:{cutter.port}"
        async with JmqClient(url, client_id="w") as writer, JmqClient(url) as reader:
            consumer = await reader.consume("q", prefetch=10)

            async def send() -> None:
                for start in range(0, count, 20):
                    await asyncio.gather(
                        *(writer.send("q", str(start + place)) for place in range(20))
                    )
                    if start % 60 == 0:
                        cutter.cut()

            sending = asyncio.create_task(send())
            async for message in consumer:
                numbers.append((int(message.body), message.is_redelivered))
                if len({number for number, _ in numbers}) == count:
                    break
            await sending
        cutter.close()

    numbers: list[tuple[int, bool]] = []
    # The port mapper would name the port of the broker itself.
    monkeypatch.setattr(JmqClient, "_where", _straight)
    with wireyard.broker(jmq=0) as broker:
        run(talk)
    seen: set[int] = set()
    for number, is_redelivered in numbers:
        assert number not in seen or is_redelivered
        seen.add(number)


async def _straight(self: JmqClient) -> tuple[str, int]:
    return self.address.host, self.address.port


def test_a_producer_waits_for_credit() -> None:
    async def talk() -> None:
        async with JmqClient(broker.jmq_url) as client:
            tasks = [asyncio.create_task(client.send("q", str(n))) for n in range(30)]
            consumer = await client.consume("q", prefetch=3)
            assert [one.body for one in await taken(consumer, 30)] == [str(n) for n in range(30)]
            await asyncio.gather(*tasks)

    limits = JmqLimits(max_kept=10, producer_credit=4, connection_credit=7)
    with wireyard.broker(Settings(jmq=limits), jmq=0) as broker:
        run(talk)


def test_a_full_queue_delays_no_other_and_consumers_wait_for_a_broker() -> None:
    async def talk() -> None:
        async with JmqClient(first.jmq_url) as client:
            full = [asyncio.create_task(client.send("full", "x")) for _ in range(30)]
            await client.send("other", "y")
            assert not all(one.done() for one in full)
            port = first.jmq_port
            await asyncio.to_thread(first.__exit__, None, None, None)
            consuming = asyncio.create_task(client.consume("other"))
            sending = asyncio.create_task(send_in_transaction(client))
            await asyncio.sleep(0.1)
            with wireyard.broker(jmq=port):
                assert [one.body for one in await taken(await consuming, 1)] == ["z"]
                await asyncio.gather(sending, *full)

    async def send_in_transaction(client: JmqClient) -> None:
        async with client.transaction() as transaction:
            await transaction.send("other", "z")

    limits = JmqLimits(max_kept=10, producer_credit=4)
    first = wireyard.broker(Settings(jmq=limits), jmq=0).__enter__()
    run(talk)


def test_what_is_refused_is_one_line() -> None:
    async def talk() -> None:
        with pytest.raises(ConnectionLost, match="names no service"):
            await JmqClient(f"mq://127.0.0.1:{broker.port}").__aenter__()
        with pytest.raises(UsageError, match="no address of a JMQ"):
            JmqClient("mqtt://localhost")
        async with JmqClient(broker.jmq_url, client_id="a") as client:
            with pytest.raises(Refused, match="in use") as refused:
                await JmqClient(broker.jmq_url, client_id="a").__aenter__()
            assert refused.value.code == 409
            with pytest.raises(Refused, match="may not send"):
                await client.send("secret.q", "x")
            with pytest.raises(Refused, match="own"):
                await client.consume("mq.other")

    access = Access(None, {None: ["#"]}, {None: ["$Q/open/#"]})
    with wireyard.broker(Settings(access=access), jmq=0) as broker:
        run(talk)


def test_a_login(tmp_path: Path) -> None:
    async def talk(password: str) -> None:
        async with JmqClient(broker.jmq_url, username="ann", password=password):
            pass

    users = tmp_path / "users"
    users.write_text(hash_password("ann", b"secret") + "\n")
    settings = Settings(access=Access(read_users(str(users))))
    with wireyard.broker(settings, jmq=0) as broker:
        run(lambda: talk("secret"))
        with pytest.raises(Refused, match="ann") as refused:
            run(lambda: talk("wrong"))
        assert refused.value.code == 413


def test_tls(tmp_path: Path) -> None:
    """The port mapper is asked in the clear, and names the port of the service."""

    async def talk() -> None:
        url = broker.jmq_url.replace("mq://127.0.0.1", "mqs://localhost")
        async with JmqClient(url, tls=client) as own:
            await own.send("q", "x")
            assert [one.body for one in await taken(await own.consume("q"), 1)] == ["x"]
        with pytest.raises(ConnectionLost, match="names no service"):
            await JmqClient(broker.jmq_url).__aenter__()

    write_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with wireyard.broker(jmq=0, tls=server) as broker:
        run(talk)


def test_what_mqtt_clients_have_the_store_write_is_not_waited_for(tmp_path: Path) -> None:
    async def talk() -> None:
        async with Client(broker.url, client_id="m", keep_session=True) as client:
            await client.subscribe("t", 1)
            async with JmqClient(broker.jmq_url) as own:
                await own.send("q", "x")

    with wireyard.broker(jmq=0, store=tmp_path / "broker.db") as broker:
        run(talk)
