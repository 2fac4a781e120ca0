"""``wireyard why``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.answers import (
    frame_text,
    head_of,
    nothing_read,
    opened_tables,
    reading_options,
    shown_inputs,
    split_inputs,
    status_of,
)
from wireyard.cli.blocks import wrapped
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output
from wireyard.cli.tables import printable

if TYPE_CHECKING:
    from wireyard.answers import Tables
    from wireyard.answers.why import Finding

__all__ = ["command"]

_MOST_FINDINGS = 20
_TIMED = """
SELECT 1 FROM streams WHERE first_ns IS NOT NULL UNION ALL SELECT 1 FROM store_records LIMIT 1
"""
_INDENT = 9


@click.command(
    "why",
    epilog=examples(
        "wireyard why traffic.pcap",
        "wireyard why lake shop.orders",
        "wireyard why /var/imq/instances/imqbroker/fs370",
        "wireyard why lake --out jsonl | jq 'select(.severity == \"lost\")'",
    ),
)
@click.argument(
    "inputs", metavar="INPUT|LAKE... [DESTINATION|CLIENT]", nargs=-1, required=True, type=PATH
)
@reading_options
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_MOST_FINDINGS,
    show_default=True,
    metavar="N",
    help="Show the N worst.",
)
@click.option(
    "--out",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    show_default=True,
    help="In words, or all findings as JSON Lines.",
)
def command(inputs: tuple[str, ...], limit: int, out: str, **how: Any) -> int:
    """Show what is stuck, lost or broken, worst first, each with its proof.

    INPUT is a capture, a stream or a store, or a folder of them; DESTINATION and CLIENT, a client
    id or an endpoint, narrow it down. Each finding is a symptom, its destination and client, what
    happened how often, a frame or a stored record that proves it, and a command that shows more.
    Nothing is concluded from what a capture does not show, and of a bare stream, which has no
    times, nothing.
    """
    from wireyard.answers.why import find_symptoms

    paths, subject = split_inputs(inputs)
    with opened_tables(paths, **how) as tables, open_output(None, binary=False) as target:
        if nothing := nothing_read(tables):
            exits.note(nothing)
            return exits.DATA_LOST
        found = find_symptoms(tables, subject, shown_as=shown_inputs(paths, **how))
        proof = partial(_proof, tables)
        lines = (
            map(_json_line, found)
            if out == "jsonl"
            else chain(head_of(tables), _text(found, limit, proof))
        )
        for line in lines:
            target.write(f"{line}\n".encode())
        if not found and not tables.rows(_TIMED):
            exits.note("no packet has a time, so nothing can be concluded; captures have times")
    return status_of(tables)


def _json_line(one: Finding) -> str:
    return json.dumps(asdict(one), ensure_ascii=False)


def _text(found: Sequence[Finding], limit: int, proof: Callable[[Finding], str]) -> Iterator[str]:
    if not found:
        yield "nothing is stuck, lost or broken, as far as this shows"
        return
    counts = Counter(one.severity for one in found)
    summary = ", ".join(f"{count} {severity}" for severity, count in counts.items())
    yield f"{len(found)} finding{'s' * (len(found) > 1)}, worst first: {summary}"
    for one in found[:limit]:
        yield ""
        about = " for ".join(filter(None, (one.destination, one.client))) or one.subject
        yield f"{one.severity:<{_INDENT}}{one.symptom}: {printable(about)}"
        yield from wrapped(one.text, _INDENT)
        yield f"{'':{_INDENT}}proof: {printable(proof(one))}"
        yield f"{'':{_INDENT}}next: {printable(one.next)}"
    if len(found) > limit:
        yield f"and {len(found) - limit:,} others; --limit N shows more"


def _proof(tables: Tables, one: Finding) -> str:
    if one.frame is not None:
        return frame_text(tables, one.source, one.frame)
    return f"offset {one.offset} of {one.stream} in {one.source}"
