"""The shipped Java classes as a judge of bytes: what they read of a stream of JMQ packets."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peers import openmq


@cache
def _command(program: str) -> list[str]:
    source = Path(openmq.__file__).with_name(program)
    try:
        return openmq.java(source, "-Xshare:auto", "-XX:TieredStopAtLevel=1")
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
    return [json.loads(line) for line in _run("ReadBack.java", data, folder)]


def read_bodies(data: bytes, folder: Path) -> list[tuple[int, str, str, str]]:
    """Return what the message classes of the shipped client read of the bodies of `data`.

    One tuple a value: place of its packet, name of an entry of a MAP (else empty), its Java class,
    and its text. Bytes are hex.
    """
    values = []
    for line in _run("ReadBodies.java", data, folder):
        number, name, kind, shown = line.split("\t")
        values.append((int(number), _unescaped(name), kind, _unescaped(shown)))
    return values


def _unescaped(text: str) -> str:
    halves = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)
    return halves.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _run(program: str, data: bytes, folder: Path) -> list[str]:
    stream = folder / f"{program}.jmq"
    stream.write_bytes(data)
    command = [*_command(program), str(stream)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()
