"""A record of a store: its bytes, their state, and their contents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wireyard.captures.stores.layout import FREED, HELD, State
from wireyard.errors import DecodeError
from wireyard.streams.framer import OK

DAMAGED: Final = "damaged"


class ConsumerState(NamedTuple):
    """The state of a message for one consumer."""

    consumer_id: int
    state: str | None
    """``routed``, ``delivered``, ``acknowledged``, or the number of another state; None in a log,
    which only has the consumers of a message."""


class StoredPacket(NamedTuple):
    """A packet, bytes ``[start, stop)`` of its file."""

    start: int
    stop: int
    consumers: tuple[ConsumerState, ...] = ()


class Acknowledgment(NamedTuple):
    """A consumer's acknowledgment of a message; without a consumer, the message was removed."""

    destination: str
    sys_message_id: str
    consumer_id: int | None


class Transaction(NamedTuple):
    """The transaction that a record belongs to."""

    transaction_id: int
    state: str | None


class Entry(NamedTuple):
    """An entry of a map: its key as text, its value as JSON."""

    key: str
    value: str


@dataclass(slots=True)
class Contents:
    """The decoded data of a record; after an error, the part before it."""

    kind: str | None = None
    """The kind of a log record."""
    packets: list[StoredPacket] = field(default_factory=list)
    acknowledgments: list[Acknowledgment] = field(default_factory=list)
    transaction: Transaction | None = None
    entry: Entry | None = None
    timestamp_ms: int | None = None
    sequence: int | None = None
    checkpoint_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes ``[start, stop)`` of a file; the records of a file are contiguous and cover it.

    `status` is as for rows: ``malformed`` for an invalid record, ``garbage`` for bytes that are no
    record, ``tail`` for a record that the end of the file truncates. The offset in `error` counts
    from `start`.
    """

    start: int
    stop: int
    state: State
    contents: Contents
    status: str = OK
    error: DecodeError | None = None

    @property
    def label(self) -> str:
        """The record's key in the ledger of its file: its state, or ``damaged``."""
        return self.state.value if self.status == OK else DAMAGED

    @property
    def held(self) -> tuple[tuple[int, int], ...]:
        """The ranges of the record's bytes that are in the file's stream.

        The packets of a record in use; all bytes of a damaged record, so that the framer can find
        packets in it.
        """
        if self.status != OK and self.state not in FREED:
            return ((self.start, self.stop),)
        if self.state not in HELD:
            return ()
        return tuple((packet.start, packet.stop) for packet in self.contents.packets)
