"""A broker whose sockets are recorded too, to compare what it records itself with what passed.

Both recordings have the time of the event in which something was read or written, so that the facts
of both are equal down to their times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import wireyard
from wireyard.answers import Tables, open_tables
from wireyard.broker import server
from wireyard.broker.connection import Connection
from wireyard.broker.recording import Recording, Tape
from wireyard.broker.thread import BrokerThread

PLACES: Final = ("frame", "source", "file")
"""Endings of columns that say where in a capture something is."""
FACTS: Final = ("deliveries", "sessions", "violations", "messages", "transactions")


class _Recorded:
    """A transport whose bytes are recorded as they are written."""

    def __init__(self, transport: asyncio.Transport, wire: Tape) -> None:
        self._transport, self._wire = transport, wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._wire.write(False, data)
        self._transport.write(data)


class _Clock:
    """The time of the last event of a broker's loop."""

    def __init__(self, broker: server.Server) -> None:
        self._broker, self.now_ns = broker, 0

    def tick(self) -> None:
        self.now_ns = int(self._broker.now() * 1e9)

    def __call__(self) -> int:
        return self.now_ns


@contextmanager
def recorded(
    folder: Path, patch: pytest.MonkeyPatch, *wanted: Any, **named: Any
) -> Iterator[BrokerThread]:
    """Run a broker; at the end, require that both recordings tell the same.

    The recordings are ``broker-*.pcapng`` and ``wires.pcapng`` in the folder. The other arguments
    are those of ``wireyard.broker``.
    """
    broker = wireyard.broker(*wanted, record=folder, **named)
    clock = _Clock(broker.server)
    patch.setattr(
        server,
        "record_into",
        lambda folder, kind, time_ns, say: Recording(
            (folder / "broker-own.pcapng").open("xb"), clock, say
        ),
    )
    with (folder / "wires.pcapng").open("wb") as file:
        wires = Recording(file, clock)

        class Wired(Connection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                clock.tick()
                super().connection_made(transport)
                client, here = (transport.get_extra_info(n) for n in ("peername", "sockname"))
                self._wire = wires.open(client[:2], here[:2])
                self._transport: Any = _Recorded(self._transport, self._wire)

            def data_received(self, data: bytes) -> None:
                clock.tick()
                if self._link is not None and self._link.endpoint.ended is None:
                    self._wire.write(True, data)  # later the broker reads nothing
                super().data_received(data)

            def leave(self) -> None:
                clock.tick()
                super().leave()

            def connection_lost(self, exc: Exception | None) -> None:
                clock.tick()
                by_client = self._link is None or self._link.endpoint.ended is None
                super().connection_lost(exc)
                self._wire.close(by_client)

        patch.setattr(server, "Connection", Wired)
        with broker:
            yield broker
        wires.close()
    with (
        open_tables([str(folder / "broker-own.pcapng")]) as own,
        open_tables([str(folder / "wires.pcapng")]) as others,
    ):
        for table in FACTS:
            assert rows_of(own, table) == rows_of(others, table), table


def rows_of(tables: Tables, table: str) -> list[str]:
    """Return the rows of a table without where they are in the capture, sorted."""
    if table not in tables.names:
        return []
    return sorted(map(str, map(_shown, tables.sql(f"SELECT * FROM {table}").to_pylist())))


def _shown(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in row.items() if not name.endswith(PLACES)]
