"""The state of JMQ in the store: durable subscriptions, persistent messages, prepared transactions.

Rules of this file:

1. Only what outlives the process is written: persistent messages in queues and durable
   subscriptions, in prepared transactions, and those whose delivery time has not come.
2. A row is written before what depends on it leaves: a reply, and a delivery. The count of a copy
   is the one that it has if the process ends now: what is delivered may have been seen.
3. A row that cannot be is refused when the store is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wireyard.broker.jmq.destinations import Copy, Destination, Subscription, is_name
from wireyard.broker.jmq.selector import Selector
from wireyard.broker.store import Store, Table
from wireyard.endpoints.jmq import Message
from wireyard.endpoints.jmq.packets import Items, read_packet
from wireyard.formats.jmq.framing import frame_size

if TYPE_CHECKING:
    from wireyard.broker.jmq.routing import Router
    from wireyard.broker.jmq.transactions import Transaction, Transactions

_MESSAGES: Final = Table(
    "jmq_messages",
    (
        "message INTEGER", "destination TEXT NOT NULL", "is_queue INTEGER NOT NULL",
        "packet BLOB NOT NULL", "client_id TEXT", "delivery_time INTEGER", "transaction_id INTEGER",
    ),
)  # fmt: skip
_COPIES: Final = Table(
    "jmq_copies",
    (
        "message INTEGER NOT NULL", "subscription INTEGER NOT NULL", "count INTEGER NOT NULL",
        "transaction_id INTEGER",
    ),
    keys=2,
)  # fmt: skip
_SUBSCRIPTIONS: Final = Table(
    "jmq_subscriptions",
    (
        "subscription INTEGER", "client_id TEXT", "name TEXT NOT NULL", "topic TEXT NOT NULL",
        "is_shared INTEGER NOT NULL", "selector TEXT", "no_local INTEGER NOT NULL",
    ),
)  # fmt: skip
_TRANSACTIONS: Final = Table("jmq_transactions", ("transaction_id INTEGER", "xid BLOB NOT NULL"))
TABLES: Final = (_SUBSCRIPTIONS, _TRANSACTIONS, _MESSAGES, _COPIES)

_LONGEST_NAME: Final = 1 << 16
_MOST_SEEN: Final = 1 << 30
"""A count that no copy reaches, and that still fits into a packet when it grows."""


class Persistence:
    """Writes the state of JMQ to the store, and reads it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._last = 0
        """The last number of a message or a subscription."""

    # --- writing --------------------------------------------------------------------------

    def put_message(
        self,
        message: Message,
        destination: Destination,
        *,
        name: str | None = None,
        is_delayed: bool = False,
        transaction_id: int | None = None,
    ) -> None:
        """Write a message behind all others; it has a new number.

        Parameters
        ----------
        name
            That of the topic, if messages of several are counted in one destination.
        """
        self.remove_message(message)
        self._last = message.number = self._last + 1
        origin = message.origin if isinstance(message.origin, str) else None
        self.store.put(
            _MESSAGES, message.number, name or destination.name, int(destination.is_queue),
            message.packet, origin, message.delivery_time if is_delayed else None, transaction_id,
        )  # fmt: skip

    def remove_message(self, message: Message) -> None:
        """Remove a message, if it is there."""
        if message.number:
            self.store.remove(_MESSAGES, message.number)
            message.number = 0

    def put_copy(self, copy: Copy, count: int, transaction_id: int | None = None) -> None:
        """Write how often a copy may have been seen; do nothing if it is not to be kept."""
        number = copy.backlog.number
        if copy.message.number and number is not None:
            self.store.put(_COPIES, copy.message.number, number, count, transaction_id)

    def remove_copy(self, copy: Copy) -> None:
        """Remove a copy, if it is there."""
        number = copy.backlog.number
        if copy.message.number and number is not None:
            self.store.remove(_COPIES, copy.message.number, number)

    def put_subscription(self, subscription: Subscription) -> None:
        """Write a durable subscription."""
        assert subscription.key is not None
        self._last = subscription.number = self._last + 1
        selector = subscription.selector
        self.store.put(
            _SUBSCRIPTIONS, subscription.number, subscription.key[0], subscription.name,
            subscription.topic, int(subscription.is_shared),
            None if selector is None else selector.text, int(subscription.no_local),
        )  # fmt: skip

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove a subscription, and its copies."""
        if subscription.number is not None:
            for copy in subscription.copies.values():
                self.remove_copy(copy)
            self.store.remove(_SUBSCRIPTIONS, subscription.number)
            subscription.number = None

    def put_transaction(self, transaction: Transaction) -> None:
        """Write that a transaction is prepared."""
        self.store.put(_TRANSACTIONS, transaction.id, transaction.xid or b"")
        for copy in transaction.acknowledged:
            self.put_copy(copy, copy.count + 1, transaction.id)

    def remove_transaction(self, transaction: Transaction) -> None:
        """Remove a transaction that is over."""
        self.store.remove(_TRANSACTIONS, transaction.id)

    # --- reading --------------------------------------------------------------------------

    def restore(self, router: Router, transactions: Transactions) -> None:
        """Give a router what the store has."""
        read = self.store.read
        subscriptions: dict[int, Subscription] = {}
        for one in read(_SUBSCRIPTIONS, _subscription):
            subscriptions[one.number or 0] = one
            router.add_subscription(one)
        prepared = dict(
            read(_TRANSACTIONS, lambda id, xid: (id, transactions.restore(id, xid or None)))
        )
        messages: dict[int, Message] = {}
        known: Items = {}

        def take_message(
            number: int, name: str, is_queue: int, packet: bytes, client_id: str | None,
            delivery_time: int | None, transaction_id: int | None,
        ) -> None:  # fmt: skip
            is_whole = frame_size(packet, 0, len(packet), len(packet)) == len(packet)
            message = read_packet(packet, known) if is_whole else None
            if not isinstance(message, Message) or not is_name(name, _LONGEST_NAME):
                raise ValueError("is no message of a destination")
            self._last = message.number = message.order = number
            message.origin = client_id
            destination = router.home(bool(is_queue), name)
            router.restore(message, destination)
            if transaction_id is not None:
                prepared[transaction_id].sent.append((message, destination))
            elif delivery_time is not None:
                router.delay(message, destination)
            else:
                messages[number] = message

        def take_copy(
            number: int, subscription: int, count: int, transaction_id: int | None
        ) -> None:
            message = messages[number]
            backlog = subscriptions[subscription] if subscription else message.home.backlog
            is_count = 0 <= count <= _MOST_SEEN
            if backlog is None or message.key in backlog.copies or not is_count:
                raise ValueError("is no copy of a message")
            message.home.kept += not message.copies
            message.copies += 1
            copy = backlog.copies[message.key] = Copy(message, backlog)
            copy.count = count
            if transaction_id is None:
                backlog.put_back((copy,))
            else:
                copy.count -= 1  # its rollback counts it
                prepared[transaction_id].restore(copy)

        for _ in read(_MESSAGES, take_message):
            pass
        for _ in read(_COPIES, take_copy):
            pass
        self._last = max(self._last, *subscriptions, 0)
        for message in messages.values():
            if not message.copies:
                router.release(message)


def _subscription(
    number: int, client_id: str | None, name: str, topic: str, is_shared: int,
    selector: str | None, no_local: int,
) -> Subscription:  # fmt: skip
    if number < 1 or not is_name(topic, _LONGEST_NAME):
        raise ValueError("is no subscription of a topic")
    made = Subscription(
        topic, (client_id, name, True), bool(is_shared),
        None if selector is None else Selector.of(selector), bool(no_local), client_id,
    )  # fmt: skip
    made.number = number
    return made
