"""The states of a connection, from HELLO to GOODBYE."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.errors import DecodeError
from wireyard.formats.jmq.body import body_value
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.jmq.records import MAX_TEXT, ConnectionRecord, Report, number, properties_of
from wireyard.layers.jmq.requests import OK
from wireyard.layers.records import Position
from wireyard.layers.states import Cell, StateTable

__all__ = [
    "ALWAYS",
    "ENDED_BY",
    "GOODBYE",
    "HELLO_REPLY",
    "LOGGING_IN",
    "LOGIN_REPLY",
    "PINGS",
    "SESSION",
    "SESSION_EVENTS",
    "STEADY",
    "Session",
    "user_of",
]

SESSION_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hello": "HELLO",
        "hello_accepted": "HELLO_REPLY with status 200",
        "hello_refused": "HELLO_REPLY with any other status",
        "challenge": "AUTHENTICATE_REQUEST",
        "login": "AUTHENTICATE",
        "login_accepted": "AUTHENTICATE_REPLY with status 200",
        "login_refused": "AUTHENTICATE_REPLY with any other status",
        "client_goodbye": "GOODBYE from the client",
        "server_goodbye": "GOODBYE from the broker",
        "goodbye_reply": "GOODBYE_REPLY",
        "client_packet": "any other packet from the client but PING",
        "server_packet": "any other packet from the broker but PING",
    }
)
"""The events, and what each of them is."""

SESSION: Final[StateTable[str, str, str]] = StateTable(
    {
        # A capture may begin in the middle: then the first packet shows that there was a login.
        "new": {
            "hello": "greeting",
            "hello_accepted": "greeting",
            "hello_refused": "refused",
            "challenge": "challenged",
            "login": "authenticating",
            "login_accepted": "open",
            "login_refused": "refused",
            "client_goodbye": "closing",
            "server_goodbye": "closed",
            "goodbye_reply": "closed",
            "client_packet": "open",
            "server_packet": "open",
        },
        # An error reply answers a request that the client should not have sent.
        "greeting": {
            "hello_accepted": "greeting",
            "hello_refused": "refused",
            "challenge": "challenged",
            "client_goodbye": "closing",
            "server_goodbye": "closed",
            "server_packet": "greeting",
        },
        "challenged": {
            "login": "authenticating",
            "client_goodbye": "closing",
            "server_goodbye": "closed",
            "server_packet": "challenged",
        },
        "authenticating": {
            "challenge": "challenged",
            "login_accepted": "open",
            "login_refused": "refused",
            "client_goodbye": "closing",
            "server_goodbye": "closed",
            "server_packet": "authenticating",
        },
        "open": {
            "client_goodbye": "closing",
            "server_goodbye": "closed",
            "goodbye_reply": "closed",
            "client_packet": "open",
            "server_packet": "open",
        },
        # Both may send GOODBYE when a login is refused.
        "refused": {
            "client_goodbye": "refused",
            "server_goodbye": "refused",
            "goodbye_reply": "refused",
            "server_packet": "refused",
        },
        # Messages and replies may be in transit when a client sends GOODBYE.
        "closing": {
            "server_goodbye": "closed",
            "goodbye_reply": "closed",
            "server_packet": "closing",
        },
        # A client may be writing while the broker sends GOODBYE, which it does twice.
        "closed": {
            "client_goodbye": "closed",
            "server_goodbye": "closed",
            "goodbye_reply": "closed",
            "server_packet": "closed",
        },
    },
    SESSION_EVENTS,
    state_rules={
        "greeting": "before_login",
        "challenged": "before_login",
        "authenticating": "before_login",
        "open": "second_login",
        "refused": "before_login",
        "closing": "after_goodbye",
        "closed": "after_goodbye",
    },
)
"""A connection from HELLO to GOODBYE."""

ENDED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "client": "the client sent GOODBYE",
        "server": "the broker sent GOODBYE first",
        "dropped": "the connection ended without GOODBYE",
        "refused": "the broker refused the login",
        "open": "it was open when the capture ended, as far as that shows",
    }
)
"""The values of `ended_by`, and the meaning of each."""

LOGGING_IN: Final = frozenset({"greeting", "challenged", "authenticating"})
PINGS: Final = frozenset({54, 55})
_HELLO, HELLO_REPLY, _LOGIN, LOGIN_REPLY, GOODBYE = 10, 11, 12, 13, 28
ALWAYS: Final = {_HELLO: "hello", _LOGIN: "login", 29: "goodbye_reply", 38: "challenge"}
_BY_STATUS: Final = {
    HELLO_REPLY: ("hello_accepted", "hello_refused"),
    LOGIN_REPLY: ("login_accepted", "login_refused"),
}
_BY_SIDE: Final = {GOODBYE: ("client_goodbye", "server_goodbye")}
_OTHER: Final = ("client_packet", "server_packet")
_NAMED: Final = frozenset({*ALWAYS, *_BY_STATUS, *_BY_SIDE})
STEADY: Final = frozenset(
    state
    for state in SESSION.states
    if all(SESSION.get((state, event)) == Cell(state) for event in _OTHER)
)
"""States in which packets without an event of their own, which are nearly all, change nothing."""


class Session:
    """The login of one connection, and its end.

    Parameters
    ----------
    report
        The output of violations.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.login: ConnectionRecord | None = None

    def observe(self, row: PacketRow, at: Position, from_client: bool) -> None:
        """Observe the next packet of either side."""
        login = self.login
        if login is None:
            login = self.login = ConnectionRecord(self._report.client, self._report.server, at, at)
        login.packets += 1
        login.size_bytes += row["size"]
        login.last = at
        packet_type = row["packet_type"]
        if packet_type in PINGS or (login.state in STEADY and packet_type not in _NAMED):
            return
        event = self._event(row, packet_type, from_client)
        following, _, rule = SESSION.lookup(login.state, event)
        if rule is not None:
            self._report.add_violation(rule, row, at)
        elif following != login.state:
            self._record_fields(login, event, row)
            login.state = following

    def miss(self) -> None:
        """Observe that packets are missing, which may have been those of the login."""
        if self.login is not None and self.login.state in LOGGING_IN:
            self.login.state = "new"

    def finish(self, ended: bool, goodbye_lost: bool) -> str | None:
        """Return the value of `ended_by`.

        Parameters
        ----------
        ended
            Whether the capture shows the end.
        goodbye_lost
            Whether the last bytes of the client are missing, so it may have sent GOODBYE; then
            the result is None if nothing else shows how the connection ended.
        """
        login = self.login
        if login is None:
            return None
        if login.state == "refused":
            login.ended_by = "refused"
        elif login.ended_by is None:
            login.ended_by = "open" if not ended else None if goodbye_lost else "dropped"
        return login.ended_by

    def _event(self, row: PacketRow, packet_type: int, from_client: bool) -> str:
        if packet_type in ALWAYS:
            return ALWAYS[packet_type]
        if packet_type in _BY_STATUS:
            return _BY_STATUS[packet_type][_status(row) != OK]
        return _BY_SIDE.get(packet_type, _OTHER)[not from_client]

    def _record_fields(self, login: ConnectionRecord, event: str, row: PacketRow) -> None:
        """Keep the fields of a packet that changes the state."""
        match event:
            case "hello":
                # After a gap a HELLO is not the first packet.
                self._report.known = login.known = login.packets == 1
                login.protocol_level = number(properties_of(row), "JMQProtocolLevel")
            case "login":
                login.user = user_of(row)
            case "login_accepted" | "login_refused" | "hello_refused":
                login.status = _status(row)
            case "client_goodbye" | "server_goodbye":
                login.ended_by = login.ended_by or event.partition("_")[0]


def _status(row: PacketRow) -> int | None:
    return number(properties_of(row), "JMQStatus")


def user_of(row: PacketRow) -> str | None:
    """Return the user of a login, None if the body with the password in it was left out."""
    try:
        login = body_value(row)
    except DecodeError:
        return None
    return login["user"][:MAX_TEXT] if login else None
