"""Records of JMQ connections: the output of the first stage, and the input of the others.

The first stage passes them on in the order in which they become final. No record holds a packet,
only its `Position`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from wireyard.layers.endpoints import endpoints_of
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.jmq.records import Delivery, Relay, Sending
from wireyard.layers.jmq.rules import NEEDS_ALL, RULES
from wireyard.layers.records import Position, Violation

__all__ = ["ConnectionRecord", "Exchange", "Output", "Report", "Run", "Use"]


@dataclass(slots=True)
class Exchange:
    """A request, and its reply if there is one."""

    request: str
    """Name of the packet type, or the destination of a JMS message."""
    requester: str
    responder: str
    requested: Position
    replied: Position | None = None
    status: int | None = None
    request_message: str | None = None
    reply_message: str | None = None
    """The message keys of a JMS request and its reply."""


class Use(NamedTuple):
    """An event of a transaction; `event` is an event of `TRANSACTION`."""

    server: str
    transaction_id: int
    event: str
    messages: int
    """The number of messages sent or acknowledged."""
    client: str
    client_id: str | None
    at: Position


@dataclass(slots=True)
class ConnectionRecord:
    """A connection, from its login to its end; `state` is a state of `SESSION`."""

    client: str
    server: str
    opened: Position
    last: Position
    state: str = "new"
    known: bool = False
    """Whether its HELLO was captured; if not, the connection is older than the capture."""
    client_id: str | None = None
    user: str | None = None
    status: int | None = None
    protocol_level: int | None = None
    ended_by: str | None = None
    packets: int = 0
    size_bytes: int = 0
    in_flight_sent: int = 0
    in_flight_received: int = 0
    pauses: int = 0
    paused_ns: int = 0
    has_gap: bool = False
    """Whether bytes of it were not captured, so these four counts are unknown."""


class Run(NamedTuple):
    """Sequence numbers ``[start, stop)`` of a stream.

    A ``run`` has no gaps; the ``span`` of a stream is from its first number to its last.
    """

    kind: str
    host: str
    from_client: bool
    sender: str
    start: int
    stop: int
    at: Position
    """The packet with the first number of the run; for a span, of the stream's last run."""


@dataclass(slots=True)
class Output:
    """Buffers for final records of all connections, and the counts of open items.

    The caller empties the buffers as packets are observed. Caps are for all connections together,
    so a peer that opens many connections cannot multiply them.
    """

    deliveries: list[Delivery] = field(default_factory=list)
    sendings: list[Sending] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    logins: list[ConnectionRecord] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    relays: list[Relay] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of dropped items, by the name of the cap."""
    _open: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def admit(self, cap: str, most: int) -> bool:
        """Count an item as open, or as dropped above the cap; return whether there was room."""
        if self._open[cap] < most:
            self._open[cap] += 1
            return True
        self.dropped[cap] += 1
        return False

    def release(self, cap: str, things: int = 1) -> None:
        """Count items as no longer open."""
        self._open[cap] -= things

    def clear(self) -> None:
        """Empty the buffers."""
        for buffer in (
            self.deliveries,
            self.sendings,
            self.uses,
            self.exchanges,
            self.logins,
            self.violations,
            self.runs,
            self.relays,
        ):
            buffer.clear()


class Report:
    """The facts about a connection that its parts share, and their access to the output.

    Parameters
    ----------
    client, server
        The connection's endpoints.
    output
        Buffers for final records.
    """

    def __init__(self, client: str, server: str, output: Output) -> None:
        self.client = client
        self.server = server
        self.output = output
        self.client_id: str | None = None
        self.known = False
        """Whether all packets were captured, from the first on: then unknown means nonexistent."""

    def add_violation(
        self,
        rule: str,
        row: PacketRow,
        at: Position,
        message_key: str | None = None,
        times: int = 1,
    ) -> None:
        """Record a violation by the sender of a packet, unless lost packets may explain it."""
        if rule in NEEDS_ALL and not self.known:
            return
        name = row.get("packet_type_name") or f"packet type {row['packet_type']}"
        text = f"{name}: {RULES[rule]}" + (f", {times} times" if times > 1 else "")
        self.output.violations.append(
            Violation(rule, text, at, endpoints_of(row)[0], self.client_id, message_key)
        )

    def use(self, transaction_id: int, event: str, at: Position, messages: int = 0) -> None:
        """Record an event of a transaction."""
        self.output.uses.append(
            Use(self.server, transaction_id, event, messages, self.client, self.client_id, at)
        )
