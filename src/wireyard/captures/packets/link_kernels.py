"""Headers below IP: each reader returns the kind of the next header, or the fate of the packet.

A length in a header bounds the rest of the packet: padding by a network card or an access
concentrator is behind that bound.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes
from wireyard.captures.layout import FIRST_HEADERS, Fate, Header, Kinds
from wireyard.captures.packets.tunnel_kernels import (
    after_erspan,
    after_gre,
    after_pim,
    after_service_chain,
    by_version,
)
from wireyard.captures.packets.wlan_kernels import (
    after_monitor,
    after_ppi,
    after_radiotap,
    after_wlan,
)
from wireyard.memory import load_u8, load_u16, load_u32

FIRST_KIND: Final = 0x0600
"""The least EtherType; smaller numbers are a `Fate`."""
FIRST_LINK: Final = min(FIRST_HEADERS)
HEADERS: Final = np.arange(FIRST_LINK, 1 << 16) + int(Kinds.LINK)
"""The kind of the first header by link type, from `FIRST_LINK` on; the last entry is for all link
types of more than 16 bits."""
HEADERS[[link - FIRST_LINK for link in FIRST_HEADERS]] = list(FIRST_HEADERS.values())
_KNOWN: Final = HEADERS[: max(FIRST_HEADERS) - FIRST_LINK + 1].copy()
_JUNIPER_MAGIC: Final = 0x4D4743
_MOST_LENGTH: Final = 1500
"""Largest value of an EtherType field that is a length (IEEE 802.3, 3.2.6)."""

# Numba unifies the members of one IntEnum with integers, but not with those of another.
_CUT: Final = int(Fate.CUT)
_OTHER_NETWORK: Final = int(Fate.OTHER_NETWORK)
_OTHER_PROTOCOL: Final = int(Fate.OTHER_PROTOCOL)
_UNKNOWN_LINK: Final = int(Fate.UNKNOWN_LINK)
_PROTOCOL: Final = int(Kinds.PROTOCOL)
_PPP_PROTOCOL: Final = int(Kinds.PPP_PROTOCOL)
_LLC_SAP: Final = int(Kinds.LLC_SAP)
_LINK: Final = int(Kinds.LINK)


@inlined
def kind_of_link(link: int) -> int:
    """Return the kind of the first header for a link type, or the fate of its packets."""
    if link < FIRST_LINK + len(_KNOWN):
        return int(_KNOWN[link - FIRST_LINK])
    return _LINK + min(link, 0xFFFF)


@inlined
def next_header(data: Bytes, kind: int, at: int, stop: int, wire: int) -> tuple[int, int, int]:
    """Read one header below IP.

    Returns the kind of the next header or a fate, its offset, and the packet's end on the wire.
    """
    left = stop - at
    if kind in (Header.ETHERNET, Header.TRANSPARENT_ETHERNET):
        return after_ethernet(data, at, stop, wire)
    if kind in (Header.VLAN, Header.PROVIDER_VLAN, Header.QINQ_9100, Header.QINQ_9200):
        return (_CUT, at, wire) if left < 4 else ether_type(data, at + 2, wire)
    if kind == Header.VN_TAG:
        return (_CUT, at, wire) if left < 6 else ether_type(data, at + 4, wire)
    if kind == Header.LLC:
        kind, at = after_llc(data, at, stop)
        return kind, at, wire
    if kind == Header.PPPOE_SESSION:
        if left < 6:
            return _CUT, at, wire
        kind = Header.PPP if load_u8(data, at + 1) == 0 else _OTHER_NETWORK
        return kind, at + 6, min(wire, at + 6 + load_u16(data, at + 4))  # RFC 2516, 4
    if kind == Header.GRE:
        return after_gre(data, at, stop, wire)
    if kind == Header.NFLOG:
        return logged_packet(data, at, stop, wire)
    if Header.ETHERNET <= kind < _PROTOCOL:
        kind, at = after_link(data, kind, at, stop)
        return kind, at, wire
    kind, at = inside_tunnel(data, kind, at, stop)
    return kind, at, wire


@inlined
def after_link(data: Bytes, kind: int, at: int, stop: int) -> tuple[int, int]:
    """Read a header of the link layer, which has neither an EtherType nor an IP protocol number."""
    left = stop - at
    if kind == Header.PPP:
        return point_to_point(data, at, stop)
    if kind == Header.PPP_DIRECTION:
        # It may replace the address byte, so that only the control byte follows.
        control = left >= 2 and load_u8(data, at + 1) == 3
        return Header.PPP, at + (2 if control else 1)
    if kind in (Header.CISCO_HDLC, Header.HDLC):
        if left < 4:
            return _CUT, at
        cisco = load_u16(data, at) in (0x0F00, 0x8F00)  # a station, or all
        if not cisco:
            return (Header.PPP if kind == Header.HDLC else _OTHER_NETWORK), at
        return typed(load_u16(data, at + 2)), at + 4
    if kind == Header.LOOPBACK:
        return (loopback_family(load_u32(data, at)) if left >= 4 else _CUT), at + 4
    if kind == Header.COOKED:
        return cooked(load_u16(data, at + 14) if left >= 16 else 0, left >= 16), at + 16
    if kind == Header.COOKED_2:
        return cooked(load_u16(data, at) if left >= 20 else 0, left >= 20), at + 20
    if kind in (Header.JUNIPER_ETHERNET, Header.JUNIPER_PPP, Header.JUNIPER_HDLC):
        return after_juniper(data, kind, at, stop)
    if kind == Header.IPOIB:  # a global route header, then RFC 4391, 6
        return (typed(load_u16(data, at + 40)) if left >= 44 else _CUT), at + 44
    if kind == Header.RAW:
        return (by_version(load_u8(data, at)) if left >= 1 else _CUT), at
    if kind in (Header.WLAN, Header.WLAN_PADDED):
        return after_wlan(data, kind == Header.WLAN_PADDED, at, stop)
    if kind == Header.RADIOTAP:
        return after_radiotap(data, at, stop)
    if kind == Header.WLAN_MONITOR:
        return after_monitor(data, at, stop)
    if kind == Header.PPI:
        link, at = after_ppi(data, at, stop)
        return (-link if link < 0 else kind_of_link(link)), at
    return _OTHER_NETWORK, at


@inlined
def after_juniper(data: Bytes, kind: int, at: int, stop: int) -> tuple[int, int]:
    """Read the header of Juniper's routers: a magic number, flags, and extensions."""
    if at + 4 > stop:
        return _CUT, at
    if load_u32(data, at) >> 8 != _JUNIPER_MAGIC:
        return _OTHER_NETWORK, at
    flags = load_u8(data, at + 3)
    at += 4
    if flags & 0x80:
        if at + 2 > stop:
            return _CUT, at
        at += 2 + load_u16(data, at)
    if flags & 2:  # a protocol of 4 bytes in place of the link's header
        return (by_version(load_u8(data, at + 4)) if at + 5 <= stop else _CUT), at + 4
    if kind == Header.JUNIPER_PPP:
        return Header.PPP, at
    return (Header.CISCO_HDLC if kind == Header.JUNIPER_HDLC else Header.ETHERNET), at


@inlined
def inside_tunnel(data: Bytes, kind: int, at: int, stop: int) -> tuple[int, int]:
    """Read a header with an EtherType or an IP protocol number of its own."""
    left = stop - at
    if kind in (Header.MPLS, Header.MPLS_UPSTREAM, Header.MPLS_IN_IP):
        return after_label(data, kind, at, stop)
    if kind == Header.PPP_IN_GRE:
        return point_to_point(data, at, stop)
    if kind == Header.PROVIDER_BACKBONE:  # four bytes of its tag (IEEE 802.1Q, 9.7)
        return Header.ETHERNET, at + 4
    if kind == Header.FABRICPATH:  # a tree and a time to live
        return Header.ETHERNET, at + 2
    if kind == Header.NSH:
        return after_service_chain(data, at, stop)
    if kind in (Header.ERSPAN, Header.ERSPAN_3):
        return after_erspan(data, at, stop)
    if kind == Header.WCCP:  # version 2 has a redirect header, version 1 none
        if left < 1:
            return _CUT, at
        # That of version 2 may begin with 0x40, which begins no IPv4 header.
        return Header.IPV4, at + (0 if 0x45 <= load_u8(data, at) <= 0x4F else 4)
    if kind == Header.ETHERIP:  # version 3 (RFC 3378)
        if left < 2:
            return _CUT, at
        return (Header.ETHERNET if load_u16(data, at) == 0x3000 else _OTHER_PROTOCOL), at + 2
    if kind == Header.PIM:
        return after_pim(data, at, stop)
    if kind >= _LINK:
        return _UNKNOWN_LINK, at
    return (_OTHER_PROTOCOL if _PROTOCOL <= kind < _PPP_PROTOCOL else _OTHER_NETWORK), at


@inlined
def after_ethernet(data: Bytes, at: int, stop: int, wire: int) -> tuple[int, int, int]:
    """Read an Ethernet header."""
    if at + 14 > stop:
        return _CUT, at, wire
    return ether_type(data, at + 12, wire)


@inlined
def typed(kind: int) -> int:
    """Return an EtherType as a kind; `Header.NO_TYPE` for smaller numbers."""
    return kind if kind >= FIRST_KIND else Header.NO_TYPE


@inlined
def ether_type(data: Bytes, at: int, wire: int) -> tuple[int, int, int]:
    """Read an EtherType, or the length in its place that LLC follows (IEEE 802.3, 3.2.6)."""
    kind = load_u16(data, at)
    if kind >= FIRST_KIND or kind == 0 or kind > _MOST_LENGTH:
        return typed(kind), at + 2, wire
    return Header.LLC, at + 2, min(wire, at + 2 + kind)


@inlined
def after_llc(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read an LLC header, and an EtherType after SNAP (IEEE 802, 9.2)."""
    if at + 3 > stop:
        return _CUT, at
    target = load_u8(data, at)
    if target != 0xAA or load_u16(data, at + 1) != 0xAA03:
        return _LLC_SAP + target, at
    if at + 8 > stop:
        return _CUT, at
    # Organizations whose SNAP types are EtherTypes: Ethernet, and bridges (IEEE 802.1H).
    organization = load_u8(data, at + 3) << 16 | load_u16(data, at + 4)
    return (typed(load_u16(data, at + 6)) if organization in (0, 0xF8) else Header.SNAP), at + 8


@inlined
def cooked(protocol: int, is_whole: bool) -> int:
    """Return the kind for the protocol field of a Linux cooked header; 4 is 802.2."""
    if not is_whole:
        return _CUT
    return Header.LLC if protocol == 4 else typed(protocol)


@inlined
def after_label(data: Bytes, kind: int, at: int, stop: int) -> tuple[int, int]:
    """Read one MPLS label; what is below the last one, no field says (RFC 4928).

    A pseudowire may have a control word before its frame, which begins with four zero bits, as
    addresses of many network cards do (RFC 4448, 4.6).
    """
    if at + 5 > stop:
        return _CUT, at
    if load_u32(data, at) & 0x100 == 0:
        return kind, at + 4
    at += 4
    version = load_u8(data, at) >> 4
    is_plain = is_frame(data, at, stop)
    if version == 0 and (not is_plain or is_frame(data, at + 4, stop)):
        return Header.ETHERNET, at + 4
    if is_plain and version not in (4, 6):
        return Header.ETHERNET, at
    return by_version(load_u8(data, at)), at


@inlined
def is_frame(data: Bytes, at: int, stop: int) -> bool:
    """Return whether bytes have an EtherType of IP, or of what carries it, in its place."""
    return at + 14 <= stop and load_u16(data, at + 12) in (
        Header.IPV4,
        Header.IPV6,
        Header.VLAN,
        Header.PROVIDER_VLAN,
        Header.MPLS,
        Header.PPPOE_SESSION,
    )


@inlined
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
    return (Header.MPLS if protocol == 0x0281 else _PPP_PROTOCOL + protocol), at


@inlined
def loopback_family(family: int) -> int:
    """Return the kind for an address family, which is in the byte order of the capturing host."""
    if family >= 0x10000:
        family = family >> 24 | (family >> 8) & 0xFF00
    if family == 2:
        return Header.IPV4
    # AF_INET6 of Linux, Windows, NetBSD and OpenBSD, FreeBSD, Darwin
    if family in (10, 23, 24, 28, 30):
        return Header.IPV6
    return _OTHER_NETWORK


@inlined
def logged_packet(data: Bytes, at: int, stop: int, wire: int) -> tuple[int, int, int]:
    """Find the packet among the values of an NFLOG record; their lengths are in any byte order."""
    if at + 4 > stop:
        return _CUT, at, wire
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
                return Header.RAW, value + 4, min(wire, value + size)
            value += size + (-size & 3)
    return _OTHER_NETWORK, at, wire
