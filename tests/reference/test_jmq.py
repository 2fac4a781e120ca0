"""Facts of JMQ against the goldens and the model: recordings, losses, random conversations."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.layers.jmq.judge import differences, packet_tables
from tests.layers.jmq.make import Talk
from tests.reference import jmq
from tests.reference.goldens import read_goldens
from tests.reference.jmq_cases import Case, case_of, golden_of, limit_of
from wireyard.layers.jmq import columns, rules
from wireyard.layers.jmq.states import OUTCOMES, SESSION, TRANSACTION

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


def test_columns_give_the_rows_of_goldens_and_model(name: str, case: Case) -> None:
    assert golden_of(name, case) == GOLDENS[name]
    if limit_of(name) is None:
        assert differences(case.tables, case.ended) == []
    else:
        assert "dropped" in GOLDENS[name]


def test_a_row_that_is_wrong_or_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("conversations/3", None)
    assert case is not None
    derive = columns.derive_columns

    def spoiled(*given: Any) -> columns.DerivedColumns:
        found = derive(*given)
        for name in ("sessions", "deliveries"):
            table = found.tables[name].slice(1)
            wrong = pa.array([*table["offset"].to_pylist()[:-1], -1], pa.int64())
            place = table.column_names.index("offset")
            found.tables[name] = table.set_column(place, "offset", wrong)
        return found

    monkeypatch.setattr(columns, "derive_columns", spoiled)
    differing = differences(*case)
    for name in ("sessions", "deliveries"):
        assert sum(one.startswith(f"{name}: the columns have no") for one in differing) == 2
        assert sum(one.startswith(f"{name}: the model has no") for one in differing) == 1


def test_damaged_bytes_that_begin_a_stream_may_be_a_reply() -> None:
    """The damaged packet may be the HELLO_REPLY, so nothing after it is a violation."""
    talk = Talk()
    talk.ask("HELLO")
    talk.reply("HELLO_REPLY")["status"] = "malformed"
    talk.ask("HELLO")
    assert differences(packet_tables(talk.rows)) == []


def test_tables_of_states_are_those_of_the_model() -> None:
    for table, drawn, short in (
        (SESSION, jmq.NEXT, dict(zip(SESSION.events, jmq.NEXT["new"], strict=True))),
        (TRANSACTION, jmq.TRANSACTIONS, {name: name for name in TRANSACTION.events} | jmq.SHORT),
    ):
        named = {state: state for state in table.states} | {"committing_prepared": "asked"}
        for state in table.states:
            for event in table.events:
                cell = table.get((state, event))
                following = "-" if cell is None else named[cell.state]
                assert drawn[named[state]][short[event]] == following, (state, event)
    assert SESSION.state_rules == jmq.BREAKS
    unsettled = dict.fromkeys(OUTCOMES, jmq.NOT_ACKNOWLEDGED)
    assert unsettled | jmq.OF_VERDICT == OUTCOMES
    assert rules.RULES == jmq.RULES
    needs = {name: {rule for rule, each in rules.NEEDS.items() if each == value} for name, value in
             (("all", rules.ALL), ("both", rules.BOTH))}  # fmt: skip
    assert needs == {"all": jmq.NEEDS_ALL, "both": jmq.NEEDS_BOTH}
