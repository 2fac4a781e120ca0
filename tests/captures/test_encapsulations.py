"""Every header that is read beside what tshark dissects, and what bounds a packet in each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest

from tests.captures.links import LINKS, PADDED, SEGMENT, V4, gre, wlan
from tests.captures.make import (
    BEGAN_NS,
    Packet,
    enhanced,
    ethernet,
    interface,
    ipv4,
    ipv6,
    packets,
    pcap,
    section,
    tcp,
    udp,
)
from tests.captures.test_proxies import HEADERS
from wireyard.captures.files import pcapng
from wireyard.captures.layout import Link, Unit
from wireyard.captures.packets.headers import scan_headers
from wireyard.captures.packets.unread import NAMES, describe_unread
from wireyard.captures.read import read_capture

OTHERWISE: Final = {
    "pseudowire": "guesses that the control word is the beginning of an address",
    "pseudowire, another address": "reads a frame only where its address begins with zero bits",
    "vxlan, Linux": "has another protocol for the port, of the same header",
    "pppd": "takes the first byte for the address",
    "nflog, big": "reads lengths in the order of this machine",
    "extensions": "reads nothing behind a mobility header",
    "segmentation offload, 6": "believes the length of zero",
    "wccp 2 alternative": "takes the redirect header for one of IPv4",
}
"""What tshark does not see as we do, and why."""


def written(packets: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Return a capture of packets, with an interface for each of their link types."""
    links = sorted({link for link, _ in packets.values()})
    blocks = [interface(link) for link in links]
    blocks += [
        enhanced(data, BEGAN_NS // 1000, links.index(link)) for link, data in packets.values()
    ]
    return section() + b"".join(blocks)


def dissected(packets: Mapping[str, tuple[int, bytes]], folder: Path) -> dict[str, str]:
    """Return ports and payload of the segment in each packet, as tshark sees them."""
    program = shutil.which("tshark")
    if program is None:
        pytest.skip("tshark is not installed")
    path = folder / "packets.pcapng"
    path.write_bytes(written(packets))
    fields = ("tcp.srcport", "tcp.dstport", "tcp.payload")
    words = [program, "-r", str(path), "-T", "fields", *(w for f in fields for w in ("-e", f))]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return dict(zip(packets, done.stdout.split("\n")[:-1], strict=True))


UNBOUNDED: Final = {"pptp": "takes the payload length for information"}
"""Lengths that tshark does not bound a packet by, and why."""
SEEN: Final = "\t".join(("1883", "40000", b"payload".hex()))


def test_tshark_finds_the_same_segment(tmp_path: Path) -> None:
    found = dissected(LINKS, tmp_path)
    assert {name for name, line in found.items() if line != SEEN} == OTHERWISE.keys()


def test_tshark_bounds_packets_by_the_same_headers(tmp_path: Path) -> None:
    found = dissected(PADDED, tmp_path)
    assert {name for name, line in found.items() if line != SEEN} == UNBOUNDED.keys()


@pytest.mark.parametrize("name", PADDED)
def test_padding_is_no_payload(name: str) -> None:
    link, data = PADDED[name]
    capture = read_capture(pcap([Packet(data)], link))
    (stream,) = capture.streams
    assert stream.read(0, stream.size).tobytes() == b"payload"
    assert capture.payload_bytes["tcp"] == 7


def test_padding_does_not_stand_where_a_length_leaves_bytes_out() -> None:
    size = (2 + len(V4) - 3).to_bytes(2, "big")
    data = ethernet(bytes.fromhex("1100 0001") + size + bytes.fromhex("0021") + V4[:-3], 0x8864)
    (stream,) = read_capture(pcap([Packet(data + bytes(20))])).streams
    assert stream.pieces.tolist() == [[0, 4]] and stream.gaps.tolist() == [[4, 7]]


@pytest.mark.parametrize("options", ["", "0502 0000 0100 0000"])
def test_a_jumbogram_is_as_long_as_its_option_says(options: str, tmp_path: Path) -> None:
    body = bytes(range(256)) * 300
    before = bytes.fromhex(options)
    segment = tcp(1883, 40000, 7, body)
    size = (8 + len(before) + len(segment)).to_bytes(4, "big")
    header = bytes((6, len(before) // 8)) + before + bytes.fromhex("c204") + size
    packet = ipv6(header + segment, 0, size=0) + bytes(11)
    (stream,) = read_capture(pcap([Packet(packet)], 101)).streams
    assert stream.read(0, stream.size).tobytes() == body
    (seen,) = dissected({"jumbogram": (101, packet)}, tmp_path).values()
    assert bytes.fromhex(seen.split("\t")[2]) == body


def test_a_length_that_no_jumbogram_can_have_is_not_believed() -> None:
    for size in ("ffffffff", "00000020"):
        options = bytes.fromhex("0600 c204" + size)
        (stream,) = read_capture(pcap([Packet(ipv6(options + SEGMENT, 0, size=0))], 101)).streams
        assert stream.size == 7


NO_TUNNELS: Final = {
    "vxlan without a network": (4789, bytes(8) + ethernet(V4)),
    "vxlan, reserved bits": (4789, bytes.fromhex("08000000 00006401") + ethernet(V4)),
    "vxlan-gpe without a protocol": (4790, bytes.fromhex("08000000 00006400") + V4),
    "geneve of another version": (6081, bytes.fromhex("4000 0800 00006400") + V4),
    "gtp-u, an echo": (2152, bytes.fromhex("3201 0004 00000000 00000000") + V4),
    "gtp-u, longer than its datagram": (2152, bytes.fromhex("30ff 7000 00000001") + V4),
    "gtp-u, an extension of no bytes": (2152, bytes.fromhex("34ff 0030 00000001 00000085 00") + V4),
    "gtp-u of no bytes": (2152, bytes.fromhex("30ff 0000 00000001") + V4),
    "l2tp, control": (1701, bytes.fromhex("c802 000c 0000 0000 0000 0000")),
    "l2tp, version 3": (1701, bytes.fromhex("0003 0000 00000001") + V4),
    "l2tp, longer than its datagram": (1701, bytes.fromhex("4002 7000 00010002 0021") + V4),
    "another port": (4788, bytes.fromhex("08000000 00006400") + ethernet(V4)),
    "nothing": (4789, b""),
}


@pytest.mark.parametrize("name", NO_TUNNELS)
def test_what_is_no_tunnel_stays_a_datagram(name: str) -> None:
    port, payload = NO_TUNNELS[name]
    capture = read_capture(pcap([Packet(ipv4(udp(50000, port, payload), 17))], 101))
    assert capture.frames == {"udp": 1}
    assert capture.payload_bytes["udp"] == len(payload)


def nested(count: int) -> bytes:
    """Return a segment behind so many headers, that of Ethernet and of IP among them."""
    tag = bytes.fromhex("0001 8100")
    return ethernet(tag * (count - 3) + bytes.fromhex("0001 0800") + V4, 0x8100)


def test_headers_are_nested_only_so_deep() -> None:
    assert read_capture(pcap([Packet(nested(32))])).frames == {"tcp": 1}
    capture = read_capture(pcap([Packet(nested(33)), Packet(nested(50_000))]))
    assert capture.frames == {"malformed": 2}
    assert capture.unread == {"over 32 headers malformed": 2}


def test_compiled_and_plain_headers_are_the_same() -> None:
    program = (
        "from tests.captures.test_encapsulations import digest\n"
        "from wireyard.accelerate import COMPILED\n"
        "print(COMPILED, digest(3))"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": f"{root}/src:{root}"}
    words = [sys.executable, "-c", program]
    plain = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    assert plain.stdout.split() == ["False", digest(3)]


def digest(seed: int) -> str:
    """Return a digest of what is read of damaged packets under every header."""
    rng = Random(seed)
    damaged = {}
    for number in range(600):
        link, data = rng.choice([*LINKS.values(), *PADDED.values()])
        changed = bytearray(data)
        for _ in range(rng.randrange(4)):
            changed[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        damaged[str(number)] = link, bytes(changed[: rng.choice((1000, rng.randrange(len(data))))])
    array = np.frombuffer(written(damaged), np.uint8)
    (records,) = pcapng.read_records(array)
    headers = scan_headers(array, records, 0)
    tally = sorted(headers.tally.endings.items()), headers.tally.fates.tolist()
    fragments = headers.fragments[: Unit.IDENTIFICATION + 1]  # the rest they do not have
    text = f"{headers.units.tolist()} {fragments.tolist()} {tally}"
    return sha256(text.encode()).hexdigest()


NAMED: Final = {
    "ARP": (1, ethernet(bytes(28), 0x0806)),
    "MACsec": (1, ethernet(bytes(28), 0x88E5)),
    "LLDP": (1, ethernet(bytes(28), 0x88CC)),
    "EtherType 0xfffe": (1, ethernet(bytes(28), 0xFFFE)),
    "no EtherType": (1, ethernet(bytes(28), 0)),
    "STP": (1, ethernet(bytes.fromhex("424203") + bytes(35), 38)),
    "LLC SAP 0x12": (1, ethernet(bytes.fromhex("121203") + bytes(35), 38)),
    "SNAP": (1, ethernet(bytes.fromhex("aaaa03 00000c 2000") + bytes(35), 43)),
    "ICMP": (101, ipv4(bytes(8), 1)),
    "ESP": (101, ipv6(bytes(8), 50)),
    "L2TPv3": (101, ipv4(bytes(8), 115)),
    "IP protocol 200": (101, ipv4(bytes(8), 200)),
    "LCP": (9, bytes.fromhex("ff03 c021 0101")),
    "PPP multilink": (9, bytes.fromhex("ff03 003d 0101")),
    "PPP protocol 0x4221": (9, bytes.fromhex("ff03 4221 0101")),
    "802.11 management": (105, wlan(0x80)),
    "802.11 control": (105, wlan(0xB4)),
    "802.11 without data": (105, wlan(0x48)),
    "802.11 encrypted": (105, wlan(0x08, 0x41) + bytes(40)),
    "802.11 fragments": (105, wlan(0x08, 5) + bytes(40)),
    "802.11 aggregates": (105, wlan(0x88, 1) + bytes.fromhex("8000") + bytes(40)),
    "EoIP": (101, gre(0x6400, bytes(20))),
    "GRE": (101, gre(0x0004, V4)),
    "PIM": (101, ipv4(bytes.fromhex("2000 0000") + bytes(20), 103)),
    "Bluetooth": (201, bytes(8)),
    "link type 147": (147, bytes(8)),
    "TCP malformed": (101, ipv4(SEGMENT[:12] + b"\x40" + SEGMENT[13:])),
    "UDP malformed": (101, ipv4(udp(1, 2, b"x", 7), 17)),
    "IPv4 malformed": (228, b"\x35" + V4[1:]),
    "802.11 malformed": (105, wlan(0x01)),
    "NSH malformed": (1, ethernet(bytes.fromhex("0fc1 0101 00000dff") + V4, 0x894F)),
    "radiotap malformed": (127, bytes.fromhex("0100 0800 00000000")),
    "PPI malformed": (192, bytes.fromhex("0100 0800 69000000")),
    "VLAN cut off": (1, ethernet(bytes(3), 0x8100)),
    "IPv4 fragments without the rest": (101, ipv4(bytes(8), 17, more=True)),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_is_not_read_has_a_name(name: str) -> None:
    link, data = NAMED[name]
    capture = read_capture(pcap([Packet(data)], link))
    assert capture.unread == {name: 1}
    assert capture.streams == []


def test_fragments_are_named_by_what_they_make() -> None:
    echo = [
        ipv4(bytes(8), 1, more=True, identification=7),
        ipv4(bytes(8), 1, offset=8, identification=7),
    ]
    capture = read_capture(pcap(packets(echo), 101))
    assert (capture.unread, capture.frames) == ({"ICMP": 2}, {"other_protocol": 2})


def test_one_line_names_the_most_of_many_kinds() -> None:
    assert describe_unread({}) is None
    assert describe_unread({"ARP": 1000, "ICMP": 2}) == "frames not read: 1,000 ARP, 2 ICMP"
    many = describe_unread({f"EtherType {number}": 1 for number in range(30)})
    assert many is not None and many.endswith("1 EtherType 19, 10 of 10 other kinds")


def test_the_page_lists_all_that_is_read_and_named() -> None:
    page = (Path(__file__).parents[2] / "docs" / "captures.md").read_text()
    tables = page.split("\n## ")
    listed = set(re.findall(r"`([^`]+)`", "".join(tables[2:4])))
    assert LINKS.keys() <= listed
    proxies = next(part for part in tables if part.startswith("Proxies"))
    assert HEADERS.keys() <= set(re.findall(r"`([^`]+)`", proxies))
    numbers = set(
        re.findall(r"\b\d+\b", " ".join(re.findall(r"^\| ([\d, ]+) \|", tables[2], re.M)))
    )
    assert numbers == {str(link.value) for link in Link if link >= 0}
    assert all(re.search(rf"\b{re.escape(name)}", page, re.I) for name in NAMES.values())
