"""What passes the proxy: the same bytes, in the same order, with the same ends.

``python -m tests.tap.test_relay`` splits bytes in a million places by chance.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tap.sockets import LOOPBACK, reset, run, serving, tapped, until
from wireyard.errors import SourceError
from wireyard.tap.proxy import Tap
from wireyard.tap.relay import MAX_UNSENT_BYTES


@pytest.mark.parametrize("seed", range(4))
def test_bytes_are_equal_on_both_sides_for_any_split(seed: int) -> None:
    assert split(seed, (1, 2, 3, 100, 5_000, 70_000)) > 20


def split(seed: int, sizes: Sequence[int]) -> int:
    """Send bytes in pieces of these sizes in both directions; return the number of pieces."""
    rng, pieces = random.Random(seed), 0
    there, back = rng.randbytes(200_000), rng.randbytes(300_000)

    async def send(writer: asyncio.StreamWriter, data: bytes, rng: random.Random) -> None:
        nonlocal pieces
        at = 0
        while at < len(data):
            size = rng.choice(sizes)
            writer.write(data[at : at + size])
            at, pieces = at + size, pieces + 1
            await writer.drain()
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        writer.write_eof()

    async def test() -> None:
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sends = asyncio.create_task(send(writer, back, random.Random(seed + 100)))
            got.set_result(await reader.read())
            await sends
            writer.close()

        async with serving(handle) as port, tapped(port) as tap:
            reader, writer = await asyncio.open_connection(*tap.address)
            sends = asyncio.create_task(send(writer, there, rng))
            assert await reader.read() == back
            assert await got == there
            await sends
            writer.close()

    run(test())
    return pieces


def main() -> None:
    """Split in a million places."""
    pieces = seed = 0
    while pieces < 1_000_000:
        pieces, seed = pieces + split(seed, (1, 2, 3, 30)), seed + 1
    print(f"{pieces:,} pieces over {seed} connections: all bytes are equal")


def test_a_half_closed_connection_goes_on_in_the_other_direction() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()  # up to the end of this direction
        for _ in range(3):
            writer.write(asked)
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.close()

    async def test() -> None:
        async with serving(handle) as port, tapped(port) as tap:
            reader, writer = await asyncio.open_connection(*tap.address)
            writer.write(b"abc")
            writer.write_eof()
            assert await reader.read() == b"abcabcabc"
            writer.close()
            await writer.wait_closed()
            await until(lambda: not tap.connections)

    run(test())


@pytest.mark.parametrize("by_client", [True, False])
def test_a_reset_is_passed_on_as_a_reset_behind_the_bytes(by_client: bool) -> None:
    async def test() -> None:
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        received = bytearray()

        async def read(reader: asyncio.StreamReader) -> None:
            try:
                while data := await reader.read(100):
                    received.extend(data)
            except ConnectionError as error:
                ended.set_result(error)
            else:
                ended.set_result(None)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            if by_client:
                await read(reader)
            else:
                await reader.readexactly(3)
                reset(writer)

        async with serving(handle) as port, tapped(port) as tap:
            reader, writer = await asyncio.open_connection(*tap.address)
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"abc")
            if by_client:
                await until(lambda: received == b"abc")
                reset(writer)
            else:
                await read(reader)
            assert isinstance(await ended, ConnectionResetError)
            await until(lambda: not tap.connections)

    run(test())


def test_a_side_that_does_not_read_stops_the_other_one() -> None:
    async def test() -> None:
        reads = asyncio.Event()
        size = 0

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal size
            await reads.wait()
            while data := await reader.read(1 << 20):
                size += len(data)
            writer.close()

        async with serving(handle, limit=1 << 16) as port, tapped(port) as tap:
            _, writer = await asyncio.open_connection(*tap.address)
            writer.transport.set_write_buffer_limits(high=0)
            sent, stops = 0, False
            while not stops:
                writer.write(bytes(1 << 18))
                sent += 1 << 18
                try:
                    await asyncio.wait_for(writer.drain(), 0.3)
                except TimeoutError:
                    stops = True
                assert sent < 100 << 20
            (connection,) = tap.connections
            transport = connection.broker._transport
            assert connection.broker.is_unread
            assert transport.get_write_buffer_size() <= 2 * MAX_UNSENT_BYTES
            reads.set()
            writer.write_eof()
            await until(lambda: size == sent)
            writer.close()

    run(test())


def test_what_comes_before_the_broker_is_connected_waits() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async def test() -> None:
        async with serving(handle) as port, tapped(port) as tap:
            for _ in range(20):
                reader, writer = await asyncio.open_connection(*tap.address)
                writer.write(b"early")
                writer.write_eof()
                assert await reader.read() == b"early"
                writer.close()

    run(test())


def test_a_broker_that_is_not_there_is_one_line() -> None:
    async def test() -> None:
        with socket.create_server((LOOPBACK, 0)) as closed:
            port = closed.getsockname()[1]
        lines: list[str] = []
        async with tapped(port, lines) as tap:
            reader, _ = await asyncio.open_connection(*tap.address)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            await until(lambda: not tap.connections)
        assert len(lines) == 1 and f"127.0.0.1:{port}: Connection refused" in lines[0]

    run(test())


def test_there_is_a_most_of_connections() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))

    async def test() -> None:
        lines: list[str] = []
        async with serving(handle) as port, tapped(port, lines, max_connections=2) as tap:
            opened = [await asyncio.open_connection(*tap.address) for _ in range(2)]
            await until(lambda: len(tap.connections) == 2)
            reader, _ = await asyncio.open_connection(*tap.address)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            for reader, writer in opened:
                writer.write(b"x")
                assert await reader.read(1) == b"x"
                writer.close()
        assert lines[0].endswith("refused, there are 2 connections")

    run(test())


def test_tls_on_either_side(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="makes the certificate")
    from tests.broker.certificate import write_certificate

    write_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def test() -> None:
        async with (
            serving(handle, ssl=server) as port,
            tapped(port, tls=server, upstream_tls=client) as tap,
        ):
            reader, writer = await asyncio.open_connection(*tap.address, ssl=client)
            writer.write(b"hidden")
            assert await reader.readexactly(6) == b"hidden"
            writer.close()
            await writer.wait_closed()
            await until(lambda: not tap.connections)

    run(test())


def test_a_port_that_is_taken_is_one_line() -> None:
    async def test() -> None:
        with socket.create_server((LOOPBACK, 0)) as taken:
            tap = Tap((LOOPBACK, taken.getsockname()[1]), (LOOPBACK, 1))
            with pytest.raises(SourceError, match="ddress already in use"):
                await tap.start()

    run(test())


if __name__ == "__main__":
    main()
