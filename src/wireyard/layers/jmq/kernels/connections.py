"""The kernel itself, and requests with their replies."""

from __future__ import annotations

from typing import Any

from wireyard.accelerate import inlined, kernel
from wireyard.layers.jmq.kernels import codes as k
from wireyard.layers.jmq.kernels.consumers import (
    acknowledge,
    add_consumer,
    confirm,
    delete_consumer,
    deliver,
    destroy_session,
    redeliver,
)
from wireyard.layers.jmq.kernels.sessions import (
    add_violation,
    admit,
    append,
    by_type,
    commit,
    end_pause_of,
    end_transaction,
    enter_packet,
    log_in,
    miss_packets,
    number_packet,
    release,
    resume,
    send,
    start_transaction,
    unlink,
    use,
)
from wireyard.layers.jmq.kernels.state import (
    Buffers,
    Connections,
    Consumers,
    Held,
    Packets,
    Pauses,
    Properties,
    Streams,
    Waiting,
)


@inlined
def properties_at(q: Any, at: int) -> int:
    """Return which properties a packet has, as bits."""
    return k.LONG(q.present[at]) if at >= 0 else 0


# --- requests and replies -------------------------------------------------------------------


@inlined
def stop_waiting(connections: Any, waiting: Any, side: int, slot: int) -> None:
    """Remove a request from those that wait; `side` is that of its sender."""
    waiting.row[slot] = -1
    unlink(
        connections.first_waiting, connections.last_waiting, waiting.before, waiting.after, side,
        slot,
    )  # fmt: skip


@inlined
def ask(
    p: Any, tables: Any, connections: Any, waiting: Any, out: Any, c: int, row: int, request: int
) -> None:
    """Let a request wait for its reply, with the id of a packet: its own, or it is sent again."""
    slot, side = p.request[row], 2 * c + (p.handler[row] == k.SERVER_REQUESTS)
    if waiting.row[slot] >= 0:
        if p.flags[row] & k.RESENT == 0 and p.reply[waiting.row[slot]] < 0:
            add_violation(tables, connections, out, c, k.REQUEST_ID_REUSED, row, -2, 1)
        stop_waiting(connections, waiting, side, slot)
    elif not admit(tables, connections, out, c, k.CAP_WAITING):
        first = connections.first_waiting[side]
        if first < 0:
            return
        stop_waiting(connections, waiting, side, first)
    waiting.row[slot], waiting.more[slot] = request, 0
    append(
        connections.first_waiting, connections.last_waiting, waiting.before, waiting.after, side,
        slot,
    )  # fmt: skip


@inlined
def ask_again(
    p: Any, tables: Any, connections: Any, waiting: Any, out: Any, c: int, row: int
) -> None:
    """Observe a packet of the client that is sent again, which only waits for its reply."""
    if p.handler[row] == k.SENDS:
        p.client_id[row] = connections.client_id[c]
    request = k.LONG(p.again[row])
    if not p.is_request[request] or p.flags[row] & k.WANTED == 0:
        return
    if waiting.row[p.request[row]] == request:
        waiting.more[p.request[row]] += 1
    else:
        ask(p, tables, connections, waiting, out, c, row, request)


@inlined
def answer(p: Any, tables: Any, connections: Any, waiting: Any, out: Any, c: int, row: int) -> int:
    """Observe a reply; return the request of the client that it settles, -1 if none."""
    by_broker = p.handler[row] == k.CLIENT_REPLIES
    slot = p.request[row]
    request = k.LONG(waiting.row[slot])
    if request < 0:
        if tables.is_reply[by_type(p.packet_type[row])]:
            add_violation(tables, connections, out, c, k.REPLY_WITHOUT_REQUEST, row, -2, 1)
        return -1
    waiting.more[slot] -= 1
    if waiting.more[slot] < 0:
        stop_waiting(connections, waiting, 2 * c + by_broker, slot)
        release(connections, c, k.CAP_WAITING)
    if p.reply[request] >= 0:  # It was sent again, after the broker had read it.
        return -1
    p.reply[request] = row
    return -1 if by_broker else request


# --- packets --------------------------------------------------------------------------------


@inlined
def observe(
    p: Any, q: Any, tables: Any, connections: Any, waiting: Any, consumers: Any, held: Any,
    pauses: Any, out: Any, c: int, row: int,
) -> int:  # fmt: skip
    """Observe a packet; return the request that is settled by it, -1 if none."""
    handler = p.handler[row]
    if handler in (k.REPLIES, k.CLIENT_REPLIES):
        return answer(p, tables, connections, waiting, out, c, row)
    if handler == k.DELIVERS:
        deliver(p, tables, connections, consumers, held, pauses, out, c, row)
        return -1
    if handler in (k.RESUMES, k.IS_RESUMED):
        resume(p, q, tables, connections, pauses, out, c, row)
        return -1
    if handler == k.REDELIVERS:
        redeliver(p, q, tables, connections, consumers, held, out, c, row)
        return -1
    if handler == k.SENDS:
        send(p, tables, connections, pauses, out, c, row)
    elif handler == k.ACKNOWLEDGES:
        acknowledge(p, q, tables, connections, consumers, held, out, c, row)
    elif handler == k.COMMITS:
        at = k.LONG(p.properties[row])
        if properties_at(q, at) & k.HAS_TRANSACTION != 0:
            use(p, connections, out, c, row, q.transaction[at], k.U_ASK_COMMIT, 0)
    if p.flags[row] & k.WANTED != 0:
        p.is_request[row] = 1
        ask(p, tables, connections, waiting, out, c, row, row)
        return -1
    return -1 if handler == k.SERVER_REQUESTS else row


@inlined
def settle(
    p: Any, q: Any, tables: Any, connections: Any, consumers: Any, held: Any, pauses: Any,
    out: Any, c: int, request: int, row: int,
) -> None:  # fmt: skip
    """Let a request take effect; `row` is its reply, or the request itself if it wants none."""
    handler = p.handler[request]
    asked, at = k.LONG(p.properties[request]), k.LONG(p.properties[row])
    asked_has, has = properties_at(q, asked), properties_at(q, at)
    accepted = True
    if row == request:
        has = 0
    else:
        accepted = has & k.HAS_STATUS != 0 and q.status[at] in (k.OK, k.DONE_BEFORE)
    if handler == k.SENDS:
        if not accepted and p.transaction[request] != 0:
            use(p, connections, out, c, row, p.transaction[request], k.U_DENY_SEND, 1)
    elif handler == k.ACKNOWLEDGES:
        confirm(p, q, tables, connections, consumers, held, out, c, request, row, accepted)
    elif handler == k.COMMITS:
        commit(p, q, tables, connections, held, out, c, asked, asked_has, at, has, row, accepted)
    elif accepted:
        if handler in (k.ADDS, k.BROWSES):
            if has & k.HAS_CONSUMER != 0:
                add_consumer(p, q, tables, connections, consumers, held, out, c, request, at)
        elif handler == k.DELETES:
            if asked_has & k.HAS_CONSUMER != 0:
                delete_consumer(p, q, tables, connections, consumers, held, pauses, c, request, row)
        elif handler == k.DESTROYS:
            if asked_has & k.HAS_SESSION != 0:
                destroy_session(p, tables, connections, consumers, held, c, q.session_slot[asked])
        elif handler == k.DELETES_PRODUCER:
            end_pause_of(p, connections, pauses, c, 2 * c + 1, request, row)
        elif handler == k.SETS_CLIENT_ID:
            connections.client_id[c] = q.client_id[asked] if asked >= 0 else -1
        elif handler == k.STARTS:
            if has & k.HAS_TRANSACTION != 0:
                start_transaction(
                    p, tables, connections, held, out, c, row, q.transaction[at],
                    q.transaction_slot[at],
                )  # fmt: skip
        elif handler in (k.ROLLS_BACK, k.PREPARES, k.ENDS):
            named = asked if asked_has & k.HAS_TRANSACTION != 0 else at
            if (asked_has | has) & k.HAS_TRANSACTION != 0:
                end_transaction(p, q, connections, held, out, c, handler, named, row)


@kernel
def track_packets(
    start: int, tables: k.Compiled, p: Packets, q: Properties, streams: Streams,
    connections: Connections, waiting: Waiting, consumers: Consumers, held: Held, pauses: Pauses,
    out: Buffers, room: int,
) -> int:  # fmt: skip
    """Track connections by their packets, which are in the order of time within each connection.

    Return the row of the first packet that was not handled because a buffer of `out` is nearly
    full, or the number of packets.
    """
    for row in range(start, len(p.kind)):
        if max(out.counts[0], out.counts[1]) + k.ROOM > room:
            return row
        kind = p.kind[row]
        if kind in (k.NOTHING, k.SEEN):
            continue
        s = p.stream[row]
        c = k.LONG(streams.connection[s])
        if kind == k.MISSED:
            miss_packets(tables, connections, pauses, c)
            continue
        from_client = streams.from_client[s] != 0
        if not enter_packet(p, tables, connections, pauses, c, from_client, row):
            continue
        number_packet(p, tables, streams, connections, out, c, s, row)
        if (p.flags[row] & k.TRANSACTED != 0 and p.version[row] > k.WITHOUT_T
                and p.transaction[row] == 0):  # fmt: skip
            add_violation(tables, connections, out, c, k.TRANSACTION_ID_MISSING, row, -1, 1)
        log_in(p, q, tables, connections, out, c, from_client, row)
        if p.again[row] >= 0:
            ask_again(p, tables, connections, waiting, out, c, row)
            continue
        request = observe(p, q, tables, connections, waiting, consumers, held, pauses, out, c, row)
        if request >= 0:
            settle(p, q, tables, connections, consumers, held, pauses, out, c, request, row)
    return len(p.kind)
