"""Consumers, and the messages that they hold."""

from __future__ import annotations

from typing import Any

from wireyard.accelerate import inlined
from wireyard.layers.jmq.kernels import codes as k
from wireyard.layers.jmq.kernels.sessions import (
    add_violation,
    admit,
    append,
    end_pause_of,
    flow_on,
    release,
    unlink,
    use,
)

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
        connections.first_consumer, connections.last_consumer, consumers.before, consumers.after,
        c, consumer,
    )  # fmt: skip
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
def last_missed(connections: Any, c: int) -> int:
    """Return the last row at which packets of either side may be missing."""
    missed: int = max(connections.missed[2 * c], connections.missed[2 * c + 1])
    return missed


@inlined
def state_of(p: Any, tables: Any, connections: Any, c: int, row: int) -> int:
    """Return the state of a delivery, as it is if packets are missing since it was delivered."""
    state: int = p.state[row]
    return next_state(tables, state, k.D_MISS) if row < last_missed(connections, c) else state


@inlined
def may_be_later_one(connections: Any, c: int, row: int) -> bool:
    """Return whether a message may have been given back and delivered again, neither captured."""
    is_later: bool = row < min(connections.missed[2 * c], connections.missed[2 * c + 1])
    return is_later


@inlined
def close_delivery(p: Any, tables: Any, connections: Any, c: int, row: int) -> None:
    """Close a delivery; packets that are missing since its ACKNOWLEDGE may have been the reply."""
    state = state_of(p, tables, connections, c, row)
    if p.acknowledged[row] < last_missed(connections, c):
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
    p: Any, tables: Any, connections: Any, consumers: Any, held: Any, c: int, message: int,
    event: int,
) -> int:  # fmt: skip
    """Apply an event to a held message; return its row, -1 if the event does not apply."""
    row: int = held.row[message]
    if row < 0:
        return -1
    state = state_of(p, tables, connections, c, row)
    p.state[row] = state
    following = tables.delivery[state * k.D_WIDTH + event]
    if following < 0 or (state == k.UNDECIDED and may_be_later_one(connections, c, row)):
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


# --- the effects of requests ----------------------------------------------------------------


@inlined
def insert_consumer(
    p: Any, tables: Any, connections: Any, consumers: Any, held: Any, out: Any, c: int,
    consumer: int, initial_state: int,
) -> bool:  # fmt: skip
    """Add a consumer without a session; above the cap the oldest makes room for it."""
    if not admit(tables, connections, out, c, k.CAP_CONSUMERS):
        first = connections.first_consumer[c]
        if first >= 0:
            remove_consumer(p, tables, connections, consumers, held, c, first)
        if first < 0 or not admit(tables, connections, out, c, k.CAP_CONSUMERS):
            return False
    consumers.exists[consumer], consumers.deleted[consumer] = 1, 0
    consumers.initial_state[consumer] = initial_state
    consumers.subscription[consumer] = consumers.session[consumer] = -1
    consumers.from_dead_queue[consumer] = 0
    append(
        connections.first_consumer, connections.last_consumer, consumers.before, consumers.after,
        c, consumer,
    )  # fmt: skip
    return True


@inlined
def add_consumer(
    p: Any, q: Any, tables: Any, connections: Any, consumers: Any, held: Any, out: Any, c: int,
    request: int, at: int,
) -> None:  # fmt: skip
    """Add the consumer that a reply names; it takes the place of one with the same id."""
    consumer, asked = q.consumer_slot[at], p.properties[request]
    if consumers.exists[consumer]:
        remove_consumer(p, tables, connections, consumers, held, c, consumer)
    is_browser = p.handler[request] == k.BROWSES
    state = k.BROWSED if is_browser else k.HELD
    if not is_browser and q.ack_mode[asked] == k.NEVER_ACKNOWLEDGES:
        state = k.NO_ACK_WANTED
    if (not insert_consumer(p, tables, connections, consumers, held, out, c, consumer, state)
            or is_browser):  # fmt: skip
        return
    consumers.subscription[consumer] = q.subscription[asked]
    consumers.from_dead_queue[consumer] = q.from_dead_queue[asked]
    session = q.session_slot[asked]
    consumers.session[consumer] = session
    if session >= 0:
        append(
            consumers.first_of_session, consumers.last_of_session, consumers.before_of_session,
            consumers.after_of_session, session, consumer,
        )  # fmt: skip


@inlined
def delete_consumer(
    p: Any, q: Any, tables: Any, connections: Any, consumers: Any, held: Any, pauses: Any, c: int,
    request: int, row: int,
) -> None:  # fmt: skip
    """Delete a consumer; messages after the last one that the application saw are returned."""
    consumer = q.consumer_slot[p.properties[request]]
    if consumers.exists[consumer] and not consumers.deleted[consumer]:
        last = k.LONG(p.message[request])
        unseen = last < 0 or held.row[last] < 0
        event = k.D_CLOSE_UNHELD if unseen else k.D_CLOSE_UNSEEN
        message = k.LONG(consumers.first_held[consumer])
        while message >= 0:
            following = k.LONG(held.after[message])
            if unseen:
                apply_to_delivery(p, tables, connections, consumers, held, c, message, event)
            unseen = unseen or message == last
            message = following
        consumers.deleted[consumer] = 1
        if consumers.first_held[consumer] < 0:
            unlink_consumer(connections, consumers, c, consumer)
    end_pause_of(p, connections, pauses, c, 2 * c, request, row)


@inlined
def destroy_session(
    p: Any, tables: Any, connections: Any, consumers: Any, held: Any, c: int, session: int
) -> None:
    """Remove the consumers of a session."""
    while consumers.first_of_session[session] >= 0:
        consumer = consumers.first_of_session[session]
        remove_consumer(p, tables, connections, consumers, held, c, consumer)


# --- messages -------------------------------------------------------------------------------


@inlined
def hold(
    p: Any, tables: Any, connections: Any, consumers: Any, held: Any, out: Any, c: int, row: int
) -> None:
    """Hold a delivered message; above the cap the oldest of its consumer makes room for it."""
    message, consumer = p.message[row], p.consumer[row]
    again = held.row[message]
    if again >= 0:
        close_delivery(p, tables, connections, c, again)
        remove_held(connections, consumers, held, c, message)
    if not admit(tables, connections, out, c, k.CAP_HELD):
        first = consumers.first_held[consumer]
        if first >= 0:
            remove_held(connections, consumers, held, c, first)
        if first < 0 or not admit(tables, connections, out, c, k.CAP_HELD):
            return
    held.row[message], held.consumer[message] = row, consumer
    append(consumers.first_held, consumers.last_held, held.before, held.after, consumer, message)
    if again >= 0:
        add_violation(tables, connections, out, c, k.HANDED_OVER_TWICE, row, -1, 1)


@inlined
def deliver(
    p: Any, tables: Any, connections: Any, consumers: Any, held: Any, pauses: Any, out: Any,
    c: int, row: int,
) -> None:  # fmt: skip
    """Observe a message for a consumer; without its ADD_CONSUMER it may be a browser."""
    consumer = p.consumer[row]
    exists = consumers.exists[consumer]
    if not exists or consumers.deleted[consumer]:
        add_violation(tables, connections, out, c, k.UNKNOWN_CONSUMER, row, -1, 1)
    p.client_id[row] = connections.client_id[c]
    p.state[row] = k.UNDECIDED
    if exists:
        p.state[row] = consumers.initial_state[consumer]
        p.subscription[row] = consumers.subscription[consumer]
        p.from_dead_queue[row] = consumers.from_dead_queue[consumer]
    else:
        insert_consumer(p, tables, connections, consumers, held, out, c, consumer, k.UNDECIDED)
    if consumers.exists[consumer] and not tables.settled[p.state[row]]:
        hold(p, tables, connections, consumers, held, out, c, row)
    flow_on(p, tables, connections, pauses, out, c, 2 * c, row)


@inlined
def redeliver(
    p: Any, q: Any, tables: Any, connections: Any, consumers: Any, held: Any, out: Any, c: int,
    row: int,
) -> None:  # fmt: skip
    """Observe a REDELIVER, which returns messages."""
    if p.malformed[row]:
        add_violation(tables, connections, out, c, k.MALFORMED_RECORDS, row, -2, 1)
    at = p.properties[row]
    event = k.D_SEEN if at >= 0 and q.set_redelivered[at] != 0 else k.D_UNSEEN
    for block in range(p.blocks[row], p.blocks[row + 1]):
        apply_to_delivery(
            p, tables, connections, consumers, held, c, held.block_message[block], event
        )


@inlined
def acknowledgement(p: Any, q: Any, row: int) -> int:
    """Return the event of an ACKNOWLEDGE."""
    at = p.properties[row]
    if at >= 0 and q.ack_type[at] == k.UNDELIVERABLE:
        return k.D_DECLINE
    if at >= 0 and q.ack_type[at] == k.DEAD:
        return k.D_EXPIRE if q.dead_reason[at] == k.EXPIRED else k.D_BURY
    return k.D_ACK_IN if p.transaction[row] != 0 else k.D_ACK


@inlined
def acknowledge(
    p: Any, q: Any, tables: Any, connections: Any, consumers: Any, held: Any, out: Any, c: int,
    row: int,
) -> None:  # fmt: skip
    """Observe an ACKNOWLEDGE, unless it only counts delivery attempts."""
    at, transaction = p.properties[row], p.transaction[row]
    if at >= 0 and q.count_only[at] != 0:
        return
    if p.malformed[row]:
        add_violation(tables, connections, out, c, k.MALFORMED_RECORDS, row, -2, 1)
    event = acknowledgement(p, q, row)
    not_held, count = k.LONG(-1), 0
    for block in range(p.blocks[row], p.blocks[row + 1]):
        delivered = apply_to_delivery(
            p, tables, connections, consumers, held, c, held.block_message[block], event
        )
        if delivered >= 0:
            p.acknowledged[delivered], p.joined[delivered] = row, transaction
            held.pending[block] = 1
        else:
            count += 1
            not_held = block if not_held < 0 else not_held
    if not_held >= 0 and p.flags[row] & k.RESENT == 0:
        add_violation(tables, connections, out, c, k.ACKNOWLEDGED_NOTHING, row, not_held, count)
    if transaction != 0:
        blocks = p.blocks[row + 1] - p.blocks[row]
        use(p, connections, out, c, row, transaction, k.U_ACK, blocks)


@inlined
def confirm(
    p: Any, q: Any, tables: Any, connections: Any, consumers: Any, held: Any, out: Any, c: int,
    request: int, row: int, accepted: bool,
) -> None:  # fmt: skip
    """Confirm or deny an ACKNOWLEDGE."""
    event = k.D_CONFIRMED if accepted else k.D_DENIED
    for block in range(p.blocks[request], p.blocks[request + 1]):
        if held.pending[block]:
            delivered = apply_to_delivery(
                p, tables, connections, consumers, held, c, held.block_message[block], event
            )
            if delivered >= 0 and not accepted:
                p.acknowledged[delivered], p.joined[delivered] = -1, 0
    at, transaction = p.properties[request], p.transaction[request]
    if not accepted and transaction != 0 and (at < 0 or q.count_only[at] == 0):
        blocks = p.blocks[request + 1] - p.blocks[request]
        use(p, connections, out, c, row, transaction, k.U_DENY_ACK, blocks)
