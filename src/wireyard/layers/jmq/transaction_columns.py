"""The second phase: transactions, and the messages sent and acknowledged in them.

Its key is source, broker and transaction id; any partition by it gives the same rows.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import kernel
from wireyard.arrays import Grid, Int8s, Int32s, IntGrid8, Ints
from wireyard.layers.grouping import (
    dense_ids,
    order_groups,
    text_codes,
)
from wireyard.layers.jmq.kernels.codes import DELIVERY_STATES, USE_EVENTS
from wireyard.layers.jmq.record_columns import (
    empty_to_null,
    join_codes,
    nullable,
    positions_of,
    take_or_null,
    texts_of,
    violation_rows,
    whole,
)
from wireyard.layers.jmq.rules import RULES
from wireyard.layers.jmq.states import DELIVERY, TRANSACTION, TRANSACTION_OUTCOMES
from wireyard.layers.states import NEXT, transitions
from wireyard.layers.tables import as_fact_table

_STATES: Final = TRANSACTION.states
_OUTCOMES: Final = tuple(dict.fromkeys(TRANSACTION_OUTCOMES.values()))
_OUTCOME_OF: Final = np.array(
    [_OUTCOMES.index(TRANSACTION_OUTCOMES[state]) for state in _STATES], np.int8
)
_OPEN, _ROLLED_BACK = _OUTCOMES.index("open"), _OUTCOMES.index("rolled_back")
_CELLS: Final = np.ascontiguousarray(transitions(TRANSACTION)[:, :, NEXT].astype(np.int8))
_COUNTS: Final = np.array(
    [
        [{"send": 1, "deny_send": -1}.get(event, 0) for event in USE_EVENTS],
        [{"acknowledge": 1, "deny_acknowledge": -1}.get(event, 0) for event in USE_EVENTS],
    ],
    np.int8,
)
_START: Final = USE_EVENTS.index("start")
_IN_TRANSACTION: Final = DELIVERY_STATES.index("in_transaction")
_AFTER: Final = np.array(
    [
        DELIVERY_STATES.index(DELIVERY.lookup("in_transaction", outcome).state)
        for outcome in _OUTCOMES
    ],
    np.int32,
)


class TransactionResult(NamedTuple):
    """The result of `follow_transactions`: facts, and the records of messages with outcomes."""

    facts: dict[str, pa.Table]
    sendings: pa.Table
    deliveries: pa.Table


def follow_transactions(
    uses: pa.Table, sendings: pa.Table, deliveries: pa.Table
) -> TransactionResult:
    """Track transactions; records of messages in them get their outcomes.

    The key is source, server and transaction id; records without a transaction are returned
    unchanged. `sendings` get a column `rolled_back`, and the `state` of `deliveries` is final.
    """
    (of_use, of_sending, of_delivery), count = _transactions(uses, sendings, deliveries)
    (positions,) = positions_of(uses)
    order, starts = order_groups(of_use, count, *positions, nullable(uses["order"])[0])
    events, names = text_codes(uses["event"])
    event = np.array([*map(USE_EVENTS.index, names.to_pylist()), 0], np.int32)[events]
    state = np.zeros(count, np.int8)
    begun, ended = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    counted, refused = np.zeros((2, count), np.int64), np.zeros(len(events), np.int8)
    _follow_uses(
        order, starts, event, nullable(uses["messages"])[0], _CELLS, _OUTCOME_OF, _COUNTS, state,
        begun, ended, counted, refused,
    )  # fmt: skip
    outcome = _OUTCOME_OF[state]
    is_sure = np.ones(count, np.int8)
    is_sure[of_use[~uses["is_sure"].to_numpy()]] = 0
    used = np.flatnonzero(np.diff(starts))
    first = order[starts[used]] if len(used) else np.empty(0, np.int64)
    facts = {
        "transactions": _transaction_rows(
            uses, first, outcome[used], begun[used], ended[used], counted[:, used]
        ),
        "violations": _over_rows(uses, np.flatnonzero(refused & is_sure[of_use])),
    }
    rolled_back = np.zeros(len(of_sending), bool)
    inside = of_sending >= 0
    rolled_back[inside] = outcome[of_sending[inside]] == _ROLLED_BACK
    return TransactionResult(
        facts,
        sendings.append_column("rolled_back", pa.array(rolled_back)),
        _ended_deliveries(deliveries, of_delivery, outcome),
    )


def _transactions(*tables: pa.Table) -> tuple[list[Any], int]:
    """Return the transaction of each record as a number, -1 for none, and the number of them."""
    sources, _ = join_codes(*(table["source"] for table in tables))
    servers, _ = join_codes(*(table["server"] for table in tables))
    numbers = [nullable(table["transaction_id"]) for table in tables]
    chosen = [np.flatnonzero(is_valid) for _, is_valid in numbers]
    dense, count = dense_ids(
        np.concatenate([code[rows] for code, rows in zip(sources, chosen, strict=True)]),
        np.concatenate([code[rows] for code, rows in zip(servers, chosen, strict=True)]),
        np.concatenate([value[rows] for (value, _), rows in zip(numbers, chosen, strict=True)]),
    )
    parts, at = [], 0
    for table, rows in zip(tables, chosen, strict=True):
        ids = np.full(table.num_rows, -1, np.int32)
        ids[rows] = dense[at : at + len(rows)]
        at += len(rows)
        parts.append(ids)
    return parts, count


def _ended_deliveries(deliveries: pa.Table, of: Any, outcome: Any) -> pa.Table:
    codes, names = text_codes(deliveries["state"])
    states = np.array([*map(DELIVERY_STATES.index, names.to_pylist()), -1], np.int32)[codes]
    waits = (states == _IN_TRANSACTION) & (of >= 0)
    states[waits] = _AFTER[outcome[of[waits]]]
    at = deliveries.column_names.index("state")
    return deliveries.set_column(at, "state", texts_of(list(DELIVERY_STATES), states))


def _transaction_rows(
    uses: pa.Table, first: Any, outcome: Any, begun: Any, ended: Any, counted: Any
) -> pa.Table:
    def of(name: str, rows: Any) -> pa.Array:
        return take_or_null(uses[name], np.maximum(rows, 0), rows >= 0)

    return as_fact_table(
        "transactions",
        {
            "transaction_id": of("transaction_id", first),
            "server": of("server", first),
            "client": of("client", first),
            "client_id": of("client_id", first),
            "begun_ns": of("ns", begun),
            "ended_ns": of("ns", ended),
            "outcome": texts_of(list(_OUTCOMES), outcome),
            "sent": counted[0],
            "acknowledged": counted[1],
            "begun_frame": of("frame", begun),
            "ended_frame": of("frame", ended),
            **{name: of(name, first) for name in ("source", "stream", "offset")},
        },
    )


def _over_rows(uses: pa.Table, rows: Any) -> pa.Table:
    """Return events of transactions after their ends as violations."""
    over = uses.take(pa.array(rows))
    event = over["event"].cast(pa.string())
    # The client causes all events but the start: there the broker chooses the id.
    by_server = pc.equal(event, "start")
    ends = [over[name].cast(pa.string()) for name in ("server", "client")]
    texts = pc.binary_join_element_wise(
        event, pa.scalar(" of "), over["transaction_id"].cast(pa.string()),
        pa.scalar(f": {RULES['transaction_over']}"), "",
    )  # fmt: skip
    client = pc.if_else(by_server, *ends)
    return violation_rows(
        texts_of(["transaction_over"], np.zeros(len(rows))),
        {name: whole(over[name]) for name in ("ns", "frame", "source", "stream", "offset")},
        client=empty_to_null(whole(client)),
        text=whole(texts),
        client_id=whole(over["client_id"]),
    )


@kernel
def _follow_uses(
    order: Ints, starts: Ints, event: Int32s, messages: Ints, cells: IntGrid8, outcome_of: Int8s,
    counts: IntGrid8, state: Int8s, begun: Ints, ended: Ints, counted: Grid, refused: Int8s,
) -> None:  # fmt: skip
    """Apply the events of each transaction in the order of time."""
    for group in range(len(starts) - 1):
        for at in range(starts[group], starts[group + 1]):
            use = order[at]
            now = state[group]
            following = cells[now, event[use]]
            if following < 0:
                refused[use] = 1
                continue
            if event[use] == _START and begun[group] < 0:
                begun[group] = use
            for what in range(2):
                counted[what, group] += counts[what, event[use]] * messages[use]
            if following != now and outcome_of[following] != _OPEN:
                ended[group] = use
            state[group] = following
