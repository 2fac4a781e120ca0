"""The model of MQTT and the columns give the same rows: recordings, pieces, random conversations.

Both are compared with goldens of the scalar chain that was before. All columns are compared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.layers.mqtt.conversations import BATCH, Packets, conversations, short_connections
from tests.layers.mqtt.make import by_columns
from tests.reference import mqtt
from tests.reference.goldens import lines_of, read_goldens
from tests.reference.mqtt_cases import CASES, SHARED, Derive, digests_of
from wireyard.layers.mqtt.facts import VERDICTS
from wireyard.layers.mqtt.rules import FACT_RULES, VERDICT_RULES
from wireyard.layers.mqtt.violations import RULES

CONVERSATIONS: Final = int(os.environ.get("WIREYARD_CONVERSATIONS", BATCH))
"""Random conversations of each kind and version; 30,000 take some hours."""
SEED: Final = int(os.environ.get("WIREYARD_SEED", "100"))
"""Not one of the goldens."""
JUDGED: Final = ("conversations", "deliveries", "retained", "sessions", "violations")
"""Not judged yet: ``messages``, which only columns make."""


def test_every_case_has_a_golden() -> None:
    assert sorted(read_goldens("mqtt")) == sorted(CASES)
    assert {table for tables in read_goldens("mqtt").values() for table in tables} == {*JUDGED}


@pytest.mark.parametrize("derive", [mqtt.derive, by_columns], ids=["model", "columns"])
@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(SHARED)])
def test_goldens(case: str, derive: Derive) -> None:
    assert digests_of(case, Path(), derive) == read_goldens("mqtt")[case]


@pytest.mark.parametrize("derive", [mqtt.derive, by_columns], ids=["model", "columns"])
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(SHARED)])
def test_goldens_of_recordings(shared: Path, case: str, derive: Derive) -> None:
    assert digests_of(case, shared, derive) == read_goldens("mqtt")[case]


def test_the_model_has_every_rule_and_no_other() -> None:
    page = Path(mqtt.__file__).read_text()
    assert set(re.findall(r"\b[CM]-\d+\b", page)) == set(FACT_RULES)
    assert len({one.text for one in FACT_RULES.values()}) == len(FACT_RULES)


def test_every_violation_and_every_verdict_has_its_rules() -> None:
    named = [name for one in FACT_RULES.values() for name in one.breaks.split()]
    assert sorted(named) == sorted(RULES)
    assert VERDICT_RULES.keys() == VERDICTS.keys()
    assert {one for text in VERDICT_RULES.values() for one in text.split(", ")} <= set(FACT_RULES)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("generator", [conversations, short_connections])
def test_random_conversations(
    generator: Callable[[int, int, int], Iterator[Packets]], version: int
) -> None:
    for packets in generator(version, SEED, CONVERSATIONS):
        model, columns = mqtt.derive(*packets), by_columns(*packets)
        for table in JUDGED:
            assert lines_of(columns.get(table, ())) == lines_of(model[table])
