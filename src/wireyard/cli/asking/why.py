"""``wireyard why``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.asking.answers import (
    cut,
    head_of,
    limit_option,
    opened_tables,
    out_option,
    reading_options,
    shown_inputs,
    split_inputs,
    status_of,
    wrapped,
)
from wireyard.cli.decoding.cells import json_line
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output, to_terminal, wants_colours
from wireyard.errors import UsageError
from wireyard.text import printable

if TYPE_CHECKING:
    from wireyard.answers import Tables
    from wireyard.answers.why import Finding

_MOST_FINDINGS = 20
_TIMED = """
SELECT 1 FROM streams WHERE first_ns IS NOT NULL UNION ALL SELECT 1 FROM store_records LIMIT 1
"""
_INDENT = 14
_COLOURS = {
    "lost": "red", "stuck": "red", "refused": "yellow", "cut": "yellow", "slow": "yellow",
}  # fmt: skip


@click.command(
    "why",
    epilog=examples(
        "wireyard why traffic.pcap",
        "wireyard why traffic.pcap 3",
        "wireyard why lake shop.orders",
        "wireyard why /var/imq/instances/imqbroker/fs370",
        "wireyard why lake --out jsonl | jq 'select(.severity == \"lost\")'",
    ),
)
@click.argument(
    "inputs",
    metavar="INPUT|LAKE... [NUMBER|DESTINATION|CLIENT]",
    nargs=-1,
    required=True,
    type=PATH,
)
@reading_options
@limit_option(_MOST_FINDINGS, "Show the N worst.")
@click.option("-v", "--verbose", is_flag=True, help="With the details of each finding.")
@out_option("In words, or all findings as JSON Lines.")
def command(inputs: tuple[str, ...], limit: int, verbose: bool, out: str, **how: Any) -> int:
    """Show what is stuck, lost or broken, worst first, each with its proof.

    INPUT is a capture, a stream or a store, or a folder of them; DESTINATION and CLIENT, a client
    id or an endpoint, narrow it down. A finding is one cause: a symptom of one client, or of one
    destination, with what happened how often. A line is printed for each. NUMBER, or -v for all,
    shows its details: who sent, who should have received, the destinations, a frame or a stored
    record that proves it, and a command that shows more. Nothing is concluded from what a capture
    does not show, and of a bare stream, which has no times, nothing.
    """
    from wireyard.answers.why import MOST_WORST, find_symptoms, is_known

    paths, subject = split_inputs(inputs)
    with opened_tables(paths, **how) as tables, open_output(None, binary=False) as target:
        only = None
        if subject and subject.isdecimal() and not is_known(tables, subject):
            only, subject = int(subject), None
        shown = shown_inputs(paths, **how)
        most = MOST_WORST if only is None else None
        found = find_symptoms(tables, subject, shown_as=shown, most=most)
        numbered = dict(enumerate(found, 1))
        if only is not None:
            if only not in numbered:
                raise UsageError(f"there is no finding {only}; there are {len(found)}")
            numbered = {only: numbered[only]}
        if not found and not tables.rows(_TIMED):
            exits.note("no packet has a time, so nothing can be concluded; captures have times")
        elif out == "jsonl":
            for one in numbered.values():
                target.write(json_line(asdict(one)))
        else:
            text = _Text(tables, to_terminal(None), f"wireyard why {shown}")
            for line in chain(head_of(tables), text.lines(found, numbered, limit, verbose)):
                target.write(f"{line}\n".encode())
    return status_of(tables)


class _Text:
    """Writes findings for people.

    On a terminal, lines are cut to its width, and severities have colours. `why` is the command
    that shows the details of a finding, without its number.
    """

    def __init__(self, tables: Tables, is_terminal: bool, why: str) -> None:
        self._tables, self._why = tables, why
        self._width = get_terminal_size().columns if is_terminal else None
        self._coloured = is_terminal and wants_colours()

    def lines(
        self, found: Sequence[Finding], numbered: Mapping[int, Finding], limit: int, verbose: bool
    ) -> Iterator[str]:
        """Yield a line for each finding, or its details."""
        if not found:
            yield "nothing is stuck, lost or broken, as far as this shows"
            return
        if len(numbered) == len(found):
            counts = Counter(one.severity for one in found)
            summary = ", ".join(f"{count} {severity}" for severity, count in counts.items())
            head = f"{len(found)} finding{'s' * (len(found) > 1)}, worst first: {summary}"
            yield cut(head, self._width)
            yield ""
        shown = list(numbered.items())[:limit]
        for number, one in shown:
            if verbose or len(numbered) == 1:
                yield from self._details(number, one)
            else:
                yield self._line(number, one, f"{', '.join(one.about)}: {one.text}")
        if len(numbered) > limit:
            yield f"and {len(numbered) - limit:,} others; --limit N shows more"
        if not verbose and len(numbered) > 1:
            yield ""
            yield f"details: {self._why} NUMBER, or -v for all"

    def _line(self, number: int, one: Finding, text: str) -> str:
        severity = f"{one.severity:<8}"
        begin = f"{number:>4} "
        room = None if self._width is None else self._width - len(begin) - len(severity) - 1
        if self._coloured:
            severity = click.style(severity, fg=_COLOURS.get(one.severity), bold=True)
        return f"{begin}{severity} {cut(text, room)}"

    def _details(self, number: int, one: Finding) -> Iterator[str]:
        yield self._line(number, one, f"{one.symptom}: {', '.join(one.about)}")
        yield from wrapped(one.text, _INDENT)
        yield from wrapped(one.ends(), _INDENT)
        if one.destinations > 1:
            for row in one.worst:
                place = self._place(row["source"], row["frame"], one.source)
                yield from wrapped(f"{row['count']:,} on {row['destination']}{place}", _INDENT)
            if rest := one.destinations - len(one.worst):
                others = f"and {rest:,} other{'s' * (rest > 1)}"
                yield f"{'':{_INDENT}}{others}: {printable(self._why)} {number}"
        yield f"{'':{_INDENT}}proof: {printable(one.proof(self._tables.frame_files))}"
        yield f"{'':{_INDENT}}next: {printable(one.next)}"

    def _place(self, source: str, frame: int | None, proof: str) -> str:
        """Return a frame behind a comma, with its file unless that is named as the proof's."""
        if frame is None:
            return ""
        file, number = self._tables.frame_files.find(source, frame)
        return f", frame {number}" + ("" if file == source == proof else f" of {file}")
