"""Worse captures of our own recordings: the whole contradicts nothing that is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.degraded import judge

SYMPTOMS = Path(__file__).parents[1] / "examples" / "symptoms"


@pytest.mark.parametrize("name", ["mqtt-not_forwarded", "jms-slow_consumer"])
def test_the_whole_contradicts_nothing(name: str) -> None:
    found = {kind: wrong for kind, wrong, *_ in judge(SYMPTOMS / f"{name}.pcap", 0)}
    assert len(found) >= 15
    assert found == {key: [] for key in found}


def test_a_recording_contradicts_nothing(shared: Path) -> None:
    """Clients log in twice, leave before their answers, and are refused without a word."""
    found = judge(shared / "captures" / "mosquitto" / "refusals-v4.pcap", 0)
    assert {kind: wrong for kind, wrong, *_ in found if wrong} == {}
