"""``wireyard inspect``."""

from __future__ import annotations

import click

from wireyard.cli import exits
from wireyard.cli.inputs import open_one
from wireyard.cli.options import PATH, examples, format_option, max_packet_option
from wireyard.cli.output import open_output

__all__ = ["command"]


def _offset(ctx: click.Context, param: click.Parameter, value: str) -> int:
    try:
        return int(value, 0)
    except ValueError:
        raise click.BadParameter(f"{value} is no offset, such as 4711 or 0x1267") from None


@click.command(
    "inspect",
    epilog=examples(
        "wireyard inspect traffic.jmq",
        "wireyard inspect traffic.jmq --at 4711",
    ),
)
@click.argument("file", type=PATH)
@click.option(
    "--at",
    default="0",
    callback=_offset,
    metavar="OFFSET",
    help="Any byte of the packet, counted from the start of the stream.  [default: 0]",
)
@click.option("--all", "whole", is_flag=True, help="Show every byte of long fields.")
@click.option("--secrets", is_flag=True, help="Show the bytes of passwords.")
@format_option("by the first bytes")
@max_packet_option
def command(
    file: str,
    at: int,
    whole: bool,
    secrets: bool,
    format_name: str | None,
    max_packet_bytes: int | None,
) -> int:
    """Show what every byte of one packet means.

    One line a field: where it stands in the packet, its bytes, its name and its value, under the
    section of the specification that says so. OFFSET may point into a packet; bytes that belong
    to no packet are shown as what they are. The last line says where the neighbours begin.
    """
    from wireyard.cli.frames import find_frame
    from wireyard.cli.hexdump import show_frame
    from wireyard.cli.tables import console_on

    with open_one(file, format_name) as (format, opened):
        frame = find_frame(opened, format, at, max_packet_bytes)
    with open_output(None, binary=False) as target, console_on(target) as console:
        show_frame(frame, format, console, whole=whole, secrets=secrets)
    return exits.DONE
