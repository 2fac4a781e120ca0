"""The findings of a report: those of ``wireyard why``, found within a time limit, and bad bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from wireyard.answers.evidence import RowPosition
from wireyard.answers.tables import Row
from wireyard.answers.why import Finding, find_symptoms, is_known
from wireyard.errors import UsageError
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.symptoms import Symptom
from wireyard.report.filters import SHARED_LEVELS, literal, with_subqueries
from wireyard.report.questions import Answer
from wireyard.text import clipped, printable

if TYPE_CHECKING:
    from wireyard.answers import Tables

_MOST_ROWS: Final = 30
"""Causes of one symptom, the worst of them."""
_MOST_CELL: Final = 80
_SYMPTOMS_S: Final = 10.0
"""Time limit for the queries of symptoms: of 20 million messages some take longer than the page."""
_HEADLINES: Final = ("lost", "stuck", "slow")


@dataclass(frozen=True)
class Shown:
    """A finding as the page shows it."""

    kind: str
    severity: str
    title: str
    text: str
    query: str
    """Name of the answer that it is a row of."""
    row: int
    column: str
    """Row and column of the count in that answer."""
    where: str
    """Location of the proof, for people."""
    position: RowPosition
    """Position of the proof."""
    command: str
    """A command that shows more."""
    ends: str = ""
    """The clients that sent, and those that should have received."""
    places: tuple[tuple[str, int], ...] = ()
    """The worst destinations with their counts, if there are several."""


@dataclass(frozen=True)
class Headline:
    """The number of what is lost, stuck or slow, and the worst of it."""

    severity: str
    count: int
    worst: Shown | None
    at_least: bool
    """Whether not all symptoms were looked for."""


@dataclass
class Found:
    """All findings, and the answers that they are rows of."""

    shown: list[Shown]
    answers: dict[str, Answer]
    left: list[str]
    """Codes of symptoms for which there was no time."""
    severities: dict[str, str] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The number of all findings, also of those that limits left out."""
        cut = sum(answer.of - len(answer.rows) for answer in self.answers.values())
        return len(self.shown) + cut

    def headlines(self) -> Iterator[Headline]:
        """Yield the three numbers that matter."""
        for severity in _HEADLINES:
            answers = [self.answers[code] for code, of in self.severities.items() if of == severity]
            unit = "of" if severity == "slow" else "total"
            count = sum(int(answer.rows[0][unit]) for answer in answers)
            worst = next((one for one in self.shown if one.severity == severity), None)
            yield Headline(severity, count, worst, bool(self.left))


def find_all(tables: Tables, quarantined: Answer, shown_as: str, asked: str | None = None) -> Found:
    """Find all findings as the page shows them, the worst first.

    `quarantined` are the bad bytes, which are findings of bare streams. `shown_as` are the inputs
    as on a command line. If `asked` is a destination or client, only its findings are returned.
    """
    found = Found([], {}, [])
    until = monotonic() + _SYMPTOMS_S

    def ask(symptom: Symptom, query: str, given: Mapping[str, Any] | None) -> list[Row]:
        if given is not None:  # in the text, so that the query on the page is complete
            query = query.replace("$asked", literal(given["asked"]))
        limited = _LIMITED.format(query=query.strip(), most=_MOST_ROWS)
        rows = _until(tables, until, limited)
        limited = with_subqueries(limited, *SHARED_LEVELS)
        if rows is None:
            found.left.append(symptom.code)
        elif rows:
            found.answers[symptom.code] = Answer(symptom.code, limited, rows)
            found.severities[symptom.code] = symptom.severity
        return rows or []

    if asked is None or is_known(tables, asked):
        for finding in find_symptoms(tables, asked, shown_as=shown_as, ask=ask):
            found.shown.append(_shown(finding, found.answers, tables.frame_files))
    if asked is None and "malformed" not in found.answers:  # symptoms leave out bare streams
        found.shown[:0] = _from_quarantine(quarantined, shown_as)
    return found


_LIMITED: Final = """
SELECT *, count(*) OVER () AS of, sum(count) OVER () AS total FROM (
{query}
) ORDER BY count DESC, client, destination, worst[1].source, worst[1].stream, worst[1]."offset"
LIMIT {most}
""".strip()


def _until(tables: Tables, until: float, query: str) -> list[Row] | None:
    """Return the rows of a query; None if it is not done by a time."""
    rest = until - monotonic()
    if rest <= 0:
        return None
    timer = Timer(rest, tables.connection.interrupt)
    timer.start()
    try:
        return tables.rows(query)
    except UsageError:
        if monotonic() < until:
            raise
        return None  # it was interrupted
    finally:
        timer.cancel()


def _shown(finding: Finding, answers: Mapping[str, Answer], files: FrameFiles) -> Shown:
    rows = answers[finding.symptom].rows
    proof = {name: getattr(finding, name) for name in ("source", "stream", "frame", "offset")}
    row = next(
        number
        for number, row in enumerate(rows)
        if (row["client"], row["destination"]) == (finding.client, finding.destination)
        and row["count"] == finding.count
        and proof.items() <= row["worst"][0].items()
    )
    several = finding.worst if finding.destinations > 1 else ()
    return Shown(
        kind=finding.symptom.replace("_", " "),
        severity=finding.severity,
        title=", ".join(map(_name, finding.about)),
        text=printable(finding.text),
        query=finding.symptom,
        row=row,
        column="count",
        where=clipped(finding.proof(files), 2 * _MOST_CELL),
        position=(finding.source, finding.stream, finding.offset),
        command=printable(finding.next),
        ends=finding.ends(_name),
        places=tuple((_name(at["destination"]), at["count"]) for at in several),
    )  # fmt: skip


def _name(name: str) -> str:
    return clipped(name, _MOST_CELL)


def _from_quarantine(quarantined: Answer, inputs: str) -> Iterator[Shown]:
    """Yield the rows of the quarantine as findings."""
    for number, row in enumerate(quarantined.rows):
        message = row["message"] or "bytes that belong to no packet"
        sql = f"FROM quarantine WHERE status = '{row['status']}'"
        yield Shown(
            kind=f"{row['status']} bytes",
            severity="lost",
            title=clipped(f"{row['format']} {row['field'] or ''}".strip(), _MOST_CELL),
            text=printable(message),
            query="quarantined",
            row=number,
            column="rows",
            where=f"{clipped(row['source'], 60)}, {clipped(row['stream'], 60)} at {row['at']}",
            position=(row["source"], row["stream"], row["at"]),
            command=f'wireyard sql {inputs} "{sql}"',
        )
