"""Transactions: what is sent and acknowledged in them, by the state table `TRANSACTION`.

A transaction with an Xid, one of XA, may be prepared; then it outlives its connection, and any
connection may end it. An Xid is free again when its transaction is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wireyard.broker.jmq.connections import Connection, Refusal, accept
from wireyard.broker.jmq.destinations import Copy, Destination
from wireyard.broker.jmq.routing import Router
from wireyard.endpoints.jmq import Message, Request, codes
from wireyard.layers.jmq.rules import OK
from wireyard.layers.jmq.states import TRANSACTION, TRANSACTION_OUTCOMES

_XID_BYTES: Final = 136
# Values of JMQXAFlags, as `javax.transaction.xa.XAResource` has them.
_JOIN, _RESUME, _FAIL, _START_SCAN = 0x20_0000, 0x800_0000, 0x2000_0000, 0x100_0000


class Transaction:
    """A transaction.

    When it is committed, the messages in `sent` are passed on, and the acknowledgements of the
    copies in `acknowledged` count. `has_failed` is whether something in it was refused, so that it
    can only be rolled back.
    """

    __slots__ = (
        "acknowledged", "connection", "has_failed", "id", "is_stored", "sent", "state", "xid",
    )  # fmt: skip

    def __init__(self, id: int, xid: bytes | None, connection: Connection | None) -> None:
        self.id, self.xid, self.connection = id, xid, connection
        self.state = TRANSACTION["unseen", "start"].state
        self.sent: list[tuple[Message, Destination]] = []
        self.acknowledged: dict[Copy, None] = {}
        self.has_failed = self.is_stored = False

    def restore(self, copy: Copy) -> None:
        """Take a copy that the store has."""
        copy.begin(None)
        for event in ("acknowledge_in_transaction", "confirmed"):
            copy.advance(event)
        copy.transaction = self
        self.acknowledged[copy] = None

    def advance(self, event: str) -> bool:
        """Apply an event; return False, and change nothing, if it violates a rule."""
        cell = TRANSACTION.lookup(self.state, event)
        if cell.rule is not None:
            return False
        self.state = cell.state
        return True

    @property
    def is_prepared(self) -> bool:
        """Whether it is to be committed or rolled back, whatever becomes of its connection."""
        return TRANSACTION_OUTCOMES[self.state] == "prepared"


class Transactions:
    """All open transactions of a broker; `next_id` returns an id that nothing has."""

    def __init__(self, router: Router, next_id: Callable[[], int]) -> None:
        self._router, self._limits, self._next_id = router, router.limits, next_id
        self._open: dict[int, Transaction] = {}
        self._by_xid: dict[bytes, Transaction] = {}

    # --- requests -------------------------------------------------------------------------

    def start(self, link: Connection, request: Request) -> None:
        """START_TRANSACTION: begin one, or join or resume one of an Xid."""
        flags, xid = request.get("JMQXAFlags", int, 0), _xid_of(request)
        found = None if xid is None else self._by_xid.get(xid)
        if flags & (_JOIN | _RESUME):
            if found is None or not found.advance("start"):
                raise Refusal(codes.NOT_FOUND, "joins a transaction that is not open")
        elif found is not None:
            raise Refusal(codes.CONFLICT, "begins a transaction by an Xid that is in use")
        else:
            found = self._begin(link, xid)
        accept(link, request, {"JMQTransactionID": found.id})

    def _begin(self, link: Connection, xid: bytes | None) -> Transaction:
        if len(self._open) >= self._limits.max_transactions:
            raise Refusal(codes.FULL, f"{len(self._open)} transactions are open, no more are begun")
        transaction = Transaction(self._next_id(), xid, link)
        self._open[transaction.id] = transaction
        link.transactions.add(transaction.id)
        if xid is not None:
            self._by_xid[xid] = transaction
        return transaction

    def restore(self, number: int, xid: bytes | None) -> Transaction:
        """Return a prepared transaction that the store has."""
        transaction = self._open[number] = Transaction(number, xid, None)
        transaction.advance("prepare")
        transaction.is_stored = True
        if xid is not None:
            self._by_xid[xid] = transaction
        return transaction

    def end(self, link: Connection, request: Request) -> None:
        """END_TRANSACTION: set one of an Xid aside."""
        transaction = self._of(request)
        if not transaction.advance("end"):
            raise Refusal(codes.ERROR, "ends its part in a transaction that is over or prepared")
        transaction.has_failed |= bool(request.get("JMQXAFlags", int, 0) & _FAIL)
        accept(link, request, {"JMQTransactionID": transaction.id})

    def prepare(self, link: Connection, request: Request) -> None:
        """PREPARE_TRANSACTION."""
        transaction = self._of(request)
        if transaction.has_failed or not transaction.advance("prepare"):
            raise Refusal(codes.ERROR, "prepares a transaction that can only be rolled back")
        kept = self._router.kept
        if kept is not None:
            transaction.is_stored = True
            kept.put_transaction(transaction)
            for message, destination in transaction.sent:
                self._router.store(message, destination, transaction_id=transaction.id)
        accept(link, request, {"JMQTransactionID": transaction.id})

    def commit(self, link: Connection, request: Request) -> None:
        """COMMIT_TRANSACTION: what was acknowledged in it is over, what was sent is passed on."""
        transaction = self._of(request)
        if not transaction.advance("ask_commit"):
            raise Refusal(codes.NOT_FOUND, "commits a transaction that is over")
        if transaction.has_failed:
            transaction.advance("deny_commit")
            self._roll_back(transaction)
            raise Refusal(codes.ERROR, "commits a transaction that failed: it is rolled back")
        transaction.advance("commit")
        self._close(transaction)
        for copy in transaction.acknowledged:
            copy.advance("committed")
            self._router.forget(copy)
        properties = {"JMQTransactionID": transaction.id}
        if request.get("JMQStartNextTransaction", bool, False):
            properties["JMQNextTransactionID"] = self._begin(link, None).id
        accept(link, request, properties)
        for message, destination in transaction.sent:
            if destination.is_gone:
                self._router.release(message)
            else:
                self._router.publish_kept(message, destination)

    def roll_back(self, link: Connection, request: Request) -> None:
        """ROLLBACK_TRANSACTION: what was sent is gone.

        What was acknowledged is delivered again at REDELIVER or at the end of the session, or now
        if the client wants that.
        """
        transaction = self._of(request)
        if not transaction.advance("roll_back"):
            raise Refusal(codes.NOT_FOUND, "rolls back a transaction that is over")
        redeliver = request.get("JMQRedeliver", bool, False)
        seen = request.get("JMQSetRedelivered", bool, True)
        accept(link, request, {"JMQTransactionID": transaction.id})
        self._roll_back(transaction, redeliver, seen)

    def recover(self, link: Connection, request: Request) -> None:
        """RECOVER_TRANSACTION: list the Xids of prepared transactions, at the start of a scan."""
        xids: list[bytes] = []
        if request.get("JMQXAFlags", int, 0) & _START_SCAN:
            xids = [xid for xid, one in self._by_xid.items() if one.is_prepared]
        accept(link, request, {"JMQQuantity": len(xids)}, b"".join(xids))

    def _of(self, request: Request) -> Transaction:
        """Return the transaction that a request names, by its Xid or by its id."""
        xid = _xid_of(request)
        found = None if xid is None else self._by_xid.get(xid)
        if found is None:
            number = request.get("JMQTransactionID", int, request.transaction_id or 0)
            found = self._open.get(number)
        if found is None:
            raise Refusal(codes.NOT_FOUND, "names a transaction that is not open")
        return found

    # --- what happens in them -------------------------------------------------------------

    def send(self, number: int, message: Message, destination: Destination) -> int:
        """Keep a message until its transaction is committed; return the status for its producer."""
        transaction = self._open.get(number)
        if transaction is None or transaction.has_failed or not transaction.advance("send"):
            raise Refusal(codes.ERROR, "sends in a transaction that takes no more")
        if len(transaction.sent) >= self._limits.max_kept or not self._router.keep(message):
            transaction.has_failed = True
            count = len(transaction.sent)
            raise Refusal(codes.FULL, f"sent {count} messages in a transaction, it takes no more")
        transaction.sent.append((message, destination))
        return OK

    def to_acknowledge(self, number: int) -> Transaction:
        """Return the transaction in which messages are acknowledged."""
        transaction = self._open.get(number)
        if transaction is None or not transaction.advance("acknowledge"):
            raise Refusal(codes.GONE, "acknowledges in a transaction that is not open")
        return transaction

    def withdraw(self, copy: Copy) -> None:
        """Take a copy out of its transaction, which is going to be rolled back."""
        if copy.transaction is not None:
            copy.transaction.acknowledged.pop(copy, None)
            copy.transaction = None

    # --- their end ------------------------------------------------------------------------

    def leave(self, link: Connection) -> None:
        """Roll back what a connection began and did not prepare."""
        for number in sorted(link.transactions):
            transaction = self._open[number]
            transaction.advance("leave")
            if not transaction.is_prepared:
                self._roll_back(transaction)

    def _close(self, transaction: Transaction) -> None:
        self._open.pop(transaction.id, None)
        if transaction.connection is not None:
            transaction.connection.transactions.discard(transaction.id)
        if transaction.is_stored and self._router.kept is not None:
            self._router.kept.remove_transaction(transaction)
        if transaction.xid is not None:
            self._by_xid.pop(transaction.xid, None)

    def _roll_back(
        self, transaction: Transaction, redeliver: bool = False, seen: bool = True
    ) -> None:
        self._close(transaction)
        for message, _ in transaction.sent:
            self._router.release(message)
        for copy in transaction.acknowledged:
            copy.advance("rolled_back")
            copy.transaction = None
            if transaction.is_stored and self._router.kept is not None:
                self._router.kept.put_copy(copy, copy.count + 1)
            consumer = copy.consumer
            if consumer is None or consumer.session.is_over:
                self._router.give_back([copy], seen=True)
            elif redeliver:
                to = None if consumer.is_closed else consumer
                self._router.give_back([copy], seen=seen, to=to)


def _xid_of(request: Request) -> bytes | None:
    if not request.body:
        return None
    if len(request.body) != _XID_BYTES:
        raise Refusal(codes.BAD_REQUEST, f"names an Xid of {len(request.body)} bytes")
    return request.body
