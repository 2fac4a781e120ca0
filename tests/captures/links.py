"""Packets under every header that is read, made by hand."""

from __future__ import annotations

import struct

from tests.captures.make import ethernet, ipv4, ipv6, tcp, udp

__all__ = ["LINKS", "PADDED", "SEGMENT", "SNAP", "V4", "V6", "gre", "in_udp", "wlan"]

SNAP = bytes.fromhex("aaaa03 000000 0800")


def wlan(control: int = 0x08, flags: int = 1) -> bytes:
    """Return the header of an 802.11 data frame to an access point, or as its flags say."""
    addresses = bytes.fromhex("020000000003 020000000001 020000000002")
    return bytes((control, flags, 0, 0)) + addresses + bytes(2)


def gre(kind: int, payload: bytes, flags: int = 0) -> bytes:
    """Return an IPv4 packet with a GRE header of the RFC 2784."""
    return ipv4(struct.pack(">HH", flags, kind) + payload, 47)


def in_udp(port: int, payload: bytes) -> bytes:
    """Return an IPv4 packet with a datagram to a port."""
    return ipv4(udp(50000, port, payload), 17, "192.0.2.1", "192.0.2.2")


SEGMENT = tcp(1883, 40000, 7, b"payload")
V4, V6 = ipv4(SEGMENT), ipv6(SEGMENT)
LINKS = {
    "ethernet": (1, ethernet(V4)),
    "ethernet, 6": (1, ethernet(V6, 0x86DD)),
    "padded": (1, ethernet(V4) + bytes(30)),
    "vlan": (1, ethernet(bytes.fromhex("0064 0800") + V4, 0x8100)),
    "qinq": (1, ethernet(bytes.fromhex("0064 8100 0065 86dd") + V6, 0x88A8)),
    "snap": (1, ethernet(bytes.fromhex("aaaa03 000000 0800") + V4, 60)),
    "mpls": (1, ethernet(bytes.fromhex("00064040 000c8140") + V4, 0x8847)),
    "pseudowire": (1, ethernet(bytes.fromhex("00064140 00000000") + ethernet(V4), 0x8847)),
    "pseudowire, no control word": (
        1,
        ethernet(
            bytes.fromhex("00064140 001b21000002 000c29000001") + ethernet(V4)[12:], 0x8847
        ),
    ),
    "pseudowire, another address": (
        1, ethernet(bytes.fromhex("00064140 54") + ethernet(V4)[1:], 0x8847),
    ),
    "pppoe": (1, ethernet(bytes.fromhex("1100 0001 0045 0021") + V4, 0x8864)),
    "cooked": (113, bytes(14) + bytes.fromhex("86dd") + V6),
    "cooked, vlan": (113, bytes(14) + bytes.fromhex("8100 0064 0800") + V4),
    "cooked 2": (276, bytes.fromhex("0800") + bytes(18) + V4),
    "loopback, little": (0, struct.pack("<I", 2) + V4),
    "loopback, big": (0, struct.pack(">I", 30) + V6),
    "loop": (108, struct.pack(">I", 24) + V6),
    "raw": (101, V4),
    "raw 12": (12, V6),
    "raw 14": (14, V4),
    "link of IPv4": (228, V4),
    "link of IPv6": (229, V6),
    "ppp": (9, bytes.fromhex("ff03 0021") + V4),
    "ppp, short": (9, bytes.fromhex("57") + V6),
    "ppp, direction": (204, bytes.fromhex("01 ff03 0057") + V6),
    "pppd": (166, bytes.fromhex("00 03 0021") + V4),
    "ppp, mpls": (50, bytes.fromhex("ff03 0281 00064140") + V4),
    "pppoe alone": (51, bytes.fromhex("1100 0001 0045 0021") + V4),
    "nflog, little": (239, struct.pack("<BBHHHIHH", 2, 0, 0, 5, 7, 0, 4 + len(V4), 9) + V4),
    "nflog, big": (239, struct.pack(">BBHHH", 2, 0, 0, 4 + len(V4), 9) + V4),
    "IPv4 in IPv4": (101, ipv4(V4, 4)),
    "IPv6 in IPv4": (101, ipv4(V6, 41)),
    "IPv4 in IPv6": (101, ipv6(V4, 4)),
    "IPv6 in IPv6": (101, ipv6(V6, 41)),
    "gre": (101, ipv4(bytes.fromhex("0000 0800") + V4, 47)),
    "gre, all fields": (101, ipv4(bytes.fromhex("b000 86dd") + bytes(12) + V6, 47)),
    "gre, ethernet": (101, ipv6(bytes.fromhex("2000 6558 00000001") + ethernet(V4), 47)),
    "pptp": (
        101,
        ipv4(bytes.fromhex("3081 880b 0031 0001") + bytes(8) + bytes.fromhex("21") + V4, 47),
    ),
    "options": (101, ipv4(SEGMENT, options=bytes(8))),
    "tcp options": (101, ipv4(tcp(1883, 40000, 7, b"payload", options=bytes(12)))),
    "extensions": (
        101,
        ipv6(
            bytes.fromhex("2b00") + bytes(6)  # hop by hop
            + bytes.fromhex("3c00") + bytes(6)  # routing
            + bytes.fromhex("3301") + bytes(14)  # destination
            + bytes.fromhex("8704") + bytes(22)  # authentication
            + bytes.fromhex("2c00") + bytes(6)  # mobility
            + bytes.fromhex("0600 0000 12345678")  # an atomic fragment
            + SEGMENT,
            0,
        ),
    ),
    "segmentation offload": (101, ipv4(SEGMENT, total=0)),
    "segmentation offload, 6": (101, ipv6(SEGMENT, size=0)),
    # Ethernet
    "802.3 length": (1, ethernet(SNAP + V4, 8 + len(V4)) + bytes(9)),
    "vlan, 802.3 length": (1, ethernet(bytes.fromhex("0064 0037") + SNAP + V4, 0x8100) + bytes(9)),
    "802.1ah": (1, ethernet(bytes.fromhex("00000064") + ethernet(V4), 0x88E7)),
    "802.1ah in 802.1ad": (
        1, ethernet(bytes.fromhex("0064 88e7 00000064") + ethernet(V4), 0x88A8),
    ),
    # with the check sequence of the inner frame, which tshark expects
    "fabricpath": (1, ethernet(bytes.fromhex("0420") + ethernet(V4) + bytes(4), 0x8903)),
    "vn-tag": (1, ethernet(bytes.fromhex("c0010002 0800") + V4, 0x8926)),
    "nsh": (1, ethernet(bytes.fromhex("0fc6 0103 00000dff") + bytes(16) + ethernet(V4), 0x894F)),
    "nsh of type 2": (1, ethernet(bytes.fromhex("0fc2 0202 00000dff") + V6, 0x894F)),
    # Serial links
    "cisco hdlc": (104, bytes.fromhex("0f00 0800") + V4),
    "cisco hdlc, all stations": (104, bytes.fromhex("8f00 86dd") + V6),
    "hdlc": (50, bytes.fromhex("0f00 0800") + V4),
    "infiniband": (242, bytes(40) + bytes.fromhex("0800 0000") + V4),
    # 802.11
    "wlan": (105, wlan() + SNAP + V4),
    "wlan, qos": (105, wlan(0x88, 1) + bytes(2) + SNAP + V4),
    "wlan, qos and control": (105, wlan(0x88, 0x81) + bytes(6) + SNAP + V4),
    "wlan, four addresses": (105, wlan(0x08, 3) + bytes(6) + SNAP + V4),
    "radiotap": (127, bytes.fromhex("0000 0800 00000000") + wlan() + SNAP + V4 + bytes(4)),
    "radiotap, padded": (
        127,
        bytes.fromhex("0000 1900 03000080 00000000") + bytes(12) + bytes.fromhex("20")
        + wlan(0x88, 1) + bytes(2) + bytes(2) + SNAP + V4,
    ),
    "ppi": (192, bytes.fromhex("0000 0800 69000000") + wlan() + SNAP + V4),
    "ppi, ethernet": (192, bytes.fromhex("0000 0c00 01000000 00000000") + ethernet(V4)),
    "avs": (163, bytes.fromhex("80211001 00000040") + bytes(56) + wlan() + SNAP + V4),
    "prism": (119, struct.pack("<II", 0x44, 144) + bytes(136) + wlan() + SNAP + V4),
    "juniper": (178, bytes.fromhex("4d4743 01") + ethernet(V4)),
    "juniper, extensions": (
        178, bytes.fromhex("4d4743 81 0006 0101 01 020204") + ethernet(V4),
    ),
    "juniper, no link": (178, bytes.fromhex("4d4743 02 02000000") + V4),
    "juniper, ppp": (179, bytes.fromhex("4d4743 01 ff03 0021") + V4),
    "juniper, hdlc": (181, bytes.fromhex("4d4743 01 0f00 0800") + V4),
    "wccp 1": (101, gre(0x883E, V4)),
    "wccp 2": (101, gre(0x883E, bytes.fromhex("00640000") + V4)),
    "wccp 2 alternative": (101, gre(0x883E, bytes.fromhex("40640102") + V4)),
    "wlan in gre": (101, gre(0x8200, wlan() + SNAP + V4)),
    # Mirrors
    "erspan, type I": (101, gre(0x88BE, ethernet(V4))),
    "erspan, type II": (
        101, gre(0x88BE, bytes(4) + bytes.fromhex("1064 0001 00000000") + ethernet(V4), 0x1000),
    ),
    "erspan, type III": (
        101,
        gre(
            0x22EB,
            bytes(4) + bytes.fromhex("2064 0001 00000000 0000 0000") + ethernet(V4),
            0x1000,
        ),
    ),
    "erspan, type III, subheader": (
        101,
        gre(
            0x22EB,
            bytes(4) + bytes.fromhex("2064 0001 00000000 0000 0001") + bytes(8) + ethernet(V4),
            0x1000,
        ),
    ),
    # Tunnels over IP
    "authentication": (101, ipv4(bytes.fromhex("0604") + bytes(22) + SEGMENT, 51)),
    "ethernet in ip": (101, ipv4(bytes.fromhex("3000") + ethernet(V4), 97)),
    "mpls in ip": (101, ipv4(bytes.fromhex("00064140") + V4, 137)),
    "pim register": (101, ipv4(bytes.fromhex("2100 0000 00000000") + V4, 103)),
    "nsh in gre": (101, gre(0x894F, bytes.fromhex("0fc2 0201 00000dff") + V4)),
    # Tunnels over UDP
    "vxlan": (101, in_udp(4789, bytes.fromhex("08000000 00006400") + ethernet(V4))),
    "vxlan, Linux": (101, in_udp(8472, bytes.fromhex("08000000 00006400") + ethernet(V4))),
    "vxlan, group policy": (101, in_udp(4789, bytes.fromhex("88000007 00006400") + ethernet(V4))),
    "vxlan-gpe": (101, in_udp(4790, bytes.fromhex("0c000001 00006400") + V4)),
    "vxlan-gpe, nsh": (
        101, in_udp(4790, bytes.fromhex("0c000004 00006400 0fc2 0203 00000dff") + ethernet(V4)),
    ),
    "geneve": (101, in_udp(6081, bytes.fromhex("0000 6558 00006400") + ethernet(V4))),
    "geneve, options": (
        101, in_udp(6081, bytes.fromhex("0240 86dd 00006400 0102 0301 00000000") + V6),
    ),
    "gtp-u": (101, in_udp(2152, struct.pack(">BBHI", 0x30, 255, len(V4), 1) + V4)),
    "gtp-u, extensions": (
        101,
        in_udp(
            2152,
            struct.pack(">BBHI", 0x34, 255, len(V6) + 8, 1) + bytes.fromhex("00000085 01100000")
            + V6,
        ),
    ),
    "l2tp": (101, in_udp(1701, bytes.fromhex("0002 0001 0002 ff03 0021") + V4)),
    "l2tp, all fields": (
        101,
        in_udp(
            1701,
            struct.pack(">HH", 0x4A02, len(V4) + 20) + bytes.fromhex("0001 0002 00000000 0002 0000")
            + bytes.fromhex("ff03 0021") + V4,
        ),
    ),
    "everything at once": (
        1,
        ethernet(
            bytes.fromhex("0064 0800")
            + in_udp(4789, bytes.fromhex("08000000 00006400") + ethernet(
                bytes.fromhex("0065 0800")
                + gre(0x6558, ethernet(in_udp(2152, struct.pack(
                    ">BBHI", 0x30, 255, len(V4), 1) + V4))),
                0x8100,
            )),
            0x8100,
        ),
    ),
}  # fmt: skip
"""A capture of one packet by the name of what is in it: its link type, and the packet."""

OFFLOADED = ipv4(SEGMENT, total=0)
"""A packet that states no length of its own: what is around it bounds it."""
PADDING = bytes(11)
PADDED = {
    "ipv4": (1, ethernet(V4) + PADDING),
    "ipv6": (1, ethernet(V6, 0x86DD) + PADDING),
    "ipv4 in ipv4": (1, ethernet(ipv4(OFFLOADED, 4)) + PADDING),
    "ipv4 in ipv6": (1, ethernet(ipv6(OFFLOADED, 4), 0x86DD) + PADDING),
    "802.3 length": (1, ethernet(SNAP + OFFLOADED, 8 + len(V4)) + PADDING),
    "pppoe": (1, ethernet(bytes.fromhex("1100 0001 0031 0021") + OFFLOADED, 0x8864) + PADDING),
    "nflog": (
        239,
        struct.pack("<BBHHH", 2, 0, 0, 4 + len(V4), 9) + OFFLOADED + struct.pack("<xHHI", 8, 3, 0),
    ),
    "gre": (1, ethernet(gre(0x0800, OFFLOADED)) + PADDING),
    "pptp": (
        101,
        ipv4(
            bytes.fromhex("3081 880b 0030 0001") + bytes(8) + bytes.fromhex("21") + OFFLOADED
            + PADDING,
            47,
        ),
    ),
    "authentication": (
        1, ethernet(ipv4(bytes.fromhex("0404") + bytes(22) + OFFLOADED, 51)) + PADDING,
    ),
    "vxlan": (
        101,
        ipv4(
            udp(50000, 4789, bytes.fromhex("08000000 00006400") + ethernet(OFFLOADED)) + PADDING,
            17,
        ),
    ),
    "gtp-u": (
        101, in_udp(2152, struct.pack(">BBHI", 0x30, 255, len(V4), 1) + OFFLOADED + PADDING),
    ),
    "l2tp": (
        101,
        in_udp(
            1701,
            struct.pack(">HH", 0x4002, len(V4) + 12) + bytes.fromhex("0001 0002 ff03 0021")
            + OFFLOADED + PADDING,
        ),
    ),
}  # fmt: skip
"""Packets of one segment with bytes behind what a header says is theirs."""
