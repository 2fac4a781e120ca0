"""The records of a capture file while it is written: whole ones as their bytes arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wireyard.captures import magic, pcap, pcapng
from wireyard.captures.layout import MAX_RECORD_BYTES
from wireyard.captures.records import BLOCK_RECORDS, Context, Interface, Records
from wireyard.captures.tls_keys import secrets_of_blocks
from wireyard.errors import DecodeError, LimitExceeded, Malformed, Truncated

__all__ = ["GrowingFile"]

Bytes = npt.NDArray[np.uint8]

_JUDGED_BYTES: Final = 1 << 16
"""Bytes of a pcap file that show how large its record headers are, if as many arrive at once."""
_MAX_BLOCK_BYTES: Final = MAX_RECORD_BYTES + (1 << 16)
"""A record is held until it is whole; a block with more than a packet and its options is none."""
_TOGETHER: Final = 10 * BLOCK_RECORDS
"""Records that are yielded together, since what each stream costs is more than what columns gain
from the cache: 340,000 packets of 200 streams take 0.7 s instead of 1.6."""
_NOTHING: Final[Bytes] = np.empty(0, np.uint8)


class GrowingFile:
    """A capture file of which bytes arrive; holds those of a record that is not whole.

    Parameters
    ----------
    take_secrets
        Called with each key log in a Decryption Secrets Block, before the records behind it.

    Limits
    ------
    One record, and what arrived at once.
    """

    def __init__(self, take_secrets: Callable[[bytes], object] | None = None) -> None:
        self._take_secrets = take_secrets
        self.damage: DecodeError | None = None
        """Why no more records are read."""
        self.unread_bytes = 0
        """How much arrived behind the damage."""
        self._rest = _NOTHING
        self._offset = 0
        """Where `_rest` begins in the file."""
        self._context: Context | None = None

    @property
    def offset(self) -> int:
        """Where the record begins in the file that is to be read next."""
        return self._offset

    def state(self) -> dict[str, Any] | None:
        """Return what another goes on with that gets the file from `offset` on, as values of JSON.

        None if that is not the case before: too little is there, or it is damaged.
        """
        if self._context is None or self.damage is not None:
            return None
        little, interfaces, header_bytes = self._context
        return {
            "offset": self._offset,
            "little": little,
            "interfaces": [list(each) for each in interfaces],
            "header_bytes": header_bytes,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another stood.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is no such state.
        """
        self._offset = int(state["offset"])
        interfaces = tuple(Interface(*map(int, each)) for each in state["interfaces"])
        self._context = Context(bool(state["little"]), interfaces, int(state["header_bytes"]))

    def receive(self, data: Bytes, *, idle: bool = False) -> Iterator[tuple[Bytes, Records]]:
        """Take the next bytes; yield the records that they complete, and the bytes those lie in.

        Parameters
        ----------
        idle
            Whether nothing else is there yet, so that nothing is worth waiting for.
        """
        if self.damage is not None:
            self.unread_bytes += len(data)
            return
        if not len(data) and self._context is not None:
            return
        data = np.concatenate([self._rest, data]) if len(self._rest) else data
        at = 0
        try:
            part = self._beginning(data, idle=idle)
            if part is not None:
                at = part[0]
                self._find_secrets(data, part[1])
                for records in self._read(data, *part):
                    at = records.stop
                    if len(records):
                        yield data, records
                    self._take_end(records)
            if len(data) - at > _MAX_BLOCK_BYTES:
                problem = f"is over {_MAX_BLOCK_BYTES}"
                raise LimitExceeded(self._kind, "Block Total Length", at, problem, "live reading")
        except DecodeError as damage:
            damage.offset += self._offset
            self.damage, self.unread_bytes = damage, len(data) - at
            self._rest = _NOTHING
            return
        self._rest = data[at:].copy()
        self._offset += at

    def end(self) -> Iterator[tuple[Bytes, Records]]:
        """Take note that the file ends here, in the middle of a record perhaps.

        Yields what `receive` does, of a file too short to be judged before.
        """
        yield from self.receive(_NOTHING, idle=True)
        if self.damage is None and len(self._rest):
            size = len(self._rest)
            spec = "capture"
            self.damage = Truncated(self._kind, "record", self._offset, size + 1, size, spec)
            self.unread_bytes = size

    @property
    def _kind(self) -> str:
        return "pcap" if self._context is None or self._context.header_bytes else "pcapng"

    def _beginning(self, data: Bytes, *, idle: bool) -> tuple[int, Context | None] | None:
        """Return where the next record begins and its context; None if too little is there."""
        if self._context is not None:
            return 0, self._context
        head = data[:4].tobytes()
        if len(head) < 4:
            return None
        if head == magic.PCAPNG:
            return 0, None
        if head not in pcap.MAGICS:
            raise Malformed("capture", "magic", 0, f"is {head.hex(' ')}, of no capture", "capture")
        enough = _JUDGED_BYTES if not idle else pcap.FILE_HEADER_BYTES + 1
        if len(data) < enough:
            return None
        return pcap.FILE_HEADER_BYTES, pcap.read_header(data)

    def _find_secrets(self, data: Bytes, context: Context | None) -> None:
        """Hand on the key logs in blocks of pcapng that are whole."""
        if self._take_secrets is not None and (context is None or not context.header_bytes):
            for text in secrets_of_blocks(data, little=context is None or context.little):
                self._take_secrets(text)

    def _read(self, data: Bytes, start: int, context: Context | None) -> Iterator[Records]:
        if context is not None and context.header_bytes:
            return pcap.read_records(data, start, None, context, _TOGETHER)
        return pcapng.read_records(data, start, None, context, _TOGETHER)

    def _take_end(self, records: Records) -> None:
        """Take note of how reading ended; that a record is not whole yet is no damage."""
        if records.context is not None:
            self._context = records.context
        if records.damage is not None and not isinstance(records.damage, Truncated):
            raise records.damage
