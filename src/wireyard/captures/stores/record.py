"""What a record of a store is: its bytes, what they are to the broker, and what is in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wireyard.captures.stores.layout import FREED, HELD, State
from wireyard.errors import DecodeError
from wireyard.streams.framer import OK

__all__ = [
    "DAMAGED",
    "Acknowledgment",
    "ConsumerState",
    "Contents",
    "Entry",
    "Record",
    "StoredPacket",
    "Transaction",
]


DAMAGED: Final = "damaged"


class ConsumerState(NamedTuple):
    """How far a message is with one consumer."""

    consumer_id: int
    state: str | None
    """``routed``, ``delivered``, ``acknowledged``, another's number; None in a log, where it is
    who the message is for."""


class StoredPacket(NamedTuple):
    """A packet is bytes ``[start, stop)`` of its file."""

    start: int
    stop: int
    consumers: tuple[ConsumerState, ...] = ()


class Acknowledgment(NamedTuple):
    """A consumer is done with a message; without a consumer the message was removed."""

    destination: str
    sys_message_id: str
    consumer_id: int | None


class Transaction(NamedTuple):
    """What a record says of the transaction it belongs to."""

    transaction_id: int
    state: str | None


class Entry(NamedTuple):
    """An entry of a map: both sides as text, the value as JSON."""

    key: str
    value: str


@dataclass(slots=True)
class Contents:
    """What was read of a record's data; filled from left to right, so a fault leaves the rest."""

    kind: str | None = None
    """What a log's record contains."""
    packets: list[StoredPacket] = field(default_factory=list)
    acknowledgments: list[Acknowledgment] = field(default_factory=list)
    transaction: Transaction | None = None
    entry: Entry | None = None
    timestamp_ms: int | None = None
    sequence: int | None = None
    checkpoint_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes ``[start, stop)`` of a file; the records of a file are contiguous and all of it.

    `status` is that of a row: ``malformed`` a record that breaks a rule, ``garbage`` bytes that
    are no record, ``tail`` one that the file's end cuts off. A fault's offset counts from `start`.
    """

    start: int
    stop: int
    state: State
    contents: Contents
    status: str = OK
    error: DecodeError | None = None

    @property
    def label(self) -> str:
        """What an account of the file counts the record as: its state, or ``damaged``."""
        return self.state.value if self.status == OK else DAMAGED

    @property
    def held(self) -> tuple[tuple[int, int], ...]:
        """The bytes that the file's stream takes from the record.

        Of what is in use its packets; of what is damaged everything, for only there can be found
        what is in it.
        """
        if self.status != OK and self.state not in FREED:
            return ((self.start, self.stop),)
        if self.state not in HELD:
            return ()
        return tuple((packet.start, packet.stop) for packet in self.contents.packets)
