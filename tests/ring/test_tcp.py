"""The ring over TCP, on loopback: in one process, against strangers, and in processes that die."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from random import Random

import pytest

from tests.ring.chaos import Chaos, free_ports
from tests.ring.loops import eventually, in_a_loop
from tests.ring.test_command import call, listening, rows
from wireyard.errors import UsageError
from wireyard.layers.rmp import QoS, Want
from wireyard_ring import Ring, RingFailed, Tcp, inbox
from wireyard_ring.sequencer import Settings

RUNS = int(os.environ.get("WIREYARD_RING_RUNS", "2"))


@pytest.fixture
def addresses() -> str:
    return free_ports(4, Random())


def ring(addresses: str, **settings: float) -> Ring:
    return Ring(Tcp(addresses, settings=Settings(**settings)))  # type: ignore[arg-type]


@in_a_loop
async def test_members_see_one_order_and_who_is_there(addresses: str) -> None:
    first = addresses.partition("-")[0]
    async with ring(addresses) as one:
        assert one.process_id == first and one.members == (first,)
        async with ring(addresses) as other, ring(addresses) as third:
            everybody = one, other, third
            await eventually(lambda: all(len(each.members or ()) == 3 for each in everybody))
            clients = [each.client(1) for each in everybody]
            sent = [each.send_all([b"%d" % n * 50 for n in range(2000)]) for each in everybody]
            await asyncio.gather(*sent, other.send(bytes(300_000)))
            for each in everybody:
                each.flush()
            lists = [[await anext(client) for _ in range(6001)] for client in clients]
            found = [[(message.source, message.data) for message in one] for one in lists]
            assert found[0] == found[1] == found[2]
            assert lists[0][0].qos is QoS.TOTALLY_ORDERED
            with pytest.raises(UsageError, match="unreliable it cannot promise"):
                await one.send(b"x", qos=QoS.UNRELIABLE)
        await eventually(lambda: one.members == (one.process_id,))


@in_a_loop
async def test_processes_that_start_at_once_are_one_ring(addresses: str) -> None:
    rings = [ring(addresses) for _ in range(4)]
    await asyncio.gather(*(each.__aenter__() for each in rings))
    await eventually(lambda: all(len(each.members or ()) == 4 for each in rings))
    with pytest.raises(RingFailed, match="all 4 addresses are taken; list more"):
        await ring(addresses).__aenter__()
    await asyncio.gather(*(each.__aexit__(None, None, None) for each in rings))


@in_a_loop
async def test_all_members_answer_and_what_was_sent_goes_before_leaving(addresses: str) -> None:
    async with ring(addresses) as one, ring(addresses) as other:
        await eventually(lambda: len(one.members or ()) == 2)
        client = other.client(2)

        async def answer() -> None:
            message = await anext(client)
            await other.send(b"!", client=2, reply_to=message.message_id)

        task = asyncio.create_task(answer())
        replies = one.request(b"?", want=Want.ALL, timeout_s=30.0)
        assert [reply.data async for reply in replies] == [b"!"]
        await task
        async with ring(addresses) as third:
            await third.send_all([b"last"] * 500)
        found = 0
        while found < 500:
            found += sum(message.data == b"last" for message in await client.batch())


@in_a_loop
async def test_who_does_not_read_holds_the_ring_and_loses_nothing(
    addresses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MAX_INBOX_BYTES", 50_000)
    small = {"window_bytes": 50_000}
    async with ring(addresses, **small) as one, ring(addresses, **small) as other:
        slow = one.client(1)
        sending = asyncio.create_task(other.send_all([b"%05d" % n for n in range(20_000)]))
        await eventually(lambda: slow.full)
        found: list[bytes] = []
        while len(found) < 20_000:
            found += [message.data for message in await slow.batch()]
            await asyncio.sleep(0)
            other.flush()
        assert found == [b"%05d" % n for n in range(20_000)]
        await sending


@in_a_loop
async def test_who_never_reads_is_out_after_a_time_and_the_others_go_on(
    addresses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"window_bytes": 50_000, "give_up_s": 0.6}
    async with ring(addresses, **limits) as one:
        stuck = ring(addresses, **limits)
        await stuck.__aenter__()
        stuck._transport.pause()
        client = one.client(1)
        await one.send_all([bytes(1000)] * 500)
        one.flush()
        for _ in range(500):
            await anext(client)
        assert one.members == (one.process_id,)
        with pytest.raises(RingFailed, match=r"nothing was read for 0\.6 s, and"):
            await stuck.send(b"x")
        await stuck.__aexit__(None, None, None)


@in_a_loop
async def test_a_ring_of_other_settings_or_an_address_that_is_silent_is_said(
    addresses: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ring(addresses) as one:
        with pytest.raises(RingFailed, match=f"no answer from {one.process_id} in 0.3 s"):
            await ring(addresses, window_bytes=1000, give_up_s=0.3).__aenter__()
        assert one.members == (one.process_id,)
    assert "its ring has other addresses or settings" in caplog.records[0].getMessage()
    host, _, port = one.process_id.rpartition(":")
    silent = pytest.raises(RingFailed, match=f"no answer from {one.process_id} in 0.3 s")
    with socket.create_server((host, int(port))), silent:
        await ring(addresses, give_up_s=0.3).__aenter__()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1", "'1' is no ADDRESS:PORT"),
        ("localhost:1", "'localhost:1' is no ADDRESS:PORT"),
        ("127.0.0.1:70000", "is no ADDRESS:PORT"),
        ("127.0.0.1:8-7", "the first port is above the last"),
        ("127.0.0.1:7,127.0.0.1:6-8", "has an address twice"),
        ("127.0.0.1:1-65535", "has 65 addresses, 64 are the most"),
    ],
)
def test_addresses_are_looked_at_at_once(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Tcp(text)


@in_a_loop
async def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(RingFailed, match="no address to listen on"):
        await Ring(Tcp("198.51.100.7:7077")).__aenter__()


@in_a_loop
async def test_a_stranger_is_dropped_with_one_line_and_the_ring_lives_on(
    addresses: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with ring(addresses) as one:
        host, _, port = one.process_id.rpartition(":")
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b"\0\0\0\x0d\x05" + bytes(12)):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(words)
            with pytest.raises((EOFError, ConnectionError)):
                await reader.readexactly(1)
            writer.close()
        client = one.client(1)
        await one.send(b"alive")
        assert (await anext(client)).data == b"alive"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3 and all("connection from 127.0.0.1:" in line for line in lines)
    assert "'frame length' is 1195725856" in lines[0] and "no Hello" in lines[2]


def test_send_listen_and_request_on_the_command_line(addresses: str) -> None:
    name = f"tcp:{addresses}"
    with listening(name, "--count", "2", "--answer", "here") as listener:
        assert call("send", "hello", ring=name).returncode == 0
        asked = call("request", "who", "--want", "all", "--timeout", "50", ring=name)
        assert [bytes.fromhex(row["data"]) for row in rows(asked.stdout)] == [b"here"]
        out, _ = listener.communicate(timeout=60)
    assert [bytes.fromhex(row["data"]) for row in rows(out)] == [b"hello", b"who"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RUNS))
def test_real_processes_that_are_killed_and_stopped_agree(seed: int, tmp_path: Path) -> None:
    chaos = Chaos(seed, tmp_path)
    assert chaos.run(actions=5) is None
    assert chaos.done["messages"]
