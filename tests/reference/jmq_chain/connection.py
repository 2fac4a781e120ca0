"""The state of one connection: it observes the packets of both directions in the order of time.

The state is what is open: requests that wait, messages that consumers hold, pauses, transactions.
Each has a cap, and items that a cap drops are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.reference.jmq_chain.receiver import Receiver
from tests.reference.jmq_chain.records import Output, Report
from tests.reference.jmq_chain.requests import Requests
from tests.reference.jmq_chain.sender import Sender
from tests.reference.jmq_chain.session import Session
from wireyard.formats.jmq.layout import FLAGS
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.jmq.rules import BROKER_HANDLERS, CLIENT_HANDLERS, WITHOUT_T
from wireyard.layers.records import Position

__all__ = ["Connection"]

_TRANSACTED: Final = FLAGS["T"]
_SENDER, _RECEIVER, _CLIENT_REQUESTS, _BROKER_REQUESTS = range(4)
"""The parts of a connection."""
_PARTS: Final[Mapping[str, tuple[int, Callable[[Any, PacketRow, Position], None]]]] = {
    "send": (_SENDER, Sender.send),
    "deliver": (_RECEIVER, Receiver.deliver),
    "reply": (_CLIENT_REQUESTS, Requests.add_reply),
    "request": (_CLIENT_REQUESTS, Requests.add_request),
    "add": (_RECEIVER, Receiver.add),
    "delete": (_RECEIVER, Receiver.delete),
    "acknowledge": (_RECEIVER, Receiver.acknowledge),
    "browse": (_RECEIVER, Receiver.browse),
    "redeliver": (_RECEIVER, Receiver.redeliver),
    "start": (_SENDER, Sender.start),
    "commit": (_SENDER, Sender.commit),
    "roll_back": (_SENDER, Sender.roll_back),
    "set_client_id": (_SENDER, Sender.set_client_id),
    "resume": (_RECEIVER, Receiver.resume),
    "be_resumed": (_SENDER, Sender.resume),
    "prepare": (_SENDER, Sender.prepare),
    "end": (_SENDER, Sender.end),
    "delete_producer": (_SENDER, Sender.delete_producer),
    "destroy_session": (_RECEIVER, Receiver.destroy_session),
    "broker_request": (_BROKER_REQUESTS, Requests.add_request),
    "client_reply": (_BROKER_REQUESTS, Requests.add_reply),
}
"""The part of a connection for each handler, and its method."""


class Connection:
    """One connection of a client and a broker.

    Parameters
    ----------
    client, server
        Their endpoints.
    output
        Buffers for final records.
    """

    def __init__(self, client: str, server: str, output: Output) -> None:
        self._report = Report(client, server, output)
        self._session = Session(self._report)
        self._client_requests = Requests(self._report, client, server)
        self._server_requests = Requests(self._report, server, client)
        self._receiver = Receiver(self._report, self._client_requests)
        self._sender = Sender(self._report, self._client_requests)
        self._parts = self._sender, self._receiver, self._client_requests, self._server_requests
        self._in_gap = [False, False]
        """Whether bytes before the next packet of the broker, and of the client, are missing."""

    def observe(self, row: PacketRow, from_client: bool) -> None:
        """Observe the row of the next packet, one whose status is ``ok``.

        A gap has no time. Its packets were sent between those around it, so while a side is in a
        gap, each packet of the other side may have come after them.
        """
        if self._in_gap[from_client]:
            self._in_gap[from_client] = False
            self._miss_packets()
        if self._in_gap[not from_client]:
            self.miss()
        at = Position.of(row)
        if row["bit_flags"] & _TRANSACTED and _lacks_transaction(row):
            self._report.add_violation("transaction_id_missing", row, at, row["sys_message_id"])
        self._session.observe(row, at, from_client)
        packet_type = row["packet_type"]
        if from_client:
            handler = CLIENT_HANDLERS.get(packet_type, "request")
        else:
            handler = BROKER_HANDLERS.get(packet_type, "broker_request")
        part, handle = _PARTS[handler]
        handle(self._parts[part], row, at)

    def add_violation(self, rule: str, row: PacketRow) -> None:
        """Record that the next packet violates a rule of its stream."""
        self._report.add_violation(rule, row, Position.of(row), row["sys_message_id"])

    def miss(self) -> None:
        """Observe that packets of this connection are missing here, or damaged."""
        self._report.known = False
        self._session.miss()
        for flow in (self._receiver.flow, self._sender.flow):
            flow.miss()

    def lose(self, from_client: bool, is_over: bool) -> None:
        """Observe a gap in the stream of one side.

        Parameters
        ----------
        is_over
            Whether all packets in it were before this time, not only before the next packet.
        """
        self._in_gap[from_client] = not is_over
        self._miss_packets()

    def _miss_packets(self) -> None:
        """Observe that any packets may be missing here."""
        self.miss()
        self._receiver.consumers.miss()
        self._sender.miss()

    def finish(self, ended: bool) -> None:
        """Observe the end of the packets.

        Parameters
        ----------
        ended
            Whether the capture shows that the connection ended.
        """
        if any(self._in_gap):
            self._miss_packets()
        ended_by = self._session.finish(ended, goodbye_lost=self._in_gap[True])
        login = self._session.login
        if login is None:
            return
        login.client_id = self._report.client_id
        login.in_flight_sent = self._client_requests.messages
        login.in_flight_received = self._receiver.consumers.held
        login.has_gap = self._receiver.consumers.gaps > 0
        self._client_requests.close()
        self._server_requests.close()
        if ended_by == "open":
            self._receiver.consumers.keep()
        else:
            self._receiver.consumers.close()
        self._sender.close(login.last, left=ended_by != "open")
        for flow in (self._receiver.flow, self._sender.flow):
            flow.close(login.last)
            login.pauses += flow.pauses
            login.paused_ns += flow.paused_ns
        self._report.output.logins.append(login)


def _lacks_transaction(row: PacketRow) -> bool:
    """Return whether a packet with flag T has no transaction id.

    Version 103 does not have the flag (erratum 49).
    """
    return row["version"] > WITHOUT_T and not row.get("transaction_id")
