"""The states of a connection, from HELLO to GOODBYE."""

from __future__ import annotations

from typing import Final

from tests.reference.jmq_chain.records import ConnectionRecord, Report
from wireyard.layers.jmq.packet_row import PacketRow, number, properties_of, user_of
from wireyard.layers.jmq.rules import ALWAYS, BY_SIDE, BY_STATUS, OK, PINGS
from wireyard.layers.jmq.states import LOGGING_IN, SESSION, STEADY
from wireyard.layers.records import Position

__all__ = ["Session"]

_NAMED: Final = frozenset({*ALWAYS, *BY_STATUS, *BY_SIDE})


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
        if packet_type in BY_STATUS:
            return BY_STATUS[packet_type][_status(row) != OK]
        return BY_SIDE.get(packet_type, ("client_packet", "server_packet"))[not from_client]

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
