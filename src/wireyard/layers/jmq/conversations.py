"""JMS requests and their replies: messages that name where the answer is to go, and the answers.

The key of this stage is where the replies go, the request's JMSReplyTo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wireyard.layers.jmq.records import Exchange, Sending
from wireyard.layers.jmq.rows import conversation_row
from wireyard.layers.stages import Dropped, Fact, Found

__all__ = [
    "MAX_REMEMBERED",
    "TEMPORARY",
    "ConversationMessage",
    "conversations",
    "may_answer",
]

MAX_REMEMBERED: Final = 1 << 17
"""Messages of one destination that are remembered, requests and their replies: some 100 MB as they
are in use, and many times as many as anybody waits for."""

TEMPORARY = "temporary_destination://"


class ConversationMessage(NamedTuple):
    """A message of a reply destination: one that names it as JMSReplyTo, or one sent there."""

    message: Sending
    is_request: bool


def may_answer(message: Sending) -> bool:
    """Return whether a message can be the reply to another."""
    if message.destination is None:
        return False
    return message.correlation_id is not None or message.destination.startswith(TEMPORARY)


def conversations(messages: Iterator[ConversationMessage]) -> Iterator[Found]:
    """Yield every request of a destination with each of its replies, and one without any alone.

    A reply goes to the request's JMSReplyTo, and its JMSCorrelationID is the request's
    JMSMessageID or its JMSCorrelationID: which of them, applications agree upon; of requests with
    the same one it answers the latest. A message to a temporary destination that correlates with
    nothing answers the oldest request to be answered there that has no reply yet: the broker's
    administration works so, and JMS' own requestors.

    Parameters
    ----------
    messages
        Each once, in the order of time.

    Limits
    ------
    Of more than `MAX_REMEMBERED` messages the oldest are forgotten; those are counted that still
    wait for an answer.
    """
    requests = _Requests()
    dropped = 0
    for message, is_request in messages:
        if is_request:
            requests.ask(message)
        else:
            requests.answer(message)
        while requests.remembered > MAX_REMEMBERED:
            oldest = requests.forget()
            dropped += not oldest.replies
            yield from _rows(oldest)
    if dropped:
        yield Dropped("MAX_REMEMBERED", dropped)
    while requests.remembered:
        yield from _rows(requests.forget())


@dataclass(slots=True, eq=False)
class _Request:
    message: Sending
    replies: list[Sending] = field(default_factory=list)


class _Requests:
    """The requests to be answered at one destination, the oldest first."""

    def __init__(self) -> None:
        self._all: deque[_Request] = deque()
        self._in_line: deque[_Request] = deque()
        """Those that are answered in turn, if nothing else was said."""
        self._correlated: dict[str, _Request] = {}
        self.remembered = 0

    def ask(self, message: Sending) -> None:
        """Observe a request."""
        request = _Request(message)
        self._all.append(request)
        self.remembered += 1
        for correlation in _correlations(message):
            self._correlated[correlation] = request
        if message.reply_to is not None and message.reply_to.startswith(TEMPORARY):
            self._in_line.append(request)

    def answer(self, message: Sending) -> None:
        """Observe a message that may be a reply."""
        if message.correlation_id is None:
            request = self._next_in_line()
        else:
            request = self._correlated.get(message.correlation_id)
        if request is not None:
            request.replies.append(message)
            self.remembered += 1

    def _next_in_line(self) -> _Request | None:
        while self._in_line:
            request = self._in_line.popleft()
            if not request.replies:
                return request
        return None

    def forget(self) -> _Request:
        """Forget the oldest request, and return it."""
        request = self._all.popleft()
        self.remembered -= 1 + len(request.replies)
        if self._in_line and self._in_line[0] is request:
            self._in_line.popleft()
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
        exchange.answered = reply.at
        exchange.reply_message = reply.message_key
    return exchange
