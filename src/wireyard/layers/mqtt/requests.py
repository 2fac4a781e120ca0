"""What a client asks of its broker and is answered: subscriptions, and their end."""

from __future__ import annotations

from typing import Final

from wireyard.layers.mqtt.notes import Notes
from wireyard.layers.mqtt.properties import properties_of
from wireyard.layers.mqtt.records import Subscribed
from wireyard.layers.mqtt.sessions import MAX_FILTERS
from wireyard.layers.mqtt.state import Connection, Request, Row
from wireyard.layers.mqtt.topics import split_shared
from wireyard.layers.records import Position

__all__ = ["MAX_ASKED", "Requests"]

MAX_ASKED: Final = 1000
"""Requests of one connection that wait for an answer; brokers answer in order and at once."""
_ERROR: Final = 128
_IF_NEW: Final = 1
"""Retain Handling with which only a subscription that was not there before gets values."""


class Requests:
    """Follows SUBSCRIBE and UNSUBSCRIBE, each with its answer."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def subscribe(self, connection: Connection, row: Row, at: Position, _: bool) -> None:
        """Take a SUBSCRIBE."""
        identifiers = properties_of(row.get("properties")).get("subscription_identifier")
        request = Request(row.get("filters") or [], identifiers[0] if identifiers else None, at)
        self._ask(connection.asked, row, request)

    def unsubscribe(self, connection: Connection, row: Row, at: Position, _: bool) -> None:
        """Take an UNSUBSCRIBE."""
        self._ask(connection.leaving, row, Request(row.get("filters") or [], None, at))

    def _ask(self, waiting: dict[int, Request], row: Row, request: Request) -> None:
        if len(waiting) < MAX_ASKED:
            waiting[row.get("packet_id") or 0] = request
        else:
            self._notes.dropped["requests"] += 1

    def suback(self, connection: Connection, row: Row, at: Position, _: bool) -> None:
        """Take a SUBACK: what was granted is a subscription."""
        request = connection.asked.pop(row.get("packet_id") or 0, None)
        codes = row.get("return_codes") or []
        if request is None or len(codes) != len(request.filters):
            connection.breaks("suback_unasked", False, at)
            return
        connection.prove(request.at, at)
        for place, (asked, code) in enumerate(zip(request.filters, codes, strict=True)):
            if code < _ERROR and asked["filter"]:
                subscribed = _subscribed(connection, request, place, asked, code, at)
                connection.broker.subscribe(connection.session, subscribed)
                if subscribed.gets_values and len(connection.unconfirmed) < MAX_FILTERS:
                    connection.unconfirmed.append(subscribed)

    def unsuback(self, connection: Connection, row: Row, at: Position, _: bool) -> None:
        """Take an UNSUBACK: subscriptions end."""
        request = connection.leaving.pop(row.get("packet_id") or 0, None)
        if request is None:
            connection.breaks("unsuback_unasked", False, at)
            return
        connection.prove(request.at, at)
        for asked in request.filters:
            if asked["filter"]:
                connection.broker.unsubscribe(connection.session, asked["filter"], request.at, at)


def _subscribed(
    connection: Connection, request: Request, place: int, asked: Row, code: int, at: Position
) -> Subscribed:
    """Return a subscription to the filter at a place of a SUBSCRIBE, as it was granted."""
    link, session, filter = connection.link, connection.session, asked["filter"]
    group = split_shared(filter)[0] if link.version == 5 else None
    handling = asked.get("retain_handling") or 0
    is_new = filter not in session.filters and session.known
    return Subscribed(
        link.client,
        filter,
        group,
        code,
        bool(asked.get("no_local")),
        bool(asked.get("retain_as_published")),
        request.identifier,
        asked=request.at,
        granted=at,
        since=request.at._replace(offset=request.at.offset + place),
        version=link.version,
        known=session.known,
        gets_values=group is None and (handling == 0 or (handling == _IF_NEW and is_new)),
        maximum_packet_size=link.maximum_packet_size,
    )
