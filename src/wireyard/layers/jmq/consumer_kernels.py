"""Consumers, what they hold and who is paused, in columns: `Consumers` and `Flow`.

With the pieces that all kernels of JMQ connections share: lists of slots, caps, output buffers.
"""

from __future__ import annotations

from typing import Any

from wireyard.accelerate import piece
from wireyard.layers.jmq import codes as k

__all__ = [
    "admit", "append", "breach", "by_type", "end_pause", "forget_consumer", "forget_pause",
    "let_go", "release", "remove_consumer", "send_message", "step_delivery", "step_pause",
    "unlink", "use",
]  # fmt: skip


# --- lists, caps and buffers ----------------------------------------------------------------


@piece
def by_type(packet_type: int) -> int:
    """Return where a packet type stands in the tables by type."""
    return packet_type if 0 <= packet_type < k.TYPES else k.TYPES - 1


@piece
def append(first: Any, last: Any, before: Any, after: Any, of: int, slot: int) -> None:
    """Put a slot at the end of a list."""
    before[slot], after[slot] = last[of], -1
    if last[of] < 0:
        first[of] = slot
    else:
        after[last[of]] = slot
    last[of] = slot


@piece
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


@piece
def admit(tables: Any, connections: Any, found: Any, c: int, cap: int) -> bool:
    """Count one more thing that is open, or dropped; return whether there is room."""
    if connections.open[k.CAP_COUNT * c + cap] < tables.caps[cap]:
        connections.open[k.CAP_COUNT * c + cap] += 1
        return True
    found.dropped[cap] += 1
    return False


@piece
def release(connections: Any, c: int, cap: int) -> None:
    """Count one thing less that is half open."""
    connections.open[k.CAP_COUNT * c + cap] -= 1


@piece
def breach(
    tables: Any, connections: Any, found: Any, c: int, rule: int, row: int, block: int, times: int
) -> None:
    """Add a violation, unless packets that were not seen may explain it."""
    if tables.needs_all[rule] and not connections.known[c]:
        return
    at = found.counts[0]
    found.rule[at], found.rule_row[at], found.rule_block[at] = rule, row, block
    found.rule_times[at], found.rule_client_id[at] = times, connections.client_id[c]
    found.counts[0] = at + 1


@piece
def use(
    connections: Any, found: Any, c: int, row: int, transaction: int, event: int, messages: int
) -> None:
    """Add an event of a transaction."""
    at = found.counts[1]
    found.use_row[at], found.use_event[at] = row, event
    found.use_transaction[at], found.use_messages[at] = transaction, messages
    found.use_client_id[at] = connections.client_id[c]
    found.counts[1] = at + 1


# --- consumers ------------------------------------------------------------------------------


@piece
def let_go(connections: Any, consumers: Any, held: Any, c: int, message: int) -> None:
    """End a delivery attempt as it is."""
    consumer = held.consumer[message]
    unlink(consumers.first_held, consumers.last_held, held.before, held.after, consumer, message)
    held.row[message] = -1
    release(connections, c, k.CAP_HELD)


@piece
def forget_consumer(connections: Any, consumers: Any, c: int, consumer: int) -> None:
    """Remove a consumer that holds nothing from its connection and its session."""
    consumers.there[consumer] = 0
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


@piece
def remove_consumer(
    p: Any, tables: Any, connections: Any, consumers: Any, held: Any, c: int, consumer: int
) -> None:
    """End what a consumer holds, and forget it."""
    while consumers.first_held[consumer] >= 0:
        message = consumers.first_held[consumer]
        row = held.row[message]
        p.state[row] = tables.delivery[p.state[row] * k.D_WIDTH + k.D_CLOSE]
        let_go(connections, consumers, held, c, message)
    forget_consumer(connections, consumers, c, consumer)


@piece
def step_delivery(
    p: Any,
    tables: Any,
    connections: Any,
    consumers: Any,
    held: Any,
    c: int,
    message: int,
    event: int,
) -> int:
    """Apply an event to a held message; return its row, -1 if it is not for such a one."""
    row: int = held.row[message]
    if row < 0:
        return -1
    following = tables.delivery[p.state[row] * k.D_WIDTH + event]
    if following < 0:
        return -1
    p.state[row] = following
    if tables.settled[following]:
        consumer = held.consumer[message]
        let_go(connections, consumers, held, c, message)
        if consumers.deleted[consumer] and consumers.first_held[consumer] < 0:
            forget_consumer(connections, consumers, c, consumer)
    return row


# --- pauses ---------------------------------------------------------------------------------


@piece
def forget_pause(connections: Any, pauses: Any, c: int, flow: int, who: int) -> None:
    """Take a pause out of what is known, whether or not it has ended."""
    pauses.state[who] = k.FLOWING
    unlink(
        connections.first_paused, connections.last_paused, pauses.before, pauses.after, flow, who
    )
    release(connections, c, k.CAP_PAUSED)


@piece
def end_pause(p: Any, connections: Any, pauses: Any, c: int, flow: int, who: int, row: int) -> None:
    """End a pause, and add how long it was."""
    since = pauses.since[who]
    forget_pause(connections, pauses, c, flow, who)
    if p.timed[since] and p.timed[row]:
        connections.paused_ns[c] += max(p.ns[row] - p.ns[since], 0)


@piece
def step_pause(
    p: Any, tables: Any, connections: Any, pauses: Any, found: Any, c: int, flow: int, who: int,
    event: int, row: int,
) -> None:  # fmt: skip
    """Apply an event to a consumer, a producer or a whole connection: `Flow`."""
    state = pauses.state[who]
    following = tables.flow[state * k.F_WIDTH + event]
    if following < 0:
        breach(
            tables, connections, found, c, tables.flow_rules[state * k.F_WIDTH + event], row, -1, 1
        )
    elif following != state:
        if state != k.FLOWING:
            end_pause(p, connections, pauses, c, flow, who, row)
        if following != k.FLOWING:
            connections.pauses[c] += 1
            room = admit(tables, connections, found, c, k.CAP_PAUSED)
            if not room and connections.first_paused[flow] >= 0:
                end_pause(p, connections, pauses, c, flow, connections.first_paused[flow], row)
                room = admit(tables, connections, found, c, k.CAP_PAUSED)
            if room:
                pauses.state[who], pauses.since[who] = following, row
                append(
                    connections.first_paused,
                    connections.last_paused,
                    pauses.before,
                    pauses.after,
                    flow,
                    who,
                )


@piece
def send_message(
    p: Any, tables: Any, connections: Any, pauses: Any, found: Any, c: int, flow: int, row: int
) -> None:
    """Observe a message for a consumer, or of a producer."""
    flags = p.flags[row]
    marks = flags & (k.LAST_OF_CONNECTION | k.LAST_OF_ONE)
    whole = connections.pause[flow]
    if whole < 0 or (marks == 0 and connections.first_paused[flow] < 0):
        return
    for of_one in range(2):
        who = p.pause[row] if of_one else whole
        mark = k.LAST_OF_ONE if of_one else k.LAST_OF_CONNECTION
        if who >= 0:
            event = k.F_SEND_LAST if flags & mark else k.F_SEND
            step_pause(p, tables, connections, pauses, found, c, flow, who, event, row)
