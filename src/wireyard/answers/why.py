"""Findings: run the queries for all symptoms, and sort their rows by severity."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wireyard.answers.symptoms import symptoms
from wireyard.errors import UsageError
from wireyard.layers.symptoms import SEVERITIES, Symptom

if TYPE_CHECKING:
    from wireyard.answers import Tables

__all__ = ["Finding", "find_symptoms", "quote"]

_OF_ROW = ("destination", "client", "count", "source", "frame", "stream", "offset")
_KNOWN = """
SELECT 1 FROM messages
WHERE $asked IN (destination, producer_client_id, producer, client)
UNION ALL
SELECT 1 FROM deliveries WHERE $asked IN (destination, consumer_client_id, consumer)
UNION ALL
SELECT 1 FROM sessions WHERE $asked IN (client_id, client)
UNION ALL
SELECT 1 FROM store_records WHERE $asked = destination
LIMIT 1
"""
_NOUNS = ("message", "request", "time", "login", "connection", "subscription", "piece")


@dataclass(frozen=True)
class Finding:
    """A problem, with its proof.

    The proof is a packet, given by its frame in the capture and its offset in the stream; or a
    stored record, which has no frame.
    """

    symptom: str
    severity: str
    subject: str
    """The destination concerned, else the client, else the source."""
    destination: str | None
    client: str | None
    count: int
    text: str
    source: str
    frame: int | None
    stream: str
    offset: int
    next: str
    """A command that shows more."""


def find_symptoms(tables: Tables, asked: str | None, *, shown_as: str) -> list[Finding]:
    """Find all problems, worst first.

    Parameters
    ----------
    asked
        Only problems of this destination or client.
    shown_as
        The inputs as on a command line.

    Raises
    ------
    UsageError
        There is no such destination or client.
    """
    if asked is not None and not tables.rows(_KNOWN, {"asked": asked}):
        raise UsageError(f"there is no destination, client or file '{asked}'")
    known = symptoms()
    findings = [
        finding
        for symptom in known
        for finding in _findings(tables, symptom, shown_as)
        if asked is None or asked in (finding.destination, finding.client)
    ]
    order = {symptom.code: place for place, symptom in enumerate(known)}
    return sorted(
        findings,
        key=lambda each: (
            SEVERITIES.index(each.severity), -each.count, order[each.symptom], each.subject,
            each.client or "", each.source,
        ),
    )  # fmt: skip


def _findings(tables: Tables, symptom: Symptom, shown_as: str) -> Iterator[Finding]:
    for row in tables.rows(symptom.query):
        subject = row["destination"] or row["client"] or row["source"]
        words = {**row, "subject": subject}
        yield Finding(
            symptom=symptom.code,
            severity=symptom.severity,
            subject=subject,
            text=symptom.text.format(**words, **_counted(row["count"])),
            next=_command(symptom.next, words, shown_as),
            **{name: row[name] for name in _OF_ROW},
        )


def _command(template: str, words: Mapping[str, Any], shown_as: str) -> str:
    """Return a command for bash; a word that begins with a dash comes last, behind ``--``."""
    if words.get("verdict") is None:  # it has no delivery
        template = template.replace(" --verdict {verdict}", "")
    for name in ("subject", "client"):
        place = f" {{{name}}}"
        if place in template and str(words[name]).startswith("-"):
            template = f"{template.replace(place, '')} --{place}"
    quoted = {name: quote(str(value)) for name, value in words.items()}
    return template.format(**{**quoted, "input": shown_as})


def quote(word: str) -> str:
    """Return a word as bash reads it, in printable characters."""
    if word.isprintable():
        return shlex.quote(word)
    shown = (
        f"\\{char}" if char in "'\\" else char if char.isprintable() else _escaped(char)
        for char in word
    )
    return f"$'{''.join(shown)}'"


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))


def _counted(count: int) -> dict[str, str]:
    """Return a count with each noun, under the noun's plural."""
    return {f"{noun}s": f"{count:,} {noun}{'s' * (count != 1)}" for noun in _NOUNS}
