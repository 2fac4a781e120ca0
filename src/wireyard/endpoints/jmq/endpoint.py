"""What both sides of a JMQ connection have in common: packets in, packets out, order and flow.

The states of a connection and of a flow are those of the tables `SESSION` and `FLOW`, which judge
captures too. PING is answered here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

from wireyard.endpoints.channel import Channel, Ended, Limits, Span, Tap
from wireyard.endpoints.jmq.codes import FATAL
from wireyard.endpoints.jmq.packets import Items, Message, Request, Stamp, read_packet
from wireyard.errors import DecodeError, LimitExceeded
from wireyard.formats.jmq.framing import frame_size
from wireyard.formats.jmq.layout import HEADER_BYTES, HEADERS, SECRET_BODIES
from wireyard.formats.jmq_names import PACKET_TYPES
from wireyard.layers.jmq.rules import ALWAYS, BY_SIDE, BY_STATUS, OK, PINGS, RULES
from wireyard.layers.jmq.states import FLOW, LOGGING_IN, SESSION

_HEADER = HEADERS[301]
_TYPE_AT: Final = _HEADER["packet_type"].offset
_OPEN: Final = FLOW.states[0]
_FIRST: Final = ("hello", "client_goodbye", "server_goodbye")


class MapperRequest(NamedTuple):
    """The client wants to know the ports of the broker: it is to be answered by `tell`."""


class Refused(NamedTuple):
    """A packet was refused, and the connection goes on."""

    text: str


class Answered(NamedTuple):
    """The reply to a request of this side, and what its caller recognises it by."""

    reply: Request
    tag: Any


Event = Message | Request | MapperRequest | Refused | Answered | Ended


class Flow:
    """How many messages may be sent until the other side resumes the flow.

    `size` is their number; if it is not positive there is no limit.
    """

    __slots__ = ("is_open", "left", "state")

    def __init__(self, size: int = 0) -> None:
        self.state = _OPEN
        self.is_open = True
        """Whether a message may be sent."""
        self.left = max(size, 0)

    def send(self) -> bool:
        """Count a message; return whether it is the last one, which is sent with a flag."""
        if not self.left:
            return False
        self.left -= 1
        self._advance("send" if self.left else "send_last")
        return not self.left

    def take(self, *, is_last: bool) -> bool:
        """Count a message that came; return False if it may not, as the flow was not resumed."""
        event = "send_last" if is_last else "send"
        is_allowed = FLOW.lookup(self.state, event).rule is None
        if is_allowed:
            self._advance(event)
        return is_allowed

    def resume(self, size: int, *, stops: bool = False) -> None:
        """Let `size` messages flow; if it is not positive any number, or none if 0 stops it."""
        self._advance("stop" if stops and not size else "resume")
        self.left = max(size, 0)

    def _advance(self, event: str) -> None:
        self.state = FLOW[self.state, event].state
        self.is_open = self.state == _OPEN


class JmqEndpoint(Channel[Event]):
    """One side of one connection.

    `stamp` returns timestamp, address, port and sequence for a packet of this side.
    """

    _FORMAT = "jmq"
    is_client: ClassVar[bool]

    def __init__(
        self, stamp: Callable[[], Stamp], limits: Limits | None = None, tap: Tap | None = None
    ) -> None:
        super().__init__(limits, tap)
        self._stamp = stamp
        self._known: Items = {}

    @property
    def is_logged_in(self) -> bool:
        """Whether a login was accepted."""
        return self.state not in LOGGING_IN and self.state not in ("new", "refused")

    # --- bytes in -------------------------------------------------------------------------

    def _read(self, data: bytes, now: float) -> list[Event]:
        events: list[Event] = []
        secret: list[Span] = []
        at, stop = 0, len(data)
        while at < stop and self.ended is None and not self.is_paused:
            try:
                size = frame_size(data, at, stop, self._most())
                self._needed = size or 0
                if size is None or at + size > stop:
                    break
                if data[at + _TYPE_AT + 1] in SECRET_BODIES:
                    secret.append((at, at + size))
                self._take(read_packet(data[at : at + size], self._known), events)
            except LimitExceeded as error:
                size = self._skip(data[at : at + HEADER_BYTES], stop - at, error, events)
                if not size:
                    break
            except DecodeError as error:
                self.end_by(str(error), events)
                break
            at += size
        self._leave(data, at, secret)
        return events

    def _most(self) -> int:
        return self.limits.max_packet_bytes

    def _skip(self, head: bytes, left: int, error: LimitExceeded, events: list[Event]) -> int:
        """Act on a packet that is too large; return how many of the bytes left are of it."""
        self.end_by(str(error), events)
        return 0

    def _take(self, packet: Message | Request, events: list[Event]) -> None:
        kind = packet.packet_type
        if kind in PINGS:
            if isinstance(packet, Request) and packet.wants_reply:
                self.answer_ping(packet)
            return
        status = packet.get("JMQStatus", int, OK) if isinstance(packet, Request) else OK
        rule = self._advance(kind, status, by_client=not self.is_client)
        if rule is None:
            self.take_packet(packet, events)
            return
        self.break_rule(packet, rule, events)

    def _advance(self, kind: int, status: int, *, by_client: bool) -> str | None:
        """Apply a packet to the state; return the rule that it breaks, if any."""
        if kind in PINGS:
            return None
        events = BY_SIDE.get(kind, ("client_packet", "server_packet"))
        event = ALWAYS.get(kind) or events[not by_client]
        if kind in BY_STATUS:
            event = BY_STATUS[kind][status != OK]
        is_own = by_client == self.is_client
        if self.state == "new" and event not in _FIRST:
            # The table takes the first packet of a capture for one of the middle; here it is not.
            return None if is_own else "before_login"
        cell = SESSION.get((self.state, event)) or SESSION.lookup(self.state, event)
        if cell.rule is None or is_own:
            self.state = cell.state
        return cell.rule

    @abstractmethod
    def take_packet(self, packet: Message | Request, events: list[Event]) -> None:
        """Act on a packet that may come now."""

    @abstractmethod
    def answer_ping(self, request: Request) -> None:
        """Answer a PING."""

    def break_rule(self, packet: Message | Request, rule: str, events: list[Event]) -> None:
        """Act on a packet that may not come."""
        kind = packet.packet_type
        self.end_by(f"{PACKET_TYPES.get(kind, f'type {kind}')}: {RULES[rule]}", events)

    # --- bytes out ------------------------------------------------------------------------

    def send_packet(self, kind: int, data: bytes, status: int = OK) -> None:
        """Send a packet of a type."""
        self._advance(kind, status, by_client=self.is_client)
        self.write(data, kind in SECRET_BODIES)

    # --- ends -----------------------------------------------------------------------------

    @abstractmethod
    def end(self, code: int, text: str | None, *, by_client: bool = False) -> Ended | None:
        """End the connection; None if it is over already."""

    def end_by(self, text: str, events: list[Event]) -> None:
        """End the connection because of what the other side did."""
        ended = self.end(FATAL, text)
        if ended is not None:
            events.append(ended)
