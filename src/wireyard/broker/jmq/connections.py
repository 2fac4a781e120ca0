"""Connections of JMQ clients: their sessions, consumers, producers, and answers to requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from wireyard.broker.half import BaseLink
from wireyard.broker.jmq.destinations import Backlog, Copy, Destination
from wireyard.broker.jmq.selector import Selector
from wireyard.endpoints.jmq import Flow, Request, ServerEndpoint
from wireyard.layers.jmq.rules import NO_ACKNOWLEDGE, OK

_ACK_MODES: Final = (1, 2, 3, NO_ACKNOWLEDGE)
_MAX_TEXT: Final = 300
"""Characters of a line, which may quote what a client sent."""


class Connection(BaseLink[ServerEndpoint]):
    """One connection of a client."""

    __slots__ = (
        "browsers", "buffer_size", "client_id", "consumers", "flow", "id", "is_mapper_only",
        "is_started", "producers", "sessions", "temporary", "transactions", "user",
    )  # fmt: skip

    def __init__(self, endpoint: ServerEndpoint, name: str, id: int) -> None:
        super().__init__(endpoint, name)
        self.id = id
        self.client_id: str | None = None
        self.user: str | None = None
        self.buffer_size = 0
        """Messages that the client takes until it resumes the flow of the connection."""
        self.flow = Flow()
        self.is_started = False
        self.is_mapper_only = False
        """Whether it came to the port of the port mapper, and the service has another one."""
        self.sessions: dict[int, Session] = {}
        self.consumers: dict[int, Consumer] = {}
        """Those that were deleted too, while they hold messages."""
        self.producers: dict[int, Producer] = {}
        self.browsers: dict[int, Destination] = {}
        self.temporary: dict[tuple[bool, str], Destination] = {}
        self.transactions: set[int] = set()

    @property
    def origin(self) -> object:
        """Whose its messages are, for consumers that want none of their own."""
        return self.client_id or self.id

    def consumers_of(self, session: Session | None) -> Iterator[Consumer]:
        """Yield the consumers of a session, or of all."""
        for consumer in list(self.consumers.values()):
            if session is None or consumer.session is session:
                yield consumer


class Session:
    """A session: its acknowledge mode, and whether it gets messages."""

    __slots__ = ("ack_mode", "connection", "id", "is_over", "is_stopped")

    def __init__(self, id: int, connection: Connection, ack_mode: int | None) -> None:
        self.id, self.connection, self.ack_mode = id, connection, ack_mode
        self.is_stopped = self.is_over = False

    @staticmethod
    def is_mode(ack_mode: int | None) -> bool:
        """Return whether there is such an acknowledge mode; None is that of a transaction."""
        return ack_mode is None or ack_mode in _ACK_MODES


class Consumer:
    """A consumer, and the copies that it holds: delivered, and not acknowledged.

    `selector` is that of a consumer of a queue; subscriptions have their own. `size` is the number
    of messages that it takes until it resumes the flow; 0 for any number. `acknowledges` is whether
    it acknowledges messages.
    """

    __slots__ = (
        "acknowledges", "backlog", "connection", "flow", "held", "id", "is_closed", "returned",
        "selector", "session",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        session: Session,
        backlog: Backlog,
        selector: Selector | None,
        size: int,
        acknowledges: bool,
    ) -> None:
        self.id, self.session, self.connection = id, session, session.connection
        self.backlog, self.selector = backlog, selector
        self.flow = Flow(size)
        self.acknowledges = acknowledges
        self.is_closed = False
        self.held: dict[bytes, Copy] = {}
        self.returned: list[Copy] = []
        """Copies that it gave back and gets again, before all others."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes a message now."""
        connection = self.connection
        return (
            self.flow.is_open
            and connection.is_started
            and not self.session.is_stopped
            and connection.flow.is_open
            and not connection.is_slow
            and not self.is_closed
        )

    def wants(self, copy: Copy) -> bool:
        """Return whether its selector matches."""
        selector = self.selector
        if selector is None:
            return True
        if selector in copy.refused:
            return False
        if selector.matches(copy.message.values()):
            return True
        copy.refused += (selector,)
        return False


class Producer:
    """A producer: where its messages go."""

    __slots__ = ("connection", "destination", "id")

    def __init__(self, id: int, connection: Connection, destination: Destination) -> None:
        self.id, self.connection, self.destination = id, connection, destination


# --- answers --------------------------------------------------------------------------------


class Refusal(Exception):
    """A request is not done.

    `status` is that of the reply. `text` is the reason, for the reply and for a line behind the
    client's name; there is a line only if `is_notable`. `properties` are those of the reply besides
    status and reason.
    """

    def __init__(
        self,
        status: int,
        text: str,
        properties: Mapping[str, Any] | None = None,
        *,
        is_notable: bool = True,
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.properties = status, text[:_MAX_TEXT], properties
        self.is_notable = is_notable


def accept(
    link: Connection,
    request: Request,
    properties: Mapping[str, Any] | None = None,
    body: bytes = b"",
) -> None:
    """Answer a request that was done, if the client waits."""
    if request.wants_reply:
        link.endpoint.reply(request.packet_type, request.id, OK, None, properties, body)
