"""Other MQTT parsers for benchmarks, installed under build/: mqtt5 (Rust) and zmqtt (Python)."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

__all__ = ["Unavailable", "parser"]

REQUIREMENTS = Path(__file__).with_name("mqtt.txt")
FOLDER = Path(__file__).resolve().parent.parent / "build" / "peers-mqtt"


class Unavailable(Exception):
    """The parsers cannot be installed; the message is the reason."""


def parser(module: str) -> ModuleType:
    """Import a module of a parser; install the parsers first if necessary.

    Raises
    ------
    Unavailable
        No package index can be reached, or it has no package for this machine.
    """
    if not FOLDER.is_dir():
        part = FOLDER.with_name(f"{FOLDER.name}.part")
        options = ["install", "--quiet", "--require-hashes", "--no-deps", "--upgrade"]
        target = ["--target", str(part), "--requirement", str(REQUIREMENTS)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *options, *target],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Unavailable(done.stderr.strip().splitlines()[-1])
        part.rename(FOLDER)
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module(module)
