"""``wireyard tap`` as a process, between the broker and clients of wireyard."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import wireyard
from tests.tap.sockets import run
from wireyard.cli import main
from wireyard.cli.tap import _Live
from wireyard.client import Client


def test_a_client_through_the_command(tmp_path: Path) -> None:
    with wireyard.broker() as broker:
        command = [sys.executable, "-m", "wireyard", "tap", "0", f"localhost:{broker.port}"]
        command += ["--record", str(tmp_path), "--delay", "PUBACK to till, 1 ms"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            assert line[:2] == ["listens", "on"]

            async def talk() -> None:
                async with Client(f"mqtt://{line[2]}", client_id="till", password="sesame",
                                  username="ann") as client:  # fmt: skip
                    await client.subscribe("a", 1)
                    await client.publish("a", b"news", qos=1)
                    async for message in client:
                        assert message.payload == b"news"
                        break

            run(talk())
            process.send_signal(signal.SIGINT)
            _, notes = process.communicate(timeout=20)
            assert process.returncode == 0
    assert "delay: PUBACK to till (127.0.0.1:" in notes
    (path,) = tmp_path.iterdir()
    kinds = wireyard.read(str(path))["packet_type_name"].to_pylist()
    assert {"CONNECT", "CONNACK", "SUBSCRIBE", "SUBACK"} < {*kinds}
    assert kinds.count("PUBLISH") == kinds.count("PUBACK") == 2
    assert b"sesame" not in path.read_bytes()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["x", "1883"], "is no address"),
        (["0", "localhost"], "is no address"),
        (["65536", "localhost:1883"], "is no address"),
        (["192.0.2.1:1883", "1883"], "192.0.2.1:1883: Cannot assign requested address"),
        (["0", "http://localhost:1883"], "a broker's address is of the form"),
        (["0", "1883", "--drop", "NOTHING"], "has no packet type"),
        (["0", "1883", "--cafile", "ca.pem"], "--cafile needs a broker with TLS"),
        (["0", "mqtts://localhost:1883", "--cafile", "missing.pem"], "missing.pem: No such file"),
        (["0", "1883", "--key", "key.pem"], "--key needs --cert"),
        (["a..b:0", "1883"], "mqtt://HOST:PORT"),
        (["0", "[:1"], "mqtt://HOST:PORT"),
        (["0", "1883", "--record", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_mistakes_are_one_line(words: list[str], problem: str) -> None:
    done = CliRunner().invoke(main, ["tap", *words])
    assert done.exit_code in (2, 3)
    (line,) = done.stderr.splitlines()
    assert problem in line


def test_notes_on_the_screen_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    live = _Live("tap")
    live.notes.append("a\x1b[9mb\nc\u202e")
    live._draw()
    assert capsys.readouterr().out.endswith("\na\\x1b[9mb\\nc\\u202e")
