"""Columns give the rows of the goldens, and those of the scalar chain for other conversations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from tests.layers.mqtt.conversations import BATCH, conversations
from tests.layers.mqtt.make import by_columns, by_rows, without_nulls
from tests.reference.goldens import read_goldens
from tests.reference.mqtt_cases import CASES, SHARED, digests_of

Row = dict[str, Any]

CONVERSATIONS: Final = int(os.environ.get("WIREYARD_CONVERSATIONS", BATCH))
"""Random conversations of each version; 30,000 take some hours."""
SEED: Final = int(os.environ.get("WIREYARD_SEED", "100"))
"""Not one of the goldens."""


def same(rows: list[Row], streams: list[Row] | None) -> None:
    """Assert that both ways give the same rows, all columns."""
    assert without_nulls(by_columns(rows, streams)) == without_nulls(by_rows(rows, streams))


def test_every_case_has_a_golden() -> None:
    assert sorted(read_goldens("mqtt")) == sorted(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(SHARED)])
def test_goldens(case: str) -> None:
    assert digests_of(case, Path(), by_columns) == read_goldens("mqtt")[case]


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(SHARED)])
def test_goldens_of_recordings(shared: Path, case: str) -> None:
    assert digests_of(case, shared, by_columns) == read_goldens("mqtt")[case]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_random_conversations(version: int) -> None:
    for packets in conversations(version, SEED, CONVERSATIONS):
        same(*packets)
