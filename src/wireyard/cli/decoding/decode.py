"""``wireyard decode``."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits, leave_out_pandas
from wireyard.cli.decoding.cells import CHOICES
from wireyard.cli.options import (
    PATH,
    WHERE_HELP,
    complete_columns,
    complete_fields,
    decode_as_option,
    examples,
    format_option,
    keylog_option,
    max_packet_option,
    split_names,
    write_option,
)
from wireyard.cli.output import kind_of, open_output, to_terminal
from wireyard.errors import UsageError
from wireyard.text import count_text

if TYPE_CHECKING:
    from wireyard.cli.decoding.job import Job

_KINDS = ("list", "table", "csv", "jsonl", "json", "fields", "arrow", "parquet")
_TABLES = ("csv", "arrow", "parquet")
_SEEN = ("table", "csv", "jsonl", "json", "fields")
"""Kinds of text output that is written while reading, which progress on the same terminal would
disturb."""


def _payload_request(given: tuple[str, ...]) -> dict[str, Any]:
    """Return the view of payloads, and the rules by which they are decoded.

    A `UsageError` is raised if an option is neither a view nor a rule, or there are two views.
    """
    rules = [one for one in given if "=" in one]
    ways = [one for one in given if "=" not in one]
    for way in ways:
        if way not in CHOICES:
            known = ", ".join(CHOICES)
            raise UsageError(f"--payload {way}: is none of {known}, nor a rule FILTER=DECODER")
    if len(ways) > 1:
        raise UsageError(f"--payload {' and '.join(ways)}: payloads are shown in one way")
    chosen = ways[0] if ways else None
    if not rules:
        return {"payload": chosen, "rules": ()}
    from wireyard.payloads import parse_rules

    return {"payload": chosen, "rules": parse_rules(rules)}


def _check_time(option: str, text: str) -> None:
    from wireyard.streams.conditions import time_ns

    try:
        time_ns(text)
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _conditions(
    where: tuple[str, ...],
    topics: tuple[str, ...],
    display_filters: tuple[str, ...],
    since: str | None,
    until: str | None,
) -> tuple[str, ...]:
    """Return the conditions of all options that select rows."""
    for topic in topics:
        if "#" in topic.split("/")[:-1]:
            raise UsageError(f"-t {topic}: # stands for all further levels, so it comes last")
    for option, time in (("--since", since), ("--until", until)):
        if time:
            _check_time(option, time)
    quoted = [re.sub(r"(['\\\\])", r"\\\1", topic) for topic in topics]
    any_topic = " OR ".join(f"topic == '{topic}'" for topic in quoted)
    times = [f"captured_ns {sign} {time}" for sign, time in ((">=", since), ("<", until)) if time]
    filters: list[str] = []
    if display_filters:
        from wireyard.cli.decoding.wireshark import condition_of

        filters = [*map(condition_of, display_filters)]
    return (*where, *filter(None, [any_topic]), *filters, *times)


@click.command(
    "decode",
    epilog=examples(
        "wireyard decode traffic.pcap -t 'plant/#'",
        "wireyard decode traffic.pcap -Y 'mqtt.topic contains plant' -T fields -e mqtt.topic",
        "wireyard decode traffic.jmq --columns offset,packet_type_name,destination",
        "wireyard decode traffic.jmq --where 'packet_type in 1,2' --body text | jq -r .body",
        "wireyard decode *.jmq -w packets.parquet",
        "wireyard decode traffic.pcap --payload 'plant/#=json' -w plant.parquet",
        "wireyard decode -i lo -f 'port 1883'",
        "tcpdump --immediate-mode -U -w - port 1883 | wireyard decode -",
        "wireyard decode --follow 'traffic.pcap*'",
        "wireyard decode --rotated traffic.pcap* -w packets.parquet",
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, type=PATH)
@click.option("-r", "--read", multiple=True, type=PATH, metavar="FILE", help="The same as FILE.")
@click.option(
    "-i",
    "--interface",
    metavar="NAME",
    help="Instead of FILE: what this machine sends and receives, such as lo, through dumpcap or"
    " tcpdump, until Ctrl-C or for -c rows.",
)
@click.option(
    "-f",
    "--capture-filter",
    metavar="FILTER",
    help="With -i: only such packets, as libpcap filters them, such as 'port 1883'.",
)
@format_option("by the first bytes")
@decode_as_option
@keylog_option
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="FILTER",
    help="Only messages to such topics, where + and # stand for levels, or to this destination.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="In the list, show whole payloads, and all columns of each packet.",
)
@click.option(
    "--out",
    type=click.Choice(_KINDS),
    help="By the ending of the file that is written; on a terminal a list, a line a packet, or with"
    " --columns a table; else jsonl.",
)
@write_option("a table of several formats to a file each, as in x.mqtt.csv")
@click.option(
    "--columns",
    callback=split_names,
    shell_complete=complete_columns,
    metavar="A,B,..",
    help="Only these columns, in this order; 'wireyard formats NAME' lists them.",
)
@click.option(
    "--where",
    multiple=True,
    shell_complete=complete_columns,
    metavar="CONDITION",
    help=WHERE_HELP.format("Only such rows"),
)
@click.option(
    "-Y",
    "--display-filter",
    "display_filters",
    multiple=True,
    metavar="FILTER",
    help="Only such rows: a condition in which names of fields are Wireshark's, such as"
    " mqtt.topic, and && || ! eq contains matches its words.",
)
@click.option(
    "-T", "kind_of_fields", type=click.Choice(["fields"]), help="The same as --out fields, for -e."
)
@click.option(
    "-e",
    "fields",
    multiple=True,
    shell_complete=complete_fields,
    metavar="FIELD",
    help="With -T fields: a column of each line, by Wireshark's name or ours.",
)
@click.option(
    "-E",
    "field_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="With -T fields: header=y for a line of names, separator=, for another than a tab.",
)
@click.option(
    "--mode",
    default="permissive",
    show_default=True,
    metavar="MODE",
    help="What becomes of bad rows: permissive keeps them with their error, dropmalformed leaves"
    " them out, failfast stops at the first.",
)
@click.option(
    "--payload",
    "--body",
    "payloads",
    multiple=True,
    metavar="HOW|RULE",
    help=f"How payloads are shown, one of {', '.join(CHOICES)}: csv as text where they are text,"
    " else 0x and hexadecimal; other outputs as hex. In those text and value open them; hash is"
    " SHA-256. Or a rule, FILTER=DECODER as in 'plant/#=json', by which they are opened; the first"
    " of several that fits counts.",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut payloads after N bytes, and say in them how many were cut.",
)
@click.option(
    "--spreadsheet",
    is_flag=True,
    help="CSV for a spreadsheet: a byte order mark, and ' before text that would be a formula.",
)
@click.option("--secrets", is_flag=True, help="Show passwords, which are left out otherwise.")
@click.option(
    "--nested", is_flag=True, help="Show the packets inside packets too, each after its parent."
)
@click.option("--since", metavar="TIME", help="Only packets captured at this time or later.")
@click.option("--until", metavar="TIME", help="Only packets captured before this time.")
@click.option("-c", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N rows.")
@click.option(
    "--follow",
    is_flag=True,
    help="Read a file on while it grows or is replaced, until Ctrl-C; FILE may be a pattern, in"
    " quotes.",
)
@click.option(
    "--rotated",
    is_flag=True,
    help="The files are one capture that went on in a new file again and again, in any order.",
)
@max_packet_option
def command(
    files: tuple[str, ...],
    read: tuple[str, ...],
    interface: str | None,
    capture_filter: str | None,
    format_name: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    out: str | None,
    write: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
    follow: bool,
    rotated: bool,
    payloads: tuple[str, ...],
    where: tuple[str, ...],
    topics: tuple[str, ...],
    display_filters: tuple[str, ...],
    kind_of_fields: str | None,
    fields: tuple[str, ...],
    field_options: tuple[str, ...],
    verbose: bool,
    **request: Any,
) -> int:
    """Show packets as a list, a table, CSV, JSON Lines, Arrow or Parquet.

    FILE is a path, a URL, or - for standard input; compressed files are opened by their
    content. On a terminal a capture is a list in the order of time: time, client, > from the client
    or < to it, type, topic, QoS, payload. All other outputs have rows in stream order that cover
    every byte: bytes that are no packet are a row with the reason, and are reported in a line on
    standard error with exit status 1.

    A pipe is read as its bytes arrive, so rows of different streams are in the order of their
    packets. Ctrl-C ends reading: everything read so far is written, and a summary is printed.
    """
    from wireyard.cli.decoding.job import Job
    from wireyard.cli.decoding.reading import Budget
    from wireyard.cli.decoding.selection import Request

    paths = (*read, *files)
    if interface is not None:
        if paths:
            raise UsageError("decode: -i takes the place of FILE")
        paths = ("-",)
    elif capture_filter is not None:
        raise UsageError("decode: --capture-filter is for -i; --where and -Y select rows")
    if not paths:
        raise UsageError("decode: name a FILE, - for standard input, or -i INTERFACE")
    if paths.count("-") > 1:
        raise UsageError("decode: standard input can be read once only")
    if follow and (len(paths) > 1 or paths == ("-",)):
        raise UsageError("decode: --follow takes one FILE, or a pattern in quotes")
    if rotated and follow:
        raise UsageError("decode: --follow reads the files of a capture one after the other itself")
    request |= _payload_request(payloads)
    full = request["columns"] or request["nested"] or request["rules"]
    out = out or kind_of_fields or ("table" if full and to_terminal(write) else None)
    kind = kind_of(write, out, _KINDS, on_terminal="list")
    if request["spreadsheet"] and kind != "csv":
        raise UsageError("decode: --spreadsheet is for csv")
    if verbose and kind != "list":
        raise UsageError("decode: --verbose is for the list, --out list")
    if bool(fields) != (kind == "fields"):
        raise UsageError("decode: -T fields and -e FIELD need each other")
    if fields:
        from wireyard.cli.decoding.wireshark import column_of

        request["columns"] = tuple(dict.fromkeys(map(column_of, fields)))
    request["where"] = _conditions(where, topics, display_filters, since, until)
    tables = kind in _TABLES
    job = Job(
        paths=paths,
        format_name=format_name,
        decode_as=decode_as,
        keylog=keylog,
        request=Request(**request, lenient=format_name is None, csv=kind == "csv"),
        budget=Budget(limit),
        shows_progress=not (to_terminal(write) and kind in _SEEN),
        follows=follow,
        rotated=rotated,
        tables=tables,
        one_format=tables and write in (None, "-"),
        verbose=verbose,
        fields=fields,
        field_options=field_options,
    )
    with ExitStack() as opened:
        if interface is not None:
            from wireyard.cli.decoding.live import capturing

            opened.enter_context(capturing(interface, capture_filter))
        _write(job, kind, write)
    return job.status


def _write(job: Job, kind: str, write: str | None) -> None:
    """Write the rows of a job."""
    from wireyard.cli.decoding.writers import WRITERS

    with closing(job.readings()) as readings:
        if kind in _TABLES:
            leave_out_pandas()
            from wireyard.cli.decoding.columnar import Tables

            written = Tables(write, kind).write(readings)
        else:
            with open_output(write, binary=False) as file:
                WRITERS[kind](job, readings, file)
            written = {str(write): count_text(job.budget.taken, "row")}
    if write not in (None, "-"):
        for name, rows in written.items():
            exits.note_written(name, rows)
