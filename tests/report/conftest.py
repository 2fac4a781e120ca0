"""The command line of the tests of commands, and time for symptoms on slow machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import run
from wireyard.report import findings

__all__ = ["patient", "run"]


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Look for all symptoms, however long that takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(findings, "_SYMPTOMS_S", 600.0)
        yield
