"""Slice a capture: write some of its packets as a capture of the same format."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Final

import numpy as np

from wireyard.arrays import Bytes
from wireyard.captures import signatures
from wireyard.captures.files import pcap, pcapng
from wireyard.captures.files.record_kernels import NUMBERED
from wireyard.errors import UsageError

__all__ = ["slice_captures"]

_MAGIC: Final = slice(8, 12)
_LITTLE: Final = bytes.fromhex("4d3c2b1a")


def slice_captures(files: Sequence[Bytes], wanted: Collection[int]) -> Iterator[Bytes]:
    """Return the parts of files that together are a capture of only some of their packets.

    Parameters
    ----------
    wanted
        Numbers of packets over all files, from 0 on. Other blocks of pcapng files, such as
        sections, interfaces and names, are kept.

    Raises
    ------
    UsageError
        The files are of different formats or link types, which one file cannot contain.
    """
    heads = {_head(data) for data in files}
    if len(heads) > 1:
        raise UsageError("captures of several formats or links; slice them one by one")
    return _slices(files, wanted)


def _head(data: Bytes) -> bytes:
    """Return the bytes that files have to share: a pcap file's header, or the magic of pcapng."""
    head = data[: pcap.FILE_HEADER_BYTES].tobytes()
    return signatures.PCAPNG if head[:4] == signatures.PCAPNG else head


def _slices(files: Sequence[Bytes], wanted: Collection[int]) -> Iterator[Bytes]:
    number, headed = 0, False
    for data in files:
        if data[:4].tobytes() == signatures.PCAPNG:
            number = yield from _blocks(data, wanted, number)
            continue
        if not headed:
            yield data[: pcap.FILE_HEADER_BYTES]
            headed = True
        at = pcap.FILE_HEADER_BYTES
        for records in pcap.read_records(data):
            bounds = np.r_[at, records.starts + records.captured]
            kept = [number + place in wanted for place in range(len(records))]
            edges = np.flatnonzero(np.diff(np.r_[False, kept, False])).tolist()
            for first, behind in zip(edges[::2], edges[1::2], strict=True):
                yield data[bounds[first] : bounds[behind]]
            number, at = number + len(records), int(bounds[-1])


def _blocks(data: Bytes, wanted: Collection[int], number: int) -> Generator[Bytes, None, int]:
    """Yield the wanted blocks of a pcapng file; return the packet number after its last."""
    stop = max(records.stop for records in pcapng.read_records(data))
    at, order = 0, "<u4"
    while at < stop:
        if data[at : at + 4].tobytes() == signatures.PCAPNG:
            order = "<u4" if data[at:][_MAGIC].tobytes() == _LITTLE else ">u4"
        kind, size = (int(word) for word in data[at : at + 8].view(order))
        if kind not in NUMBERED or number in wanted:
            yield data[at : at + size]
        number += kind in NUMBERED
        at += size
    return number
