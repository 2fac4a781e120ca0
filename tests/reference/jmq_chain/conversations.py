"""JMS requests and their replies: messages with a JMSReplyTo, and the messages that answer them.

The key of this stage is the destination of the replies, the request's JMSReplyTo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.reference.jmq_chain.records import Exchange
from tests.reference.jmq_chain.rows import conversation_row
from wireyard.layers.jmq import rules
from wireyard.layers.jmq.records import Sending
from wireyard.layers.jmq.rules import TEMPORARY
from wireyard.layers.stages import Dropped, Fact, Found

__all__ = ["ConversationMessage", "conversations", "may_answer"]


class ConversationMessage(NamedTuple):
    """A message of a reply destination: one with this JMSReplyTo, or one that was sent there."""

    message: Sending
    is_request: bool


def may_answer(message: Sending) -> bool:
    """Return whether a message can be the reply to another."""
    if message.destination is None:
        return False
    return message.correlation_id is not None or message.destination.startswith(TEMPORARY)


def conversations(messages: Iterator[ConversationMessage]) -> Iterator[Found]:
    """Yield a row for each reply to a request of a destination, and one for a request without any.

    A reply is sent to the request's JMSReplyTo, and its JMSCorrelationID is the request's
    JMSMessageID or JMSCorrelationID; applications choose which. If several requests have the same
    id, the reply is to the latest. A message to a temporary destination without a JMSCorrelationID
    is the reply to the oldest request there that has none yet, as in the broker's administration
    and in JMS' own requestors.

    Parameters
    ----------
    messages
        Each message once, in the order of time.

    Limits
    ------
    Above `rules.MAX_REMEMBERED` messages the oldest requests are evicted; those without a reply are
    counted as dropped.
    """
    requests = _Requests()
    dropped = 0
    for message, is_request in messages:
        if is_request:
            requests.add_request(message)
        else:
            requests.add_reply(message)
        while requests.held > rules.MAX_REMEMBERED:
            oldest = requests.evict()
            dropped += not oldest.replies
            yield from _rows(oldest)
    if dropped:
        yield Dropped("MAX_REMEMBERED", dropped)
    while requests.held:
        yield from _rows(requests.evict())


@dataclass(slots=True, eq=False)
class _Request:
    message: Sending
    replies: list[Sending] = field(default_factory=list)


class _Requests:
    """The requests of one reply destination, the oldest first."""

    def __init__(self) -> None:
        self._all: deque[_Request] = deque()
        self._in_turn: deque[_Request] = deque()
        """Requests that messages without a JMSCorrelationID answer in turn."""
        self._correlated: dict[str, _Request] = {}
        self.held = 0
        """The number of requests and replies here."""

    def add_request(self, message: Sending) -> None:
        """Observe a request."""
        request = _Request(message)
        self._all.append(request)
        self.held += 1
        for correlation in _correlations(message):
            self._correlated[correlation] = request
        if message.reply_to is not None and message.reply_to.startswith(TEMPORARY):
            self._in_turn.append(request)

    def add_reply(self, message: Sending) -> None:
        """Observe a message that may be a reply."""
        if message.correlation_id is None:
            request = self._next_in_turn()
        else:
            request = self._correlated.get(message.correlation_id)
        if request is not None:
            request.replies.append(message)
            self.held += 1

    def _next_in_turn(self) -> _Request | None:
        while self._in_turn:
            request = self._in_turn.popleft()
            if not request.replies:
                return request
        return None

    def evict(self) -> _Request:
        """Remove and return the oldest request."""
        request = self._all.popleft()
        self.held -= 1 + len(request.replies)
        if self._in_turn and self._in_turn[0] is request:
            self._in_turn.popleft()
        for correlation in _correlations(request.message):
            if self._correlated.get(correlation) is request:
                del self._correlated[correlation]
        return request


def _correlations(request: Sending) -> set[str]:
    chosen = request.message_id
    ids = {f"ID:{request.message_key if chosen is None else chosen}"}
    return ids if request.correlation_id is None else ids | {request.correlation_id}


def _rows(request: _Request) -> Iterator[Found]:
    for reply in request.replies or (None,):
        yield Fact("conversations", conversation_row("jms", _exchange(request.message, reply)))


def _exchange(request: Sending, reply: Sending | None) -> Exchange:
    exchange = Exchange(request.destination or "", request.producer, "", request.at)
    exchange.request_message = request.message_key
    if reply is not None:
        exchange.responder = reply.producer
        exchange.replied = reply.at
        exchange.reply_message = reply.message_key
    return exchange
