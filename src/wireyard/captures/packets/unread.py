"""Names of packets that are not read: the header at which reading ended, and the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from wireyard.captures.layout import Fate, Header, Kinds
from wireyard.captures.packets.headers import NONE_CUT, Cut, parts_of

_MOST_SHOWN: Final = 20
"""Names in one line; a hostile capture may have packets of every EtherType."""

_ETHER_TYPES: Final = {
    0x0800: "IPv4", 0x0806: "ARP", 0x0842: "Wake-on-LAN", 0x2000: "CDP", 0x2001: "NHRP",
    0x22EB: "ERSPAN", 0x22F0: "AVTP", 0x22F3: "TRILL", 0x4305: "B.A.T.M.A.N.", 0x6002: "DEC MOP",
    0x6003: "DECnet", 0x6400: "EoIP", 0x6558: "Ethernet", 0x8035: "RARP", 0x809B: "AppleTalk",
    0x80F3: "AARP", 0x8100: "VLAN", 0x8137: "IPX", 0x86DD: "IPv6", 0x8808: "Ethernet flow control",
    0x8809: "slow protocols", 0x880B: "PPP", 0x8847: "MPLS", 0x8848: "MPLS",
    0x8863: "PPPoE discovery", 0x8864: "PPPoE", 0x888E: "EAPOL", 0x8892: "PROFINET",
    0x8899: "Realtek", 0x88A2: "ATA over Ethernet", 0x88A4: "EtherCAT", 0x88A8: "VLAN",
    0x88AB: "POWERLINK", 0x88B8: "GOOSE", 0x88BA: "sampled values", 0x88BE: "ERSPAN",
    0x88CA: "TIPC", 0x88CC: "LLDP", 0x88DC: "WSMP", 0x88E1: "HomePlug", 0x88E3: "MRP",
    0x88E5: "MACsec", 0x88E7: "802.1ah", 0x88F7: "PTP", 0x88FB: "PRP", 0x8902: "CFM",
    0x8903: "FabricPath", 0x8906: "FCoE", 0x8914: "FIP", 0x8915: "RoCE", 0x8926: "VN-tag",
    0x892F: "HSR", 0x893A: "IEEE 1905", 0x894F: "NSH", 0x9000: "Ethernet loopback", 0x9100: "VLAN",
    0x9200: "VLAN",
}  # fmt: skip
_OWN: Final = {
    Header.ETHERNET: "Ethernet", Header.PPP: "PPP", Header.PPP_DIRECTION: "PPP", Header.RAW: "IP",
    Header.LOOPBACK: "loopback", Header.COOKED: "Linux cooked", Header.COOKED_2: "Linux cooked",
    Header.NFLOG: "NFLOG", Header.LLC: "LLC", Header.CISCO_HDLC: "Cisco HDLC", Header.HDLC: "HDLC",
    Header.WLAN: "802.11", Header.WLAN_PADDED: "802.11", Header.RADIOTAP: "radiotap",
    Header.PPI: "PPI", Header.WLAN_MONITOR: "AVS", Header.IPOIB: "IP over InfiniBand",
    Header.NO_TYPE: "no EtherType", Header.SNAP: "SNAP",
    Header.WLAN_MANAGEMENT: "802.11 management", Header.WLAN_CONTROL: "802.11 control",
    Header.WLAN_NO_DATA: "802.11 without data", Header.WLAN_ENCRYPTED: "802.11 encrypted",
    Header.WLAN_FRAGMENT: "802.11 fragments", Header.WLAN_AGGREGATE: "802.11 aggregates",
    Header.NESTED: "over 32 headers", Header.JUNIPER_ETHERNET: "Juniper",
    Header.JUNIPER_PPP: "Juniper", Header.JUNIPER_HDLC: "Juniper", Header.WCCP: "WCCP",
}  # fmt: skip
_PROTOCOLS: Final = {
    1: "ICMP", 2: "IGMP", 6: "TCP", 8: "EGP", 9: "IGP", 17: "UDP", 33: "DCCP", 46: "RSVP",
    47: "GRE", 50: "ESP", 51: "AH", 54: "NARP", 55: "IP mobility", 58: "ICMPv6",
    59: "IPv6 without data", 88: "EIGRP", 89: "OSPF", 94: "IPIP", 97: "EtherIP",
    98: "encapsulation", 103: "PIM", 108: "IPComp", 112: "VRRP", 113: "PGM", 115: "L2TPv3",
    124: "IS-IS over IP", 132: "SCTP", 136: "UDP-Lite", 137: "MPLS",
}  # fmt: skip
_PPP_PROTOCOLS: Final = {
    0x0023: "OSI over PPP", 0x0029: "AppleTalk over PPP", 0x002B: "IPX over PPP",
    0x002D: "PPP with compressed TCP", 0x002F: "PPP with compressed TCP", 0x0031: "PPP bridging",
    0x003D: "PPP multilink", 0x0053: "PPP encrypted", 0x00FD: "PPP compressed", 0x8021: "IPCP",
    0x8053: "PPP ECP", 0x8057: "IPV6CP", 0x80FD: "PPP CCP", 0xC021: "LCP", 0xC023: "PAP",
    0xC025: "LQR", 0xC223: "CHAP", 0xC227: "EAP",
}  # fmt: skip
_LLC_SAPS: Final = {
    0x00: "LLC of no service", 0x06: "IP over LLC", 0x42: "STP", 0xAA: "SNAP", 0xE0: "IPX",
    0xF0: "NetBIOS", 0xFE: "OSI", 0xFF: "IPX",
}  # fmt: skip
_LINKS: Final = {
    6: "Token Ring", 7: "ARCNET", 8: "SLIP", 10: "FDDI", 99: "Symantec firewall", 100: "ATM",
    107: "Frame Relay", 114: "LocalTalk", 117: "pflog", 122: "Fibre Channel", 123: "ATM of SunATM",
    129: "ARCNET", 138: "FireWire", 140: "MTP2", 141: "MTP3", 142: "SCCP", 143: "DOCSIS",
    165: "BACnet", 177: "LAPD", 187: "Bluetooth", 189: "USB", 195: "802.15.4", 196: "SITA",
    197: "ERF", 201: "Bluetooth", 203: "LAPD", 215: "802.15.4", 220: "USB", 227: "CAN",
    230: "802.15.4", 235: "DVB", 240: "netANALYZER", 241: "netANALYZER", 249: "USB",
    251: "Bluetooth LE", 252: "Wireshark upper PDU", 253: "Netlink", 254: "Bluetooth",
    256: "Bluetooth LE", 271: "vsock", 272: "Nordic BLE", 283: "802.15.4", 288: "USB 2.0",
}  # fmt: skip

NAMES: Final[Mapping[int, str]] = {
    **_ETHER_TYPES,
    **{Header.ARUBA_FIRST + 16 * queue: "802.11 in GRE" for queue in range(24)},
    **{int(kind): name for kind, name in _OWN.items()},
    **{Kinds.PROTOCOL + number: name for number, name in _PROTOCOLS.items()},
    **{Kinds.PPP_PROTOCOL + number: name for number, name in _PPP_PROTOCOLS.items()},
    **{Kinds.LLC_SAP + number: name for number, name in _LLC_SAPS.items()},
    **{Kinds.LINK + number: name for number, name in _LINKS.items()},
}
"""Names of headers by their kinds."""
_UNNAMED: Final = (
    (Kinds.LINK, "link type {}"),
    (Kinds.LLC_SAP, "LLC SAP 0x{:02x}"),
    (Kinds.PPP_PROTOCOL, "PPP protocol 0x{:04x}"),
    (Kinds.PROTOCOL, "IP protocol {}"),
    (0, "EtherType 0x{:04x}"),
)
_ENDINGS: Final = {
    Fate.CUT: "{} cut off",
    Fate.MALFORMED: "{} malformed",
    Fate.FRAGMENT: "{} fragments without the rest",
}
"""The reasons other than the kind of the header, in a text with its name."""
_NO_HEADERS: Final = {
    Fate.MALFORMED: "records malformed",
    Fate.NO_INTERFACE: "packets of no interface",
    Fate.NO_PACKET: "blocks without a packet",
}


def name_of(kind: int) -> str:
    """Return the name of a kind of header, or a text with its number if it has none."""
    if kind in NAMES:
        return NAMES[kind]
    first, text = next(each for each in _UNNAMED if kind >= each[0])
    return text.format(kind - first)


def name_unread(endings: Mapping[int, int]) -> dict[str, int]:
    """Return the numbers of packets that were not read, by name; the most frequent first.

    `endings` are those of a `Tally`.
    """
    counts: Counter[str] = Counter()
    for ending, count in endings.items():
        if count == 0:  # all of these fragments were reassembled
            continue
        fate, kind = parts_of(ending)
        name = _ENDINGS.get(fate, "{}").format(name_of(kind)) if kind else _NO_HEADERS[fate]
        counts[name] += count
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def describe_unread(unread: Mapping[str, int], cut: Cut = NONE_CUT) -> str | None:
    """Return one line about packets that were not read, or not whole; None if there are none.

    `unread` is the result of `name_unread`, and `cut` counts those of which bytes are missing.
    """
    texts = [*filter(None, [_list_unread(unread), str(cut) if cut.packets else ""])]
    return "; ".join(texts) or None


def _list_unread(unread: Mapping[str, int]) -> str:
    if not unread:
        return ""
    shown = [f"{count:,} {name}" for name, count in [*unread.items()][:_MOST_SHOWN]]
    rest = [*unread.values()][_MOST_SHOWN:]
    if rest:
        shown.append(f"{sum(rest):,} of {len(rest)} other kinds")
    return f"frames not read: {', '.join(shown)}"
