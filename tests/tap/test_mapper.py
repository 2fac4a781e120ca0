"""Open MQ's port mapper behind the proxy: clients connect to its services through the proxy too."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tap.sockets import run, serving, tapped
from tests.tap.test_recorded import into
from wireyard.formats.port_mapper import MAX_ANSWER_BYTES, decode_answer

JMQ = (ROOT / "examples/traffic/shop-c2b.jmq").read_bytes()[:5000]


def answer_of(port: int) -> bytes:
    return (
        f"101 imqbroker 301\nportmapper tcp PORTMAPPER 7676 [imqvarhome=/x,n={port}]\n"
        f"jms tcp NORMAL {port} [n={port}]\ncluster tcp CLUSTER {port}\nssljms ssl NORMAL 0\n.\n"
    ).encode()


@pytest.mark.parametrize("asks", [b"", b"101\n"])
def test_a_client_connects_through_the_proxy(asks: bytes, tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())

    async def test() -> None:
        lines: list[str] = []
        async with serving(echo) as service:

            async def mapper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                assert await reader.read(len(asks)) == asks
                rng = random.Random(7)
                answer = answer_of(service)
                while answer:
                    size = rng.randint(1, 20)
                    writer.write(answer[:size])
                    answer = answer[size:]
                    await asyncio.sleep(0.001)

            tap_to = partial(tapped, lines=lines, record=into(tmp_path))
            async with serving(mapper) as port, tap_to(port) as tap:
                for _ in range(2):
                    reader, writer = await asyncio.open_connection(*tap.address)
                    writer.write(asks)
                    answer = await reader.read()
                    writer.close()
                    own = next(s.port for s in decode_answer(answer).services if s.name == "jms")
                    assert own not in (service, 0)
                    expected = answer_of(service).replace(
                        b"NORMAL %d" % service, b"NORMAL %d" % own
                    )
                    assert answer == expected
                reader, writer = await asyncio.open_connection("127.0.0.1", own)
                writer.write(JMQ)
                writer.write_eof()
                assert await reader.read() == JMQ
                writer.close()
        assert len(lines) == 1 and f"for jms, {service} of the broker" in lines[0]
        (path,) = tmp_path.iterdir()  # where captures find what the answer is
        assert path.read_bytes().count(f"jms tcp NORMAL {own} [".encode()) == 2

    run(test())


@pytest.mark.parametrize(
    "answer",
    [
        b"101",
        b"101 imqbroker 301\njms tcp NORMAL 40001\n",
        b"101 imqbroker 301\nno service\n.\n",
        b"101 imqbroker 301\n" + b"x" * MAX_ANSWER_BYTES,
        b"1010",
    ],
)
def test_what_is_no_answer_passes(answer: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async def test() -> None:
        lines: list[str] = []
        async with serving(handle) as port, tapped(port, lines) as tap:
            reader, writer = await asyncio.open_connection(*tap.address)
            assert await reader.read() == answer
            writer.close()
        assert lines == []

    run(test())
