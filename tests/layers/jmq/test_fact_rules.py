"""The rules of JMS facts and those of the model: the same numbers, sentences and sections."""

from __future__ import annotations

import re
from pathlib import Path

from wireyard.layers.jmq.fact_rules import FACT_RULES
from wireyard.layers.jmq.rules import BROKEN

MODEL = Path(__file__).parents[2] / "reference" / "jmq.py"


def sentences() -> dict[str, tuple[str, str]]:
    """Return section and sentence of each rule in the comments of the model."""
    blocks = re.findall(r"^ *# (J-\d+ .*\n(?: *# (?!J-\d).*\n)*)", MODEL.read_text(), re.MULTILINE)
    found = {}
    for block in blocks:
        text = " ".join(re.sub(r"^ *# ", "", line) for line in block.splitlines())
        parts = re.fullmatch(r"(J-\d+) (?:\(([^)]*)\) )?(.*)", text)
        assert parts is not None, text
        assert parts[1] not in found, parts[1]
        found[parts[1]] = (parts[2] or "", parts[3])
    return found


def test_both_lists_are_equal() -> None:
    assert sentences() == {
        number: (rule.section, rule.sentence) for number, rule in FACT_RULES.items()
    }
    assert list(FACT_RULES) == [f"J-{number}" for number in range(1, len(FACT_RULES) + 1)]


def test_each_violation_breaks_a_rule_of_the_list() -> None:
    assert set(BROKEN.values()) <= FACT_RULES.keys()
