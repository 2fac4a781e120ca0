"""Nothing is read beyond either end of the bytes, and it would be seen if it were."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wireyard.formats import names

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("name", names())
def test_nothing_is_read_beyond_either_end_of_the_bytes(name: str) -> None:
    done = run("-m", "tests.guard", name, "0", "20")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("place", ["view.nbytes", "-1"])
def test_a_byte_too_far_would_be_seen(place: str) -> None:
    done = run(
        "-c",
        "import ctypes, sys\n"
        "from tests.guard import between_guards\n"
        f"view, _ = between_guards(b'x' * 100, at_end={place != '-1'})\n"
        "first = ctypes.addressof(ctypes.c_char.from_buffer(view))\n"
        "assert ctypes.string_at(first, 100) == b'x' * 100\n"
        f"ctypes.string_at(first + {place}, 1)\n",
    )
    assert done.returncode == -signal.SIGSEGV, done.stderr
