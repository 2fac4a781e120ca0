"""The command line: one module per command, imported when the command is called.

A command returns its exit status, or None for 0. Every error becomes one line on standard error and
an exit status (``wireyard.cli.exits``); a traceback is a bug.
"""

from __future__ import annotations

import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from wireyard import __version__
from wireyard.cli import exits

COMMANDS = {
    "decode": "Show packets as a list, a table, CSV, JSON Lines, Arrow or Parquet.",
    "inspect": "Show what every byte of a packet means, or of a capture where each byte went.",
    "encode": "Turn JSON Lines, as decode prints them, back into packets.",
    "convert": "Convert JMQ packets to GPackets, and back.",
    "run": "Read captures, streams and stores into a lake of Parquet tables with Spark.",
    "lake": "Check or repair a lake that run has filled, drop inputs, list or expire its commits.",
    "trace": "Show what became of a message, or of the messages of a topic or a client.",
    "why": "Show what is stuck, lost or broken, worst first, each with its proof.",
    "slow": "Show which consumers are slow, and how long messages waited.",
    "sql": "Ask captures, streams, stores or a lake with SQL.",
    "report": "Write a page about captures, streams, stores or a lake.",
    "check-splits": "Prove that every way to cut a stream gives the same packets.",
    "dissector": "Print dissectors for Wireshark and tshark as one Lua script.",
    "flows": "List the conversations of a capture: who, in which format, how much, when.",
    "slice": "Write the frames behind rows of a capture as a capture.",
    "store": "List the files of an Open MQ file store: records, messages, and their states.",
    "ring": "Send and receive messages over a ring of the RMP messaging layer.",
    "broker": "Run a broker for MQTT and Open MQ clients, for tests and edge gateways.",
    "sub": "Show the messages of topics as they arrive; the letters are those of mosquitto_sub.",
    "pub": "Publish a message to an MQTT broker; the letters are those of mosquitto_pub.",
    "tap": "Pass MQTT or JMQ through unchanged, to record it, to watch it, or to test clients.",
    "replay": "Have the clients of a recording do the same again, with another broker.",
    "shadow": "Show what the broker of one recording did otherwise than that of another.",
    "conform": "Find out whether brokers keep the rules of MQTT 3.1.1 and 5.0.",
    "formats": "List the wire formats, or the columns of one.",
    "doctor": "Say what is installed, what is missing, and what to type.",
    "completion": "Print the completion script of a shell.",
}
"""Every command and its first line of help, so that ``--help`` loads none of them."""
_FOLDERS = {
    "about": ("formats", "dissector", "doctor", "completion"),
    "asking": ("trace", "why", "slow", "sql", "report", "shadow"),
    "decoding": ("decode",),
    "packets": ("inspect", "encode", "convert", "check-splits", "flows", "slice", "store"),
}
"""The folders of commands that are not in this one."""
_LIGHT = frozenset({"formats", "dissector", "completion", "sub", "pub", "ring", "broker", "tap"})
"""Commands that load nothing but the standard library, as long as they record nothing."""

_HELP = """Read message-broker traffic exactly: bytes to packets, packets to tables, and back.

    \b
    wireyard decode traffic.pcap                   a line a packet, by time
    wireyard inspect traffic.jmq --at 4711         one packet, byte by byte
    wireyard decode traffic.jmq | jq .destination  JSON Lines when piped
    wireyard help COMMAND                          every command has an example

    Results go to standard output, notes to standard error; - is standard input or output. Exit
    status: 0 done, 1 data lost, 2 bad usage, 3 cannot read, 4 cannot write, 130 after Ctrl-C, 143
    after SIGTERM.
"""


_KEYLOG = re.compile("(?:^|(?<=\0))-o\0?tls.keylog_file:")


def _without_preferences(arguments: list[str]) -> list[str]:
    """Return arguments with ``--keylog FILE`` for tshark's ``-o tls.keylog_file:FILE``."""
    text = "\0".join(arguments)  # no argument contains it
    return _KEYLOG.sub("--keylog\0", text).split("\0") if arguments else []


class _Commands(click.Group):
    """A group whose commands are modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in _LIGHT:
            exits.check_memory()
        folder = next((f".{name}" for name, held in _FOLDERS.items() if cmd_name in held), "")
        module = f"{__name__}{folder}.{cmd_name.replace('-', '_')}"
        found: click.Command = import_module(module).command
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _without_preferences(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a line; ``help COMMAND`` is ``COMMAND --help``."""
        if args[0] == "help":
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [args[1], "--help"]
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, 1)
            near = f"; there is '{close[0]}'" if close else f"; there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"No such command '{args[0]}'{near}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            return exits.report_error(error)  # click would treat it as a failure
        except KeyboardInterrupt as error:
            if not exits.is_terminated():
                raise
            return exits.report_error(error)  # click would print an empty line

    def main(self, *args: Any, **named: Any) -> NoReturn:
        """Run a command line and exit with its status."""
        # Arrow and numpy then share an allocator, which reuses freed memory and asks for less.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read when Arrow is loaded
        # Nothing here multiplies matrices, for which numpy starts a thread for each core.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        named["standalone_mode"] = False
        exits.open_standard_streams()
        try:
            with exits.sigterm_interrupts():
                status = super().main(*args, **named)
                sys.stdout.flush()
        except (Exception, exits.Terminated) as error:
            status = exits.report_error(error)
        sys.exit(status)


class _NoPandas:
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def leave_out_pandas() -> None:
    """Let Arrow find that pandas is not installed, which it looks for once.

    Arrow loads it to see whether a value is one of pandas. No command makes such a value, and
    loading pandas takes longer than answering a question about a small capture.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


@click.group(
    cls=_Commands,
    help=_HELP,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Run a command."""
