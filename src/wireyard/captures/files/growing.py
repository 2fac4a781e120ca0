"""Incremental reader of a capture file that is still written: complete records as bytes arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import index
from typing import Any, Final

import numpy as np

from wireyard.arrays import Bytes
from wireyard.captures import signatures
from wireyard.captures.carriers.tls_keys import secrets_of_blocks
from wireyard.captures.files import pcap, pcapng
from wireyard.captures.layout import MAX_RECORD_BYTES
from wireyard.captures.records import BLOCK_RECORDS, Context, Interface, Records
from wireyard.errors import DecodeError, LimitExceeded, Malformed, Truncated

_HEADER_SIZE_BYTES: Final = 1 << 16
"""Bytes of a pcap file from which the size of its record headers is detected; fewer if no more
arrive."""
_MAX_BLOCK_BYTES: Final = MAX_RECORD_BYTES + (1 << 16)
"""Bytes that are buffered until a record is complete: the largest packet with its options."""
_RECORDS_PER_TURN: Final = 10 * BLOCK_RECORDS
"""Records that are yielded together. Larger batches fit the cache less well, but the cost of each
stream is paid less often: 340,000 packets of 200 streams take 0.7 s instead of 1.6."""
_NOTHING: Final[Bytes] = np.empty(0, np.uint8)


class GrowingFile:
    """A capture file whose bytes are still arriving; buffers an incomplete record.

    `take_secrets` is called with each key log in a Decryption Secrets Block, before the records
    behind it. Memory is needed for one record and for one piece of input.
    """

    def __init__(self, take_secrets: Callable[[bytes], object] | None = None) -> None:
        self._take_secrets = take_secrets
        self.damage: DecodeError | None = None
        """The error at which reading ended; None if it goes on."""
        self.unread_bytes = 0
        """Bytes after the error."""
        self._rest = _NOTHING
        self._offset = 0
        """Offset of `_rest` in the file."""
        self._context: Context | None = None

    @property
    def offset(self) -> int:
        """Offset in the file of the next record."""
        return self._offset

    def state(self) -> dict[str, Any] | None:
        """Return the state from which another reader continues at `offset`, as JSON values.

        Return None if none can: too little of the file has arrived, or it is damaged.
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
        """Continue from the `state` of another reader.

        `KeyError`, `TypeError` or `ValueError` is raised if `state` is not such a state.
        """
        self._offset, header_bytes = index(state["offset"]), index(state["header_bytes"])
        interfaces = tuple(Interface(*map(index, each)) for each in state["interfaces"])
        if (
            self._offset < 0
            or header_bytes not in (0, *pcap.HEADER_BYTES)
            or (header_bytes and len(interfaces) != 1)
            or any(each.units <= 0 for each in interfaces)
        ):
            raise ValueError("no state of a file")
        self._context = Context(bool(state["little"]), interfaces, header_bytes)

    def receive(self, data: Bytes, *, idle: bool = False) -> Iterator[tuple[Bytes, Records]]:
        """Add the next bytes of the file; yield the records that are complete, with their bytes.

        With `idle`, no further bytes are available now, so that reading does not wait for more.
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
        """End the file; an incomplete record at its end becomes `damage`.

        Yields like `receive`: the records of a file too short for its header size to be detected.
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
        """Return where the next record begins and its context; None if that needs more bytes."""
        if self._context is not None:
            return 0, self._context
        head = data[:4].tobytes()
        if len(head) < 4:
            return None
        if head == signatures.PCAPNG:
            return 0, None
        if head not in pcap.MAGICS:
            raise Malformed("capture", "magic", 0, f"is {head.hex(' ')}, of no capture", "capture")
        if len(data) < (pcap.FILE_HEADER_BYTES + 1 if idle else _HEADER_SIZE_BYTES):
            return None
        return pcap.FILE_HEADER_BYTES, pcap.read_header(data)

    def _find_secrets(self, data: Bytes, context: Context | None) -> None:
        """Pass on the key logs in complete Decryption Secrets Blocks of pcapng."""
        if self._take_secrets is not None and (context is None or not context.header_bytes):
            for text in secrets_of_blocks(data, little=context is None or context.little):
                self._take_secrets(text)

    def _read(self, data: Bytes, start: int, context: Context | None) -> Iterator[Records]:
        if context is not None and context.header_bytes:
            return pcap.read_records(data, start, None, context, _RECORDS_PER_TURN)
        return pcapng.read_records(data, start, None, context, _RECORDS_PER_TURN)

    def _take_end(self, records: Records) -> None:
        """Keep the context that reading ended with; raise its error unless more bytes cure it."""
        if records.context is not None:
            self._context = records.context
        if records.damage is not None and not isinstance(records.damage, Truncated):
            raise records.damage
