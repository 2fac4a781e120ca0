"""Stored messages: a packet, and its state for each consumer.

A record of a message is ``i32 size, packet, i32 n, n x (i64 consumer id, i32 state)``. A message
larger than the broker's ``max_record_size`` has a file of its own, where packet and states are in
different parts.
"""

from __future__ import annotations

import struct
from typing import Final

from wireyard.captures.stores.layout import CONSUMER_STATES
from wireyard.captures.stores.record import ConsumerState, Contents
from wireyard.captures.stores.section import Section

_STATE: Final = struct.Struct(">qi")


def read_message(section: Section, contents: Contents) -> None:
    """Read the data of a message record into `contents`.

    `DecodeError` is raised if the data is malformed; `contents` has what precedes the error.
    """
    contents.packets.append(section.packet(size=section.size("packet size")))
    read_states(section, contents)


def read_packet(section: Section, contents: Contents) -> None:
    """Read a packet that fills the section; raises like `read_message`."""
    contents.packets.append(section.packet(size=section.left))


def read_states(section: Section, contents: Contents) -> None:
    """Read the consumer states of the packet read before; raises like `read_message`."""
    number = section.count("consumer count", _STATE.size)
    pairs = section.take(number * _STATE.size, "consumer states")
    consumers = tuple(
        ConsumerState(consumer, CONSUMER_STATES.get(state, str(state)))
        for consumer, state in _STATE.iter_unpack(pairs)
    )
    contents.packets[-1] = contents.packets[-1]._replace(consumers=consumers)
