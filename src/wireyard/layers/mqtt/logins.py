"""How a connection takes up its session, and how its sides say goodbye: CONNECT to DISCONNECT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wireyard.layers.mqtt.aliases import Aliases
from wireyard.layers.mqtt.flows import MAX_IN_FLIGHT
from wireyard.layers.mqtt.properties import properties_of
from wireyard.layers.mqtt.records import Link, Message, content_of
from wireyard.layers.mqtt.sessions import Will
from wireyard.layers.mqtt.state import Connection, Row
from wireyard.layers.records import Position

__all__ = ["connack", "connect", "disconnect"]

_WITH_WILL: Final = 4
"""Reason code of a DISCONNECT after which the will is published."""
_WITH_SESSION_PRESENT: Final = 4
"""The first version whose CONNACK has it."""
_FOREVER_S: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire."""


def connect(connection: Connection, row: Row, at: Position) -> None:
    """Take the CONNECT of a connection."""
    link = connection.link
    properties = properties_of(row.get("properties"))
    link.opened, link.begun = at, True
    client_id = row.get("client_id")
    name = client_id or link.client.name
    link.client = link.client._replace(name=name, client_id=client_id)
    link.user = row.get("username")
    link.keep_alive = row.get("keep_alive")
    link.fresh = bool(row.get("clean_start"))
    link.maximum_packet_size = properties.get("maximum_packet_size")
    connection.most_bytes[False] = link.maximum_packet_size
    _set_expiry(link, properties.get("session_expiry_interval", 0))
    connection.aliases[False] = Aliases(properties.get("topic_alias_maximum", 0))
    connection.opening = row
    if connection.alone:
        # Nobody will say whether it counts.
        connection.state = "unknown"
        _open(connection, {}, at)
        connection.aliases[True] = Aliases()


def connack(connection: Connection, row: Row, at: Position) -> None:
    """Take a CONNACK, which refuses the connection or opens it."""
    link = connection.link
    link.status = row.get("return_code") or 0
    if link.status:
        link.ended_by, link.closed, link.until = "refused", at, at
        connection.early.clear()
    elif link.accepted is None:
        present = row.get("session_present") if link.version >= _WITH_SESSION_PRESENT else None
        link.resumed = present
        if present and link.fresh and connection.opening:
            connection.breaks("session_present_clean", False, at)
        _open(connection, properties_of(row.get("properties")), at)
    connection.answered()


def _open(connection: Connection, said: Mapping[str, Any], at: Position) -> None:
    """Begin the session; `said` are the properties of CONNACK."""
    link, opening = connection.link, connection.opening or {}
    asked = properties_of(opening.get("properties"))
    link.accepted = at
    if assigned := said.get("assigned_client_identifier"):
        link.client = link.client._replace(name=assigned, client_id=assigned)
    if "session_expiry_interval" in said:
        _set_expiry(link, said["session_expiry_interval"])
    connection.aliases[True] = Aliases(said.get("topic_alias_maximum", 0))
    connection.most_bytes[True] = said.get("maximum_packet_size")
    limits = (
        said.get("receive_maximum", MAX_IN_FLIGHT),
        asked.get("receive_maximum", MAX_IN_FLIGHT),
    )
    will = _will_of(connection, opening)
    # Without its CONNECT nobody knows whose session it is, so nothing of it is known to be new.
    present = link.resumed if link.begun else True
    before, connection.session = (
        connection.session,
        connection.broker.open(link, will, present, limits),
    )
    connection.broker.has_older |= not (connection.session.known or connection.alone)
    if before is not connection.session:
        connection.give_up(before)


def disconnect(connection: Connection, row: Row, at: Position, by_client: bool) -> None:
    """Take a DISCONNECT."""
    link, session = connection.link, connection.session
    if by_client and "session_expiry_interval" in (said := properties_of(row.get("properties"))):
        _set_expiry(link, said["session_expiry_interval"])
    if session.link is not link:
        return
    event = "dropped"
    if by_client:
        keeps = row.get("return_code") == _WITH_WILL
        event = "disconnected_with_will" if keeps else "disconnected"
    connection.broker.close(session, at, "client" if by_client else "server", event)
    if by_client:
        # The broker reads a stream in order, so it has read what came before.
        connection.notes.tracker.accept_all(connection, at)


def _set_expiry(link: Link, expiry_s: int) -> None:
    """Say how long the session outlives the connection."""
    if link.version == 5:
        link.persistent = expiry_s > 0
        link.expires_s = None if expiry_s == _FOREVER_S else expiry_s
    else:
        link.persistent = not link.fresh


def _will_of(connection: Connection, opening: Mapping[str, Any]) -> Will | None:
    topic = opening.get("will_topic")
    if topic is None:
        return None
    properties = properties_of(opening.get("will_properties"))
    payload, retain = opening.get("will_payload") or b"", bool(opening.get("will_retain"))
    message = Message(
        origin="will",
        sent=connection.link.opened,
        client=connection.link.client,
        topic=topic,
        content=content_of(payload),
        qos=opening.get("will_qos") or 0,
        retain=retain,
        value=payload if retain else None,
        expires_s=properties.get("message_expiry_interval"),
        response_topic=properties.get("response_topic"),
        correlation_data=properties.get("correlation_data"),
    )
    return Will(message, properties.get("will_delay_interval", 0))
