"""Requests and their replies: packets with flag A and an id in the field of the consumer id.

Each side of a connection chooses the ids of its own requests. Ids of consumers are another name
space, so only the packet type shows which of the two a packet has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from tests.reference.jmq_chain.records import Exchange, Report
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.layers.jmq import rules
from wireyard.layers.jmq.packet_row import PacketRow, number, properties_of
from wireyard.layers.jmq.records import Sending
from wireyard.layers.jmq.rules import OK, REPLY_OF, SEND_REPLY
from wireyard.layers.records import Position

__all__ = ["Requests", "Settle"]


_WANTED: Final = FLAGS["A"]

Settle = Callable[[PacketRow | None, bool, Position], None]
"""The effect of a request: a function of its reply (None if it wanted none), whether the request
was accepted, and the position of the packet that settles it."""


class _Waiting(NamedTuple):
    packet_type: int
    exchange: Exchange
    settle: Settle | None
    sending: Sending | None


_waiting_of = partial(tuple.__new__, _Waiting)
"""A faster constructor of `_Waiting` from a tuple: it takes a third less time."""


class Requests:
    """The requests of one side of a connection.

    Parameters
    ----------
    report
        The output of exchanges and of messages that were sent.
    requester, responder
        Endpoints of the side that sends the requests, and of the other side.
    """

    def __init__(self, report: Report, requester: str, responder: str) -> None:
        self._report = report
        self._requester = requester
        self._responder = responder
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()

    @property
    def messages(self) -> int:
        """The number of waiting requests that are messages."""
        return sum(waiting.packet_type in MESSAGE_TYPES for waiting in self._waiting.values())

    def add_request(
        self,
        row: PacketRow,
        at: Position,
        settle: Settle | None = None,
        sending: Sending | None = None,
    ) -> None:
        """Observe a request, which may be a message; without flag A it takes effect at once.

        A message is passed to the output when its reply is known, or will not come.
        """
        if not row["bit_flags"] & _WANTED:
            if settle is not None:
                settle(None, True, at)
            if sending is not None:
                self._report.output.sendings.append(sending)
            return
        ack_id, packet_type = row["consumer_id"], row["packet_type"]
        if (reused := self._waiting.pop(ack_id, None)) is not None:
            self._report.add_violation("request_id_reused", row, at)
            self._end(reused)
        name = row.get("packet_type_name") or str(packet_type)
        exchange = Exchange(name, self._requester, self._responder, at)
        waiting = _waiting_of((packet_type, exchange, settle, sending))
        if reused is None and not self._report.output.admit("MAX_WAITING", rules.MAX_WAITING):
            if not self._waiting:
                self._end(waiting)
                return
            self._end(self._waiting.popitem(last=False)[1])
        self._waiting[ack_id] = waiting

    def add_reply(self, row: PacketRow, at: Position) -> None:
        """Observe a reply."""
        ack_id, packet_type = row["consumer_id"], row["packet_type"]
        waiting = self._waiting.get(ack_id)
        # SEND_REPLY also answers packets that are too large for the broker to read their type.
        if waiting is None or packet_type not in (REPLY_OF.get(waiting.packet_type), SEND_REPLY):
            self._report.add_violation("reply_without_request", row, at)
            return
        del self._waiting[ack_id]
        self._report.output.release("MAX_WAITING")
        exchange, sending = waiting.exchange, waiting.sending
        exchange.replied = at
        exchange.status = status = number(properties_of(row), "JMQStatus")
        if sending is not None:
            sending.status = status
            sending.accepted = at if status == OK else None
        if waiting.settle is not None:
            waiting.settle(row, status == OK, at)
        self._end(waiting)

    def close(self) -> None:
        """Pass on the requests that were not answered before the connection ended."""
        for waiting in self._waiting.values():
            self._end(waiting)
        self._report.output.release("MAX_WAITING", len(self._waiting))
        self._waiting.clear()

    def _end(self, waiting: _Waiting) -> None:
        self._report.output.exchanges.append(waiting.exchange)
        if waiting.sending is not None:
            self._report.output.sendings.append(waiting.sending)
