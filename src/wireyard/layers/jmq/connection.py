"""The state of one connection: it observes the packets of both directions in the order of time.

The state is what is open: requests that wait, messages that consumers hold, pauses, transactions.
Each has a cap, and items that a cap drops are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.jmq.receiver import Receiver
from wireyard.layers.jmq.records import Output, Report
from wireyard.layers.jmq.requests import REPLIES, Requests
from wireyard.layers.jmq.sender import Sender
from wireyard.layers.jmq.session import Session
from wireyard.layers.records import Position

__all__ = [
    "FROM_CLIENT",
    "FROM_SERVER",
    "SERVER_REQUESTS",
    "WITHOUT_T",
    "Connection",
]

_RESUME_FLOW: Final = 52
_TRANSACTED: Final = FLAGS["T"]
WITHOUT_T: Final = 103
_SENDER, _RECEIVER, _CLIENT_REQUESTS, SERVER_REQUESTS = range(4)
"""The parts of a connection."""

_Handler = tuple[int, Callable[[Any, PacketRow, Position], None]]

_CLIENT_REQUEST: Final[_Handler] = (_CLIENT_REQUESTS, Requests.add_request)
FROM_CLIENT: Final[Mapping[int, _Handler]] = MappingProxyType(
    {
        **dict.fromkeys(MESSAGE_TYPES, (_SENDER, Sender.send)),
        **dict.fromkeys(REPLIES, (SERVER_REQUESTS, Requests.add_reply)),
        14: (_RECEIVER, Receiver.add),
        16: (_RECEIVER, Receiver.delete),
        24: (_RECEIVER, Receiver.acknowledge),
        26: (_RECEIVER, Receiver.browse),
        32: (_RECEIVER, Receiver.redeliver),
        44: (_SENDER, Sender.start),
        46: (_SENDER, Sender.commit),
        48: (_SENDER, Sender.roll_back),
        50: (_SENDER, Sender.set_client_id),
        _RESUME_FLOW: (_RECEIVER, Receiver.resume),
        56: (_SENDER, Sender.prepare),
        58: (_SENDER, Sender.end),
        66: (_SENDER, Sender.delete_producer),
        70: (_RECEIVER, Receiver.destroy_session),
    }
)
_SERVER_REQUEST: Final[_Handler] = (SERVER_REQUESTS, Requests.add_request)
FROM_SERVER: Final[Mapping[int, _Handler]] = MappingProxyType(
    {
        **dict.fromkeys(MESSAGE_TYPES, (_RECEIVER, Receiver.deliver)),
        **dict.fromkeys(REPLIES, (_CLIENT_REQUESTS, Requests.add_reply)),
        _RESUME_FLOW: (_SENDER, Sender.resume),
    }
)
"""The part of a connection that handles a packet type, and its method.

Packets of other types may be requests.
"""


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
        if from_client:
            part, handle = FROM_CLIENT.get(row["packet_type"], _CLIENT_REQUEST)
        else:
            part, handle = FROM_SERVER.get(row["packet_type"], _SERVER_REQUEST)
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
