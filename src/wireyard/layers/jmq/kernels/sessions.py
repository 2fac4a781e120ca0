"""The state of a connection as a whole: its packets, login, sequence numbers, flow, transactions.

The pieces that all kernels of JMQ connections share are here as well: lists of slots, caps, output
buffers.
"""

from __future__ import annotations

from typing import Any

from wireyard.accelerate import inlined
from wireyard.layers.jmq.kernels import codes as k

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
    """Add a violation, unless missing packets may explain it."""
    if (tables.needs[rule] == k.ALL and not connections.known[c]) or (
        tables.needs[rule] == k.BOTH and connections.one_sided[c]
    ):
        return
    at = out.counts[0]
    out.rule[at], out.rule_row[at], out.rule_block[at] = rule, row, block
    out.rule_times[at], out.rule_client_id[at] = times, connections.client_id[c]
    out.counts[0] = at + 1


@inlined
def use(
    p: Any, connections: Any, out: Any, c: int, row: int, transaction: int, event: int,
    messages: int,
) -> None:  # fmt: skip
    """Add an event of a transaction."""
    at = out.counts[1]
    out.use_row[at], out.use_event[at] = row, event
    out.use_transaction[at], out.use_messages[at] = transaction, messages
    out.use_client_id[at] = connections.client_id[c]
    out.use_sure[at] = connections.known[c] and p.flags[row] & k.RESENT == 0
    out.counts[1] = at + 1


# --- packets that are missing ---------------------------------------------------------------


@inlined
def miss_packets(tables: Any, connections: Any, pauses: Any, c: int) -> None:
    """Observe that packets are missing, or damaged."""
    connections.known[c] = 0
    if connections.opened[c] >= 0 and tables.logging_in[connections.state[c]]:
        connections.state[c] = k.NEW
    for flow in range(2 * c, 2 * c + 2):
        while connections.first_paused[flow] >= 0:
            unlink_pause(connections, pauses, c, flow, connections.first_paused[flow])


@inlined
def lose_packets(tables: Any, connections: Any, pauses: Any, c: int, side: int, row: int) -> None:
    """Observe that any packets of a side may be missing before a row."""
    miss_packets(tables, connections, pauses, c)
    connections.missed[side] = row


@inlined
def enter_packet(
    p: Any, tables: Any, connections: Any, pauses: Any, c: int, from_client: bool, row: int
) -> bool:
    """Observe what is missing before a packet; return whether it is one, and no gap."""
    own, other = 2 * c + k.LONG(from_client), 2 * c + 1 - k.LONG(from_client)
    if p.kind[row] == k.LOST:
        connections.in_gap[own] = 1 - p.timed[row]
        lose_packets(tables, connections, pauses, c, own, row)
        return False
    connections.active[c] = 1
    if connections.in_gap[own]:
        connections.in_gap[own] = 0
        lose_packets(tables, connections, pauses, c, own, row)
    if connections.in_gap[other]:
        miss_packets(tables, connections, pauses, c)
    return True


# --- numbers and the login ------------------------------------------------------------------


@inlined
def number_packet(
    p: Any, tables: Any, streams: Any, connections: Any, out: Any, c: int, s: int, row: int
) -> None:
    """Observe the sequence number of a packet.

    Two rules are about one stream: a number that is lower than before (`sequence_back`), and one
    that two packets have (`sequence_reused`). A packet that is sent again keeps its number and its
    timestamp, so a packet is certainly new only if its timestamp is later than that of the highest
    number (erratum 48). A run is consecutive numbers. Of messages, a broker numbers only its own:
    those with the address of its other packets.
    """
    if not streams.from_client[s]:
        if p.packet_type[row] < 1 or p.packet_type[row] > k.LAST_MESSAGE_TYPE:
            streams.address[s] = row
        else:
            own = streams.address[s]
            if (own < 0 or p.ip_high[own] != p.ip_high[row] or p.ip_low[own] != p.ip_low[row]
                    or p.port[own] != p.port[row]):  # fmt: skip
                return
    sequence = p.sequence[row]
    if streams.highest[s] >= 0:
        ahead = ((sequence - streams.stop[s] + k.HALF) & k.WORD) - k.HALF
        if ahead == 0:
            streams.stop[s] += 1
            streams.highest[s] = row
            return
        sequence = streams.stop[s] + ahead
        if ahead < 0:
            top = streams.highest[s]
            if (p.ip_high[top] != p.ip_high[row] or p.ip_low[top] != p.ip_low[row]
                    or p.port[top] != p.port[row]):  # fmt: skip
                return
            new = p.timestamp[row] > p.timestamp[top]
            if ahead == -1:
                new = (
                    p.timestamp[row] != p.timestamp[top] or p.packet_type[row] != p.packet_type[top]
                )
            if new:
                rule = k.SEQUENCE_REUSED if sequence >= streams.start[s] else k.SEQUENCE_BACK
                add_violation(tables, connections, out, c, rule, row, -1, 1)
            return
    streams.start[s], streams.stop[s], streams.highest[s] = sequence, sequence + 1, row


@inlined
def log_in(
    p: Any, q: Any, tables: Any, connections: Any, out: Any, c: int, from_client: bool, row: int
) -> None:
    """Observe a packet of either side: the login, and the end of the connection."""
    if connections.opened[c] < 0:
        connections.opened[c] = row
    connections.packets[c] += 1
    connections.size[c] += p.size[row]
    connections.last[c] = row
    event = k.LONG(tables.login_events[by_type(p.packet_type[row])])
    state = connections.state[c]
    if event == -2 or p.again[row] >= 0 or (event == -1 and tables.steady[state]):
        return
    if event == -1:
        event = k.CLIENT_PACKET if from_client else k.SERVER_PACKET
    elif event == -5:
        event = k.CLIENT_BYE if from_client else k.SERVER_BYE
    elif event < 0:
        at = p.properties[row]
        accepted = at >= 0 and q.present[at] & k.HAS_STATUS != 0 and q.status[at] == k.OK
        if event == -3:
            event = k.HELLO_OK if accepted else k.HELLO_REFUSED
        else:
            event = k.LOGIN_OK if accepted else k.LOGIN_REFUSED
    following = tables.login[state * k.L_WIDTH + event]
    if following < 0:
        add_violation(
            tables, connections, out, c, tables.login_rules[state * k.L_WIDTH + event], row, -2, 1
        )
    elif following != state:
        if event == k.HELLO:
            connections.known[c] = connections.login_known[c] = connections.packets[c] == 1
            connections.hello[c] = row
        elif event == k.LOGIN:
            connections.user[c] = row
        elif event in (k.LOGIN_OK, k.LOGIN_REFUSED, k.HELLO_REFUSED):
            connections.status[c] = row
        elif event in (k.CLIENT_BYE, k.SERVER_BYE) and connections.ended_by[c] == 0:
            connections.ended_by[c] = 1 if event == k.CLIENT_BYE else 2
            connections.may_be_refused[c] = state == k.NEW
        connections.state[c] = following


# --- flow -----------------------------------------------------------------------------------


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
        if flow == 2 * c or p.flags[row] & k.RESENT == 0:
            rule = tables.flow_rules[state * k.F_WIDTH + event]
            add_violation(tables, connections, out, c, rule, row, -1, 1)
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
                    connections.first_paused, connections.last_paused, pauses.before,
                    pauses.after, flow, target,
                )  # fmt: skip


@inlined
def flow_on(
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


@inlined
def resume(
    p: Any, q: Any, tables: Any, connections: Any, pauses: Any, out: Any, c: int, row: int
) -> None:
    """Observe a RESUME_FLOW of either side."""
    by_broker = p.handler[row] == k.IS_RESUMED
    flow, at = 2 * c + k.LONG(by_broker), p.properties[row]
    target = p.pause[row] if p.pause[row] >= 0 else connections.pause[flow]
    event = k.F_RESUME
    if by_broker and at >= 0 and q.present[at] & k.HAS_SIZE != 0 and q.size[at] == 0:
        event = k.F_STOP
    apply_to_pause(p, tables, connections, pauses, out, c, flow, target, event, row)


@inlined
def end_pause_of(
    p: Any, connections: Any, pauses: Any, c: int, flow: int, request: int, row: int
) -> None:
    """End the pause of the consumer or producer that a request deletes."""
    target = p.pause[request]
    if target >= 0 and pauses.state[target] != k.FLOWING:
        end_pause(p, connections, pauses, c, flow, target, row)


# --- messages of the client, and transactions -----------------------------------------------


@inlined
def send(p: Any, tables: Any, connections: Any, pauses: Any, out: Any, c: int, row: int) -> None:
    """Observe a message that the client sends."""
    p.client_id[row] = connections.client_id[c]
    flow_on(p, tables, connections, pauses, out, c, 2 * c + 1, row)
    if p.transaction[row] != 0:
        use(p, connections, out, c, row, p.transaction[row], k.U_SEND, 1)


@inlined
def start_transaction(
    p: Any, tables: Any, connections: Any, held: Any, out: Any, c: int, row: int, transaction: int,
    slot: int,
) -> None:  # fmt: skip
    """Start a transaction that a reply names."""
    use(p, connections, out, c, row, transaction, k.U_START, 0)
    if not held.begun[slot] and admit(tables, connections, out, c, k.CAP_TRANSACTIONS):
        held.begun[slot], held.begun_at[slot] = 1, row


@inlined
def leave_transaction(connections: Any, held: Any, c: int, slot: int) -> None:
    """Observe that a transaction is over, for the connection that began it."""
    if held.begun[slot]:
        held.begun[slot] = 0
        release(connections, c, k.CAP_TRANSACTIONS)


@inlined
def end_transaction(
    p: Any, q: Any, connections: Any, held: Any, out: Any, c: int, handler: int, named: int,
    row: int,
) -> None:  # fmt: skip
    """End, prepare or roll back a transaction; the properties `named` have its id."""
    event = k.U_END
    if handler == k.ROLLS_BACK:
        event = k.U_ROLL_BACK
        leave_transaction(connections, held, c, q.transaction_slot[named])
    elif handler == k.PREPARES:
        event = k.U_PREPARE
    use(p, connections, out, c, row, q.transaction[named], event, 0)


@inlined
def commit(
    p: Any, q: Any, tables: Any, connections: Any, held: Any, out: Any, c: int, asked: int,
    asked_has: int, at: int, has: int, row: int, accepted: bool,
) -> None:  # fmt: skip
    """Commit a transaction, or not; the reply may name it, and the next one."""
    named = asked
    if asked_has & k.HAS_TRANSACTION == 0:
        if has & k.HAS_TRANSACTION == 0:
            return
        named = at
        use(p, connections, out, c, row, q.transaction[at], k.U_ASK_COMMIT, 0)
    event = k.U_COMMIT if accepted else k.U_DENY_COMMIT
    use(p, connections, out, c, row, q.transaction[named], event, 0)
    if accepted:
        leave_transaction(connections, held, c, q.transaction_slot[named])
        if has & k.HAS_NEXT != 0:
            start_transaction(
                p, tables, connections, held, out, c, row, q.next_transaction[at], q.next_slot[at]
            )
