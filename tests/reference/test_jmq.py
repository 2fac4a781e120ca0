"""Facts of JMQ against the goldens: recordings, recordings with losses, random conversations."""

from __future__ import annotations

import pytest

from tests.reference.goldens import digests, read_goldens
from tests.reference.jmq_cases import Case, case_of
from wireyard.layers.jmq import columns

GOLDENS = read_goldens("jmq")


@pytest.fixture(params=sorted(GOLDENS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(name: str, request: pytest.FixtureRequest) -> Case:
    is_own = name.startswith(("examples/", "conversations/"))
    found = case_of(name, None if is_own else request.getfixturevalue("shared"))
    assert found is not None
    return found


def test_columns_give_the_frozen_rows(name: str, case: Case) -> None:
    tables = columns.derive_columns(case.tables, case.ended).tables
    assert digests({table: rows.to_pylist() for table, rows in tables.items()}) == GOLDENS[name]
