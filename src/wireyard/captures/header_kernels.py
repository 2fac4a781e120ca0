"""From the link layer of every packet down to its transport: one compiled walk over headers.

Rules of this file:

1. Reading one header gives the kind of the next and where it begins, or instead of a kind the
   `Fate` of a packet that ends here. Each header takes bytes, so every walk ends.
2. Nothing is read at or after the packet's `stop`; a length that a header states is compared with
   what is left before it is used.
3. IP says where a packet ends on the wire: Ethernet pads short ones, and what a snapshot cut off
   is missing from there. Zero stands where the sender's network card was yet to cut segments:
   then the length of the record counts.
4. Checksums are not asked: a capture at the sender has them from before the network card.

Axes: f = `Unit`, r = packets.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.captures.layout import Fate, Header, Protocol, Unit
from wireyard.memory import LINE, Bytes, load_i64, load_u8, load_u16, load_u32, prefetch_lines

__all__ = ["read_headers"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_INTS: Final = array("int64")
_GRID: Final = array("int64", 2)
_AHEAD_PACKETS: Final = 4
"""How many packets before it is read the headers of one are asked for."""
_FIRST_KIND: Final = 0x0600
"""The least EtherType; what is below is the `Fate` of a packet."""
_MOST_ORIGINAL_BYTES: Final = 1 << 24
"""Largest original length believed of a packet whose IP header states none."""

# Numba joins the members of one IntEnum with integers, but not with those of another.
_CUT: Final = int(Fate.CUT)
_FRAGMENT: Final = int(Fate.FRAGMENT)
_MALFORMED: Final = int(Fate.MALFORMED)
_OTHER_NETWORK: Final = int(Fate.OTHER_NETWORK)
_OTHER_PROTOCOL: Final = int(Fate.OTHER_PROTOCOL)
_TCP: Final = int(Fate.TCP)
_UDP: Final = int(Fate.UDP)


# --- below IP -------------------------------------------------------------------------------


@piece
def next_header(data: Bytes, kind: int, at: int, stop: int) -> tuple[int, int]:
    """Read one header below IP; return the kind of the next, or a fate, and where it begins."""
    left = stop - at
    if kind in (Header.ETHERNET, Header.TRANSPARENT_ETHERNET):
        if left < 14:
            return _CUT, at
        return ether_type(data, at + 12, stop)
    if kind in (Header.VLAN, Header.PROVIDER_VLAN, Header.QINQ_9100, Header.QINQ_9200):
        if left < 4:
            return _CUT, at
        return ether_type(data, at + 2, stop)
    if kind in (Header.MPLS, Header.MPLS_UPSTREAM):
        return after_label(data, kind, at, stop)
    if kind == Header.PPPOE_SESSION:
        if left < 6:
            return _CUT, at
        return (Header.PPP if load_u8(data, at + 1) == 0 else _OTHER_NETWORK), at + 6
    if kind in (Header.PPP, Header.PPP_IN_GRE):
        return point_to_point(data, at, stop)
    if kind == Header.PPP_DIRECTION:
        # It may stand in place of the address, and so before the control byte alone.
        control = left >= 2 and load_u8(data, at + 1) == 3
        return Header.PPP, at + (2 if control else 1)
    if kind == Header.LOOPBACK:
        return (loopback_family(load_u32(data, at)) if left >= 4 else _CUT), at + 4
    if kind == Header.COOKED:
        if left < 16:
            return _CUT, at
        return ether_type(data, at + 14, stop)
    if kind == Header.COOKED_2:
        if left < 20:
            return _CUT, at
        protocol = load_u16(data, at)
        return (protocol if protocol >= _FIRST_KIND else _OTHER_NETWORK), at + 20
    if kind == Header.RAW:
        return (by_version(load_u8(data, at)) if left >= 1 else _CUT), at
    if kind == Header.GRE:
        return after_tunnel_header(data, at, stop)
    if kind == Header.NFLOG:
        return logged_packet(data, at, stop)
    return _OTHER_NETWORK, at


@piece
def ether_type(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read an EtherType, or the length that stands in its place before an LLC header."""
    kind = load_u16(data, at)
    if kind >= _FIRST_KIND:
        return kind, at + 2
    # SNAP (IEEE 802) has the EtherType behind two addresses AA, a control byte and 00-00-00.
    if at + 10 > stop:
        return _OTHER_NETWORK, at
    if load_u32(data, at + 2) != 0xAAAA0300 or load_u16(data, at + 6) != 0:
        return _OTHER_NETWORK, at
    kind = load_u16(data, at + 8)
    return (kind if kind >= _FIRST_KIND else _OTHER_NETWORK), at + 10


@piece
def by_version(first: int) -> int:
    """Tell the kind of an IP packet from its first byte."""
    if first >> 4 == 4:
        return Header.IPV4
    return Header.IPV6 if first >> 4 == 6 else _OTHER_NETWORK


@piece
def after_label(data: Bytes, kind: int, at: int, stop: int) -> tuple[int, int]:
    """Read one MPLS label; what is below the last one, no field says (RFC 4928)."""
    if at + 5 > stop:
        return _CUT, at
    if load_u32(data, at) & 0x100 == 0:
        return kind, at + 4
    first = load_u8(data, at + 4)
    if first >> 4 == 0:  # the control word of a pseudowire
        return Header.ETHERNET, at + 8
    return by_version(first), at + 4


@piece
def point_to_point(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a PPP header; address, control and half of the protocol may be left out (RFC 1661)."""
    if at + 4 <= stop and load_u16(data, at) == 0xFF03:
        at += 2
    if at + 2 > stop:
        return _CUT, at
    protocol = load_u8(data, at)
    if protocol & 1 == 0:
        protocol = load_u16(data, at)
        at += 1
    at += 1
    if protocol == 0x0021:
        return Header.IPV4, at
    if protocol == 0x0057:
        return Header.IPV6, at
    return (Header.MPLS if protocol == 0x0281 else _OTHER_NETWORK), at


@piece
def loopback_family(family: int) -> int:
    """Tell the kind from an address family, which the capturing machine wrote in its own order."""
    if family >= 0x10000:
        family = family >> 24 | (family >> 8) & 0xFF00
    if family == 2:
        return Header.IPV4
    # AF_INET6 of Linux, Windows, NetBSD and OpenBSD, FreeBSD, Darwin
    if family in (10, 23, 24, 28, 30):
        return Header.IPV6
    return _OTHER_NETWORK


@piece
def after_tunnel_header(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a GRE header (RFC 2784, 2890), or that of PPTP (RFC 2637)."""
    if at + 4 > stop:
        return _CUT, at
    flags = load_u16(data, at)
    kind = load_u16(data, at + 2)
    if flags & 0x4000 or flags & 7 > 1:  # source routes, which RFC 2784 removed
        return _OTHER_PROTOCOL, at
    size = 4 + 4 * ((flags >> 15) + (flags >> 13 & 1) + (flags >> 12 & 1))
    if flags & 7 == 1:
        size += 4 * (flags >> 7 & 1)
        if flags & 0x1000 == 0:  # nothing but an acknowledgment
            return _OTHER_PROTOCOL, at
    return (kind if kind >= _FIRST_KIND else _OTHER_PROTOCOL), at + size


@piece
def logged_packet(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Find the packet among the values of an NFLOG record; their lengths are in either order."""
    if at + 4 > stop:
        return _CUT, at
    for little in range(2):
        value = at + 4
        while value + 4 <= stop:
            size, kind = load_u16(data, value), load_u16(data, value + 2)
            if little == 0:
                size = size >> 8 | (size & 0xFF) << 8
                kind = kind >> 8 | (kind & 0xFF) << 8
            if size < 4:
                break
            if kind == 9:  # NFULA_PAYLOAD
                return Header.RAW, value + 4
            value += size + (-size & 3)
    return _OTHER_NETWORK, at


# --- IP and above ---------------------------------------------------------------------------


@piece
def carried(protocol: int) -> int:
    """Return what an IP header is followed by: a fate, or the kind of one more header."""
    if protocol == Protocol.TCP:
        return _TCP
    if protocol == Protocol.UDP:
        return _UDP
    if protocol == Protocol.IPV4:
        return Header.IPV4
    if protocol == Protocol.IPV6:
        return Header.IPV6
    return Header.GRE if protocol == Protocol.GRE else _OTHER_PROTOCOL


@piece
def is_extension(protocol: int) -> bool:
    """Tell whether an IPv6 extension header that says its own length follows."""
    return protocol in (
        Protocol.HOP_BY_HOP,
        Protocol.ROUTING,
        Protocol.DESTINATION,
        Protocol.AUTHENTICATION,
        Protocol.MOBILITY,
        Protocol.HIP,
        Protocol.SHIM6,
    )


@piece
def put_payload(units: Grid, row: int, start: int, stop: int, wire: int) -> None:
    """Write where a payload is, and how much of it the snapshot left."""
    units[Unit.START, row] = start
    units[Unit.CAPTURED, row] = max(min(stop, wire) - start, 0)
    units[Unit.LENGTH, row] = wire - start


@piece
def put_fragment(
    units: Grid, row: int, protocol: int, offset: int, more: int, identification: int
) -> None:
    """Write what a fragment has in place of ports."""
    units[Unit.PROTOCOL, row] = protocol
    units[Unit.FRAGMENT_OFFSET, row] = offset
    units[Unit.MORE_FRAGMENTS, row] = more
    units[Unit.IDENTIFICATION, row] = identification


@piece
def read_ipv4(
    data: Bytes, at: int, stop: int, wire: int, units: Grid, row: int
) -> tuple[int, int, int]:
    """Read an IPv4 header (RFC 791); return kind or fate, where its payload begins and ends.

    The addresses go to `units`, and all of a fragment.
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


@piece
def read_ipv6(
    data: Bytes, at: int, stop: int, wire: int, units: Grid, row: int
) -> tuple[int, int, int]:
    """Read an IPv6 header and its extensions (RFC 8200); otherwise as `read_ipv4`."""
    if at + 40 > stop:
        return _CUT, at, wire
    if load_u8(data, at) >> 4 != 6:
        return _MALFORMED, at, wire
    if load_u16(data, at + 4) != 0:
        wire = at + 40 + load_u16(data, at + 4)
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


@piece
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


@piece
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


@kernel(I64(READ, _INTS, _INTS, _INTS, _INTS, _INTS, TEXT, _GRID, _GRID, _GRID, _INTS))
def read_headers(
    data: Bytes,
    starts: Ints,
    captured: Ints,
    originals: Ints,
    kinds: Ints,
    records: Ints,
    fates: Bytes,
    units: Grid,
    fragments: Grid,
    tally: Grid,
    counts: Ints,
) -> int:
    """Read the headers of some packets, each from a header of its kind on.

    `records` are their numbers. Gives all their `fates`; TCP segments and UDP datagrams in `units`,
    fragments in `fragments`, and in `counts` how many there are of both, and how many bytes were
    not captured. Adds to `tally` how many packets have each fate, and their captured bytes. Returns
    the number of packets.
    """
    count, fragment_count, cut_bytes = 0, 0, 0
    for packet in range(len(starts)):
        if packet + _AHEAD_PACKETS < len(starts):
            ahead = starts[packet + _AHEAD_PACKETS]
            prefetch_lines(data, ahead, ahead + 2 * LINE)
        at, kind = starts[packet], kinds[packet]
        stop = at + captured[packet]
        wire = stop
        if captured[packet] < originals[packet] <= _MOST_ORIGINAL_BYTES:
            wire = at + originals[packet]
        while kind >= _FIRST_KIND:
            if kind == Header.IPV4:
                kind, at, wire = read_ipv4(data, at, stop, wire, units, count)
                stop = min(stop, wire)
            elif kind == Header.IPV6:
                kind, at, wire = read_ipv6(data, at, stop, wire, units, count)
                stop = min(stop, wire)
            else:
                kind, at = next_header(data, kind, at, stop)
        fate = kind
        units[Unit.RECORD, count] = records[packet]
        if fate == _FRAGMENT:
            for field in range(units.shape[0]):
                fragments[field, fragment_count] = units[field, count]
            fragment_count += 1
        elif fate == _TCP:
            fate = read_tcp(data, at, stop, wire, units, count)
        elif fate == _UDP:
            fate = read_udp(data, at, stop, wire, units, count)
        fates[packet] = fate
        tally[0, fate] += 1
        tally[1, fate] += captured[packet]
        cut_bytes += max(originals[packet] - captured[packet], 0)
        if fate in (_TCP, _UDP):
            count += 1
    counts[0], counts[1], counts[2] = count, fragment_count, cut_bytes
    return len(starts)
