"""The model check, a few of its runs; `python -m tests.ring.sequencer.model` does more."""

from __future__ import annotations

import os

import pytest

from tests.ring.sequencer.model import MUTANTS, broken_rule, mutated

ENOUGH = 30
"""As many runs find out each wrong variant; the first eight do."""
RUNS = int(os.environ.get("WIREYARD_RING_RUNS", ENOUGH))


def test_members_agree_whatever_happens_to_processes_and_connections() -> None:
    broken = {seed: rule for seed in range(RUNS) if (rule := broken_rule(seed)) is not None}
    assert broken == {}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_wrong_variants_are_found_out(name: str) -> None:
    with mutated(name):
        assert any(broken_rule(seed) is not None for seed in range(ENOUGH))
