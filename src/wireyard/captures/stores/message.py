"""Stored messages: a packet, and how far it is with every consumer.

A record of a message is ``i32 size, packet, i32 n, n x (i64 consumer id, i32 state)``. A message
over the broker's ``max_record_size`` has a file to itself, where packet and states are apart.
"""

from __future__ import annotations

import struct
from typing import Final

from wireyard.captures.stores.layout import CONSUMER_STATES
from wireyard.captures.stores.record import ConsumerState, Contents
from wireyard.captures.stores.section import Section

__all__ = ["read_message", "read_packet", "read_states"]

_STATE: Final = struct.Struct(">qi")


def read_message(section: Section, contents: Contents) -> None:
    """Read the data of a message record into `contents`.

    Raises
    ------
    DecodeError
        What does not belong there; what stands before it was read.
    """
    contents.packets.append(section.packet(size=section.size("packet size")))
    read_states(section, contents)


def read_packet(section: Section, contents: Contents) -> None:
    """Read a packet that has the section to itself; raises as `read_message` does."""
    contents.packets.append(section.packet(size=section.left))


def read_states(section: Section, contents: Contents) -> None:
    """Read the states of the message that was read; raises as `read_message` does."""
    number = section.count("consumer count", _STATE.size)
    pairs = section.take(number * _STATE.size, "consumer states")
    consumers = tuple(
        ConsumerState(consumer, CONSUMER_STATES.get(state, str(state)))
        for consumer, state in _STATE.iter_unpack(pairs)
    )
    contents.packets[-1] = contents.packets[-1]._replace(consumers=consumers)
