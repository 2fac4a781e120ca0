"""``wireyard dissector``."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from wireyard.cli import exits
from wireyard.cli.options import examples, write_option
from wireyard.cli.output import open_output


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from wireyard.dissector import names

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


@click.command(
    "dissector",
    epilog=examples(
        "wireyard dissector -w wireyard.lua",
        "tshark -X lua_script:wireyard.lua -r traffic.pcap -Y jmq.destination",
        "wireyard dissector rmp | tee rmp.lua",
        "tshark -X lua_script:rmp.lua -r rings.pcap -d udp.port==5000,rmp_messaging",
    ),
)
@click.argument("formats", metavar="[FORMAT]...", nargs=-1, shell_complete=_complete)
@write_option()
def command(formats: tuple[str, ...], write: str | None) -> int:
    """Print dissectors for Wireshark and tshark as one Lua script.

    They are made from the tables that wireyard reads by, and their fields have the names of its
    columns, such as jmq.packet_type. JMQ and GPacket are known by what packets begin with, on any
    TCP port; RMP has no such mark and is chosen with Decode As.
    """
    from wireyard.dissector import lua_script

    with open_output(write, binary=False) as file:
        file.write(lua_script(formats).encode())
    return exits.DONE
