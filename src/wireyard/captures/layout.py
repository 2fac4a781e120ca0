"""Numbers of capture files and network headers, named as in their registries; no logic.

Link types: https://www.tcpdump.org/linktypes.html. The rest: IANA and the RFC beside it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "FIRST_HEADERS",
    "MAX_RECORD_BYTES",
    "USUAL_RECORD_BYTES",
    "Fate",
    "Flag",
    "Header",
    "Kinds",
    "Link",
    "Protocol",
    "Record",
    "Unit",
]


class Record(IntEnum):
    """Rows of the grid that record kernels fill, which has a column for each packet."""

    START = 0
    """Offset of the first captured byte."""
    CAPTURED = 1
    ORIGINAL = 2
    """Bytes of the packet on the wire, as the file states it, unchecked."""
    TICKS = 3
    """Time: in ns for pcap, in units of the interface for pcapng, as an unsigned 64-bit number."""
    INTERFACE = 4
    """Number of the interface over all sections, or a negative `Link`."""
    BLOCK = 5
    """Type of the block in pcapng."""


class Link(IntEnum):
    """Link types that are read, and negative numbers for packets without one."""

    NO_PACKET = -3
    BAD_RECORD = -2
    NO_INTERFACE = -1
    NULL = 0
    ETHERNET = 1
    PPP = 9
    # DLT_RAW of the BSDs, 12 or 14, which some programs wrote to files instead of 101.
    RAW_12 = 12
    RAW_14 = 14
    PPP_HDLC = 50
    PPP_ETHER = 51
    RAW = 101
    C_HDLC = 104
    IEEE802_11 = 105
    LOOP = 108
    LINUX_SLL = 113
    PRISM = 119
    RADIOTAP = 127
    AVS = 163
    PPP_PPPD = 166
    PPI = 192
    PPP_WITH_DIR = 204
    IPV4 = 228
    IPV6 = 229
    NFLOG = 239
    IPOIB = 242
    LINUX_SLL2 = 276


class Fate(IntEnum):
    """The result of reading the headers of a frame.

    Fates share a number space with EtherTypes, which begin at 0x0600, so that a header reader
    returns either in one number.
    """

    TCP = 0
    UDP = 1
    FRAGMENT = 2
    """Fragment of a datagram whose other fragments are missing."""
    OTHER_PROTOCOL = 3
    """IP, but neither TCP nor UDP."""
    OTHER_NETWORK = 4
    """Not IP: ARP, for example."""
    UNKNOWN_LINK = 5
    CUT = 6
    """Truncated in the middle of a header."""
    MALFORMED = 7
    NO_INTERFACE = 8
    """A packet of an interface that its file does not describe."""
    NO_PACKET = 9
    """Another block of pcapng that counts as a frame."""


class Kinds(IntEnum):
    """First number of each registry among the kinds of headers; EtherTypes come first."""

    OWN = 0x10000
    """Headers that no registry has a number for."""
    PROTOCOL = 0x20000
    """IP protocols."""
    PPP_PROTOCOL = 0x30000
    LLC_SAP = 0x40000
    LINK = 0x50000
    """Link types."""


class Header(IntEnum):
    """Kind of the next header of a packet: an EtherType, one of ours, or another registry's."""

    # EtherTypes
    IPV4 = 0x0800
    ERSPAN_3 = 0x22EB
    TRANSPARENT_ETHERNET = 0x6558
    VLAN = 0x8100
    ARUBA_FIRST = 0x8200
    """802.11 in GRE, as Aruba's controllers send it; one number for each queue."""
    ARUBA_LAST = 0x8370
    IPV6 = 0x86DD
    PPP_IN_GRE = 0x880B
    MPLS = 0x8847
    MPLS_UPSTREAM = 0x8848
    PPPOE_SESSION = 0x8864
    PROVIDER_VLAN = 0x88A8
    ERSPAN = 0x88BE
    PROVIDER_BACKBONE = 0x88E7
    """The service tag of 802.1ah."""
    FABRICPATH = 0x8903
    VN_TAG = 0x8926
    NSH = 0x894F
    QINQ_9100 = 0x9100
    QINQ_9200 = 0x9200
    # Our own
    ETHERNET = Kinds.OWN
    PPP = 0x10001
    PPP_DIRECTION = 0x10002
    RAW = 0x10003
    LOOPBACK = 0x10004
    COOKED = 0x10005
    COOKED_2 = 0x10006
    NFLOG = 0x10007
    LLC = 0x10008
    CISCO_HDLC = 0x10009
    HDLC = 0x1000A
    """Cisco HDLC or PPP, by the first byte."""
    WLAN = 0x1000B
    WLAN_PADDED = 0x1000C
    """802.11 with its header padded to a multiple of 4 bytes."""
    RADIOTAP = 0x1000D
    PPI = 0x1000E
    WLAN_MONITOR = 0x1000F
    """802.11 behind a header of AVS or of Prism cards."""
    IPOIB = 0x10010
    # Headers that are counted by name, but not read
    NO_TYPE = 0x10011
    SNAP = 0x10012
    WLAN_MANAGEMENT = 0x10013
    WLAN_CONTROL = 0x10014
    WLAN_NO_DATA = 0x10015
    WLAN_ENCRYPTED = 0x10016
    WLAN_FRAGMENT = 0x10017
    WLAN_AGGREGATE = 0x10018
    NESTED = 0x10019
    # IP protocols
    TCP = Kinds.PROTOCOL + 6
    UDP = Kinds.PROTOCOL + 17
    GRE = Kinds.PROTOCOL + 47
    AUTHENTICATION = Kinds.PROTOCOL + 51
    ETHERIP = Kinds.PROTOCOL + 97
    PIM = Kinds.PROTOCOL + 103
    MPLS_IN_IP = Kinds.PROTOCOL + 137


FIRST_HEADERS: Final = {
    Link.NO_PACKET: Fate.NO_PACKET,
    Link.BAD_RECORD: Fate.MALFORMED,
    Link.NO_INTERFACE: Fate.NO_INTERFACE,
    Link.NULL: Header.LOOPBACK,
    Link.LOOP: Header.LOOPBACK,
    Link.ETHERNET: Header.ETHERNET,
    Link.PPP: Header.PPP,
    Link.PPP_HDLC: Header.HDLC,
    Link.PPP_PPPD: Header.PPP_DIRECTION,
    Link.PPP_WITH_DIR: Header.PPP_DIRECTION,
    Link.PPP_ETHER: Header.PPPOE_SESSION,
    Link.RAW: Header.RAW,
    Link.RAW_12: Header.RAW,
    Link.RAW_14: Header.RAW,
    Link.IPV4: Header.IPV4,
    Link.IPV6: Header.IPV6,
    Link.C_HDLC: Header.CISCO_HDLC,
    Link.IEEE802_11: Header.WLAN,
    Link.PRISM: Header.WLAN_MONITOR,
    Link.RADIOTAP: Header.RADIOTAP,
    Link.AVS: Header.WLAN_MONITOR,
    Link.PPI: Header.PPI,
    Link.LINUX_SLL: Header.COOKED,
    Link.LINUX_SLL2: Header.COOKED_2,
    Link.NFLOG: Header.NFLOG,
    Link.IPOIB: Header.IPOIB,
}
"""The first header of packets by link type, or the fate of packets without one."""


class Unit(IntEnum):
    """Rows of the grids of header kernels; a column is a TCP segment, UDP datagram or fragment.

    An address is two signed integers; an IPv4 address is in the lower one. Lengths are those of the
    payload.
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
    """As in the TCP header, without the window scale; -1 if it was truncated."""
    NETWORK = 16
    """The VLANs, tunnels and interface that it was captured in, as one number; 0 for none."""
    # The rows of fragments in place of ports and what follows.
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
"""Largest packet that libpcap writes for the links that are read here, unless its file has more."""
MAX_RECORD_BYTES: Final = 1 << 24
"""Largest accepted packet; no link that is read here has larger ones."""
