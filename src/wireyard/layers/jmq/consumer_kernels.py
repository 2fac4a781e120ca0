"""Consumers, the messages that they hold, and pauses.

The pieces that all kernels of JMQ connections share are here as well: lists of slots, caps, output
buffers.
"""

from __future__ import annotations

from typing import Any

from wireyard.accelerate import inlined
from wireyard.layers.jmq import codes as k

__all__ = [
    "add_violation",
    "admit",
    "append",
    "apply_to_delivery",
    "apply_to_pause",
    "by_type",
    "close_delivery",
    "end_pause",
    "next_state",
    "release",
    "remove_consumer",
    "remove_held",
    "send_message",
    "state_of",
    "unlink",
    "unlink_consumer",
    "unlink_pause",
    "use",
]  # fmt: skip


# --- lists, caps and buffers ----------------------------------------------------------------


@inlined
def by_type(packet_type: int) -> int:
    """Return the index of a packet type in the tables by type."""
    return packet_type if 0 <= packet_type < k.TYPES else k.TYPES - 1


@inlined
def append(first: Any, last: Any, before: Any, after: Any, of: int, slot: int) -> None:
    """Append a slot to a list."""
    before[slot], after[slot] = last[of], -1
    if last[of] < 0:
        first[of] = slot
    else:
        after[last[of]] = slot
    last[of] = slot


@inlined
def unlink(first: Any, last: Any, before: Any, after: Any, of: int, slot: int) -> None:
    """Unlink a slot from a list."""
    if before[slot] < 0:
        first[of] = after[slot]
    else:
        after[before[slot]] = after[slot]
    if after[slot] < 0:
        last[of] = before[slot]
    else:
        before[after[slot]] = before[slot]


@inlined
def admit(tables: Any, connections: Any, out: Any, c: int, cap: int) -> bool:
    """Count an item as open, or as dropped above the cap; return whether there was room."""
    if connections.open[k.CAP_COUNT * c + cap] < tables.caps[cap]:
        connections.open[k.CAP_COUNT * c + cap] += 1
        return True
    out.dropped[cap] += 1
    return False


@inlined
def release(connections: Any, c: int, cap: int) -> None:
    """Count an item as no longer open."""
    connections.open[k.CAP_COUNT * c + cap] -= 1


@inlined
def add_violation(
    tables: Any, connections: Any, out: Any, c: int, rule: int, row: int, block: int, times: int
) -> None:
    """Add a violation, unless lost packets may explain it."""
    if tables.needs_all[rule] and not connections.known[c]:
        return
    at = out.counts[0]
    out.rule[at], out.rule_row[at], out.rule_block[at] = rule, row, block
    out.rule_times[at], out.rule_client_id[at] = times, connections.client_id[c]
    out.counts[0] = at + 1


@inlined
def use(
    connections: Any, out: Any, c: int, row: int, transaction: int, event: int, messages: int
) -> None:
    """Add an event of a transaction."""
    at = out.counts[1]
    out.use_row[at], out.use_event[at] = row, event
    out.use_transaction[at], out.use_messages[at] = transaction, messages
    out.use_client_id[at] = connections.client_id[c]
    out.counts[1] = at + 1


# --- consumers ------------------------------------------------------------------------------


@inlined
def remove_held(connections: Any, consumers: Any, held: Any, c: int, message: int) -> None:
    """Remove a held message; its delivery keeps its state."""
    consumer = held.consumer[message]
    unlink(consumers.first_held, consumers.last_held, held.before, held.after, consumer, message)
    held.row[message] = -1
    release(connections, c, k.CAP_HELD)


@inlined
def unlink_consumer(connections: Any, consumers: Any, c: int, consumer: int) -> None:
    """Remove a consumer that holds no messages from its connection and its session."""
    consumers.exists[consumer] = 0
    release(connections, c, k.CAP_CONSUMERS)
    unlink(
        connections.first_consumer,
        connections.last_consumer,
        consumers.before,
        consumers.after,
        c,
        consumer,
    )
    session = consumers.session[consumer]
    if session >= 0:
        unlink(
            consumers.first_of_session, consumers.last_of_session, consumers.before_of_session,
            consumers.after_of_session, session, consumer,
        )  # fmt: skip


@inlined
def next_state(tables: Any, state: int, event: int) -> int:
    """Return the state of a delivery after an event, the same if the event does not apply."""
    following: int = tables.delivery[state * k.D_WIDTH + event]
    return following if following >= 0 else state


@inlined
def state_of(p: Any, tables: Any, connections: Any, c: int, row: int) -> int:
    """Return the state of a delivery, as it is if packets are missing since it was delivered."""
    state: int = p.state[row]
    return next_state(tables, state, k.D_MISS) if row < connections.missed[c] else state


@inlined
def close_delivery(p: Any, tables: Any, connections: Any, c: int, row: int) -> None:
    """Close a delivery; packets that are missing since its ACKNOWLEDGE may have been the reply."""
    state = state_of(p, tables, connections, c, row)
    if p.acknowledged[row] < connections.missed[c]:
        state = next_state(tables, state, k.D_REPLY_LOST)
    p.state[row] = next_state(tables, state, k.D_CLOSE)


@inlined
def remove_consumer(
    p: Any, tables: Any, connections: Any, consumers: Any, held: Any, c: int, consumer: int
) -> None:
    """Remove a consumer and close the deliveries that it holds."""
    while consumers.first_held[consumer] >= 0:
        message = consumers.first_held[consumer]
        close_delivery(p, tables, connections, c, held.row[message])
        remove_held(connections, consumers, held, c, message)
    unlink_consumer(connections, consumers, c, consumer)


@inlined
def apply_to_delivery(
    p: Any,
    tables: Any,
    connections: Any,
    consumers: Any,
    held: Any,
    c: int,
    message: int,
    event: int,
) -> int:
    """Apply an event to a held message; return its row, -1 if the event does not apply."""
    row: int = held.row[message]
    if row < 0:
        return -1
    state = state_of(p, tables, connections, c, row)
    p.state[row] = state
    following = tables.delivery[state * k.D_WIDTH + event]
    if following < 0:
        return -1
    p.state[row] = following
    consumer = held.consumer[message]
    if consumers.initial_state[consumer] == k.UNDECIDED and event in k.ACKNOWLEDGING:
        consumers.initial_state[consumer] = k.HELD
    if tables.settled[following]:
        remove_held(connections, consumers, held, c, message)
        if consumers.deleted[consumer] and consumers.first_held[consumer] < 0:
            unlink_consumer(connections, consumers, c, consumer)
    return row


# --- pauses ---------------------------------------------------------------------------------


@inlined
def unlink_pause(connections: Any, pauses: Any, c: int, flow: int, target: int) -> None:
    """Remove a pause without adding its time."""
    pauses.state[target] = k.FLOWING
    unlink(
        connections.first_paused, connections.last_paused, pauses.before, pauses.after, flow, target
    )
    release(connections, c, k.CAP_PAUSED)


@inlined
def end_pause(
    p: Any, connections: Any, pauses: Any, c: int, flow: int, target: int, row: int
) -> None:
    """End a pause and add its time."""
    since = pauses.since[target]
    unlink_pause(connections, pauses, c, flow, target)
    if p.timed[since] and p.timed[row]:
        connections.paused_ns[c] += max(p.ns[row] - p.ns[since], 0)


@inlined
def apply_to_pause(
    p: Any, tables: Any, connections: Any, pauses: Any, out: Any, c: int, flow: int, target: int,
    event: int, row: int,
) -> None:  # fmt: skip
    """Apply an event to the pause of a consumer, a producer or a connection."""
    state = pauses.state[target]
    following = tables.flow[state * k.F_WIDTH + event]
    if following < 0:
        add_violation(
            tables, connections, out, c, tables.flow_rules[state * k.F_WIDTH + event], row, -1, 1
        )
    elif following != state:
        if state != k.FLOWING:
            end_pause(p, connections, pauses, c, flow, target, row)
        if following != k.FLOWING:
            connections.pauses[c] += 1
            room = admit(tables, connections, out, c, k.CAP_PAUSED)
            if not room and connections.first_paused[flow] >= 0:
                end_pause(p, connections, pauses, c, flow, connections.first_paused[flow], row)
                room = admit(tables, connections, out, c, k.CAP_PAUSED)
            if room:
                pauses.state[target], pauses.since[target] = following, row
                append(
                    connections.first_paused,
                    connections.last_paused,
                    pauses.before,
                    pauses.after,
                    flow,
                    target,
                )


@inlined
def send_message(
    p: Any, tables: Any, connections: Any, pauses: Any, out: Any, c: int, flow: int, row: int
) -> None:
    """Observe a message to a consumer, or from a producer."""
    flags = p.flags[row]
    marks = flags & (k.LAST_OF_CONNECTION | k.LAST_OF_ONE)
    whole = connections.pause[flow]
    if whole < 0 or (marks == 0 and connections.first_paused[flow] < 0):
        return
    for of_one in range(2):
        target = p.pause[row] if of_one else whole
        mark = k.LAST_OF_ONE if of_one else k.LAST_OF_CONNECTION
        if target >= 0:
            event = k.F_SEND_LAST if flags & mark else k.F_SEND
            apply_to_pause(p, tables, connections, pauses, out, c, flow, target, event, row)
