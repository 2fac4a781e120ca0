"""The kernel that tracks JMQ connections, packet by packet, on integer columns.

The state tables and the handlers of packets are arrays (``codes.py``). The state has one slot for
each key that packets name (a consumer, a request id, a held message), so the kernel needs no
lookups and no allocations.

Rules of this file, and of the other kernels of this folder:

1. A row is the index of a packet in the columns; -1 is none. A code is the index of a text.
2. Slots that must be kept in the order of insertion are doubly linked lists.
3. The kernel returns as soon as an output buffer may become full; the next call continues there.
4. `p` are the packets, `q` the properties of control packets, `c` is the connection of the row, and
   `at` the index of the row's properties, -1 for none.
"""

from __future__ import annotations

from typing import Any

from wireyard.accelerate import I64, inlined, kernel, record
from wireyard.layers.jmq import codes as k
from wireyard.layers.jmq.connection_state import (
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
from wireyard.layers.jmq.consumer_kernels import (
    add_violation,
    admit,
    append,
    apply_to_delivery,
    apply_to_pause,
    by_type,
    close_delivery,
    end_pause,
    release,
    remove_consumer,
    remove_held,
    send_message,
    unlink,
    unlink_consumer,
    use,
)
from wireyard.layers.jmq.session_kernels import (
    log_in,
    lose_packets,
    miss_packets,
    number_packet,
)

__all__ = ["track_packets"]


@inlined
def begin_transaction(
    tables: Any,
    connections: Any,
    held: Any,
    out: Any,
    c: int,
    row: int,
    transaction: int,
    slot: int,
) -> None:
    use(connections, out, c, row, transaction, k.U_START, 0)
    if not held.begun[slot] and admit(tables, connections, out, c, k.CAP_TRANSACTIONS):
        held.begun[slot], held.begun_at[slot] = 1, row


@kernel(
    I64(I64, *map(record, (k.Compiled, Packets, Properties, Streams, Connections, Waiting,
                           Consumers, Held, Pauses, Buffers)), I64),
)  # fmt: skip
def track_packets(
    start: int, tables: Any, p: Any, q: Any, streams: Any, connections: Any, waiting: Any,
    consumers: Any, held: Any, pauses: Any, out: Any, room: int,
) -> int:  # fmt: skip
    """Track connections by their packets, which are in the order of time within each connection.

    Returns
    -------
    row
        The first packet that was not handled because a buffer of `out` is nearly full, or the
        number of packets.
    """
    for row in range(start, len(p.kind)):
        if (out.counts[0] + k.ROOM > room or out.counts[1] + k.ROOM > room
                or out.counts[2] + k.ROOM > room):  # fmt: skip
            return row
        kind = p.kind[row]
        if kind == k.NOTHING:
            continue
        s = p.stream[row]
        c = k.LONG(streams.connection[s])
        if kind == k.MISSED:
            if streams.seen[s] and connections.active[c]:
                miss_packets(tables, connections, pauses, c)
            continue
        streams.seen[s] = 1
        if kind == k.SEEN:
            continue
        from_client = streams.from_client[s] != 0
        own, other = 2 * c + k.LONG(from_client), 2 * c + 1 - k.LONG(from_client)
        if kind == k.LOST:
            connections.in_gap[own] = 1 - p.timed[row]
            lose_packets(tables, connections, pauses, c, row)
            continue
        connections.active[c] = 1
        if connections.in_gap[own]:
            connections.in_gap[own] = 0
            lose_packets(tables, connections, pauses, c, row)
        if connections.in_gap[other]:
            miss_packets(tables, connections, pauses, c)
        at = k.LONG(p.properties[row])
        transaction = p.transaction[row]
        number_packet(p, tables, streams, connections, out, c, s, row)
        if p.flags[row] & k.TRANSACTED != 0 and p.version[row] > k.WITHOUT_T and transaction == 0:
            add_violation(tables, connections, out, c, k.TRANSACTION_ID_MISSING, row, -1, 1)
        log_in(p, q, tables, connections, out, c, from_client, row)

        handler = p.handler[row]
        present = k.LONG(q.present[at]) if at >= 0 else 0
        is_request = True
        # The request that takes effect with this packet, its reply, and whether it was accepted.
        settled, reply, accepted = -1, -1, True

        if handler == k.SENDS:
            p.client_id[row] = connections.client_id[c]
            send_message(p, tables, connections, pauses, out, c, 2 * c + 1, row)
            if transaction != 0:
                use(connections, out, c, row, transaction, k.U_SEND, 1)
        elif handler == k.DELIVERS:
            is_request = False
            consumer = p.consumer[row]
            if not consumers.exists[consumer] or consumers.deleted[consumer]:
                add_violation(tables, connections, out, c, k.UNKNOWN_CONSUMER, row, -1, 1)
            p.client_id[row] = connections.client_id[c]
            if consumers.exists[consumer]:
                p.state[row] = consumers.initial_state[consumer]
                p.subscription[row] = consumers.subscription[consumer]
                p.from_dead_queue[row] = consumers.from_dead_queue[consumer]
            else:
                p.state[row] = k.UNDECIDED
                room_for = admit(tables, connections, out, c, k.CAP_CONSUMERS)
                if not room_for and connections.first_consumer[c] >= 0:
                    first = connections.first_consumer[c]
                    remove_consumer(p, tables, connections, consumers, held, c, first)
                    room_for = admit(tables, connections, out, c, k.CAP_CONSUMERS)
                if room_for:
                    consumers.exists[consumer] = 1
                    consumers.initial_state[consumer] = k.UNDECIDED
                    consumers.from_dead_queue[consumer] = consumers.deleted[consumer] = 0
                    consumers.subscription[consumer] = consumers.session[consumer] = -1
                    append(
                        connections.first_consumer, connections.last_consumer, consumers.before,
                        consumers.after, c, consumer,
                    )  # fmt: skip
            if consumers.exists[consumer] and not tables.settled[p.state[row]]:
                message = p.message[row]
                again = held.row[message]
                if again >= 0:
                    close_delivery(p, tables, connections, c, again)
                    remove_held(connections, consumers, held, c, message)
                room_for = admit(tables, connections, out, c, k.CAP_HELD)
                if not room_for and consumers.first_held[consumer] >= 0:
                    remove_held(connections, consumers, held, c, consumers.first_held[consumer])
                    room_for = admit(tables, connections, out, c, k.CAP_HELD)
                if room_for:
                    held.row[message], held.consumer[message] = row, consumer
                    append(
                        consumers.first_held, consumers.last_held, held.before, held.after,
                        consumer, message,
                    )  # fmt: skip
                    if again >= 0:
                        add_violation(tables, connections, out, c, k.HANDED_OVER_TWICE, row, -1, 1)
            send_message(p, tables, connections, pauses, out, c, 2 * c, row)
        elif handler in (k.REPLIES, k.CLIENT_REPLIES):
            is_request = False
            slot = p.request[row]
            request = waiting.row[slot]
            packet_type = p.packet_type[row]
            if request >= 0 and (
                packet_type == k.SEND_REPLY
                or tables.reply_of[by_type(p.packet_type[request])] == packet_type
            ):
                side = 2 * c + (handler == k.CLIENT_REPLIES)
                waiting.row[slot] = -1
                unlink(
                    connections.first_waiting, connections.last_waiting, waiting.before,
                    waiting.after, side, slot,
                )  # fmt: skip
                release(connections, c, k.CAP_WAITING)
                p.reply[request] = row
                if handler == k.REPLIES:
                    settled, reply = request, row
                    accepted = present & k.HAS_STATUS != 0 and q.status[at] == k.OK
            else:
                add_violation(tables, connections, out, c, k.REPLY_WITHOUT_REQUEST, row, -2, 1)
        elif handler in (k.RESUMES, k.IS_RESUMED):
            is_request = False
            flow = 2 * c + (handler == k.IS_RESUMED)
            target = p.pause[row] if p.pause[row] >= 0 else connections.pause[flow]
            event = k.F_RESUME
            if handler == k.IS_RESUMED and present & k.HAS_SIZE != 0 and q.size[at] == 0:
                event = k.F_STOP
            apply_to_pause(p, tables, connections, pauses, out, c, flow, target, event, row)
        elif handler == k.REDELIVERS:
            is_request = False
            if p.malformed[row]:
                add_violation(tables, connections, out, c, k.MALFORMED_RECORDS, row, -2, 1)
            event = k.D_SEEN if at >= 0 and q.set_redelivered[at] != 0 else k.D_UNSEEN
            for block in range(p.blocks[row], p.blocks[row + 1]):
                apply_to_delivery(
                    p, tables, connections, consumers, held, c, held.block_message[block], event
                )
        elif handler == k.ACKNOWLEDGES:
            if at < 0 or q.count_only[at] == 0:
                if p.malformed[row]:
                    add_violation(tables, connections, out, c, k.MALFORMED_RECORDS, row, -2, 1)
                event = k.D_ACK_IN if transaction != 0 else k.D_ACK
                if at >= 0 and q.ack_type[at] == k.UNDELIVERABLE:
                    event = k.D_DECLINE
                elif at >= 0 and q.ack_type[at] == k.DEAD:
                    event = k.D_EXPIRE if q.dead_reason[at] == k.EXPIRED else k.D_BURY
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
                if not_held >= 0:
                    add_violation(
                        tables, connections, out, c, k.ACKNOWLEDGED_NOTHING, row, not_held, count
                    )
                if transaction != 0:
                    blocks = p.blocks[row + 1] - p.blocks[row]
                    use(connections, out, c, row, transaction, k.U_ACK, blocks)
        elif handler == k.COMMITS and present & k.HAS_TRANSACTION != 0:
            use(connections, out, c, row, q.transaction[at], k.U_ASK_COMMIT, 0)

        if is_request and p.flags[row] & k.WANTED != 0:
            p.is_request[row] = 1
            slot = p.request[row]
            side = 2 * c + (handler == k.SERVER_REQUESTS)
            room_for = True
            if waiting.row[slot] >= 0:
                add_violation(tables, connections, out, c, k.REQUEST_ID_REUSED, row, -2, 1)
                unlink(
                    connections.first_waiting, connections.last_waiting, waiting.before,
                    waiting.after, side, slot,
                )  # fmt: skip
            elif not admit(tables, connections, out, c, k.CAP_WAITING):
                first = connections.first_waiting[side]
                room_for = first >= 0
                if room_for:
                    waiting.row[first] = -1
                    unlink(
                        connections.first_waiting, connections.last_waiting, waiting.before,
                        waiting.after, side, first,
                    )  # fmt: skip
            if room_for:
                waiting.row[slot] = row
                append(
                    connections.first_waiting, connections.last_waiting, waiting.before,
                    waiting.after, side, slot,
                )  # fmt: skip
        elif is_request and handler != k.SERVER_REQUESTS:
            settled = row

        if settled < 0:
            continue
        # --- effects of the request -------------------------------------------------------
        handler = p.handler[settled]
        request_at = k.LONG(p.properties[settled])
        request_has = k.LONG(q.present[request_at]) if request_at >= 0 else 0
        reply_has = present if reply >= 0 else 0
        if handler == k.SENDS:
            if not accepted and p.transaction[settled] != 0:
                use(connections, out, c, row, p.transaction[settled], k.U_DENY_SEND, 1)
        elif handler == k.ACKNOWLEDGES:
            event = k.D_CONFIRMED if accepted else k.D_DENIED
            for block in range(p.blocks[settled], p.blocks[settled + 1]):
                if held.pending[block]:
                    delivered = apply_to_delivery(
                        p, tables, connections, consumers, held, c, held.block_message[block], event
                    )
                    if delivered >= 0 and not accepted:
                        p.acknowledged[delivered], p.joined[delivered] = -1, 0
            only_count = request_at >= 0 and q.count_only[request_at] != 0
            if not accepted and p.transaction[settled] != 0 and not only_count:
                blocks = p.blocks[settled + 1] - p.blocks[settled]
                use(connections, out, c, row, p.transaction[settled], k.U_DENY_ACK, blocks)
        elif handler in (k.ADDS, k.BROWSES):
            if accepted and reply_has & k.HAS_CONSUMER != 0:
                consumer = q.consumer_slot[at]
                if consumers.exists[consumer]:
                    remove_consumer(p, tables, connections, consumers, held, c, consumer)
                room_for = admit(tables, connections, out, c, k.CAP_CONSUMERS)
                if not room_for and connections.first_consumer[c] >= 0:
                    first = connections.first_consumer[c]
                    remove_consumer(p, tables, connections, consumers, held, c, first)
                    room_for = admit(tables, connections, out, c, k.CAP_CONSUMERS)
                if room_for:
                    consumers.exists[consumer], consumers.deleted[consumer] = 1, 0
                    consumers.initial_state[consumer] = (
                        k.BROWSED if handler == k.BROWSES else k.HELD
                    )
                    consumers.subscription[consumer] = consumers.session[consumer] = -1
                    consumers.from_dead_queue[consumer] = 0
                    if handler == k.ADDS and request_at >= 0:
                        if q.ack_mode[request_at] == k.NEVER_ACKNOWLEDGES:
                            consumers.initial_state[consumer] = k.NO_ACK_WANTED
                        consumers.subscription[consumer] = q.subscription[request_at]
                        consumers.from_dead_queue[consumer] = q.from_dead_queue[request_at]
                        consumers.session[consumer] = q.session_slot[request_at]
                    append(
                        connections.first_consumer, connections.last_consumer, consumers.before,
                        consumers.after, c, consumer,
                    )  # fmt: skip
                    session = consumers.session[consumer]
                    if session >= 0:
                        append(
                            consumers.first_of_session, consumers.last_of_session,
                            consumers.before_of_session, consumers.after_of_session, session,
                            consumer,
                        )  # fmt: skip
        elif handler == k.DELETES:
            if accepted and request_has & k.HAS_CONSUMER != 0:
                consumer = q.consumer_slot[request_at]
                if consumers.exists[consumer] and not consumers.deleted[consumer]:
                    last = k.LONG(p.message[settled])
                    unseen = last < 0 or held.row[last] < 0
                    event = k.D_CLOSE_UNHELD if unseen else k.D_CLOSE_UNSEEN
                    message = k.LONG(consumers.first_held[consumer])
                    while message >= 0:
                        following = k.LONG(held.after[message])
                        if unseen:
                            apply_to_delivery(
                                p,
                                tables,
                                connections,
                                consumers,
                                held,
                                c,
                                message,
                                event,
                            )
                        unseen = unseen or message == last
                        message = following
                    consumers.deleted[consumer] = 1
                    if consumers.first_held[consumer] < 0:
                        unlink_consumer(connections, consumers, c, consumer)
                target = p.pause[settled]
                if target >= 0 and pauses.state[target] != k.FLOWING:
                    end_pause(p, connections, pauses, c, 2 * c, target, row)
        elif handler == k.DESTROYS:
            if accepted and request_has & k.HAS_SESSION != 0:
                session = q.session_slot[request_at]
                while consumers.first_of_session[session] >= 0:
                    consumer = consumers.first_of_session[session]
                    remove_consumer(p, tables, connections, consumers, held, c, consumer)
        elif handler == k.DELETES_PRODUCER:
            target = p.pause[settled]
            if accepted and target >= 0 and pauses.state[target] != k.FLOWING:
                end_pause(p, connections, pauses, c, 2 * c + 1, target, row)
        elif handler == k.SETS_CLIENT_ID:
            if accepted:
                connections.client_id[c] = q.client_id[request_at] if request_at >= 0 else -1
        elif handler == k.STARTS:
            if accepted and reply_has & k.HAS_TRANSACTION != 0:
                begin_transaction(
                    tables,
                    connections,
                    held,
                    out,
                    c,
                    row,
                    q.transaction[at],
                    q.transaction_slot[at],
                )
        elif handler in (k.COMMITS, k.ROLLS_BACK, k.PREPARES, k.ENDS):
            named = request_at if request_has & k.HAS_TRANSACTION != 0 else k.LONG(-1)
            if named < 0 and reply_has & k.HAS_TRANSACTION != 0:
                named = at
                if handler == k.COMMITS:
                    use(connections, out, c, row, q.transaction[at], k.U_ASK_COMMIT, 0)
            if named >= 0 and (accepted or handler == k.COMMITS):
                event = k.U_END
                if handler == k.COMMITS:
                    event = k.U_COMMIT if accepted else k.U_DENY_COMMIT
                elif handler == k.ROLLS_BACK:
                    event = k.U_ROLL_BACK
                elif handler == k.PREPARES:
                    event = k.U_PREPARE
                use(connections, out, c, row, q.transaction[named], event, 0)
                slot = q.transaction_slot[named]
                if event in (k.U_COMMIT, k.U_ROLL_BACK) and held.begun[slot]:
                    held.begun[slot] = 0
                    release(connections, c, k.CAP_TRANSACTIONS)
                if handler == k.COMMITS and accepted and reply_has & k.HAS_NEXT != 0:
                    begin_transaction(
                        tables,
                        connections,
                        held,
                        out,
                        c,
                        row,
                        q.next_transaction[at],
                        q.next_slot[at],
                    )
    return len(p.kind)
