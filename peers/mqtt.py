"""Other MQTT parsers, installed under build/ to be measured: mqtt5 (Rust) and zmqtt (Python)."""

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
    """The parsers cannot be had here; the text says why."""


def parser(module: str) -> ModuleType:
    """Import a module of one of the parsers; they are installed the first time.

    Raises
    ------
    Unavailable
        There is no package index, or nothing in it for this machine.
    """
    if not FOLDER.is_dir():
        part = FOLDER.with_name(f"{FOLDER.name}.part")
        words = ["install", "--quiet", "--require-hashes", "--no-deps", "--upgrade"]
        target = ["--target", str(part), "--requirement", str(REQUIREMENTS)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, *target],
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
