"""Slice a capture: write some of its packets as a capture of the same format.

A file that leaves packets out says so, by a field of a pcap file's header that readers ignore, or
by a comment of a pcapng file's section, so that nothing is concluded from what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Final

import numpy as np

from wireyard.arrays import Bytes
from wireyard.captures import signatures
from wireyard.captures.files import pcap, pcapng
from wireyard.captures.files.record_kernels import NUMBERED
from wireyard.captures.records import Records
from wireyard.errors import UsageError

_SECTION: Final = int.from_bytes(signatures.PCAPNG, "little")
"""The type of a section header, the same in both byte orders."""
_MARK: Final = slice(
    signatures.SLICE_MARK_AT, signatures.SLICE_MARK_AT + len(signatures.SLICE_MARK)
)
_MAGIC: Final = slice(8, 12)
_VERSION_STOP: Final = 16
"""Where the length of the section begins, in its header."""
_OPTIONS_AT: Final = 24
_ANY_LENGTH: Final = b"\xff" * 8
_COMMENT: Final = 1
_NO_OPTIONS: Final = bytes(4)
_LITTLE: Final = bytes.fromhex("4d3c2b1a")


def slice_captures(files: Sequence[Bytes], wanted: Collection[int]) -> Iterator[Bytes]:
    """Return the parts of files that together are a capture of only some of their packets.

    `wanted` are numbers of packets over all files, from 0 on. Other blocks of pcapng files, such as
    sections, interfaces and names, are kept. `UsageError` is raised if the files are of different
    formats or link types, which one file cannot contain.
    """
    heads = {_head(data) for data in files}
    if len(heads) > 1:
        raise UsageError("captures of several formats or links; slice them one by one")
    count = sum(len(records) for data in files for records in _records_of(data))
    return _slices(files, wanted, len(wanted) < count)


def _head(data: Bytes) -> bytes:
    """Return the bytes that files have to share: a pcap file's header, or the magic of pcapng."""
    head = data[: pcap.FILE_HEADER_BYTES].tobytes()
    if head[:4] == signatures.PCAPNG:
        return signatures.PCAPNG
    return head[: _MARK.start] + head[_MARK.stop :]


def _records_of(data: Bytes) -> Iterator[Records]:
    is_pcapng = data[:4].tobytes() == signatures.PCAPNG
    return pcapng.read_records(data) if is_pcapng else pcap.read_records(data)


def _slices(files: Sequence[Bytes], wanted: Collection[int], marked: bool) -> Iterator[Bytes]:
    number, headed = 0, False
    for data in files:
        if data[:4].tobytes() == signatures.PCAPNG:
            number = yield from _blocks(data, wanted, number, marked)
            continue
        if not headed:
            head = data[: pcap.FILE_HEADER_BYTES].copy()
            if marked:
                head[_MARK] = _bytes_of(signatures.SLICE_MARK)
            yield head
            headed = True
        at = pcap.FILE_HEADER_BYTES
        for records in pcap.read_records(data):
            bounds = np.r_[at, records.starts + records.captured]
            kept = [number + place in wanted for place in range(len(records))]
            edges = np.flatnonzero(np.diff(np.r_[False, kept, False])).tolist()
            for first, behind in zip(edges[::2], edges[1::2], strict=True):
                yield data[bounds[first] : bounds[behind]]
            number, at = number + len(records), int(bounds[-1])


def _bytes_of(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


def _marked(section: Bytes, order: str) -> Bytes:
    """Return a section header of a pcapng file with a comment more, of a section of any length."""
    text = signatures.SLICE_COMMENT
    comment = np.array([_COMMENT, len(text)], order.replace("4", "2")).tobytes() + text
    options = comment + bytes(-len(text) % 4) + (section[_OPTIONS_AT:-4].tobytes() or _NO_OPTIONS)
    size = np.array([_OPTIONS_AT + len(options) + 4], order).tobytes()
    head = signatures.PCAPNG + size + section[_MAGIC.start : _VERSION_STOP].tobytes()
    return _bytes_of(head + _ANY_LENGTH + options + size)


def _blocks(
    data: Bytes, wanted: Collection[int], number: int, marked: bool
) -> Generator[Bytes, None, int]:
    """Yield the wanted blocks of a pcapng file; return the packet number after its last."""
    stop = max(records.stop for records in pcapng.read_records(data))
    at, order = 0, "<u4"
    while at < stop:
        if data[at : at + 4].tobytes() == signatures.PCAPNG:
            order = "<u4" if data[at:][_MAGIC].tobytes() == _LITTLE else ">u4"
        kind, size = (int(word) for word in data[at : at + 8].view(order))
        block = data[at : at + size]
        if kind == _SECTION and marked and signatures.SLICE_COMMENT not in block.tobytes():
            yield _marked(block, order)
        elif kind not in NUMBERED or number in wanted:
            yield block
        number += kind in NUMBERED
        at += size
    return number
