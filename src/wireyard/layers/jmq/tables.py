"""The tables of JMQ packets, for whoever has them in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from wireyard.formats.base import Row
from wireyard.layers.endpoints import connection_of
from wireyard.layers.jmq.chain import CHAIN
from wireyard.layers.steps import run_chain
from wireyard.layers.tables import TABLES

__all__ = ["tables"]

_EMPTY = {
    table: dict.fromkeys(column.name for column in TABLES[table])
    for table in ("deliveries", "transactions", "hops", "conversations", "sessions", "violations")
}


def tables(rows: Iterable[Row], ended: Collection[tuple[str, str]] = ()) -> dict[str, list[Row]]:
    """Return what the packets of captures say, table by table.

    Parameters
    ----------
    rows
        JMQ packets and GPackets, of both directions of each connection, in the order of time. Rows
        of other formats, and of what is no packet, may be among them.
    ended
        Source and name of the streams that end with a FIN or a reset. Without them nothing tells a
        connection that was dropped from one that was there when the capture ended.

    Returns
    -------
    tables
        Rows of `deliveries`, `transactions`, `hops`, `conversations`, `sessions` and `violations`,
        with the columns of ``wireyard.layers.tables``. What caps made it forget, only `CHAIN`
        tells.
    """
    packets = [(connection_of(row), row) for row in rows]
    keys = {(row["source"], row["stream"]): key for key, row in packets}
    streams = [
        (key, {"source": stream[0], "stream": stream[1], "ended": True})
        for stream, key in keys.items()
        if stream in ended
    ]
    found = run_chain(CHAIN, chain(streams, packets)).tables
    # All the columns of a table, in their order, whatever it has of them.
    return {table: [empty | row for row in found.get(table, ())] for table, empty in _EMPTY.items()}
