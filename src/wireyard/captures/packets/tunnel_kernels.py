"""Headers of tunnels over IP and UDP, of mirrored packets, and of service function chains.

A tunnel over UDP is recognized by its port. So its header has to follow its specification without
exception; all other packets to that port are ordinary datagrams.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes
from wireyard.captures.layout import Fate, Header
from wireyard.memory import load_u8, load_u16, load_u32

_CUT: Final = int(Fate.CUT)
_MALFORMED: Final = int(Fate.MALFORMED)
_OTHER_NETWORK: Final = int(Fate.OTHER_NETWORK)
_OTHER_PROTOCOL: Final = int(Fate.OTHER_PROTOCOL)
_UDP: Final = int(Fate.UDP)
_FIRST_KIND: Final = 0x0600

# Bits of a GRE header (RFC 2784, 2890, 2637).
_ROUTING: Final = 0x4000
_KEY: Final = 0x2000
_SEQUENCE: Final = 0x1000

# UDP ports of tunnels, as IANA assigned them.
_L2TP: Final = 1701
_GTP_U: Final = 2152
_VXLAN: Final = 4789
_VXLAN_OF_LINUX: Final = 8472
"""What Linux has used since before IANA gave a port, and networks of containers still do."""
_VXLAN_GPE: Final = 4790
_GENEVE: Final = 6081


@inlined
def by_version(first: int) -> int:
    """Return the kind of an IP packet from its first byte."""
    if first >> 4 == 4:
        return Header.IPV4
    return Header.IPV6 if first >> 4 == 6 else _OTHER_NETWORK


@inlined
def network_named(data: Bytes, kind: int, at: int, stop: int) -> int:
    """Return the number by which a header that was read names a network; 0 if it names none."""
    if kind in (Header.VLAN, Header.PROVIDER_VLAN, Header.QINQ_9100, Header.QINQ_9200):
        return load_u16(data, at) & 0xFFF  # 0 is a priority only (IEEE 802.1Q, 9.6)
    if kind == Header.PROVIDER_BACKBONE:
        return load_u32(data, at) & 0xFFFFFF if at + 4 <= stop else 0
    if kind in (Header.ERSPAN, Header.ERSPAN_3):
        return load_u16(data, at) & 0xFFF
    if kind == Header.GRE:
        flags = load_u16(data, at)
        key = at + 4 + 4 * (flags >> 15)
        # The key of PPTP has a length, and a call id of one direction (RFC 2637, 4.1).
        is_keyed = flags & _KEY and flags & 7 == 0 and key + 4 <= stop
        return load_u32(data, key) if is_keyed else 0
    # These tunnels over UDP have 24 bits for a network in the same place.
    virtual = (_VXLAN, _VXLAN_OF_LINUX, _VXLAN_GPE, _GENEVE)
    if kind == Header.UDP and load_u16(data, at + 2) in virtual:
        return load_u32(data, at + 12) >> 8
    return 0


# --- over IP --------------------------------------------------------------------------------


@inlined
def after_gre(data: Bytes, at: int, stop: int, wire: int) -> tuple[int, int, int]:
    """Read a GRE header (RFC 2784, 2890), or that of PPTP, which states a length (RFC 2637)."""
    if at + 4 > stop:
        return _CUT, at, wire
    flags = load_u16(data, at)
    kind = load_u16(data, at + 2)
    if flags & _ROUTING or flags & 7 > 1 or kind < _FIRST_KIND:  # RFC 2784 removed source routes
        return _OTHER_PROTOCOL, at, wire
    size = 4 + 4 * ((flags >> 15) + (flags >> 13 & 1) + (flags >> 12 & 1))
    if flags & 7 == 1:
        size += 4 * (flags >> 7 & 1)
        if flags & _SEQUENCE == 0:  # nothing but an acknowledgment
            return _OTHER_PROTOCOL, at, wire
        if at + 6 > stop:
            return _CUT, at, wire
        if flags & _KEY:
            wire = min(wire, at + size + load_u16(data, at + 4))
    if kind == Header.ERSPAN and flags & _SEQUENCE == 0:  # type I has no header of its own
        return Header.ETHERNET, at + size, wire
    if Header.ARUBA_FIRST <= kind <= Header.ARUBA_LAST and kind & 15 == 0:
        return Header.WLAN, at + size, wire
    return kind, at + size, wire


@inlined
def after_erspan(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read an ERSPAN header of type II or III (draft-foschiano-erspan)."""
    if at + 12 > stop:
        return _CUT, at
    version = load_u8(data, at) >> 4
    if version == 1:
        return Header.ETHERNET, at + 8
    last = load_u16(data, at + 10)
    frame_type = last >> 10 & 31
    if version != 2 or frame_type not in (0, 2):
        return _OTHER_NETWORK, at
    behind = at + (20 if last & 1 else 12)  # with a subheader of the platform
    return (Header.RAW if frame_type == 2 else Header.ETHERNET), behind


@inlined
def after_pim(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a PIM Register message, which holds an IP packet (RFC 7761, 4.9.3)."""
    if at + 9 > stop:
        return _CUT, at
    # Version 2, type 1; with the N bit (Null-Register) there is only a header.
    if load_u8(data, at) != 0x21 or load_u8(data, at + 4) & 0x40:
        return _OTHER_PROTOCOL, at
    return by_version(load_u8(data, at + 8)), at + 8


@inlined
def by_next_protocol(number: int) -> int:
    """Return the kind for a Next Protocol of NSH (RFC 8300, 2.2) or VXLAN-GPE."""
    if number == 1:
        return Header.IPV4
    if number == 2:
        return Header.IPV6
    if number == 3:
        return Header.ETHERNET
    if number == 4:
        return Header.NSH
    return Header.MPLS if number == 5 else _OTHER_NETWORK


@inlined
def after_service_chain(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a Network Service Header (RFC 8300, 2)."""
    if at + 8 > stop:
        return _CUT, at
    size = 4 * (load_u8(data, at + 1) & 63)
    if load_u8(data, at) >> 6 or size < 8:
        return _MALFORMED, at
    return by_next_protocol(load_u8(data, at + 3)), at + size


# --- over UDP -------------------------------------------------------------------------------


@inlined
def in_udp(data: Bytes, at: int, stop: int, wire: int) -> tuple[int, int, int]:
    """Read the headers of UDP and of a tunnel in it; return the fate UDP if there is no tunnel."""
    if at + 16 > stop:
        return _UDP, at, wire
    source, target = load_u16(data, at), load_u16(data, at + 2)
    tunnels = (_VXLAN, _VXLAN_OF_LINUX, _VXLAN_GPE, _GENEVE, _GTP_U, _L2TP)
    if target not in tunnels and source != _L2TP:
        return _UDP, at, wire
    size = load_u16(data, at + 4)
    if size < 16:
        return _UDP, at, wire
    inner, end = at + 8, min(wire, at + size)
    bound = min(stop, end)
    kind = 0
    if target in (_VXLAN, _VXLAN_OF_LINUX):
        # RFC 7348, 5; with a group policy the first bit is set (draft-smith-vxlan-group-policy).
        if load_u8(data, inner) & 0x7F == 0x08 and load_u8(data, inner + 7) == 0:
            kind, inner = Header.ETHERNET, inner + 8
    elif target == _VXLAN_GPE:
        # draft-ietf-nvo3-vxlan-gpe, 3: version 0, a network and a protocol
        if load_u8(data, inner) & 0xFC == 0x0C and load_u16(data, inner + 1) == 0:
            kind, inner = by_next_protocol(load_u8(data, inner + 3)), inner + 8
    elif target == _GENEVE:
        kind, inner = after_geneve(data, inner)
    elif target == _GTP_U:
        kind, inner, end = after_gtp(data, inner, bound, end)
    else:
        kind, inner, end = after_l2tp(data, inner, bound, end)
    if kind < _FIRST_KIND:
        return _UDP, at, wire
    return kind, inner, end


@inlined
def after_geneve(data: Bytes, at: int) -> tuple[int, int]:
    """Read a GENEVE header (RFC 8926, 3.4); its first 8 bytes are there."""
    first, second = load_u8(data, at), load_u8(data, at + 1)
    if first >> 6 or second & 0x3F or load_u8(data, at + 7):
        return 0, at
    return load_u16(data, at + 2), at + 8 + 4 * (first & 63)


@inlined
def after_gtp(data: Bytes, at: int, stop: int, wire: int) -> tuple[int, int, int]:
    """Read the header of a GTP-U packet that carries a user's packet (3GPP TS 29.281, 5.1)."""
    flags, size = load_u8(data, at), load_u16(data, at + 2)
    if flags & 0xF8 != 0x30 or load_u8(data, at + 1) != 0xFF or at + 8 + size > wire:
        return 0, at, wire
    wire = at + 8 + size
    stop = min(stop, wire)
    at += 8
    if flags & 7:
        following = load_u8(data, at + 3) if at + 4 <= stop and flags & 4 else 0
        at += 4
        while following and at < stop:
            step = 4 * load_u8(data, at)
            if step == 0 or at + step > stop:
                return 0, at, wire
            following = load_u8(data, at + step - 1)
            at += step
    return (by_version(load_u8(data, at)) if at < stop else 0), at, wire


@inlined
def after_l2tp(data: Bytes, at: int, stop: int, wire: int) -> tuple[int, int, int]:
    """Read the header of an L2TP data message (RFC 2661, 3.1)."""
    flags = load_u16(data, at)
    if flags & 0xB4FF != 0x0002:  # data, no reserved bit, version 2
        return 0, at, wire
    size = 6
    if flags & 0x4000:
        length = load_u16(data, at + 2)
        if at + length > wire:
            return 0, at, wire
        wire = at + length
        size += 2
    if flags & 0x0800:
        size += 4
    if flags & 0x0200:
        if at + size + 2 > stop:
            return 0, at, wire
        size += 2 + load_u16(data, at + size)
    return (Header.PPP if at + size < wire else 0), at + size, wire
