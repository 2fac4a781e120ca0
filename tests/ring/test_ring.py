"""The async face over UDP multicast on loopback, with nothing installed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.ring.loops import eventually, free_port, in_a_loop, needs_multicast
from wireyard.errors import UsageError
from wireyard.layers.rmp import Delivered, Drop, Limits, MessageTooBig, QoS, Want
from wireyard.layers.rmp.events import Aborted, MalformedPacket
from wireyard_ring import Client, Ring, RingFailed, UdpMulticast, inbox

GROUP = "239.255.77.78"
pytestmark = pytest.mark.usefixtures("multicast")


@pytest.fixture(scope="module")
def multicast() -> None:
    needs_multicast()


@pytest.fixture
def port() -> int:
    return free_port()


def ring(port: int, **limits: Any) -> Ring:
    return Ring(UdpMulticast(GROUP, port), limits=Limits(**limits))


async def data_of(client: Client, count: int) -> list[bytes]:
    return [(await anext(client)).data for _ in range(count)]


@in_a_loop
async def test_messages_small_and_large_reach_the_clients_of_their_domain(port: int) -> None:
    async with ring(port) as one, ring(port) as other:
        assert one.process_id != other.process_id and one.members is None
        third, every = other.client(3, domains={3}), other.client(7)
        large = bytes(range(256)) * 100
        for data, domain in ((b"three", 3), (large, 3), (b"four", 4)):
            await one.send(data, domain=domain, client=5)
        assert await data_of(every, 3) == [b"three", large, b"four"]
        message = await anext(third)
        assert (message.source, message.client, message.domain) == (one.process_id, 5, 3)
        assert message.destinations == (3, 7)
        assert await data_of(third, 1) == [large]


@in_a_loop
async def test_small_messages_share_packets_and_flush_sends_them(port: int) -> None:
    async with ring(port, max_delay_s=50.0) as one, ring(port) as other:
        client = other.client(1)
        await one.send_all([b"%d" % n for n in range(300)])
        one.flush()
        assert await data_of(client, 300) == [b"%d" % n for n in range(300)]
        await one.send(b"now", urgent=True)
        assert await data_of(client, 1) == [b"now"]


@in_a_loop
async def test_a_message_goes_without_flush_when_its_delay_is_over(port: int) -> None:
    async with ring(port) as one, ring(port) as other:
        client = other.client(1)
        await one.send(b"a")
        assert await data_of(client, 1) == [b"a"]


@in_a_loop
async def test_what_was_sent_goes_before_leaving(port: int) -> None:
    async with ring(port) as other:
        client = other.client(1)
        async with ring(port, max_delay_s=50.0) as one:
            await one.send_all([b"x" * 1000] * 200)  # more than the rate takes at once
        assert len(await data_of(client, 200)) == 200


@in_a_loop
async def test_batches_take_what_waits(port: int) -> None:
    async with ring(port) as one, ring(port) as other:
        client = other.client(1)
        await one.send_all([b"x"] * 500)
        found = 0
        while found < 500:
            found += len(await client.batch())
        client.close()
        assert await client.batch() == []


@in_a_loop
async def test_replies_come_until_there_are_enough(port: int) -> None:
    async with ring(port) as one, ring(port) as other, ring(port) as third:
        for who, text in ((other, b"other"), (third, b"third")):
            asyncio.get_running_loop().create_task(answer(who, text))
        replies = one.request(b"who?", want=2, timeout_s=30.0)
        assert sorted([reply.data async for reply in replies]) == [b"other", b"third"]
        assert replies.reason == "enough"
        none = one.request(b"who?", want=3, timeout_s=0.05)
        assert len([reply async for reply in none]) <= 2
        assert none.reason == "timeout"


async def answer(who: Ring, text: bytes) -> None:
    async for message in who.client(1, own=False):
        await who.send(text, client=1, reply_to=message.message_id)


@in_a_loop
async def test_a_request_may_be_cancelled(port: int) -> None:
    async with ring(port) as one:
        replies = one.request(b"?", timeout_s=50.0)
        replies.cancel()  # not asked yet, so nothing to end
        asyncio.get_running_loop().call_later(0.01, replies.cancel)
        assert [reply async for reply in replies] == []
        assert replies.reason == "cancelled"


@in_a_loop
async def test_what_the_transport_cannot_promise_is_refused_loudly(port: int) -> None:
    async with ring(port) as one:
        with pytest.raises(UsageError, match="totally ordered it cannot promise"):
            await one.send(b"x", qos=QoS.TOTALLY_ORDERED)
        with pytest.raises(UsageError, match="totally ordered it cannot promise"):
            one.request(b"x", qos=QoS.TOTALLY_ORDERED)
        with pytest.raises(UsageError, match="are not known"):
            await anext(one.request(b"x", want=Want.ALL))
        with pytest.raises(MessageTooBig):
            await one.send(bytes(17 << 20))


@in_a_loop
async def test_a_closed_client_gets_nothing_more_and_its_number_is_free(port: int) -> None:
    async with ring(port) as one:
        client = one.client(1)
        await one.send(b"a", urgent=True)
        await eventually(lambda: bool(client._events))
        client.close()
        client.close()
        assert [message.data async for message in client] == [b"a"]
        one.client(1)


@in_a_loop
async def test_leaving_ends_every_iteration(port: int) -> None:
    async with ring(port) as one:
        client, everything = one.client(1), one.events()
    assert [message async for message in client] == []
    assert [event async for event in everything] == []


@in_a_loop
async def test_who_does_not_read_loses_messages_that_may_be_lost_and_they_are_counted(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MAX_INBOX_BYTES", 10_000)
    async with ring(port) as one:
        slow, read = one.client(1), one.client(2)
        for _ in range(10):
            await one.send_all([b"x"] * 10)
            await data_of(read, 10)
        assert len(await slow.batch()) + slow.overrun == 100
        assert slow.overrun > 50 and not read.overrun


@in_a_loop
async def test_anything_may_come_from_the_network(port: int) -> None:
    async with ring(port, reassembly_timeout_s=0.05) as one:
        events = one.events()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            outward = socket.inet_aton("127.0.0.1")
            stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, outward)
            for data in (b"", b"\x08", b"\x08\0\0\1\0\1\0\2half", b"\0\0whole"):
                stranger.sendto(data, (GROUP, port))
        found = [type(await anext(events)) for _ in range(4)]
        assert found == [MalformedPacket, MalformedPacket, Delivered, Aborted]
        assert one.dropped == {Drop.MALFORMED: 2, Drop.ABORTED: 1}


@in_a_loop
async def test_what_is_sent_to_another_address_is_not_heard(port: int) -> None:
    async with ring(port) as one:
        client = one.client(1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"\0\0unicast", ("127.0.0.1", port))
        await one.send(b"multicast", urgent=True)
        assert await data_of(client, 1) == [b"multicast"]


@in_a_loop
async def test_a_ring_that_cannot_be_joined() -> None:
    with pytest.raises(RingFailed, match=r"198\.51\.100\.7"):
        async with Ring(UdpMulticast(GROUP, 7, interface="198.51.100.7")):
            raise AssertionError


@pytest.mark.parametrize(
    ("group", "interface"), [("10.0.0.1", "127.0.0.1"), ("x", "127.0.0.1"), (GROUP, "lo")]
)
def test_addresses_are_looked_at_at_once(group: str, interface: str) -> None:
    with pytest.raises(UsageError):
        UdpMulticast(group, interface=interface)
