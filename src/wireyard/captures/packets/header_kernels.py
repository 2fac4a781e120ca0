"""Read the headers of packets, from the link layer up to the transport, in one compiled loop.

Rules of this file:

1. Reading a header gives the kind of the next header and its offset, or, in place of the kind, the
   `Fate` of a packet whose reading ends here. There are at most `_MOST_HEADERS` headers.
2. Nothing is read at or after the packet's `stop`; a length in a header is compared with the bytes
   that are left before it is used.
3. Every length in a header bounds the packet, because Ethernet pads short packets. The length in
   the IP header gives the end on the wire; bytes before it that were not captured were truncated.
   It is zero if the sender's network card was to split the segment later: then the length of the
   record, or that of the header around it, counts.
4. Checksums are not compared: a capture at the sender has them from before the network card.
5. Equal addresses in different networks are different hosts. What names the network of a packet is
   mixed into one number, the outermost first: VLAN ids, service ids of 802.1ah, network ids of
   VXLAN and GENEVE, keys of GRE, the VLAN in ERSPAN. Labels of MPLS, endpoint ids of GTP-U and
   sessions of L2TP are of one direction, so they name none.

Axes: f = `Unit`, r = packets.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid, Int32s, Ints, ReadOnly
from wireyard.captures.layout import Fate, Header, Kinds, Protocol, Unit
from wireyard.captures.packets.link_kernels import FIRST_KIND, after_ethernet, next_header
from wireyard.captures.packets.tunnel_kernels import in_udp, network_named
from wireyard.memory import LINE, load_i64, load_u8, load_u16, load_u32, prefetch_lines

_AHEAD_PACKETS: Final = 4
"""The headers of a packet are prefetched so many packets before it is read."""
CODE_BITS: Final = 24
NETWORK_FACTOR: Final = 0x9E3779B1
_NETWORKS: Final = (1 << 40) - 1
_MOST_HEADERS: Final = 32
"""Headers of a packet below its transport. Real networks stack up to twelve; more come from
forwarding loops of a tunnel into itself, or from attacks on readers."""
_JUMBO_PAYLOAD: Final = 0xC2
"""The option of a jumbogram (RFC 2675, 2)."""
_MOST_ORIGINAL_BYTES: Final = 1 << 24
"""Largest accepted length of a packet where it is not in 16 bits of an IP header."""

# Numba unifies the members of one IntEnum with integers, but not with those of another.
_CUT: Final = int(Fate.CUT)
_FRAGMENT: Final = int(Fate.FRAGMENT)
_MALFORMED: Final = int(Fate.MALFORMED)
_TCP: Final = int(Fate.TCP)
_UDP: Final = int(Fate.UDP)
_PROTOCOL: Final = int(Kinds.PROTOCOL)
_NESTED: Final = int(Header.NESTED)
_TCP_HEADER: Final = int(Header.TCP)


@inlined
def carried(protocol: int) -> int:
    """Return the kind of the header that follows IP, or the fate of a TCP segment."""
    if protocol == Protocol.TCP:
        return _TCP
    if protocol == Protocol.IPV4:
        return Header.IPV4
    return Header.IPV6 if protocol == Protocol.IPV6 else _PROTOCOL + protocol


@inlined
def after_authentication(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read an Authentication Header (RFC 4302, 2) behind one of IPv4."""
    if at + 2 > stop:
        return _CUT, at
    return carried(load_u8(data, at)), at + 4 * load_u8(data, at + 1) + 8


@inlined
def is_extension(protocol: int) -> bool:
    """Return whether a protocol number is an IPv6 extension header with a length field."""
    return protocol in (
        Protocol.HOP_BY_HOP,
        Protocol.ROUTING,
        Protocol.DESTINATION,
        Protocol.AUTHENTICATION,
        Protocol.MOBILITY,
        Protocol.HIP,
        Protocol.SHIM6,
    )


@inlined
def put_payload(units: Grid, row: int, start: int, stop: int, wire: int) -> None:
    """Write the start of a payload, its captured bytes, and its bytes on the wire."""
    units[Unit.START, row] = start
    units[Unit.CAPTURED, row] = max(min(stop, wire) - start, 0)
    units[Unit.LENGTH, row] = wire - start


@inlined
def put_fragment(
    units: Grid, row: int, protocol: int, offset: int, more: int, identification: int
) -> None:
    """Write the columns of a fragment that take the place of ports."""
    units[Unit.PROTOCOL, row] = protocol
    units[Unit.FRAGMENT_OFFSET, row] = offset
    units[Unit.MORE_FRAGMENTS, row] = more
    units[Unit.IDENTIFICATION, row] = identification


@inlined
def read_ipv4(
    data: Bytes, at: int, stop: int, wire: int, units: Grid, row: int
) -> tuple[int, int, int]:
    """Read an IPv4 header (RFC 791); return kind or fate, and where its payload begins and ends.

    Writes the addresses to `units`; of a fragment all columns.
    """
    if at + 20 > stop:
        return _CUT, at, wire
    header = (load_u8(data, at) & 15) * 4
    total = load_u16(data, at + 2)
    if load_u8(data, at) >> 4 != 4 or header < 20 or (total != 0 and total < header):
        return _MALFORMED, at, wire
    if at + header > stop:
        return _CUT, at, wire
    if total != 0:
        wire = at + total
    units[Unit.VERSION, row] = 4
    units[Unit.SRC_HIGH, row] = 0
    units[Unit.SRC_LOW, row] = load_u32(data, at + 12)
    units[Unit.DST_HIGH, row] = 0
    units[Unit.DST_LOW, row] = load_u32(data, at + 16)
    protocol, place = load_u8(data, at + 9), load_u16(data, at + 6)
    if place & 0x3FFF:
        put_fragment(
            units, row, protocol, 8 * (place & 0x1FFF), place & 0x2000, load_u16(data, at + 4)
        )
        put_payload(units, row, at + header, stop, wire)
        return _FRAGMENT, at + header, wire
    return carried(protocol), at + header, wire


@inlined
def jumbo_payload(data: Bytes, at: int, stop: int) -> int:
    """Return the length of a jumbogram from the hop-by-hop options at `at`; 0 if it is none."""
    if at + 8 > stop:
        return 0
    stop = min(stop, at + 8 * load_u8(data, at + 1) + 8)
    at += 2
    while at + 6 <= stop:
        option, size = load_u8(data, at), load_u8(data, at + 1)
        if option == _JUMBO_PAYLOAD and size == 4:
            return load_u32(data, at + 2)
        at += 1 if option == 0 else 2 + size
    return 0


@inlined
def read_ipv6(
    data: Bytes, at: int, stop: int, wire: int, units: Grid, row: int
) -> tuple[int, int, int]:
    """Read an IPv6 header and its extensions (RFC 8200); returns and writes like `read_ipv4`."""
    if at + 40 > stop:
        return _CUT, at, wire
    if load_u8(data, at) >> 4 != 6:
        return _MALFORMED, at, wire
    if load_u16(data, at + 4) != 0:
        wire = at + 40 + load_u16(data, at + 4)
    elif load_u8(data, at + 6) == Protocol.HOP_BY_HOP:
        size = jumbo_payload(data, at + 40, stop)
        wire = at + 40 + size if 0xFFFF < size <= _MOST_ORIGINAL_BYTES else wire
    units[Unit.VERSION, row] = 6
    units[Unit.SRC_HIGH, row] = load_i64(data, at + 8)
    units[Unit.SRC_LOW, row] = load_i64(data, at + 16)
    units[Unit.DST_HIGH, row] = load_i64(data, at + 24)
    units[Unit.DST_LOW, row] = load_i64(data, at + 32)
    protocol = load_u8(data, at + 6)
    at += 40
    while is_extension(protocol) or protocol == Protocol.FRAGMENT:
        if at + 8 > stop:
            return _CUT, at, wire
        following, size = load_u8(data, at), 8
        if protocol == Protocol.FRAGMENT:
            place = load_u16(data, at + 2)
            if place & 0xFFF9:
                identification = load_u32(data, at + 4)
                put_fragment(units, row, following, place & 0xFFF8, place & 1, identification)
                put_payload(units, row, at + 8, stop, wire)
                return _FRAGMENT, at + 8, wire
        elif protocol == Protocol.AUTHENTICATION:
            size = 4 * load_u8(data, at + 1) + 8
        else:
            size = 8 * load_u8(data, at + 1) + 8
        protocol = following
        at += size
    if at > min(stop, wire):
        return (_MALFORMED if at > wire else _CUT), at, wire
    return carried(protocol), at, wire


@inlined
def read_tcp(data: Bytes, at: int, stop: int, wire: int, units: Grid, row: int) -> int:
    """Read a TCP header (RFC 9293, 3.1) into `units`; return the packet's fate."""
    if at + 14 > stop:
        return _CUT
    header = (load_u8(data, at + 12) >> 4) * 4
    if header < 20 or at + header > wire:
        return _MALFORMED
    units[Unit.SRC_PORT, row] = load_u16(data, at)
    units[Unit.DST_PORT, row] = load_u16(data, at + 2)
    units[Unit.SEQUENCE, row] = load_u32(data, at + 4)
    units[Unit.ACKNOWLEDGMENT, row] = load_u32(data, at + 8)
    units[Unit.FLAGS, row] = load_u8(data, at + 13)
    units[Unit.WINDOW, row] = load_u16(data, at + 14) if at + 16 <= stop else -1
    units[Unit.PROTOCOL, row] = Protocol.TCP
    put_payload(units, row, at + header, stop, wire)
    return _TCP


@inlined
def read_udp(data: Bytes, at: int, stop: int, wire: int, units: Grid, row: int) -> int:
    """Read a UDP header (RFC 768) into `units`; return the packet's fate."""
    if at + 8 > stop:
        return _CUT
    size = load_u16(data, at + 4)
    if 0 < size < 8 or at + 8 > wire:
        return _MALFORMED
    units[Unit.SRC_PORT, row] = load_u16(data, at)
    units[Unit.DST_PORT, row] = load_u16(data, at + 2)
    units[Unit.SEQUENCE, row] = 0
    units[Unit.ACKNOWLEDGMENT, row] = 0
    units[Unit.FLAGS, row] = 0
    units[Unit.WINDOW, row] = -1
    units[Unit.PROTOCOL, row] = Protocol.UDP
    put_payload(units, row, at + 8, stop, min(wire, at + size) if size else wire)
    return _UDP


@kernel
def read_headers(
    data: ReadOnly[Bytes],
    starts: Ints,
    captured: Ints,
    originals: Ints,
    kinds: Ints,
    networks: Ints,
    records: Ints,
    endings: Int32s,
    units: Grid,
    fragments: Grid,
    tally: Grid,
    counts: Ints,
) -> int:
    """Read the headers of packets; `kinds` has the kind of each packet's first header.

    `networks` has what is known of their networks already, `records` their numbers. Fills in
    `endings`: the fate shifted by `CODE_BITS`, and in the lower bits, for packets that are neither
    TCP nor UDP, the kind of the header at which reading ended. Fills in TCP segments and
    UDP datagrams as `units`, fragments as `fragments`, and as `counts` the number of both; then the
    packets that were cut off, their missing bytes, and the most that was captured of one. Adds the
    packets and captured bytes of each fate to `tally`. Returns the number of packets.
    """
    count, fragment_count = 0, 0
    cut, cut_bytes, longest = 0, 0, 0
    for packet in range(len(starts)):
        if packet + _AHEAD_PACKETS < len(starts):
            ahead = starts[packet + _AHEAD_PACKETS]
            prefetch_lines(data, ahead, ahead + 2 * LINE)
        at, kind = starts[packet], kinds[packet]
        stop = at + captured[packet]
        wire = stop
        if captured[packet] < originals[packet] <= _MOST_ORIGINAL_BYTES:
            wire = at + originals[packet]
        code, depth, network = 0, 0, networks[packet]
        while kind >= FIRST_KIND:
            code, begin = kind, at
            depth += 1
            if depth > _MOST_HEADERS:
                kind, code = _MALFORMED, _NESTED
            elif kind == Header.IPV4:
                kind, at, wire = read_ipv4(data, at, stop, wire, units, count)
            elif kind == Header.ETHERNET:
                kind, at, wire = after_ethernet(data, at, stop, wire)
            elif kind == Header.IPV6:
                kind, at, wire = read_ipv6(data, at, stop, wire, units, count)
            elif kind == Header.UDP:
                kind, at, wire = in_udp(data, at, stop, wire)
            elif kind == Header.AUTHENTICATION:
                kind, at = after_authentication(data, at, stop)
            else:
                kind, at, wire = next_header(data, kind, at, stop, wire)
            if code != Header.IPV4 and code != Header.ETHERNET and kind >= FIRST_KIND:
                named = network_named(data, code, begin, stop)
                if named != 0:
                    network = (network * NETWORK_FACTOR + named) & _NETWORKS
            stop = min(stop, wire)
        fate = kind
        units[Unit.RECORD, count] = records[packet]
        units[Unit.NETWORK, count] = network
        if fate == _FRAGMENT:
            for field in range(units.shape[0]):
                fragments[field, fragment_count] = units[field, count]
            fragment_count += 1
        elif fate == _TCP:
            code = _TCP_HEADER
            fate = read_tcp(data, at, stop, wire, units, count)
        elif fate == _UDP:
            fate = read_udp(data, at, stop, wire, units, count)
        tally[0, fate] += 1
        tally[1, fate] += captured[packet]
        if captured[packet] < originals[packet]:
            cut += 1
            cut_bytes += originals[packet] - captured[packet]
            longest = max(longest, captured[packet])
        if fate in (_TCP, _UDP):
            count += 1
            code = 0
        endings[packet] = fate << CODE_BITS | code
    counts[0], counts[1] = count, fragment_count
    counts[2], counts[3], counts[4] = cut, cut_bytes, longest
    return len(starts)
