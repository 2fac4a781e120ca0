"""Requests of clients and their answers in a kernel: SUBSCRIBE, UNSUBSCRIBE and PINGREQ.

An answer shows what the broker has read (`confirm_read`); SUBACK and UNSUBACK also change the
subscriptions of the session.
"""

from __future__ import annotations

from typing import Any, Final

from wireyard.accelerate import inlined
from wireyard.layers.mqtt.grids import (
    NONE,
    Client,
    Connection,
    Count,
    Name,
    Packet,
    Rare,
    Session,
    Subscription,
    TopicFilter,
)
from wireyard.layers.mqtt.kernels.messages import RULE_NAMES, breaks, confirm_read
from wireyard.layers.mqtt.kernels.slots import Owner, client_of, queue, rare_of, slot_of

MAX_FILTERS: Final = 1 << 14
"""Subscriptions of one session; brokers that limit them allow thousands."""
_PINGRESP_UNASKED, _SUBACK_UNASKED, _UNSUBACK_UNASKED = map(
    RULE_NAMES.index, ("pingresp_unasked", "suback_unasked", "unsuback_unasked")
)
_ERROR: Final = 128
_IF_NEW: Final = 1
"""Retain Handling: retained values are sent only if the subscription is new."""


# --- PINGREQ ----------------------------------------------------------------------------------


@inlined
def pingreq(t: Any, c: int, packet: int) -> None:
    """Add a PINGREQ to those that wait for PINGRESP."""
    queue(t, c, Connection.PING_FIRST, Connection.PING_LAST, packet)


@inlined
def pingresp(t: Any, c: int, packet: int) -> None:
    """Match a PINGRESP with the first PINGREQ that waits for it."""
    request = t.connections[c, Connection.PING_FIRST]
    if request == NONE:
        breaks(t, c, _PINGRESP_UNASKED, False, packet, NONE)
        return
    t.connections[c, Connection.PING_FIRST] = t.link[request]
    confirm_read(t, c, request, packet)


# --- subscriptions --------------------------------------------------------------------------


@inlined
def _end_subscription(t: Any, session: int, sub: int, leaving: int, gone: int) -> None:
    if t.subscriptions[sub, Subscription.LEAVING] == NONE:
        t.subscriptions[sub, Subscription.LEAVING] = leaving
    t.subscriptions[sub, Subscription.GONE] = gone
    t.subscriptions[sub, Subscription.IS_ACTIVE] = 0
    t.sessions[session, Session.ACTIVE] -= 1


@inlined
def end_subscriptions(t: Any, session: int, leaving: int, gone: int) -> None:
    """End all subscriptions of a session."""
    sub = t.sessions[session, Session.SUBSCRIPTIONS]
    while sub != NONE:
        if t.subscriptions[sub, Subscription.IS_ACTIVE]:
            _end_subscription(t, session, sub, leaving, gone)
        sub = t.subscriptions[sub, Subscription.NEXT]
    t.sessions[session, Session.SUBSCRIPTIONS] = NONE


@inlined
def active(t: Any, session: int, filter: int) -> int:
    """Return the active subscription of a session to a filter, -1 if there is none."""
    sub = t.slot_values[slot_of(t, Owner.FILTER, session, filter)]
    return int(sub) if sub != NONE and t.subscriptions[sub, Subscription.IS_ACTIVE] else NONE


@inlined
def unsubscribe(t: Any, session: int, filter: int, asked: int, answered: int) -> None:
    """End the subscription to a filter, if there is one."""
    sub = active(t, session, filter)
    if sub != NONE:
        _end_subscription(t, session, sub, asked, answered)


@inlined
def subscribe(t: Any, session: int, sub: int) -> None:
    """Add a subscription, within `MAX_FILTERS`; it replaces one to the same filter."""
    row, sessions = t.subscriptions[sub], t.sessions
    filter = t.filters[row[Subscription.FILTER], TopicFilter.FILTER]
    older = active(t, session, filter)
    if older == NONE and sessions[session, Session.ACTIVE] >= MAX_FILTERS:
        t.counts[Count.DROPPED] += 1
        return
    if older != NONE and row[Subscription.ASKED] < t.subscriptions[older, Subscription.ASKED]:
        # They were answered in another order, so the older request is replaced at once.
        newer = t.subscriptions[older]
        row[Subscription.LEAVING] = newer[Subscription.ASKED]
        row[Subscription.GONE] = newer[Subscription.GRANTED]
        if row[Subscription.SINCE] < newer[Subscription.SINCE]:
            newer[Subscription.SINCE] = row[Subscription.SINCE]
            newer[Subscription.SINCE_PLACE] = row[Subscription.SINCE_PLACE]
        _serve_as(t, session, sub, filter)
        return
    if older != NONE:
        row[Subscription.SINCE] = t.subscriptions[older, Subscription.SINCE]
        row[Subscription.SINCE_PLACE] = t.subscriptions[older, Subscription.SINCE_PLACE]
        _end_subscription(t, session, older, row[Subscription.ASKED], row[Subscription.GRANTED])
    t.slot_values[slot_of(t, Owner.FILTER, session, filter)] = sub
    row[Subscription.IS_ACTIVE] = 1
    row[Subscription.NEXT] = sessions[session, Session.SUBSCRIPTIONS]
    sessions[session, Session.SUBSCRIPTIONS] = sub
    sessions[session, Session.ACTIVE] += 1
    _serve_as(t, session, sub, filter)


@inlined
def _serve_as(t: Any, session: int, sub: int, filter: int) -> None:
    """Note the name that messages of a subscription are delivered to."""
    row, sessions = t.subscriptions[sub], t.sessions
    name = NONE
    kind, number = Owner.GROUP_NAME, filter
    if not row[Subscription.IS_SHARED]:
        name = t.clients[row[Subscription.CLIENT], Client.NAME]
        kind, number = Owner.CLIENT_NAME, name
    slot = slot_of(t, kind, session, number)
    if t.slot_values[slot] != NONE or sessions[session, Session.NAME_COUNT] >= MAX_FILTERS:
        return
    place = t.counts[Count.NAMES]
    t.counts[Count.NAMES] = place + 1
    t.slot_values[slot] = place
    t.names[place, Name.NAME] = name
    t.names[place, Name.FILTER] = row[Subscription.FILTER]
    t.names[place, Name.NEXT] = sessions[session, Session.NAMES]
    sessions[session, Session.NAMES] = place
    sessions[session, Session.NAME_COUNT] += 1


# --- SUBSCRIBE and UNSUBSCRIBE --------------------------------------------------------------


@inlined
def _slot_of_request(t: Any, c: int, packet: int, is_subscribe: bool) -> int:
    """Return the slot of a request, or of the one that a packet answers."""
    kind = Owner.SUBSCRIBE if is_subscribe else Owner.UNSUBSCRIBE
    return slot_of(t, kind, c, t.packets[packet, Packet.ID])


@inlined
def ask(t: Any, c: int, packet: int, is_subscribe: bool) -> None:
    """Add a SUBSCRIBE or UNSUBSCRIBE to those that wait for their answers."""
    slot = _slot_of_request(t, c, packet, is_subscribe)
    t.connections[c, Connection.ASKING] += is_subscribe and t.slot_values[slot] == NONE
    t.slot_values[slot] = packet


@inlined
def suback(t: Any, c: int, packet: int) -> None:
    """Follow a SUBACK: add the granted subscriptions."""
    slot = _slot_of_request(t, c, packet, True)
    request = t.slot_values[slot]
    t.slot_values[slot] = NONE
    t.connections[c, Connection.ASKING] -= request != NONE
    answer = t.rare[rare_of(t, packet)]
    count = answer[Rare.COUNT]
    if request == NONE or t.rare[rare_of(t, request), Rare.COUNT] != count:
        breaks(t, c, _SUBACK_UNASKED, False, packet, NONE)
        return
    confirm_read(t, c, request, packet)
    for place in range(count):
        code = t.codes[answer[Rare.FIRST] + place]
        filter = t.rare[rare_of(t, request), Rare.FIRST] + place
        if code < _ERROR and t.filters[filter, TopicFilter.FILTER] != NONE:
            _grant(t, c, request, packet, place, code)


@inlined
def _grant(t: Any, c: int, request: int, answer: int, place: int, code: int) -> None:
    """Add the granted subscription for one filter of a SUBSCRIBE."""
    connection, session = t.connections[c], t.connections[c, Connection.SESSION]
    asked = t.rare[rare_of(t, request)]
    filter = t.filters[asked[Rare.FIRST] + place]
    handling = filter[TopicFilter.HANDLING]
    is_shared = filter[TopicFilter.IS_SHARED]
    is_known = t.sessions[session, Session.IS_KNOWN]
    is_new = is_known and active(t, session, filter[TopicFilter.FILTER]) == NONE
    sub = t.counts[Count.SUBSCRIPTIONS]
    t.counts[Count.SUBSCRIPTIONS] = sub + 1
    row = t.subscriptions[sub]
    row[:] = NONE
    row[Subscription.CLIENT] = client_of(t, c)
    row[Subscription.FILTER] = asked[Rare.FIRST] + place
    row[Subscription.PLACE] = row[Subscription.SINCE_PLACE] = place
    row[Subscription.IS_SHARED] = is_shared
    row[Subscription.QOS] = code
    row[Subscription.IDENTIFIER] = asked[Rare.IDENTIFIER]
    row[Subscription.ASKED] = row[Subscription.SINCE] = request
    row[Subscription.GRANTED] = answer
    row[Subscription.VERSION] = connection[Connection.VERSION]
    row[Subscription.IS_KNOWN] = is_known
    gets_values = not is_shared and (handling <= 0 or (handling == _IF_NEW and is_new))
    row[Subscription.GETS_VALUES] = gets_values
    row[Subscription.PACKET_SIZE] = connection[Connection.MOST_BYTES_DOWN]
    row[Subscription.IS_ACTIVE] = 0
    subscribe(t, session, sub)
    if gets_values:
        if connection[Connection.UNCONFIRMED_FIRST] == NONE:
            connection[Connection.UNCONFIRMED_FIRST] = sub
        else:
            last = connection[Connection.UNCONFIRMED_LAST]
            t.subscriptions[last, Subscription.NEXT_UNCONFIRMED] = sub
        connection[Connection.UNCONFIRMED_LAST] = sub


@inlined
def unsuback(t: Any, c: int, packet: int) -> None:
    """Follow an UNSUBACK: end subscriptions."""
    slot = _slot_of_request(t, c, packet, False)
    request = t.slot_values[slot]
    t.slot_values[slot] = NONE
    if request == NONE:
        breaks(t, c, _UNSUBACK_UNASKED, False, packet, NONE)
        return
    confirm_read(t, c, request, packet)
    asked, session = t.rare[rare_of(t, request)], t.connections[c, Connection.SESSION]
    for filter in range(asked[Rare.FIRST], asked[Rare.FIRST] + asked[Rare.COUNT]):
        number = t.filters[filter, TopicFilter.FILTER]
        if number != NONE:
            unsubscribe(t, session, number, request, packet)
