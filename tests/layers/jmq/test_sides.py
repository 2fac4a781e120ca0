"""Recordings without one direction of a connection: the whole contradicts nothing that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.layers.jmq.judge import Tables, derive
from tests.layers.jmq.recorded import SCENARIOS
from tests.layers.jmq.test_lost import values
from tests.reference.jmq_cases import Case, case_of
from wireyard.formats.base import Row

ROOT = Path(__file__).parents[3]
OWN = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("traffic.pcap", "symptoms/jms-*.pcap", "symptoms/cluster-*.pcap")
    for path in (ROOT / "examples").glob(pattern)
)
SHARED = [f"captures/openmq/{name}.pcap" for name in SCENARIOS if name != "bulk"]
_UNKNOWN = {"undecided", "in_transaction"}
_ALONE = {
    "malformed_records", "sequence_back", "sequence_reused", "transaction_id_missing",
}  # fmt: skip
"""Rules about the packets of one side."""
_TIMES = {
    "sessions": ("opened_ns", "closed_ns"),
    "deliveries": ("delivered_ns", "acknowledged_ns"),
    "transactions": ("ended_ns",),
    "conversations": ("latency_ms",),
}


def rows_of(tables: Tables) -> list[Row]:
    rows = []
    for table in tables.values():
        rows += table.to_pylist(maps_as_pydicts="lossy")
    return rows


def judge(case: Case) -> None:
    """Compare the tables without each direction, and without all of one, with those of all."""
    rows = rows_of(case.tables)
    whole = derive(rows, case.ended)
    ends = {(row["stream"], row["client"], row["server"]) for row in whole["sessions"]}
    streams = {row["stream"] for row in rows if row["format"].startswith("jmq")}
    brokers = {server for _, _, server in ends}
    to_brokers = {one for one in streams if one.partition(">")[2].partition("#")[0] in brokers}
    for lost in (*({one} for one in sorted(streams)), to_brokers, streams - to_brokers):
        kept = [row for row in rows if row["stream"] not in lost]
        over = {key: end for key, end in case.ended.items() if key[1] not in lost}
        compare(whole, derive(kept, over), lost)


def compare(whole: dict[str, list[Row]], part: dict[str, list[Row]], lost: set[str]) -> None:
    known = values(whole["violations"], ("rule", "offset", "stream"), "text")
    for row in part["violations"]:
        assert row["text"] in known.get((row["rule"], row["offset"], row["stream"]), ()), row
        ends = set(row["stream"].partition("#")[0].split(">"))
        is_torn = any(set(one.partition("#")[0].split(">")) == ends for one in lost)
        assert row["rule"] in _ALONE or not is_torn, row
    copy = "message_key", "consumer", "consumer_id", "delivered_ns"
    verdicts = values(whole["deliveries"], copy, "verdict")
    for key, found in values(part["deliveries"], copy, "verdict").items():
        assert found <= verdicts[key] | _UNKNOWN, key
    keys: dict[str, tuple[str, ...]] = {
        "sessions": ("client", "server"), "deliveries": ("stream", "offset"),
        "transactions": ("server", "transaction_id"), "conversations": ("stream", "offset"),
    }  # fmt: skip
    for table, names in _TIMES.items():
        # A JMS reply counts when it was sent, or else when it was delivered.
        mine, all_rows = (
            [row for row in tables[table] if row.get("kind") != "jms"] for tables in (part, whole)
        )
        for name in names:
            true = values(all_rows, keys[table], name)
            for key, times in values(mine, keys[table], name).items():
                assert times <= true.get(key, set()) | {None}, (table, name, key)
    outcomes = values(whole["transactions"], keys["transactions"], "outcome")
    for key, found in values(part["transactions"], keys["transactions"], "outcome").items():
        assert found <= outcomes[key] | {"open", "prepared"}, key
    ended = values(whole["sessions"], keys["sessions"], "ended_by")
    for key, found in values(part["sessions"], keys["sessions"], "ended_by").items():
        assert found <= ended[key] | {None, "open"}, key


@pytest.mark.parametrize("name", OWN)
def test_a_side_of_an_example_that_is_missing_makes_nothing_false(name: str) -> None:
    case = case_of(name, None)
    assert case is not None
    judge(case)


@pytest.mark.parametrize("name", SHARED)
def test_a_side_of_a_recording_that_is_missing_makes_nothing_false(name: str, shared: Any) -> None:
    case = case_of(name, shared)
    assert case is not None
    judge(case)
