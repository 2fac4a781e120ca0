"""Several rings in one process, and handlers, over UDP multicast on loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.ring.loops import eventually, free_port, in_a_loop, needs_multicast
from wireyard.errors import EncodeError, UsageError
from wireyard.layers.rmp import Delivered, Foreign, Limits, Piece, Want
from wireyard_ring import Process, Ring, RingFailed, UdpMulticast

GROUP = "239.255.77.79"
RPC = 2
pytestmark = pytest.mark.usefixtures("multicast")


@pytest.fixture(scope="module")
def multicast() -> None:
    needs_multicast()


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


def ring(port: int, process: Process | None = None, **limits: Any) -> Ring:
    if process is not None:
        return Ring(UdpMulticast(GROUP, port), process=process)
    return Ring(UdpMulticast(GROUP, port), limits=Limits(**limits))


async def answer(who: Ring, text: bytes, count: int = 1) -> list[Delivered]:
    """Answer so many requests, and return them."""
    client, asked = who.client(1, own=False), []
    for _ in range(count):
        asked.append(await anext(client))
        await who.send(text, client=1, reply_to=asked[-1].message_id)
    client.close()
    return asked


# --- several rings --------------------------------------------------------------------------


@in_a_loop
async def test_the_rings_of_a_process_have_one_counter_of_message_numbers(
    ports: tuple[int, int],
) -> None:
    process = Process()
    async with (
        ring(ports[0], process) as one, ring(ports[1], process) as other,
        ring(ports[0]) as first, ring(ports[1]) as second,
    ):  # fmt: skip
        assert one.process_id != other.process_id
        answers = [
            asyncio.create_task(answer(who, text, 2))
            for who, text in ((first, b"first"), (second, b"second"))
        ]
        replies: list[list[bytes]] = []
        for asking in (one, other, one, other):
            found = asking.request(b"?", want=1, timeout_s=30.0)
            replies.append([reply.data async for reply in found])
            assert found.reason == "enough"
        assert replies == [[b"first"], [b"second"]] * 2
        asked_first, asked_second = [await task for task in answers]
        assert {message.source for message in asked_first} == {one.process_id}
        assert {message.source for message in asked_second} == {other.process_id}
        numbers = [
            message.number
            for pair in zip(asked_first, asked_second, strict=True)
            for message in pair
        ]
        start = numbers[0]
        assert start is not None
        assert numbers == [(start + n) % (1 << 16) for n in range(4)]


@in_a_loop
async def test_events_stay_on_the_ring_where_they_happened(ports: tuple[int, int]) -> None:
    process = Process(limits=Limits(max_delay_s=0.001))
    async with ring(ports[0], process) as one, ring(ports[1], process) as other:
        clients = one.client(1), other.client(1)
        everything = one.events()
        await one.send(b"on one")
        await other.send(b"on other")
        assert [(await anext(client)).data for client in clients] == [b"on one", b"on other"]
        assert isinstance(event := await anext(everything), Delivered)
        assert (event.ring, event.data) == (one.name, b"on one")


@in_a_loop
async def test_a_ring_may_be_left_and_joined_again_while_another_goes_on(
    ports: tuple[int, int],
) -> None:
    process = Process()
    async with ring(ports[0], process) as one:
        for n in range(2):
            async with ring(ports[1], process) as other:
                client = other.client(1)
                unanswered = other.request(b"?", want=Want.STREAM, timeout_s=60.0)
                waiting = asyncio.create_task(anext(unanswered))
                await other.send(b"%d" % n)
                found = {(await anext(client)).data, (await anext(client)).data}
                assert found == {b"?", b"%d" % n}
            with pytest.raises(StopAsyncIteration):
                await waiting
            assert [message async for message in client] == []
        client = one.client(1)
        await one.send(b"still here")  # when its delay is over: the clock goes on
        assert (await anext(client)).data == b"still here"


@in_a_loop
async def test_a_process_is_in_a_ring_once_and_has_the_limits(ports: tuple[int, int]) -> None:
    process = Process()
    with pytest.raises(UsageError, match="have its limits"):
        Ring(UdpMulticast(GROUP, ports[0]), process=process, limits=Limits())
    async with ring(ports[0], process) as one:
        with pytest.raises(UsageError, match="is known already"):
            async with ring(ports[0], process):
                raise AssertionError
        client = one.client(1)
        await one.send(b"a", urgent=True)
        assert (await anext(client)).data == b"a"


# --- handlers -------------------------------------------------------------------------------


@in_a_loop
async def test_a_handler_answers_the_requests_for_its_layer(ports: tuple[int, int]) -> None:
    process = Process()

    async def upper(message: Delivered | Piece | Foreign) -> bytes | None:
        await asyncio.sleep(0)
        return message.data.upper() if message.data != b"silence" else None

    process.register_layer(RPC, upper)
    async with (
        ring(ports[0], process), ring(ports[1], process),
        ring(ports[0]) as first, ring(ports[1]) as second,
    ):  # fmt: skip
        for asking in (first, second):
            asking.register_layer(RPC)  # for the replies
            for text in (b"one", b"two", b"three" * 1000):
                replies = asking.request(text, want=1, timeout_s=30.0, layer=RPC)
                assert [reply.data async for reply in replies] == [text.upper()]
            none = asking.request(b"silence", want=1, timeout_s=0.05, layer=RPC)
            assert [reply async for reply in none] == []


@in_a_loop
async def test_a_handler_gets_large_messages_as_they_arrive(ports: tuple[int, int]) -> None:
    seen: list[Delivered | Piece | Foreign] = []

    async def keep(message: Delivered | Piece | Foreign) -> None:
        seen.append(message)

    async with ring(ports[0]) as one, ring(ports[0]) as other:
        with pytest.raises(UsageError, match="layer 1 needs a handler"):
            other.register_layer(1, in_pieces=True)
        other.register_layer(1, keep, in_pieces=True)
        data = bytes(range(256)) * 30
        await one.send(data, layer=1)
        await one.send(b"small", layer=1, urgent=True)
        await eventually(lambda: len(seen) > 1 and isinstance(seen[-1], Delivered))
        *pieces, small = seen
        assert all(isinstance(piece, Piece) for piece in pieces) and len(pieces) == 6
        assert (b"".join(piece.data for piece in pieces), small.data) == (data, b"small")


@in_a_loop
async def test_messages_of_other_protocols_have_handlers_by_their_typing_word(
    ports: tuple[int, int],
) -> None:
    seen: list[Delivered | Piece | Foreign] = []

    async def keep(message: Delivered | Piece | Foreign) -> None:
        seen.append(message)

    async with ring(ports[0]) as one, ring(ports[0]) as other:
        other.register_foreign(0x1001, keep)
        events = other.events()
        for data in (b"\x10\x01theirs", b"\x10\x02others"):
            await one.send_foreign(data)
        assert await anext(events) == Foreign(other.name, one.process_id, b"\x10\x02others")
        await eventually(lambda: bool(seen))
        assert seen == [Foreign(other.name, one.process_id, b"\x10\x01theirs")]
        with pytest.raises(EncodeError):
            await one.send_foreign(b"\x0f\xff")


@in_a_loop
async def test_a_handler_that_fails_ends_its_ring(ports: tuple[int, int]) -> None:
    async def fail(message: Delivered | Piece | Foreign) -> bytes | None:
        raise ZeroDivisionError

    async with ring(ports[0]) as one:
        with pytest.raises(RingFailed, match=r"a handler failed: ZeroDivisionError\(\)"):
            async with ring(ports[0]) as other:
                other.register_layer(RPC, fail)
                client = other.client(1)
                await one.send(b"fails", layer=RPC, urgent=True)
                await anext(client)
