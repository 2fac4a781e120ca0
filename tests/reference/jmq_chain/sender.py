"""The sending half of a connection: messages, producers, and the client's transactions."""

from __future__ import annotations

from functools import partial

from tests.reference.jmq_chain.flow import Flow
from tests.reference.jmq_chain.records import Report
from tests.reference.jmq_chain.requests import Requests
from wireyard.layers.jmq import rules
from wireyard.layers.jmq.packet_row import PacketRow, number, properties_of, text
from wireyard.layers.jmq.records import Sending
from wireyard.layers.records import Position

__all__ = ["Sender"]


_ID, _NEXT_ID = "JMQTransactionID", "JMQNextTransactionID"


class Sender:
    """The sending half of a connection.

    Parameters
    ----------
    report
        The output of messages and events of transactions.
    requests
        The requests of the client.
    """

    def __init__(self, report: Report, requests: Requests) -> None:
        self._report = report
        self._requests = requests
        self._begun: set[int] = set()
        self._may_be_over: set[int] = set()
        """The transactions that may have ended in packets that are missing."""
        self.flow = Flow(report)

    # --- messages ---------------------------------------------------------------------------

    def send(self, row: PacketRow, at: Position) -> None:
        """Observe a message from the client."""
        transaction_id = row.get("transaction_id") or None  # 103 has it in every header.
        sending = Sending(
            row["sys_message_id"],
            self._report.client,
            self._report.server,
            self._report.client_id,
            row.get("destination"),
            row.get("reply_to"),
            row.get("correlation_id"),
            row.get("message_id"),
            transaction_id,
            at,
        )
        self.flow.send(row.get("producer_id"), row, at)
        if transaction_id:
            self._report.use(transaction_id, "send", at, 1)
        settle = partial(self._sent, transaction_id) if transaction_id else None
        self._requests.add_request(row, at, settle, sending)

    def _sent(
        self, transaction_id: int, reply: PacketRow | None, accepted: bool, at: Position
    ) -> None:
        if not accepted:
            self._report.use(transaction_id, "deny_send", at, 1)

    def resume(self, row: PacketRow, at: Position) -> None:
        """Observe a RESUME_FLOW of the broker."""
        properties = properties_of(row)
        stop = number(properties, "JMQSize") == 0
        self.flow.resume(number(properties, "JMQProducerID"), row, at, stop)

    def delete_producer(self, row: PacketRow, at: Position) -> None:
        """Observe a DELETE_PRODUCER."""
        producer_id = number(properties_of(row), "JMQProducerID")
        self._requests.add_request(row, at, partial(self._producer_deleted, producer_id))

    def _producer_deleted(
        self, producer_id: int | None, reply: PacketRow | None, accepted: bool, at: Position
    ) -> None:
        if accepted and producer_id is not None:
            self.flow.end_pause(producer_id, at)

    def set_client_id(self, row: PacketRow, at: Position) -> None:
        """Observe a SET_CLIENTID; one without an id removes the client id."""
        client_id = text(properties_of(row), "JMQClientID")
        self._requests.add_request(row, at, partial(self._client_id_set, client_id))

    def _client_id_set(
        self, client_id: str | None, reply: PacketRow | None, accepted: bool, at: Position
    ) -> None:
        if accepted:
            self._report.client_id = client_id

    # --- transactions -----------------------------------------------------------------------

    def start(self, row: PacketRow, at: Position) -> None:
        """Observe a START_TRANSACTION."""
        self._requests.add_request(row, at, self._started)

    def _started(self, reply: PacketRow | None, accepted: bool, at: Position) -> None:
        if reply is not None and accepted:
            self._begin(number(properties_of(reply), _ID), at)

    def _begin(self, transaction_id: int | None, at: Position) -> None:
        if transaction_id is None:
            return
        self._report.use(transaction_id, "start", at)
        if transaction_id in self._begun:
            return
        if self._report.output.admit("MAX_TRANSACTIONS", rules.MAX_TRANSACTIONS):
            self._begun.add(transaction_id)

    def end(self, row: PacketRow, at: Position) -> None:
        """Observe an END_TRANSACTION."""
        self._request(row, at, "end")

    def prepare(self, row: PacketRow, at: Position) -> None:
        """Observe a PREPARE_TRANSACTION."""
        self._request(row, at, "prepare")

    def roll_back(self, row: PacketRow, at: Position) -> None:
        """Observe a ROLLBACK_TRANSACTION."""
        self._request(row, at, "roll_back")

    def _request(self, row: PacketRow, at: Position, event: str) -> None:
        transaction_id = number(properties_of(row), _ID)
        self._requests.add_request(row, at, partial(self._done, transaction_id, event))

    def _done(
        self,
        transaction_id: int | None,
        event: str,
        reply: PacketRow | None,
        accepted: bool,
        at: Position,
    ) -> None:
        """Apply a request; an XA one may have its transaction id in the reply."""
        if transaction_id is None and reply is not None:
            transaction_id = number(properties_of(reply), _ID)
        if accepted and transaction_id is not None:
            self._apply(transaction_id, event, at)

    def _apply(self, transaction_id: int, event: str, at: Position) -> None:
        self._report.use(transaction_id, event, at)
        if event in ("commit", "roll_back") and transaction_id in self._begun:
            self._begun.remove(transaction_id)
            self._report.output.release("MAX_TRANSACTIONS")

    def commit(self, row: PacketRow, at: Position) -> None:
        """Observe a COMMIT_TRANSACTION."""
        transaction_id = number(properties_of(row), _ID)
        if transaction_id is not None:
            self._report.use(transaction_id, "ask_commit", at)
        self._requests.add_request(row, at, partial(self._committed, transaction_id))

    def _committed(
        self, transaction_id: int | None, reply: PacketRow | None, accepted: bool, at: Position
    ) -> None:
        properties = properties_of(reply) if reply else {}
        if transaction_id is None:
            transaction_id = number(properties, _ID)
            if transaction_id is None:
                return
            self._report.use(transaction_id, "ask_commit", at)
        self._apply(transaction_id, "commit" if accepted else "deny_commit", at)
        if accepted:
            self._begin(number(properties, _NEXT_ID), at)

    def miss(self) -> None:
        """Observe that packets are missing, which may have ended any transaction."""
        self._may_be_over |= self._begun

    def close(self, at: Position, left: bool) -> None:
        """Observe the end of the packets; `left` means that the connection ended too.

        Transactions that it began and did not end then get the event ``leave``.
        """
        for transaction_id in sorted(self._begun - self._may_be_over if left else ()):
            self._report.use(transaction_id, "leave", at)
        self._report.output.release("MAX_TRANSACTIONS", len(self._begun))
        self._begun.clear()
