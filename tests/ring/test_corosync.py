"""The ring over corosync, which is started for these tests where it is installed."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ring.loops import eventually, in_a_loop
from tests.ring.member import MESSAGES
from wireyard.errors import UsageError
from wireyard.layers.rmp import Limits, QoS, Want
from wireyard_ring import Corosync, Ring, RingFailed, inbox
from wireyard_ring.cpg import CpgError, Group, Member

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = """
totem {{
  version: 2
  cluster_name: wireyard-tests
  transport: knet
  crypto_cipher: none
  crypto_hash: none
}}
system {{
  state_dir: {folder}
  sched_rr: no
  move_to_root_cgroup: no
}}
nodelist {{
  node {{
    ring0_addr: 127.0.0.1
    nodeid: 1
    name: here
  }}
}}
quorum {{
}}
logging {{
  to_stderr: yes
  to_syslog: no
}}
"""
"""One node that is all of its cluster, on loopback; no real-time scheduling, for containers."""


def answers() -> bool:
    """Return whether a corosync runs that lets us in."""
    try:
        Group("probe", lambda _sender, _message: None, lambda _members: None).leave()
    except CpgError:
        return False
    return True


@pytest.fixture(scope="module")
def corosync(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have corosync run; the one that runs already, or one of our own."""
    try:
        ctypes.CDLL("libcpg.so.4")
    except OSError as error:
        pytest.skip(f"corosync's library is not installed: {error}")
    if answers():
        yield
        return
    binary = shutil.which("corosync", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None or os.getuid():
        pytest.skip("corosync is not installed, or cannot be started: that takes root")
    folder = tmp_path_factory.mktemp("corosync")
    config = folder / "corosync.conf"
    config.write_text(CONFIG.format(folder=folder))
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([binary, "-f", "-c", config], stdout=output, stderr=output)
    try:
        waited_until = time.monotonic() + 20
        while not answers():
            if process.poll() is not None or time.monotonic() > waited_until:
                last = log.read_text().splitlines()[-1:]
                pytest.skip(f"corosync does not start here: {' '.join(last)}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def group(corosync: None, request: pytest.FixtureRequest) -> str:
    return f"{request.node.name[:60]}-{os.getpid()}"


@in_a_loop
async def test_a_member_hears_itself_and_knows_who_is_there(group: str) -> None:
    async with Ring(Corosync(group)) as ring:
        assert ring.process_id == f"0.0.0.1:{os.getpid() & 0xFFFF}"
        assert ring.members == (ring.process_id,)
        client = ring.client(1)
        await ring.send(b"small")
        await ring.send(bytes(1_000_000))
        found = [await anext(client) for _ in range(2)]
        assert [len(message.data) for message in found] == [5, 1_000_000]
        assert found[0].qos is QoS.TOTALLY_ORDERED
        with pytest.raises(UsageError, match="unreliable it cannot promise"):
            await ring.send(b"x", qos=QoS.UNRELIABLE)


@in_a_loop
async def test_two_clients_of_one_process_ask_and_answer(group: str) -> None:
    async with Ring(Corosync(group)) as ring:
        answering = ring.client(2)
        asking = ring.client(1)

        async def answer() -> None:
            message = await anext(answering)
            await ring.send(b"!", client=2, reply_to=message.message_id)

        task = asyncio.create_task(answer())
        replies = ring.request(b"?", client=1, want=Want.ALL, timeout_s=30.0)
        assert [reply.client async for reply in replies] == [2]
        assert replies.reason == "all"
        await task
        asking.close()
        answering.close()
        alone = ring.request(b"?", want=1, timeout_s=30.0)
        assert [reply async for reply in alone] == []
        assert alone.reason == "members_left"


@in_a_loop
async def test_a_process_joins_a_group_once(group: str) -> None:
    async with Ring(Corosync(group)) as ring:
        with pytest.raises(RingFailed, match="exists already"):
            async with Ring(Corosync(group)):
                raise AssertionError
        assert ring.members == (ring.process_id,)


@in_a_loop
async def test_who_does_not_read_holds_the_ring_and_loses_nothing(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MAX_INBOX_BYTES", 100_000)
    async with Ring(Corosync(group), limits=Limits(max_outgoing_bytes=4 << 20)) as ring:
        slow = ring.client(1)
        sending = asyncio.create_task(ring.send_all([b"%05d" % n for n in range(20_000)]))
        await eventually(lambda: slow.full)
        found: list[bytes] = []
        while len(found) < 20_000:
            found += [message.data for message in await slow.batch()]
            await asyncio.sleep(0)
        assert found == [b"%05d" % n for n in range(20_000)]
        await sending
        assert not slow.overrun


@in_a_loop
async def test_a_sender_faster_than_the_ring_waits(group: str) -> None:
    async with Ring(Corosync(group), limits=Limits(max_outgoing_bytes=3 << 20)) as ring:
        client = ring.client(1)
        messages = [bytes([n]) * 700_000 for n in range(40)]
        sending = asyncio.create_task(ring.send_all(messages))
        assert [(await anext(client)).data for _ in messages] == messages
        await sending


@in_a_loop
async def test_leaving_waits_for_what_was_sent_even_if_nobody_reads_it(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MAX_INBOX_BYTES", 100_000)
    async with Ring(Corosync(group)) as ring:
        client = ring.client(1)
        for n in range(30):
            await ring.send(bytes([n]) * 200_000)
    found = [message.data[0] async for message in client]
    assert found == list(range(30))


@in_a_loop
async def test_leaving_a_ring_that_takes_nothing_says_so(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireyard_ring.ring._LINGER_S", 0.05)
    monkeypatch.setattr(Group, "send", lambda _group, _message: False)
    with pytest.raises(RingFailed, match="102 bytes were not taken within"):
        async with Ring(Corosync(group)) as ring:
            await ring.send(bytes(100))


@in_a_loop
async def test_an_error_of_whoever_is_called_back_is_not_lost_in_c(group: str) -> None:
    def change(_members: object) -> None:
        raise ZeroDivisionError

    joined = Group(group, lambda _sender, _message: None, change)
    joined.join()
    with pytest.raises(ZeroDivisionError):
        while True:
            joined.dispatch()
    assert not joined.dispatch()
    joined.leave()


def spawn(role: str, group: str, members: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.ring.member", role, group, str(members)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_survivors_of_a_member_killed_in_mid_message_agree(group: str) -> None:
    survivors = [spawn("survivor", group, 4) for _ in range(3)]
    victim = spawn("victim", group, 4)
    try:
        outputs = [process.communicate(timeout=120)[0] for process in survivors]
    finally:
        for process in (*survivors, victim):
            process.kill()
            process.communicate()
    lists = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    all_there = [next(n for n, line in enumerate(one) if len(line) == 5) for one in lists]
    since = [one[start:] for one, start in zip(lists, all_there, strict=True)]
    # Identical, views and what they cut included, from the view on that all are in.
    common = min(map(len, since))
    assert since[0][:common] == since[1][:common] == since[2][:common]
    seen = [tuple(line) for line in since[0][:common]]
    members = set(since[0][0][1:])
    (left,) = (set(line[1:]) for line in since[0] if line[0] == "view" and len(line) == 4)
    (dead,) = members - left
    assert ("aborted", dead, "view") in seen
    assert not any(line[0] == dead for line in seen)
    for source in left:
        sent = [text for who, text, _ in (s for s in seen if len(s) == 3) if who == source]
        numbers = [int(text.split()[0]) for text in sent if text != "done"]
        assert numbers == list(range(MESSAGES))  # in the order sent, whatever the view cut


def test_send_and_listen_on_the_command_line(group: str) -> None:
    words = [sys.executable, "-m", "wireyard", "ring"]
    ring = ["--ring", f"corosync:{group}"]
    listener = subprocess.Popen(
        [*words, "listen", "--count", "2", "--answer", "here", *ring],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert listener.stderr is not None
        while "listening as 0.0.0.1:" not in listener.stderr.readline():
            pass
        subprocess.run([*words, "send", "hello", *ring], check=True, timeout=60)
        asked = subprocess.run(
            [*words, "request", "who", "--want", "all", "--timeout", "50", "--out", "text", *ring],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert asked.stdout.endswith("  here\n")
        out, _ = listener.communicate(timeout=60)
    finally:
        listener.kill()
        listener.communicate()
    assert [bytes.fromhex(json.loads(line)["data"]) for line in out.splitlines()] == [
        b"hello", b"who",
    ]  # fmt: skip


def test_a_name_that_no_group_can_have() -> None:
    for name in ("", "x" * 128):
        with pytest.raises(UsageError, match="1 to 127 bytes"):
            Corosync(name)


@in_a_loop
async def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise OSError("libcpg.so.4: cannot open shared object file")

    monkeypatch.setattr("wireyard_ring.cpg._library", absent)
    with pytest.raises(RingFailed, match="corosync's library is not there"):
        async with Ring(Corosync("x")):
            raise AssertionError


class Clashing(Group):
    """A group in which somebody's pid has the same low bits as ours."""

    node = 1

    def __init__(self, name: str, deliver: object, change: Callable[[list[Member]], None]) -> None:
        self._change = change
        self._socket, other = socket.socketpair()
        other.send(b"readable")
        self._other = other

    def join(self) -> None:
        pass

    def leave(self) -> None:
        self._socket.close()
        self._other.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def dispatch(self) -> bool:
        self._change([Member(1, os.getpid()), Member(1, os.getpid() + (1 << 16))])
        return True


@in_a_loop
async def test_a_process_id_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard_ring.corosync.Group", Clashing)
    with pytest.raises(RingFailed, match="another member has the process id"):
        async with Ring(Corosync("x")):
            raise AssertionError
