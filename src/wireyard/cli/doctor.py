"""``wireyard doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from wireyard.cli import exits
from wireyard.cli.options import examples
from wireyard.cli.output import open_output

if TYPE_CHECKING:
    from wireyard.accelerate import Progress

__all__ = ["command"]


@contextmanager
def _progress_shown() -> Iterator[Callable[[Progress], None]]:
    """Show on a terminal how many kernels are compiled, and the time left for the others."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("compiling kernels"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}  {task.description}"),
    )
    console = Console(stderr=True)
    disable = not console.is_terminal
    with Bars(*columns, console=console, transient=True, disable=disable) as bars:
        task = bars.add_task("", total=None, visible=False, left="")

        def report(progress: Progress) -> None:
            waiting = progress.total == 0
            left = "another process is at it" if waiting else f"{progress.seconds_left:.0f} s left"
            bars.update(
                task,
                completed=progress.done,
                total=progress.total or None,
                description=progress.name,
                left=left,
                visible=waiting or progress.done < progress.total,
            )

        yield report


@click.command("doctor", epilog=examples("wireyard doctor"))
def command() -> int:
    """Say what is installed, what is missing, and what to type.

    Kernels that are not compiled yet are compiled, so that no other command waits for them. The
    exit status is 0 if everything works that is part of every installation.
    """
    from rich.text import Text

    from wireyard.cli.checkup import check_all
    from wireyard.cli.tables import console_on

    needed = optional = 0
    with (
        open_output(None, binary=False) as target,
        console_on(target) as console,
        _progress_shown() as report,
    ):
        for check in check_all(report):
            missing = check.advice is not None
            needed += missing and check.needed
            optional += missing and not check.needed
            style = "green" if not missing else "red" if check.needed else "yellow"
            word = "ok" if not missing else "missing" if check.needed else "without"
            line = Text.assemble((f"{word:<8}", style), f"{check.name:<10}", check.found)
            console.print(line, soft_wrap=True)
            if missing:
                console.print(Text(f"{'':<18}{check.advice}", "bold"), soft_wrap=True)
        if needed:
            console.print(Text("wireyard cannot work before that is done", "bold red"))
        elif optional:
            console.print(Text("wireyard works, without what is named above", "bold yellow"))
        else:
            console.print(Text("wireyard works, all of it", "bold green"))
    return exits.CANNOT_READ if needed else exits.DONE
