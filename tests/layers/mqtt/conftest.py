"""What the tests of recorded traffic ask for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    found = shared / "captures" / "mosquitto"
    if not found.is_dir():
        pytest.skip("no recorded MQTT traffic in the shared folder")
    return found
