"""The model check, a small number of its runs; `python -m tests.ring.model` does more."""

from __future__ import annotations

import pytest

from tests.ring.model import MUTANTS, broken_rule, mutated

RUNS = 1000


def test_members_agree_and_every_sender_is_heard_in_its_order_without_a_gap() -> None:
    broken = {seed: rule for seed in range(RUNS) if (rule := broken_rule(seed)) is not None}
    assert broken == {}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_wrong_variants_break_a_rule(name: str) -> None:
    with mutated(name):
        assert any(broken_rule(seed) is not None for seed in range(100))
    assert broken_rule(0) is None


def test_what_was_sent_behind_a_cut_message_was_delivered_before_it() -> None:
    """The rule about the order of a sender is what finds it, before members disagree."""
    with mutated("resends-behind"):
        rules = [rule for seed in range(100) if (rule := broken_rule(seed)) is not None]
    assert any("out of order" in rule for rule in rules)
