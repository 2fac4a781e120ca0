"""Numbers of capture files and network headers, by the names of their registries; no logic.

Link types: https://www.tcpdump.org/linktypes.html. The rest: IANA and the RFC beside it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "MAX_RECORD_BYTES",
    "USUAL_RECORD_BYTES",
    "Fate",
    "Flag",
    "Header",
    "Link",
    "Protocol",
    "Record",
    "Unit",
]


class Record(IntEnum):
    """Rows of the grid that record kernels fill, one column a packet."""

    START = 0
    """Offset of the first captured byte."""
    CAPTURED = 1
    ORIGINAL = 2
    """Bytes the packet had before it was cut to the snapshot length; as written, not believed."""
    TICKS = 3
    """Time: of pcap in ns, of pcapng in units of the interface, as 64 bits without a sign."""
    INTERFACE = 4
    """Number of the interface over all sections, or a negative `Link`."""
    BLOCK = 5
    """Type of the block in pcapng."""


class Link(IntEnum):
    """Link types that are read, and what stands in their place where there is none."""

    NO_PACKET = -3
    BAD_RECORD = -2
    NO_INTERFACE = -1
    NULL = 0
    ETHERNET = 1
    PPP = 9
    # What BSDs call 12 and 14 in memory was written to files as well.
    RAW_12 = 12
    RAW_14 = 14
    PPP_HDLC = 50
    PPP_ETHER = 51
    RAW = 101
    LOOP = 108
    LINUX_SLL = 113
    PPP_PPPD = 166
    PPP_WITH_DIR = 204
    IPV4 = 228
    IPV6 = 229
    NFLOG = 239
    LINUX_SLL2 = 276


class Fate(IntEnum):
    """What became of a frame; each has one.

    They share their numbers with EtherTypes, which begin at 0x0600, so that reading one header
    gives the next in one number.
    """

    TCP = 0
    UDP = 1
    FRAGMENT = 2
    """Part of a datagram of which the rest is not there."""
    OTHER_PROTOCOL = 3
    """IP, but neither TCP nor UDP."""
    OTHER_NETWORK = 4
    """Not IP: ARP, for example."""
    UNKNOWN_LINK = 5
    CUT = 6
    """Cut off in the middle of a header."""
    MALFORMED = 7
    NO_INTERFACE = 8
    """A packet of an interface its file does not describe."""
    NO_PACKET = 9
    """Something else that a pcapng file numbers among its packets."""


class Header(IntEnum):
    """What the next bytes of a packet are: an EtherType, or one of ours above them."""

    IPV4 = 0x0800
    TRANSPARENT_ETHERNET = 0x6558
    VLAN = 0x8100
    IPV6 = 0x86DD
    PPP_IN_GRE = 0x880B
    MPLS = 0x8847
    MPLS_UPSTREAM = 0x8848
    PPPOE_SESSION = 0x8864
    PROVIDER_VLAN = 0x88A8
    QINQ_9100 = 0x9100
    QINQ_9200 = 0x9200
    ETHERNET = 0x10000
    PPP = 0x10001
    PPP_DIRECTION = 0x10002
    RAW = 0x10003
    LOOPBACK = 0x10004
    COOKED = 0x10005
    COOKED_2 = 0x10006
    NFLOG = 0x10007
    GRE = 0x10008


class Unit(IntEnum):
    """Rows of the grids that header kernels fill, one column a TCP segment, datagram or fragment.

    An address is two signed integers; one of IPv4 is the lower. Lengths are those of the payload.
    """

    RECORD = 0
    VERSION = 1
    PROTOCOL = 2
    SRC_HIGH = 3
    SRC_LOW = 4
    DST_HIGH = 5
    DST_LOW = 6
    START = 7
    CAPTURED = 8
    LENGTH = 9
    """Bytes of the payload on the wire."""
    SRC_PORT = 10
    DST_PORT = 11
    SEQUENCE = 12
    ACKNOWLEDGMENT = 13
    FLAGS = 14
    WINDOW = 15
    """As its header says it, without the scale of its connection; -1 where it was cut off."""
    # What fragments have instead.
    FRAGMENT_OFFSET = 10
    MORE_FRAGMENTS = 11
    IDENTIFICATION = 12


class Protocol(IntEnum):
    """IP protocol numbers, IPv6 extension headers among them."""

    HOP_BY_HOP = 0
    IPV4 = 4
    TCP = 6
    UDP = 17
    IPV6 = 41
    ROUTING = 43
    FRAGMENT = 44
    GRE = 47
    AUTHENTICATION = 51
    DESTINATION = 60
    MOBILITY = 135
    HIP = 139
    SHIM6 = 140


class Flag(IntEnum):
    """Control bits of a TCP segment (RFC 9293, 3.1)."""

    FIN = 1
    SYN = 2
    RST = 4
    ACK = 16


USUAL_RECORD_BYTES: Final = 1 << 18
"""Largest packet libpcap writes for the links that are read here, unless its file says more."""
MAX_RECORD_BYTES: Final = 1 << 24
"""Larger packets are not believed: no link that is read here has them."""
