"""The states of a connection and of its will, as state tables.

A connection: the packets that each side may send, from CONNECT to DISCONNECT. A will: from CONNECT
until it is published or dropped (MQTT 5.0, 3.1.2.5).
"""

from __future__ import annotations

from typing import Final

from wireyard.formats.mqtt import layout
from wireyard.layers.states import Cell, StateTable

CONNECTION_EVENTS: Final = (
    "connect", "client", "client_auth", "client_disconnect",
    "connack", "refusal", "server", "server_auth", "server_disconnect",
)  # fmt: skip
"""``client`` and ``server`` are all other packets of that side."""


def _forbidden(state: str, rule: str) -> dict[str, Cell[str, str]]:
    return dict.fromkeys(CONNECTION_EVENTS, Cell(state, None, rule))


CONNECTION: Final[StateTable[str, str, str]] = StateTable(
    {
        "new": {
            **_forbidden("new", "connack_first"),
            "connect": Cell("asked"),
            "client": Cell("unknown", None, "connect_first"),
            "client_auth": Cell("unknown", None, "connect_first"),
            "client_disconnect": Cell("left", "left", "connect_first"),
        },
        # The beginning of the connection was not captured.
        "unknown": {
            "connect": Cell("asked", None, "connect_twice"),
            "client": Cell("unknown"),
            "client_auth": Cell("unknown"),
            "client_disconnect": Cell("left", "left"),
            "connack": Cell("open", "opened"),
            "refusal": Cell("refused", "refused"),
            "server": Cell("unknown"),
            "server_auth": Cell("unknown"),
            "server_disconnect": Cell("closed", "closed"),
        },
        # A client need not wait for CONNACK.
        "asked": {
            **_forbidden("asked", "connack_first"),
            "connect": Cell("asked", None, "connect_twice"),
            "client": Cell("asked"),
            "client_auth": Cell("asked"),
            "client_disconnect": Cell("left", "left"),
            "connack": Cell("open", "opened"),
            "refusal": Cell("refused", "refused"),
            "server_auth": Cell("asked"),
        },
        "open": {
            **_forbidden("open", "connack_twice"),
            "connect": Cell("open", None, "connect_twice"),
            "client": Cell("open"),
            "client_auth": Cell("open"),
            "client_disconnect": Cell("left", "left"),
            "server": Cell("open"),
            "server_auth": Cell("open"),
            "server_disconnect": Cell("closed", "closed"),
        },
        # Packets that the client sent before it read the refusal have no effect.
        "refused": {
            **_forbidden("refused", "after_refusal"),
            "connect": Cell("refused", None, "connect_twice"),
            "client": Cell("refused"),
            "client_auth": Cell("refused"),
            "client_disconnect": Cell("refused"),
        },
        # Packets that the broker sent before it read the DISCONNECT still arrive.
        "left": {
            **_forbidden("left", "after_disconnect"),
            "connack": Cell("left", "opened"),
            "refusal": Cell("refused", "refused"),
            "server": Cell("left"),
            "server_auth": Cell("left"),
            "server_disconnect": Cell("left"),
        },
        # Packets that the client sent before it read the DISCONNECT still arrive.
        "closed": {
            **_forbidden("closed", "after_disconnect"),
            "connect": Cell("closed", None, "connect_twice"),
            "client": Cell("closed"),
            "client_auth": Cell("closed"),
            "client_disconnect": Cell("closed"),
        },
    },
    CONNECTION_EVENTS,
)
"""A connection from CONNECT to DISCONNECT; the table is complete."""

_BOTH: Final = {
    layout.PUBLISH, layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP,
}  # fmt: skip
_CLIENT: Final = {
    layout.CONNECT: "connect",
    **dict.fromkeys(_BOTH, "client"),
    **dict.fromkeys((layout.SUBSCRIBE, layout.UNSUBSCRIBE, layout.PINGREQ), "client"),
    layout.DISCONNECT: "client_disconnect",
    layout.AUTH: "client_auth",
}
_SERVER: Final = {
    layout.CONNACK: "connack",
    **dict.fromkeys(_BOTH, "server"),
    **dict.fromkeys((layout.SUBACK, layout.UNSUBACK, layout.PINGRESP), "server"),
    layout.DISCONNECT: "server_disconnect",
    layout.AUTH: "server_auth",
}
_NOT_OF_A_BROKER_BEFORE_5: Final = layout.DISCONNECT


def connection_event(
    from_client: bool, packet_type: int, version: int, code: int = 0
) -> str | None:
    """Return the event of a packet in its connection, None if its sender may not send it.

    `code` is the return or reason code of CONNACK.
    """
    if from_client:
        return _CLIENT.get(packet_type)
    if packet_type == _NOT_OF_A_BROKER_BEFORE_5 and version < 5:
        return None
    return "refusal" if packet_type == layout.CONNACK and code else _SERVER.get(packet_type)


# --- wills ------------------------------------------------------------------------------------

WILL_EVENTS: Final = (
    "connected", "disconnected", "disconnected_with_will", "dropped", "delay_over",
    "session_over", "back",
)  # fmt: skip
"""``connected`` is a CONNECT with a will; ``back`` is a new connection of the client before the
will delay is over."""

WILL: Final[StateTable[str, str, str]] = StateTable(
    {
        "none": {
            **dict.fromkeys(WILL_EVENTS, Cell("none")),
            "connected": Cell("armed"),
        },
        "armed": {
            **dict.fromkeys(WILL_EVENTS, Cell("armed")),
            "disconnected": Cell("none", "dropped"),
            "disconnected_with_will": Cell("delayed"),
            "dropped": Cell("delayed"),
            "session_over": Cell("none", "published"),
        },
        # The connection has ended; without a delay, ``delay_over`` follows at once.
        "delayed": {
            **dict.fromkeys(WILL_EVENTS, Cell("delayed")),
            "back": Cell("none", "dropped"),
            "delay_over": Cell("none", "published"),
            "session_over": Cell("none", "published"),
        },
    },
    WILL_EVENTS,
)
"""The states of a will; the table is complete."""
