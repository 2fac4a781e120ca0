"""``wireyard doctor``."""

from __future__ import annotations

import click

from wireyard.cli import exits
from wireyard.cli.options import examples
from wireyard.cli.output import open_output

__all__ = ["command"]


@click.command("doctor", epilog=examples("wireyard doctor"))
def command() -> int:
    """Say what is installed, what is missing, and what to type.

    The kernels are called once, so that a first run compiles them. The exit status is 0 when
    everything but Spark works.
    """
    from rich.text import Text

    from wireyard.cli.checkup import check_all
    from wireyard.cli.tables import console_on

    needed = optional = 0
    with open_output(None, binary=False) as target, console_on(target) as console:
        for check in check_all():
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
            console.print(Text("wireyard works; Spark does not yet", "bold yellow"))
        else:
            console.print(Text("wireyard works, Spark too", "bold green"))
    return exits.CANNOT_READ if needed else exits.DONE
