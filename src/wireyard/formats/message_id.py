"""The SysMessageID of JMQ headers, acknowledgements and cluster payloads, and its text form.

It is 32 bytes: i64 timestamp, 16 address bytes, i32 port, i32 sequence. The
address has three forms, tested in the order of the shipped classes: IPv4-mapped; IPv4 with a MAC in
front (``FF 00 00 00``, 6 bytes, ``FF FF``, 4 bytes: what every stock client sends, errata 20); any
other is IPv6, printed as eight groups without ``::``.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

MESSAGE_ID_CODES = "q16sii"
"""The 32 bytes as `struct` codes, in the order of the parameters of `message_id_text`."""

_MAPPED = bytes(10) + b"\xff\xff"
_WITH_MAC = b"\xff\x00\x00\x00"
_MAC_TEXT = re.compile(r"([^()]*)\(((?:[0-9A-Fa-f]{1,2}:){5}[0-9A-Fa-f]{1,2})\)")


def address_text(address: bytes) -> str:
    """Return a 16-byte address as the shipped classes print it."""
    quad = ".".join(str(byte) for byte in address[12:16])
    if address[:12] == _MAPPED:
        return quad
    if address[:4] == _WITH_MAC:
        return f"{quad}({':'.join(f'{byte:x}' for byte in address[4:10])})"
    groups = (int.from_bytes(address[at : at + 2], "big") for at in range(0, 16, 2))
    return ":".join(f"{group:x}" for group in groups)


def address_bytes(text: str) -> bytes:
    """Return the 16 bytes of an address: IPv4, IPv4 with a MAC in brackets, or IPv6.

    The text is that of `address_text`, or any spelling of IPv6; other text raises a ValueError.
    """
    try:
        if match := _MAC_TEXT.fullmatch(text):
            mac = bytes(int(group, 16) for group in match[2].split(":"))
            return _WITH_MAC + mac + b"\xff\xff" + IPv4Address(match[1]).packed
        if ":" not in text:
            return _MAPPED + IPv4Address(text).packed
        if "%" in text:
            raise AddressValueError("a zone is not part of an address")
        return IPv6Address(text).packed
    except AddressValueError as error:
        raise ValueError(str(error)) from None


def sys_message_id_text(sequence: int, address: str, port: int, timestamp: int) -> str:
    """Return the text form of a SysMessageID: ``sequence-address-port-timestamp``."""
    return f"{sequence}-{address}-{port}-{timestamp}"


def message_id_text(timestamp: int, address: bytes, port: int, sequence: int) -> str:
    """Return the text form of a SysMessageID from its fields in wire order."""
    return sys_message_id_text(sequence, address_text(address), port, timestamp)
