"""The ring in memory: order, views, and members that wait for each other."""

from __future__ import annotations

import asyncio

import pytest

from tests.ring.loops import eventually, in_a_loop
from wireyard.errors import UsageError
from wireyard.layers.rmp import Delivered, Foreign, Piece, QoS
from wireyard.layers.rmp.events import ViewChanged
from wireyard_ring import MemoryHub, Process, Ring, inbox


@in_a_loop
async def test_members_see_one_order_and_the_views_in_it() -> None:
    hub = MemoryHub()
    async with Ring(hub.transport()) as one:
        events = one.events()
        async with Ring(hub.transport()) as other:
            assert one.process_id != other.process_id
            clients = one.client(1), other.client(1)
            large = bytes(100_000)
            await asyncio.gather(one.send_all([b"a"] * 100), other.send(large), one.send(b"b"))
            lists = [[(await anext(client)).data for _ in range(102)] for client in clients]
            assert lists[0] == lists[1] and sorted(lists[0]) == sorted([b"a"] * 100 + [b"b", large])
            await other.send(b"last")
        await eventually(lambda: one.members == (one.process_id,))
    found = [event async for event in events]
    assert [len(event.members) for event in found if isinstance(event, ViewChanged)] == [2, 1]
    assert getattr(found[-2], "data", None) == b"last"  # before the view in which its sender left
    assert getattr(found[0], "qos", QoS.TOTALLY_ORDERED) is QoS.TOTALLY_ORDERED


@in_a_loop
async def test_who_does_not_read_holds_the_ring_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "MAX_INBOX_BYTES", 100_000)
    hub = MemoryHub()
    async with Ring(hub.transport()) as one, Ring(hub.transport()) as other:
        slow = one.client(1)
        sending = asyncio.create_task(
            other.send_all([bytes([n % 250]) * 30_000 for n in range(500)])
        )
        await eventually(lambda: slow.full and not hub.order("x", b""))
        found: list[int] = []
        while len(found) < 500:
            found.append((await anext(slow)).data[0])
        assert found == [n % 250 for n in range(500)]
        await sending


@in_a_loop
async def test_a_process_may_be_on_several_rings_in_memory() -> None:
    one, other = MemoryHub(), MemoryHub()
    process = Process()
    async with (
        Ring(one.transport(), process=process) as here,
        Ring(other.transport(), process=process) as there,
        Ring(one.transport()) as sender,
    ):
        clients = here.client(1), there.client(1)
        await sender.send(b"here", urgent=True)
        assert (await anext(clients[0])).data == b"here"
        await there.send(b"there", urgent=True)
        assert (await anext(clients[1])).data == b"there"


@in_a_loop
async def test_requests_and_handlers_of_a_layer() -> None:
    hub = MemoryHub()
    handled: list[bytes] = []

    async def upper(message: Delivered | Piece | Foreign) -> bytes:
        handled.append(message.data)
        return message.data.upper()

    async with Ring(hub.transport()) as asking, Ring(hub.transport()) as answering:
        answering.register_layer(2, upper)
        with pytest.raises(UsageError, match="layer 2 is not registered"):
            asking.request(b"?", layer=2)
        asking.register_layer(2)
        assert [reply.data async for reply in asking.request(b"hey", layer=2)] == [b"HEY"]
        await answering.send(b"last", layer=2, urgent=True)
        await eventually(lambda: b"last" in handled)
    assert handled == [b"hey", b"last"]  # and not its own reply
