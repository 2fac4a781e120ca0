"""``wireyard convert``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import click

from wireyard.cli import exits
from wireyard.cli.decoding.reading import UNCONVERTED, Faults
from wireyard.cli.options import PATH, examples, format_option, max_packet_option, write_option
from wireyard.cli.output import open_output
from wireyard.cli.packets.inputs import open_one
from wireyard.errors import EncodeError, UsageError, WireError
from wireyard.formats import get_format
from wireyard.layers.port import to_gpacket, to_jmq
from wireyard.streams.decoder import decode_blocks
from wireyard.streams.framer import Framer
from wireyard.text import count_text

_CONVERSIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = MappingProxyType(
    {"jmq": ("gpacket", to_gpacket), "gpacket": ("jmq", to_jmq)}
)
"""By format: the target format, and the function that converts a packet."""


@click.command(
    "convert",
    epilog=examples(
        "wireyard convert traffic.jmq -w traffic.gpacket",
        "wireyard convert traffic.gpacket | cmp - traffic.jmq",
    ),
)
@click.argument("file", metavar="[FILE]", default="-", type=PATH)
@write_option()
@format_option("by the first bytes")
@click.option("--skip-faults", is_flag=True, help="Leave out what is no well-formed packet.")
@max_packet_option
def command(
    file: str,
    write: str | None,
    format_name: str | None,
    skip_faults: bool,
    max_packet_bytes: int | None,
) -> int:
    """Convert JMQ packets to GPackets, and back.

    The conversion follows a sketch in the GPacket specification: fields that its header lacks
    become properties with terse names, and a message's own properties precede its body.
    'docs/formats/port.md' has the table. Every packet can be converted back, byte for byte. A
    GPacket that is not the conversion of a JMQ packet is a fault.
    """
    faults, count = Faults(), 0
    with open_one(file, format_name) as (format, opened):
        if format.name not in _CONVERSIONS:
            known = " and ".join(_CONVERSIONS)
            raise UsageError(f"{file}: is {format.name}; {known} packets can be converted")
        target, convert = _CONVERSIONS[format.name]
        encode = get_format(target).encode
        with open_output(write, binary=True) as out:
            blocks = opened.blocks(Framer(format, max_packet_bytes), None)
            for event in decode_blocks(blocks, format):
                try:
                    if event.packet is None:
                        raise event.error or EncodeError("status", event.status, "no packet")
                    out.write(encode(convert(event.packet)))
                    count += 1
                except WireError as error:
                    if not skip_faults:
                        error.add_note(f"in {file}, offset {event.offset}")
                        raise
                    status = event.status if event.packet is None else UNCONVERTED
                    faults.add(status, event.offset, event.length, {"message": str(error)})
    exits.note_written(write, count_text(count, "packet"))
    if faults:
        exits.note(f"{file}: left out {faults.text()}")
        return exits.DATA_LOST
    return exits.DONE
