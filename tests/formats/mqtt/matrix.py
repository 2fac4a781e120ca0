"""The malformed matrix: broken packets, and the verdict on each, by version.

``python -m tests.formats.mqtt.matrix`` writes docs/formats/mqtt-malformed.md.
"""

from __future__ import annotations

from pathlib import Path

from wireyard.conform.packets import CASES, VERSIONS, verdict_of
from wireyard.formats.mqtt.layout import SPECS
from wireyard.formats.mqtt.rules import RULES

__all__ = ["DOCUMENT", "malformed_matrix"]

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "formats" / "mqtt-malformed.md"
_HEAD = """
# MQTT: broken packets

The verdict of wireyard on a packet that breaks a rule, by the version in force: the number of the
rule if the standard has one, otherwise a name of ours; `ok` if the version has no such rule; empty
if it has no such packet. A packet is malformed exactly if it has a verdict. What brokers do with
these packets is in [conform.md](../conform.md).

| packet | MQIpdp 2.3 | 3.1 | 3.1.1 | 5.0 |
|---|---|---|---|---|
"""
_RULES_HEAD = """
## Rules

The place of each rule in each version; empty if the version does not have it. While the version is
not known, only rules of both 3.1 and 3.1.1 count.

| rule | | MQIpdp 2.3 | 3.1 | 3.1.1 | 5.0 |
|---|---|---|---|---|---|
"""


def malformed_matrix() -> str:
    """Return the document."""
    rows = []
    for case in CASES:
        verdicts = []
        for version in VERSIONS:
            data = case.make(version)
            verdicts.append("" if data is None else verdict_of(data, version) or "ok")
        rows.append(_row(case.name, *verdicts))
    rules = [
        _row(f"`{rule.name}`", rule.text, *(rule.cited.get(version, "") for version in VERSIONS))
        for rule in RULES.values()
    ]
    assert set(VERSIONS) == set(SPECS) - {0}
    return f"{_HEAD.lstrip()}{''.join(rows)}{_RULES_HEAD}{''.join(rules)}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n".replace("  ", " ")


if __name__ == "__main__":
    DOCUMENT.write_text(malformed_matrix())
