"""The model check, a small number of its runs; `python -m tests.layers.rmp.model` does more."""

from __future__ import annotations

import pytest

from tests.layers.rmp.model import MUTANTS, broken_rule, mutated


def test_members_of_a_view_deliver_identical_lists_and_every_message_comes_once() -> None:
    broken = {seed: rule for seed in range(1000) if (rule := broken_rule(seed)) is not None}
    assert broken == {}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_wrong_variants_are_found_out(name: str) -> None:
    with mutated(name):
        assert sum(broken_rule(seed) is not None for seed in range(100)) > 20
    assert broken_rule(0) is None
