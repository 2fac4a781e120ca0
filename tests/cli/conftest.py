"""A command line that runs in this process, and streams to run it on."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.results import LOGIN, Run
from tests.make import item, packet, variety
from wireyard.cli import main


@pytest.fixture
def run() -> Run:
    """Return what runs a command line; an error that no user made is raised, not caught."""

    def call(*arguments: object, stdin: bytes | str | None = None) -> Result:
        words = [str(word) for word in arguments]
        return CliRunner().invoke(
            main,
            words,
            input=stdin,
            catch_exceptions=False,
            prog_name="wireyard",
            env={"COLUMNS": None, "NO_COLOR": None},
        )

    return call


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """Return a stream of well-formed packets of every kind."""
    path = tmp_path / "stream.jmq"
    path.write_bytes(b"".join(variety()))
    return path


@pytest.fixture
def login(tmp_path: Path) -> Path:
    """Return a stream with a password in it."""
    path = tmp_path / "login.jmq"
    path.write_bytes(packet(packet_type=10) + LOGIN + packet(packet_type=20))
    return path


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a stream with one fault of each kind, in this order: 2 malformed, garbage, a tail."""
    path = tmp_path / "damaged.jmq"
    path.write_bytes(
        packet(body=b"first")
        + packet(version=999)
        + packet(items=item(1, "x", length=600))
        + b"no packet"
        + packet(body=b"last")
        + packet(body=b"cut off")[:-3]
    )
    return path
