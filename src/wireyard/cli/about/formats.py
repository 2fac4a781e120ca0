"""``wireyard formats``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from wireyard.cli import exits
from wireyard.cli.options import complete_format, examples
from wireyard.cli.output import open_output
from wireyard.formats import Format, get_format, labels

if TYPE_CHECKING:
    from rich.table import Table


@click.command(
    "formats",
    epilog=examples("wireyard formats", "wireyard formats jmq"),
)
@click.argument("name", required=False, shell_complete=complete_format)
def command(name: str | None) -> int:
    """List the wire formats, or the columns of one.

    The columns are what --columns and --where of decode take, and the names in JSON Lines, Arrow,
    Parquet and Spark.
    """
    from wireyard.cli.tables import console_on, print_lines

    found = get_format(name) if name else None
    with open_output(None, binary=False) as target, console_on(target) as console:
        if found is None:
            print_lines(console, _table([(one, _doc(get_format(one))) for one in labels()]))
            return exits.DONE
        from wireyard.formats.rows import pick_columns
        from wireyard.schema import CAPTURED
        from wireyard.streams.conditions import FILTERED_KINDS

        rows = [
            (c.name, c.kind, f"{c.doc}; captures only" if c in CAPTURED else c.doc, c.unit or "")
            for c in pick_columns(found, None, captured=True)
        ]
        print_lines(console, _table(rows))
        kinds = ", ".join(FILTERED_KINDS)
        console.print(f"\nConditions take columns of the kinds {kinds}.", soft_wrap=True)
    return exits.DONE


def _doc(format: Format) -> str:
    return format.dialects[format.dialect].doc if format.dialect else format.title


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for place, _ in enumerate(rows[0]):
        table.add_column(style="bold" if place == 0 else None, no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    return table
