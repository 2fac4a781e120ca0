"""Connections and wills, cell by cell."""

from __future__ import annotations

import pytest

from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.connection import CONNECTION, CONNECTION_EVENTS, connection_event
from wireyard.layers.mqtt.violations import RULES
from wireyard.layers.mqtt.will import WILL, WILL_EVENTS

FROM_CLIENT = ("connect", "client", "client_auth", "client_disconnect")
LEGAL = {
    # What may come in each state; all else breaks a rule.
    "new": {"connect"},
    "unknown": set(CONNECTION_EVENTS) - {"connect"},
    "asked": {"client", "client_auth", "client_disconnect", "connack", "refusal", "server_auth"},
    "open": {*FROM_CLIENT, "server", "server_auth", "server_disconnect"} - {"connect"},
    "refused": {*FROM_CLIENT} - {"connect"},
    "left": {"connack", "refusal", "server", "server_auth", "server_disconnect"},
    "closed": {*FROM_CLIENT} - {"connect"},
}


@pytest.mark.parametrize("state", CONNECTION.states)
@pytest.mark.parametrize("event", CONNECTION_EVENTS)
def test_every_cell_of_a_connection(state: str, event: str) -> None:
    cell = CONNECTION[state, event]
    assert (cell.rule is None) == (event in LEGAL[state])
    assert cell.rule is None or cell.rule in RULES
    assert cell.state in CONNECTION.states
    if cell.rule and event not in FROM_CLIENT:
        assert cell.state == state, "what a broker does wrong changes nothing"


def test_every_state_is_reached_from_a_new_connection() -> None:
    reached, before = {"new"}, set[str]()
    while reached != before:
        before = set(reached)
        reached |= {cell.state for state in before for cell in CONNECTION.row(state).values()}
    assert reached == set(CONNECTION.states) == set(LEGAL)
    assert {event for _, event in CONNECTION} == set(CONNECTION_EVENTS)


WILLS = {
    # From CONNECT on, what happens to the connection and the session, and what becomes of the will.
    ("disconnected",): "dropped",
    ("dropped", "delay_over"): "published",
    ("disconnected_with_will", "delay_over"): "published",
    ("dropped", "back"): "dropped",
    ("dropped", "session_over"): "published",
    ("session_over",): "published",
    ("back", "delay_over"): None,
}


@pytest.mark.parametrize("events", WILLS)
def test_what_becomes_of_a_will(events: tuple[str, ...]) -> None:
    cell = WILL["none", "connected"]
    for event in events:
        assert cell.effect is None
        cell = WILL[cell.state, event]
    assert cell.effect == WILLS[events]


@pytest.mark.parametrize("state", WILL.states)
@pytest.mark.parametrize("event", WILL_EVENTS)
def test_every_cell_of_a_will(state: str, event: str) -> None:
    cell = WILL[state, event]
    assert cell.rule is None
    assert cell.state in WILL.states
    assert (cell.effect is not None) <= (cell.state == "none"), "what has an effect is over"
    if state == "none" and event != "connected":
        assert cell == WILL["none", "back"]


def test_packets_of_either_side() -> None:
    both = {layout.PUBLISH, layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP}
    both |= {layout.DISCONNECT, layout.AUTH}
    for kind in layout.PACKET_TYPES:
        sides = [
            connection_event(from_client, kind, 5) is not None for from_client in (True, False)
        ]
        assert any(sides)
        assert all(sides) == (kind in both)
    assert connection_event(False, layout.DISCONNECT, 4) is None
    assert connection_event(False, layout.CONNACK, 4, code=5) == "refusal"
