"""The shipped Java classes as a judge of bytes: what they read of a stream of JMQ packets."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peers import openmq

READ_BACK = Path(openmq.__file__).with_name("ReadBack.java")


@cache
def _command() -> list[str]:
    try:
        return openmq.java(READ_BACK, "-Xshare:auto", "-XX:TieredStopAtLevel=1")
    except openmq.Unavailable as missing:
        # Where Maven is expected, a peer that cannot be asked is a failure, not a skip.
        if os.environ.get("WIREYARD_PEERS") == "require":
            raise
        pytest.skip(str(missing))


def read_back(data: bytes, folder: Path) -> list[dict[str, Any]]:
    """Return what the shipped classes read of `data`, one dict a packet.

    The names are those of our rows; bytes are hex, absent is None, property values are text with
    their type beside them. `errors` names the getters that threw; with `errors["packet"]` the
    packet could not be read, and reading ended there.

    Parameters
    ----------
    data
        Packets one after the other.
    folder
        Where to put the file for the Java side; a test's `tmp_path`.
    """
    stream = folder / "read-back.jmq"
    stream.write_bytes(data)
    done = subprocess.run(
        [*_command(), str(stream)], capture_output=True, text=True, check=True, timeout=120
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
