"""``wireyard ring`` between processes, over multicast on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from tests.ring.loops import free_port, needs_multicast
from wireyard.cli import main

WORDS = (sys.executable, "-m", "wireyard", "ring")
pytestmark = pytest.mark.usefixtures("multicast")


@pytest.fixture(scope="module")
def multicast() -> None:
    needs_multicast()


@pytest.fixture
def ring() -> str:
    return f"udp:239.255.77.79:{free_port()}"


def call(*words: str, ring: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WORDS, *words, "--ring", ring], input=stdin, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@contextmanager
def listening(ring: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Have a process listen; it says so when it does."""
    process = subprocess.Popen(
        [*WORDS, "listen", "--ring", ring, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert f"{ring}: listening as 127.0.0.1:" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_arguments_and_lines_are_messages(ring: str) -> None:
    with listening(ring, "--count", "5", "--domain", "3") as listener:
        long = "x" * 10_000
        for done in (
            call("send", "one", long, "--domain", "3", "--client", "9", ring=ring),
            call("send", "for others", "--domain", "4", ring=ring),
            call("send", ring=ring, stdin="a\n\nlast without an end"),
        ):
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        out, _ = listener.communicate(timeout=60)
    found = rows(out)
    sent = [b"one", long.encode(), b"a", b"", b"last without an end"]
    assert [bytes.fromhex(row["data"]) for row in found] == sent
    assert [(row["domain"], row["client"]) for row in found] == [(3, 9)] * 2 + [(None, None)] * 3
    assert len({row["sender"] for row in found}) == 2


def test_an_argument_may_be_any_bytes(ring: str) -> None:
    with listening(ring, "--count", "1") as listener:
        subprocess.run([*map(str.encode, WORDS), b"send", b"\xff\xfe", b"--ring", ring.encode()],
                       check=True, timeout=60)  # fmt: skip
        out, _ = listener.communicate(timeout=60)
    assert [row["data"] for row in rows(out)] == ["fffe"]


def test_a_request_and_its_reply(ring: str) -> None:
    with listening(ring, "--answer", "pong\x1b[2J"):
        done = call("request", "ping", "--timeout", "50", ring=ring)
        assert (done.returncode, done.stderr) == (0, "")
        (row,) = rows(done.stdout)
        assert bytes.fromhex(row["data"]) == b"pong\x1b[2J"
        shown = call("request", "ping", "--timeout", "50", "--out", "text", ring=ring)
        assert shown.stdout.endswith("  pong\\x1b[2J\n")


def test_a_request_that_nobody_answers(ring: str) -> None:
    done = call("request", "ping", "--timeout", "0.1", ring=ring)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"wireyard: {ring}: not all replies came (timeout)\n"
    assert call("request", "x", "--timeout", "0.1", "--want", "stream", ring=ring).returncode == 0


@pytest.mark.parametrize(
    ("words", "ring", "status", "text"),
    [
        (
            ("send", "x"),
            "x:1",
            2,
            "'x:1' is no ring: tcp:ADDRESS:PORT[-PORT],..., udp:GROUP:PORT or",
        ),
        (("send", "x"), "tcp:", 2, "'tcp:' is no ring"),
        (("send", "x"), "tcp:1", 2, "'1' is no ADDRESS:PORT or ADDRESS:PORT-PORT"),
        (("send", "x"), "tcp:198.51.100.7:7077", 3, "no address to listen on"),
        (("send", "x"), "udp:10.0.0.1:7", 2, "10.0.0.1 is no multicast address"),
        (("send", "x"), "udp:239.0.0.1:70000", 2, "is no ring"),
        (("request", "x", "--want", "0"), "udp:239.255.77.79:7", 2, "--want is a number from 1"),
        (("request", "x", "--want", "all"), "udp:239.255.77.79:7", 2, "members of ring udp"),
        (("send", "x", "--interface", "198.51.100.7"), "udp:239.255.77.79:7", 3, "198.51.100.7"),
    ],
)
def test_what_a_user_can_do_wrong_is_one_line(
    words: tuple[str, ...], ring: str, status: int, text: str
) -> None:
    given = ["ring", *words, "--ring", ring]
    done = CliRunner().invoke(main, given, catch_exceptions=False, prog_name="wireyard")
    assert (done.exit_code, done.stdout) == (status, "")
    assert len(done.stderr.splitlines()) == 1 and text in done.stderr


def test_a_message_longer_than_any_cannot_be_written(ring: str) -> None:
    done = call("send", ring=ring, stdin="x" * (16 << 20))
    assert done.returncode == 4
    assert "packets of 1400 bytes" in done.stderr and len(done.stderr.splitlines()) == 1
