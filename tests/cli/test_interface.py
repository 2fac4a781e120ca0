"""Interfaces as captures: ``decode -i``."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"
CONNECT = bytes.fromhex("100f00044d5154540402003c00036f6e65")
PUBLISH = bytes.fromhex("300d0007706c616e742f3132312e35")


def decode(*words: object, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with the programs of a folder alone."""
    command = [sys.executable, "-m", "wireyard", "decode", *map(str, words)]
    environment = {**os.environ, "PATH": str(path)}
    quiet = subprocess.DEVNULL
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, stdin=quiet
    )


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("dumpcap", "-q -i lo -w - -f port 1883"),
        ("tcpdump", "--immediate-mode -U -i lo -w - port 1883"),
    ],
)
def test_an_interface_is_a_capture_that_is_still_written(
    name: str, wanted: str, tmp_path: Path
) -> None:
    script = f'echo "$@" > {tmp_path}/words; exec {shutil.which("cat")} {CAPTURE}'
    program(tmp_path, name, script)
    shown = ("--format", "mqtt", "--columns", "frame", "-c", 3)
    result = decode("-i", "lo", "-f", "port 1883", *shown, path=tmp_path)
    # Rows that arrive together are in the order of their streams.
    assert result.stdout.splitlines() == ['{"frame":4}', '{"frame":8}', '{"frame":11}']
    assert (tmp_path / "words").read_text().strip() == wanted


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (None, "needs dumpcap, of Wireshark, or tcpdump; neither is here"),
        ('echo "dumpcap: no permission" >&2; exit 2', "dumpcap: no permission"),
    ],
)
def test_what_is_missing_is_one_line(script: str | None, problem: str, tmp_path: Path) -> None:
    if script is not None:
        program(tmp_path, "dumpcap", script)
    result = decode("-i", "lo", path=tmp_path)
    assert (result.returncode, result.stderr) == (3, f"wireyard: -i lo: {problem}\n")


def test_an_interface_and_a_file_are_not_read_together(tmp_path: Path) -> None:
    result = decode("-i", "lo", CAPTURE, path=tmp_path)
    assert result.returncode == 2 and "-i takes the place of FILE" in result.stderr


@pytest.mark.peer
def test_loopback_is_shown_as_it_happens() -> None:
    can = subprocess.run(
        ["dumpcap", "-q", "-i", "lo", "-a", "duration:0.1", "-w", os.devnull],
        capture_output=True,
        check=False,
    ) if shutil.which("dumpcap") else None  # fmt: skip
    if can is None or can.returncode:
        pytest.skip("dumpcap is not installed, or may not capture")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = [
            "-i",
            "lo",
            "-f",
            f"port {port}",
            "-d",
            f"tcp.port=={port},mqtt",
            "--out",
            "list",
        ]
        words = [sys.executable, "-m", "wireyard", "decode", *options, "-c", "2"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                with socket.create_connection(server.getsockname()) as client:
                    client.sendall(CONNECT)
                    time.sleep(0.1)
                    client.sendall(PUBLISH)
                    time.sleep(0.4)
            assert process.stdout is not None
            shown = process.stdout.read()
    assert "one    >  CONNECT" in shown or "one    >  PUBLISH" in shown
