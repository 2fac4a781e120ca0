"""Connections in a kernel: all packets of clients and brokers, in the order of the capture.

Rules of this file:

1. A connection consists of the two streams with the same endpoints and ordinal. Its packets and
   the ends of its streams are events; `CONNECTION` has their rules.
2. Packets of a client before CONNACK wait for it: CONNACK decides whether they count, and for which
   session.
3. A packet that violates a rule still takes effect as far as it can be read, because brokers accept
   much that the standard forbids. An unexpected acknowledgement is a violation by its sender.
4. Missing packets prove nothing. In a session that is older than the capture every packet counts as
   allowed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wireyard.accelerate import inlined
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.connection import CONNECTION, WILL_EVENTS, connection_event
from wireyard.layers.mqtt.grids import (
    ALWAYS,
    NONE,
    UNKNOWN,
    Bridge,
    Connection,
    Count,
    EndedBy,
    Flag,
    LostSpan,
    Packet,
    Rare,
    Session,
    Stream,
)
from wireyard.layers.mqtt.kernels.messages import (
    RULE_NAMES,
    accept_before,
    acknowledge,
    add_breach,
    breaks,
    publish,
)
from wireyard.layers.mqtt.kernels.requests import ask, pingreq, pingresp, suback, unsuback
from wireyard.layers.mqtt.kernels.sessions import (
    close,
    ended_with_connection,
    new_session,
    resume,
    take_over,
)
from wireyard.layers.mqtt.kernels.slots import Owner, queue, rare_of, slot_of
from wireyard.layers.mqtt.qos import MAX_IN_FLIGHT
from wireyard.layers.states import NEXT, RULE, transitions

_CONNECT, _CONNACK = int(layout.CONNECT), int(layout.CONNACK)
_PUBLISH, _PUBACK, _PUBCOMP = int(layout.PUBLISH), int(layout.PUBACK), int(layout.PUBCOMP)
_SUBSCRIBE, _SUBACK = int(layout.SUBSCRIBE), int(layout.SUBACK)
_UNSUBSCRIBE, _UNSUBACK = int(layout.UNSUBSCRIBE), int(layout.UNSUBACK)
_PINGREQ, _PINGRESP = int(layout.PINGREQ), int(layout.PINGRESP)
_DISCONNECT, _AUTH = int(layout.DISCONNECT), int(layout.AUTH)
_TYPES: Final = 16
_IS_TYPE: Final = np.array([kind in layout.PACKET_TYPES for kind in range(_TYPES)])


def _event(from_client: int, kind: int, is_new: int, is_refusal: int) -> int:
    version = 5 if is_new else 4
    event = connection_event(bool(from_client), kind, version, is_refusal)
    return NONE if event is None else CONNECTION.events.index(event)


_EVENTS: Final = np.array(
    [
        [
            [[_event(side, kind, is_new, code) for code in (0, 1)] for is_new in (0, 1)]
            for kind in range(_TYPES)
        ]
        for side in (0, 1)
    ]
)
"""Whether the client sends it x packet type x whether it is of 5.0 x whether its code is not 0 ->
the event of a packet in its connection, -1 if its sender may not send it."""
_CELLS: Final = transitions(CONNECTION, (), RULE_NAMES)
_NEW, _UNKNOWN, _ASKED, _LEFT, _REFUSED, _CLOSED = map(
    CONNECTION.states.index, ("new", "unknown", "asked", "left", "refused", "closed")
)
_TAKES: Final = np.array(
    [
        [state not in ("refused", "closed") for state in CONNECTION.states],
        [state not in ("refused", "closed", "left", "asked") for state in CONNECTION.states],
    ]
)
"""By whether the client sends it, and the state before: whether a packet takes effect at once."""
_DISCONNECTED, _WITH_WILL, _DROPPED = map(
    WILL_EVENTS.index, ("disconnected", "disconnected_with_will", "dropped")
)
(
    _WRONG_SIDE, _SIZE_CLIENT, _SIZE_BROKER, _PRESENT_CLEAN, _CONNECT_TWICE,
) = map(
    RULE_NAMES.index,
    (
        "wrong_side", "packet_size_client", "packet_size_broker", "session_present_clean",
        "connect_twice",
    ),
)  # fmt: skip
_CODE_WITH_WILL: Final = 4
"""Reason code of a DISCONNECT after which the will is still published."""
_WITH_SESSION_PRESENT: Final = 4
"""The first version whose CONNACK has Session Present."""
_LATEST: Final = 5
_BY_LEVEL_ALONE: Final = int(Bridge.BY_LEVEL_ALONE)
_FOREVER_S: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire."""
SMALLEST_BYTES: Final = 5
"""Of a packet that subscribes or publishes, or grants a subscription."""
_SMALLEST_CHANGE_BYTES: Final = 4
"""Of a packet that changes a retained value: PUBREL."""


# --- the beginning of a connection ----------------------------------------------------------


@inlined
def add_stream(t: Any, packet: int, from_client: bool) -> None:
    """Add the stream of its first packet, and its connection if it is new."""
    stream, kind = t.stream[packet], t.packets[packet, Packet.KIND]
    row = t.streams[stream]
    c = row[Stream.CONNECTION]
    row[Stream.FIRST] = packet
    begun = row[Stream.BEGUN]
    is_new = begun == 1 or kind == _CONNECT
    if t.connections[c, Connection.FIRST] == NONE:
        _add_connection(t, c, packet)
        if row[Stream.IS_OLDER]:
            t.counts[Count.HAS_OLDER] = 1
        t.connections[c, Connection.STATE] = _NEW if is_new else _UNKNOWN
    elif from_client and is_new and t.connections[c, Connection.PACKETS] == 0:
        t.connections[c, Connection.STATE] = _NEW  # the first bytes of the broker are missing
    if row[Stream.IS_ALONE]:
        _lose(t, c, packet, not from_client, ALWAYS)
    if from_client:
        t.connections[c, Connection.HAS_CLIENT] = 1
    elif begun == 0 and kind != _CONNACK and kind != _AUTH:
        _miss_connack(t, c, packet)


@inlined
def _add_connection(t: Any, c: int, packet: int) -> None:
    row = t.connections[c]
    row[:] = NONE
    row[Connection.FIRST] = row[Connection.OPENED] = packet
    row[Connection.NEXT] = t.counts[Count.CONNECTIONS]
    t.counts[Count.CONNECTIONS] = c
    row[Connection.NAME] = t.counts[Count.CLIENT_IDS] + c
    row[Connection.IS_CLEAN] = row[Connection.IS_PERSISTENT] = 1
    row[Connection.SHOWS_IN_FLIGHT] = 1
    row[Connection.ENDED_BY] = EndedBy.OPEN
    for column in (
        Connection.VERSION, Connection.PACKETS, Connection.BYTES, Connection.SENT,
        Connection.RECEIVED, Connection.IS_DAMAGED, Connection.HAS_CLIENT, Connection.ALIASES_UP,
        Connection.ALIASES_DOWN, Connection.IS_UNANSWERED, Connection.IS_BRIDGE,
        Connection.IS_FULL, Connection.MOST_IN_FLIGHT, Connection.BROKEN_UP,
        Connection.BROKEN_DOWN, Connection.ASKING,
    ):  # fmt: skip
        row[column] = 0


@inlined
def _miss_connack(t: Any, c: int, packet: int) -> None:
    """Note that CONNACK was not captured, unless it was seen before."""
    if t.connections[c, Connection.STATE] == _NEW or t.connections[c, Connection.PACKETS] == 0:
        t.connections[c, Connection.IS_UNANSWERED] = 1
    elif t.connections[c, Connection.STATE] == _ASKED:
        t.counts[Count.OPENING] = packet


@inlined
def _connect(t: Any, c: int, packet: int) -> None:
    """Follow the CONNECT of a connection."""
    row, rare = t.connections[c], t.rare[rare_of(t, packet)]
    row[Connection.OPENED] = row[Connection.CONNECT] = packet
    _name(t, c, rare[Rare.CLIENT_ID])
    row[Connection.IS_CLEAN] = rare[Rare.IS_CLEAN] == 1
    row[Connection.MOST_BYTES_DOWN] = rare[Rare.PACKET_SIZE]
    _set_expiry(t, c, max(rare[Rare.EXPIRY_S], 0))
    row[Connection.ALIAS_MAXIMUM_DOWN] = max(rare[Rare.ALIAS_MAXIMUM], 0)
    row[Connection.ALIASES_DOWN] += 1
    if row[Connection.IS_UNANSWERED]:
        t.counts[Count.OPENING] = packet


@inlined
def _name(t: Any, c: int, client_id: int) -> None:
    """Give a connection the client id of its CONNECT, or one that the broker assigns."""
    row = t.connections[c]
    if client_id != NONE and client_id != t.counts[Count.EMPTY_ID]:
        row[Connection.NAME] = client_id
    row[Connection.CLIENT_ID], row[Connection.CLIENT] = client_id, NONE


@inlined
def _set_expiry(t: Any, c: int, expiry_s: int) -> None:
    """Set how long the session outlives the connection."""
    row = t.connections[c]
    if row[Connection.VERSION] == _LATEST:
        row[Connection.IS_PERSISTENT] = expiry_s > 0
        row[Connection.EXPIRES_S] = NONE if expiry_s == _FOREVER_S else expiry_s
    else:
        row[Connection.IS_PERSISTENT] = 1 - row[Connection.IS_CLEAN]


@inlined
def _connack(t: Any, c: int, packet: int) -> None:
    """Follow a CONNACK, which refuses the connection or opens it."""
    row, code = t.connections[c], t.packets[packet, Packet.CODE]
    row[Connection.STATUS] = code
    if code:
        row[Connection.ENDED_BY] = EndedBy.REFUSED
        row[Connection.CLOSED] = row[Connection.UNTIL] = packet
        row[Connection.EARLY_FIRST] = NONE
    elif row[Connection.ACCEPTED] == NONE:
        present = NONE
        if row[Connection.VERSION] >= _WITH_SESSION_PRESENT:
            present = t.rare[rare_of(t, packet), Rare.IS_PRESENT]
        row[Connection.RESUMED] = present
        if present == 1 and row[Connection.IS_CLEAN] and row[Connection.CONNECT] != NONE:
            breaks(t, c, _PRESENT_CLEAN, False, packet, NONE)
        t.counts[Count.OPENING] = packet
    else:
        t.counts[Count.REPLAY] = row[Connection.EARLY_FIRST]
        row[Connection.EARLY_FIRST] = NONE


@inlined
def open_session(t: Any, c: int, packet: int) -> None:
    """Open the session of a connection, by its CONNACK or by a packet that shows there was one."""
    row, kind = t.connections[c], t.packets[packet, Packet.KIND]
    row[Connection.ACCEPTED] = packet
    up = down = MAX_IN_FLIGHT
    alias_maximum, most_bytes = NONE, NONE
    if kind == _CONNACK:
        rare = t.rare[rare_of(t, packet)]
        if rare[Rare.CLIENT_ID] != NONE:
            _name(t, c, rare[Rare.CLIENT_ID])
        if rare[Rare.EXPIRY_S] != NONE:
            _set_expiry(t, c, rare[Rare.EXPIRY_S])
        alias_maximum, most_bytes = max(rare[Rare.ALIAS_MAXIMUM], 0), rare[Rare.PACKET_SIZE]
        if rare[Rare.RECEIVE_MAXIMUM] != NONE:
            up = rare[Rare.RECEIVE_MAXIMUM]
        if rare[Rare.KEEP_ALIVE_S] != NONE:
            row[Connection.KEEP_ALIVE_S] = rare[Rare.KEEP_ALIVE_S]
    else:
        row[Connection.STATE] = _UNKNOWN
        if row[Connection.VERSION] == _LATEST:
            row[Connection.KEEP_ALIVE_S] = UNKNOWN
    row[Connection.ALIAS_MAXIMUM_UP], row[Connection.MOST_BYTES_UP] = alias_maximum, most_bytes
    row[Connection.ALIASES_UP] += 1
    # Without the CONNECT the client id is unknown, so the session may be an older one.
    kept = 1
    if row[Connection.CONNECT] != NONE:
        resumed = row[Connection.RESUMED]
        kept = 1 - row[Connection.IS_CLEAN] if resumed == NONE else resumed
        connect = t.rare[rare_of(t, row[Connection.CONNECT])]
        if connect[Rare.RECEIVE_MAXIMUM] != NONE:
            down = connect[Rare.RECEIVE_MAXIMUM]
    slot = slot_of(t, Owner.NAME, 0, row[Connection.NAME])
    session = t.slot_values[slot]
    if session == NONE:
        session = t.slot_values[slot] = new_session(t, c, 1 - kept, 1)
    else:
        is_shown = row[Connection.CONNECT] == NONE or row[Connection.RESUMED] != NONE
        if not is_shown and ended_with_connection(t, session):
            kept = 0
        take_over(t, session, c, kept)
    resume(t, session, c, kept, up, down)
    row[Connection.SESSION] = session
    is_alone = t.streams[t.stream[row[Connection.FIRST]], Stream.IS_ALONE]
    if not t.sessions[session, Session.IS_KNOWN] and not is_alone:
        t.counts[Count.HAS_OLDER] = 1
    t.counts[Count.REPLAY] = row[Connection.EARLY_FIRST]
    row[Connection.EARLY_FIRST] = NONE


# --- gaps -----------------------------------------------------------------------------------


@inlined
def _other_bytes(t: Any, c: int, packet: int, from_client: bool) -> None:
    """Follow bytes that are no packet, or that were not captured."""
    row, rare = t.connections[c], t.rare[rare_of(t, packet)]
    # After a gap, or before the first captured packet, bytes need not begin a packet.
    is_in_order = not row[Connection.IS_DAMAGED] and row[Connection.STATE] != _UNKNOWN
    if rare[Rare.HAS_NO_LENGTH] == 1 and is_in_order:
        add_breach(t, c, NONE, from_client, packet, NONE)
    # An unfinished tail loses no packet before it.
    if rare[Rare.IS_TAIL] != 1:
        row[Connection.IS_DAMAGED] = 1
    broken = Connection.BROKEN_UP if from_client else Connection.BROKEN_DOWN
    row[broken] += t.length[packet]
    lost = row[Connection.LOST_UP if from_client else Connection.LOST_DOWN]
    if rare[Rare.IS_GAP] == 1 or lost == ALWAYS:
        _lose(t, c, packet, from_client, row[broken])


@inlined
def _lose(t: Any, c: int, packet: int, from_client: bool, most: int) -> None:
    """Note that packets of up to `most` bytes of one side are lost, all if its stream is."""
    row = t.connections[c]
    row[Connection.LOST_UP if from_client else Connection.LOST_DOWN] = ALWAYS
    if most >= SMALLEST_BYTES:
        t.counts[Count.HAS_OLDER] = 1
    if not from_client:
        _miss_connack(t, c, packet)
        return
    if row[Connection.LOST_SINCE_NS] == NONE and most >= _SMALLEST_CHANGE_BYTES:
        row[Connection.LOST_SINCE_NS] = t.reached_ns[packet]
    if row[Connection.STATE] == _NEW:
        row[Connection.STATE] = _UNKNOWN


@inlined
def _behind_gap(t: Any, c: int, packet: int, from_client: bool) -> None:
    """Follow a packet of one side that may be the first one behind a gap."""
    row = t.connections[c]
    if row[Connection.LOST_SINCE_NS] != NONE:
        if row[Connection.LOST_SINCE_NS] == 0:
            row[Connection.LOST_SINCE_NS] = t.reached_ns[packet]
        if from_client:
            lose_until(t, c, t.reached_ns[packet])
    row[Connection.BROKEN_UP if from_client else Connection.BROKEN_DOWN] = 0
    own = Connection.LOST_UP if from_client else Connection.LOST_DOWN
    if row[own] == ALWAYS:
        row[own] = packet


@inlined
def lose_until(t: Any, c: int, stop_ns: int) -> None:
    """Note that packets of the client may be missing until a time, if any are."""
    since_ns = t.connections[c, Connection.LOST_SINCE_NS]
    t.connections[c, Connection.LOST_SINCE_NS] = NONE
    if NONE < since_ns <= stop_ns:
        at = t.counts[Count.LOST]
        t.counts[Count.LOST] = at + 1
        t.lost[at, LostSpan.KEY] = t.counts[Count.KEY]
        t.lost[at, LostSpan.FIRST_NS], t.lost[at, LostSpan.LAST_NS] = since_ns, stop_ns
        size = t.connections[c, Connection.BROKEN_UP]
        t.lost[at, LostSpan.BYTES] = size if size else ALWAYS  # none if the stream was not captured


# --- packets --------------------------------------------------------------------------------


@inlined
def observe(t: Any, c: int, packet: int, from_client: bool) -> bool:
    """Follow a packet; return whether it takes effect now."""
    row, kind = t.connections[c], t.packets[packet, Packet.KIND]
    if kind == 0 and t.rare[rare_of(t, packet), Rare.IS_BYTES] == 1:
        _other_bytes(t, c, packet, from_client)
        return False
    _behind_gap(t, c, packet, from_client)
    row[Connection.PACKETS] += 1
    row[Connection.BYTES] += t.length[packet]
    row[Connection.LAST] = packet
    if row[Connection.VERSION] == 0:
        row[Connection.VERSION] = t.version[packet]
    most = row[Connection.MOST_BYTES_UP if from_client else Connection.MOST_BYTES_DOWN]
    if most != NONE and t.length[packet] > most:
        breaks(t, c, _SIZE_CLIENT if from_client else _SIZE_BROKER, from_client, packet, NONE)
    bridge = t.rare[rare_of(t, packet), Rare.BRIDGE] if kind == _CONNECT else 0
    if bridge:
        row[Connection.IS_BRIDGE] = 1
    is_level = bridge == _BY_LEVEL_ALONE
    if t.packets[packet, Packet.FLAGS] & Flag.MALFORMED and not is_level:
        add_breach(t, c, NONE, from_client, packet, NONE)
        if kind == _DISCONNECT:
            return False  # Its receiver closes the connection, as after any malformed packet.
    return _step(t, c, packet, from_client)


@inlined
def _step(t: Any, c: int, packet: int, from_client: bool) -> bool:
    """Apply the event of a packet to its connection; return whether it takes effect now."""
    row, kind = t.connections[c], t.packets[packet, Packet.KIND]
    if kind == _CONNECT and row[Connection.STATE] == _UNKNOWN:
        if row[Connection.CONNECT] != NONE:
            # The answer to the first one was not captured.
            breaks(t, c, _CONNECT_TWICE, from_client, packet, NONE)
            return False
        is_first = t.streams[t.stream[packet], Stream.FIRST] == packet
        if is_first and row[Connection.PACKETS] == 1 and row[Connection.LOST_DOWN] == ALWAYS:
            # Only a gap, which has no time, stands before it.
            row[Connection.STATE] = _NEW
            row[Connection.IS_UNANSWERED] = 1
    if kind == _CONNECT:
        # The version that CONNECT declares decides which rules apply.
        row[Connection.VERSION] = t.version[packet]
    is_new = row[Connection.VERSION] == 0 or row[Connection.VERSION] >= _LATEST
    has_code = t.packets[packet, Packet.CODE] != 0
    event = _EVENTS[1 if from_client else 0, kind, 1 if is_new else 0, 1 if has_code else 0]
    if event == NONE:
        if _IS_TYPE[kind]:
            breaks(t, c, _WRONG_SIDE, from_client, packet, NONE)
        return False
    before = row[Connection.STATE]
    cell = _CELLS[before, event]
    row[Connection.STATE] = cell[NEXT]
    if cell[RULE] != NONE:
        breaks(t, c, int(cell[RULE]), from_client, packet, NONE)
    if kind == _CONNECT:
        if before in (_NEW, _UNKNOWN):
            _connect(t, c, packet)
        return False
    if before == _ASKED and from_client:
        queue(t, c, Connection.EARLY_FIRST, Connection.EARLY_LAST, packet)  # until CONNACK
    return bool(_TAKES[1 if from_client else 0, before])


@inlined
def take_effect(t: Any, c: int, packet: int, from_client: bool) -> None:
    """Apply a packet to the session of its connection."""
    kind = t.packets[packet, Packet.KIND]
    if kind != _CONNACK:
        keep_session(t, c)
    if kind == _PUBLISH:
        publish(t, c, packet, from_client)
    elif _PUBACK <= kind <= _PUBCOMP:
        acknowledge(t, c, packet, from_client)
    elif kind == _PINGREQ:
        pingreq(t, c, packet)
    elif kind == _PINGRESP:
        pingresp(t, c, packet)
    elif kind == _CONNACK:
        _connack(t, c, packet)
    elif kind in (_SUBSCRIBE, _UNSUBSCRIBE):
        ask(t, c, packet, kind == _SUBSCRIBE)
    elif kind == _SUBACK:
        suback(t, c, packet)
    elif kind == _UNSUBACK:
        unsuback(t, c, packet)
    elif kind == _DISCONNECT:
        _disconnect(t, c, packet, from_client)


@inlined
def keep_session(t: Any, c: int) -> None:
    """Use a session of its own, if there is none, or if it has moved to a newer connection."""
    session = t.connections[c, Connection.SESSION]
    if session == NONE or t.sessions[session, Session.CONNECTION] != c:
        t.connections[c, Connection.SESSION] = new_session(t, c, 0, 0)


@inlined
def _disconnect(t: Any, c: int, packet: int, from_client: bool) -> None:
    row, event = t.connections[c], _DROPPED
    if not from_client and row[Connection.ENDED_BY] == EndedBy.OPEN:
        row[Connection.ENDED_WITH] = packet
    if from_client:
        expiry_s = t.rare[rare_of(t, packet), Rare.EXPIRY_S]
        if expiry_s != NONE:
            _set_expiry(t, c, expiry_s)
        code = t.packets[packet, Packet.CODE]
        event = _WITH_WILL if code == _CODE_WITH_WILL else _DISCONNECTED
    ended_by = EndedBy.CLIENT if from_client else EndedBy.SERVER
    close(t, row[Connection.SESSION], packet, ended_by, event, packet)
    if from_client:
        accept_before(t, c, packet, packet)
