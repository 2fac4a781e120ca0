"""Logins, and the sequence numbers of senders: every new packet has a higher number than before."""

from __future__ import annotations

from typing import Any

from wireyard.accelerate import inlined
from wireyard.layers.jmq import codes as k
from wireyard.layers.jmq.consumer_kernels import add_violation, by_type, unlink_pause

__all__ = ["log_in", "lose_packets", "miss_packets", "number_packet"]


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
    if streams.place[s] < 0:
        streams.first[s] = sequence
    else:
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
        at = out.counts[2]
        out.run_stream[at], out.run_place[at] = s, streams.place[s]
        out.run_start[at], out.run_stop[at] = streams.start[s], streams.stop[s]
        out.counts[2] = at + 1
    streams.start[s], streams.stop[s] = sequence, sequence + 1
    streams.place[s] = streams.highest[s] = row


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
    if event == -2 or (event == -1 and tables.steady[state]):
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
        connections.state[c] = following


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
def lose_packets(tables: Any, connections: Any, pauses: Any, c: int, row: int) -> None:
    """Observe that any packets may be missing before a row."""
    miss_packets(tables, connections, pauses, c)
    connections.missed[c] = row
