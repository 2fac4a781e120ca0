"""``wireyard check-splits``."""

from __future__ import annotations

import click

from wireyard.cli import exits
from wireyard.cli.options import PATH, examples, format_option, max_packet_option
from wireyard.cli.output import open_output

__all__ = ["command"]


def _sizes(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        sizes = tuple(int(part, 0) for part in value.split(","))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise click.BadParameter(f"'{value}' is no list of sizes in bytes, such as 1,7,4096")
    return sizes


@click.command(
    "check-splits",
    epilog=examples(
        "wireyard check-splits traffic.jmq",
        "wireyard check-splits traffic.jmq --sizes 1,4096,1000000",
    ),
)
@click.argument("file", type=PATH)
@click.option(
    "--sizes",
    callback=_sizes,
    metavar="N,N,..",
    help="Split sizes in bytes; every size for a small file, a spread of sizes for a large one.",
)
@format_option("by the first bytes")
@max_packet_option
def command(
    file: str, sizes: tuple[int, ...] | None, format_name: str | None, max_packet_bytes: int | None
) -> int:
    """Prove that every way to cut a stream gives the same packets.

    The file is read from its beginning, and then in pieces of each size as parallel tasks would
    read it: guess where a packet begins, walk, stitch. Every boundary and every count of rows has
    to be the one that the sequential read found; else the exit status is 1.
    """
    from wireyard.cli.splits import Sequential, choose_sizes
    from wireyard.cli.tables import printable

    whole = Sequential.read(file, format_name, max_packet_bytes)
    same = True
    with open_output(None, binary=False):
        click.echo(
            f"{printable(file)}: {whole.size} bytes, {whole.rows} rows when read from the beginning"
        )
        click.echo(f"{'split bytes':>12} {'segments':>9} {'rows':>9}")
        for split in sizes or choose_sizes(whole.size, whole.format):
            segments = whole.cut(split)
            problem = whole.difference(segments)
            same = same and problem is None
            rows = sum(segment.rows or 0 for segment in segments)
            click.echo(f"{split:>12} {len(segments):>9} {rows:>9}  {problem or 'the same'}")
    return exits.DONE if same else exits.DATA_LOST
