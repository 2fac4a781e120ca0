"""``wireyard completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from wireyard.cli import exits
from wireyard.cli.options import examples

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    epilog=examples(
        'eval "$(wireyard completion bash)"                             in ~/.bashrc',
        'eval "$(wireyard completion zsh)"                              in ~/.zshrc',
        "wireyard completion fish > ~/.config/fish/completions/wireyard.fish",
    ),
)
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> int:
    """Print the completion script of a shell.

    Commands, options, formats, columns, verdicts and files are then completed with the tab key.
    """
    from wireyard.cli import main

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "wireyard", "_WIREYARD_COMPLETE").source())
    return exits.DONE
