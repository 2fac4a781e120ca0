"""What is stuck, lost or broken: the findings of the table of symptoms, worst first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireyard.answers.symptoms import SEVERITIES, SYMPTOMS, Symptom
from wireyard.errors import UsageError

if TYPE_CHECKING:
    from wireyard.answers import Tables

__all__ = ["Finding", "find_symptoms"]

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
    """Something that is wrong, with its proof.

    The proof is a packet: its frame in the capture, and where it begins in its stream; or a stored
    record, which has no frame.
    """

    symptom: str
    severity: str
    subject: str
    """What it is about: a destination, or a client where it is about none."""
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
    """Find what is wrong, worst first.

    Parameters
    ----------
    asked
        Only what is about this destination or client.
    shown_as
        The inputs as commands name them.

    Raises
    ------
    UsageError
        There is no such destination or client.
    """
    if asked is not None and not tables.sql(_KNOWN, {"asked": asked}).num_rows:
        raise UsageError(f"there is no destination, client or file '{asked}'")
    found = [
        finding
        for symptom in SYMPTOMS
        for finding in _findings(tables, symptom, shown_as)
        if asked is None or asked in (finding.destination, finding.client)
    ]
    order = {symptom.code: place for place, symptom in enumerate(SYMPTOMS)}
    return sorted(
        found,
        key=lambda one: (
            SEVERITIES.index(one.severity), -one.count, order[one.symptom], one.subject,
            one.client or "", one.source,
        ),
    )  # fmt: skip


def _findings(tables: Tables, symptom: Symptom, shown_as: str) -> Iterator[Finding]:
    for row in tables.sql(symptom.query).to_pylist():
        subject = row["destination"] or row["client"] or row["source"]
        words = {**row, "subject": subject}
        quoted = {name: shlex.quote(str(value)) for name, value in words.items()}
        quoted["input"] = shown_as
        yield Finding(
            symptom=symptom.code,
            severity=symptom.severity,
            subject=subject,
            text=symptom.text.format(**words, **_counted(row["count"])),
            next=symptom.next.format(**quoted),
            **{name: row[name] for name in _OF_ROW},
        )


def _counted(count: int) -> dict[str, str]:
    """Return a count with each noun, by the plural."""
    return {f"{noun}s": f"{count:,} {noun}{'s' * (count != 1)}" for noun in _NOUNS}
