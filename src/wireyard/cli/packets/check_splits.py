"""``wireyard check-splits``: a sequential reading of a stream, compared with readings in pieces."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from wireyard.arrays import Ints
from wireyard.cli import exits
from wireyard.cli.options import PATH, examples, format_option, max_packet_option
from wireyard.cli.output import open_output
from wireyard.cli.packets.inputs import open_one
from wireyard.errors import UsageError
from wireyard.formats import Format
from wireyard.streams.blocks import cut_blocks
from wireyard.streams.framer import Framer
from wireyard.streams.scan import load_fast_path
from wireyard.streams.split import PIECE_BYTES, Segment, walk_pieces

_MOST_PIECES = 40_000
"""Limit for the number of pieces over all sizes: a few seconds of work."""

_MANY_BYTES = 64 << 20
"""File size from which on few split sizes are tried, as each takes a walk over the file."""


@dataclass(frozen=True)
class Sequential:
    """The boundaries of all rows of a file, read sequentially. Shapes: bounds (r + 1)."""

    path: str
    format: Format
    max_packet_bytes: int
    bounds: Ints

    @classmethod
    def read(cls, path: str, format_name: str | None, max_packet_bytes: int | None) -> Sequential:
        """Read a file.

        A `UsageError` is raised if it is compressed or a pipe, and cannot be read from the middle.
        """
        with open_one(path, format_name) as (format, opened):
            if opened.size is None:
                raise UsageError(f"{path}: is compressed or a pipe, so it is read in one piece")
            limit = max_packet_bytes or format.framing.max_packet_bytes
            fast = load_fast_path(format, opened.size)
            framer = Framer(format, limit)
            blocks = cut_blocks(opened.windows, framer, fast.scan_frames if fast else None)
            offsets = [block.offsets for block in blocks]
            return cls(path, format, limit, np.concatenate([*offsets, [framer.position]]))

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return int(self.bounds[-1])

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return len(self.bounds) - 1

    def cut(self, split_bytes: int) -> list[Segment]:
        """Return the file's segments as parallel tasks would find them."""
        threads = os.cpu_count() or 1
        args = self.path, self.size, self.format, self.max_packet_bytes
        return walk_pieces(*args, split_bytes, threads)

    def difference(self, segments: Sequence[Segment]) -> str | None:
        """Return the first difference to the sequential reading; None if there is none."""
        position = 0
        for segment in segments:
            if segment.start != position:
                return f"a segment begins at {segment.start}, the one before it ends at {position}"
            first, last = np.searchsorted(self.bounds, (segment.start, segment.stop)).tolist()
            if last > self.rows or self.bounds[last] != segment.stop:
                return f"no row ends at {segment.stop}"
            if segment.rows != last - first:
                return f"{segment.rows} rows from {position}, not {last - first}"
            position = segment.stop
        return None if position == self.size else f"ends at {position}"


def choose_sizes(size: int, format: Format) -> list[int]:
    """Return the split sizes to try, in ascending order: all sizes for a small file."""
    if size > _MANY_BYTES:
        return sorted({1 << 20, PIECE_BYTES, size // 3, size // 2})
    if size * (1 + math.log(size + 1)) <= _MOST_PIECES:
        return list(range(1, size + 1))
    near = [size // part + more for part in (1, 2, 3, 5, 7) for more in (-1, 0)]
    header = [format.framing.header_bytes + more for more in (-1, 0, 1)]
    powers = [(1 << power) + more for power in range(size.bit_length()) for more in (-1, 0, 1)]
    chosen: list[int] = []
    pieces = 0
    for split in sorted({*near, *header, *powers, 1, 3, 10, 100, 1000}, reverse=True):
        pieces += -(-size // max(split, 1))
        if 0 < split <= size and pieces <= _MOST_PIECES:
            chosen.append(split)
    return sorted(chosen)


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
    from wireyard.text import count_text, printable

    whole = Sequential.read(file, format_name, max_packet_bytes)
    same = True
    with open_output(None, binary=False):
        click.echo(
            f"{printable(file)}: {count_text(whole.size, 'byte')}, {count_text(whole.rows, 'row')}"
            " when read from the beginning"
        )
        click.echo(f"{'split bytes':>12} {'segments':>9} {'rows':>9}")
        for split in sizes or choose_sizes(whole.size, whole.format):
            segments = whole.cut(split)
            problem = whole.difference(segments)
            same = same and problem is None
            rows = sum(segment.rows or 0 for segment in segments)
            click.echo(f"{split:>12} {len(segments):>9} {rows:>9}  {problem or 'the same'}")
    return exits.DONE if same else exits.DATA_LOST
