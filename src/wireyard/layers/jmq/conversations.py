"""JMS requests and their replies: messages that name where the answer is to go, and the answers.

The key of this step is where the replies go, the request's JMSReplyTo.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from wireyard.layers.jmq.facts import Exchange, Sending

__all__ = ["conversations"]

_TEMPORARY = "temporary_destination://"


@dataclass(slots=True, eq=False)
class _Request:
    sending: Sending
    replies: dict[str, Sending] = field(default_factory=dict)


def conversations(messages: Iterable[Sending]) -> Iterator[Exchange]:
    """Yield every request with each of its replies, and one without any alone.

    A reply goes to the request's JMSReplyTo, and its JMSCorrelationID is the request's
    JMSMessageID or its JMSCorrelationID: which of them, applications agree upon; of requests with
    the same one it answers the latest. A message to a
    temporary destination that correlates with nothing answers the oldest request to be answered
    there that has no reply yet: the broker's administration works so, and JMS' own requestors.

    Parameters
    ----------
    messages
        Each once, in the order of time.
    """
    requests = []
    correlated: dict[tuple[str, str], _Request] = {}
    waiting: defaultdict[str, deque[_Request]] = defaultdict(deque)
    for message in messages:
        answered = _answered(message, correlated, waiting)
        if answered is not None:
            answered.replies[message.message_key] = message
        if message.reply_to is not None:
            request = _Request(message)
            requests.append(request)
            for correlation in _correlations(message):
                correlated[message.reply_to, correlation] = request
            if message.reply_to.startswith(_TEMPORARY):
                waiting[message.reply_to].append(request)
    for request in requests:
        for reply in request.replies.values() or (None,):
            yield _exchange(request.sending, reply)


def _answered(
    message: Sending,
    correlated: Mapping[tuple[str, str], _Request],
    waiting: Mapping[str, deque[_Request]],
) -> _Request | None:
    """Return the request that a message answers, None if it answers none."""
    destination = message.destination
    if destination is None:
        return None
    if message.correlation_id is not None:
        return correlated.get((destination, message.correlation_id))
    line = waiting.get(destination)
    while line:
        request = line.popleft()
        if not request.replies:
            return request
    return None


def _correlations(request: Sending) -> set[str]:
    chosen = request.message_id
    ids = {f"ID:{request.message_key if chosen is None else chosen}"}
    return ids if request.correlation_id is None else ids | {request.correlation_id}


def _exchange(request: Sending, reply: Sending | None) -> Exchange:
    exchange = Exchange(request.destination or "", request.producer, "", request.place)
    exchange.request_message = request.message_key
    if reply is not None:
        exchange.responder = reply.producer
        exchange.answered = reply.place
        exchange.reply_message = reply.message_key
    return exchange
