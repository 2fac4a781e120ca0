"""802.11 frames, and the headers that capture programs write before them.

The fields of 802.11, radiotap and PPI are little-endian. The content of a frame begins with LLC.
Frames without content, or with content that cannot be read, have kinds of their own.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes
from wireyard.captures.layout import Fate, Header
from wireyard.memory import load_u8, load_u32

_CUT: Final = int(Fate.CUT)
_MALFORMED: Final = int(Fate.MALFORMED)

_DATA: Final = 2
"""Type of a frame; 0 is management, 1 control."""
# Bits of the second byte of a frame's control field, and of a subtype (IEEE 802.11-2020, 9.2.4.1).
_TO_AND_FROM_DS: Final = 0x03
_MORE_FRAGMENTS: Final = 0x04
_PROTECTED: Final = 0x40
_ORDER: Final = 0x80
_NO_DATA: Final = 0x4
_QOS: Final = 0x8
_A_MSDU: Final = 0x80
_PADDED: Final = 0x20
"""Bit of radiotap's flags: the header of the frame is padded to a multiple of 4 bytes."""
_AVS_MAGIC: Final = 0x80211000
_PRISM_BYTES: Final = 144


@inlined
def load_u16_little(data: Bytes, at: int) -> int:
    """Read an unsigned little-endian 16-bit integer."""
    return load_u8(data, at) | load_u8(data, at + 1) << 8


@inlined
def after_wlan(data: Bytes, padded: bool, at: int, stop: int) -> tuple[int, int]:
    """Read the header of an 802.11 frame (IEEE 802.11-2020, 9.3.2)."""
    if at + 2 > stop:
        return _CUT, at
    control, flags = load_u8(data, at), load_u8(data, at + 1)
    type_, subtype = control >> 2 & 3, control >> 4
    if control & 3 != 0 or type_ > _DATA:
        return _MALFORMED, at
    if type_ != _DATA:
        return (Header.WLAN_CONTROL if type_ else Header.WLAN_MANAGEMENT), at
    if subtype & _NO_DATA:
        return Header.WLAN_NO_DATA, at
    if flags & _PROTECTED:
        return Header.WLAN_ENCRYPTED, at
    size = 30 if flags & _TO_AND_FROM_DS == _TO_AND_FROM_DS else 24
    if at + size + 2 > stop:
        return _CUT, at
    if flags & _MORE_FRAGMENTS or load_u8(data, at + 22) & 15:
        return Header.WLAN_FRAGMENT, at
    if subtype & _QOS:
        if load_u8(data, at + size) & _A_MSDU:
            return Header.WLAN_AGGREGATE, at
        size += 6 if flags & _ORDER else 2
    if padded:
        size += -size & 3
    return Header.LLC, at + size


@inlined
def after_radiotap(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a radiotap header; of its fields only the padding flag is needed."""
    if at + 8 > stop:
        return _CUT, at
    size = load_u16_little(data, at + 2)
    if load_u8(data, at) != 0 or size < 8:
        return _MALFORMED, at
    if at + size > stop:
        return _CUT, at
    field = at + 8
    while load_u8(data, field - 1) & 0x80:  # another word of presence bits follows
        field += 4
        if field > at + size:
            return _MALFORMED, at
    present = load_u8(data, at + 4)
    if present & 1:  # a time, aligned to 8 bytes
        field += (-(field - at) & 7) + 8
    padded = present & 2 != 0 and field < at + size and load_u8(data, field) & _PADDED != 0
    return (Header.WLAN_PADDED if padded else Header.WLAN), at + size


@inlined
def after_ppi(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a PPI header; return the link type of the packet after it, or a negative fate."""
    if at + 8 > stop:
        return -_CUT, at
    size = load_u16_little(data, at + 2)
    if load_u8(data, at) != 0 or size < 8:
        return -_MALFORMED, at
    high = load_u16_little(data, at + 6)
    return load_u16_little(data, at + 4) | high << 16, at + size


@inlined
def after_monitor(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a header of AVS, which has a length field, or of Prism cards, whose length is fixed."""
    if at + 8 > stop:
        return _CUT, at
    if load_u32(data, at) & 0xFFFFF000 != _AVS_MAGIC:
        return Header.WLAN, at + _PRISM_BYTES
    size = load_u32(data, at + 4)
    return (Header.WLAN if size >= 8 else _MALFORMED), at + size
