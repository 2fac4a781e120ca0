"""The page of a report: answers as tiles, tables and charts, in one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from wireyard.answers.evidence import MOST_SOURCE_BYTES, Evidence, RowPosition, find_evidence
from wireyard.answers.symptoms import symptoms as all_symptoms
from wireyard.answers.tables import Row
from wireyard.answers.visibility import how_far
from wireyard.answers.why import Finding, find_symptoms
from wireyard.errors import UsageError
from wireyard.layers.facts import facts_of, registered
from wireyard.layers.frame_files import FrameFiles
from wireyard.report import text
from wireyard.report.questions import Answer, ask_all, bucket_ns

if TYPE_CHECKING:
    from wireyard.answers import Tables

__all__ = ["build_report"]

_MOST_CELL: Final = 80
_MOST_FINDINGS: Final = 24
_MOST_ROWS: Final = 30
"""Findings of one symptom, the worst of them."""
_HEX_BYTES: Final = 8
_HEX_LINES: Final = 6
_MOST_MARKS: Final = 24
_SYMPTOMS_S: Final = 10.0
"""Time limit for the queries of symptoms: of 20 million messages some take longer than the page."""
_MOMENTS: Final = frozenset({"first_ns", "last_ns", "from_ns", "at_ns", "opened_ns", "closed_ns"})
_SPANS: Final = frozenset(
    {"p50_ns", "p90_ns", "p99_ns", "max_ns", "oldest_ns", "oldest_unacknowledged_ns"}
)
_COUNTS_OF_BYTES: Final = frozenset(
    {
        "bytes", "bytes_read", "bytes_ok", "bytes_malformed", "bytes_garbage", "bytes_tail",
        "bytes_gap", "bytes_sent",
    }
)  # fmt: skip


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


def build_report(
    tables: Tables,
    inputs: Sequence[str],
    shown_as: str,
    *,
    format: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
) -> str:
    """Return a report as a page of HTML.

    Parameters
    ----------
    tables
        The tables of the inputs.
    inputs
        The inputs that they were opened from.
    shown_as
        The inputs with all options, as on a command line.
    format, decode_as, keylog
        The options that they were opened with.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    answers = ask_all(tables)
    findings, symptoms = _find(tables, answers["quarantined"], shown_as)
    answers |= symptoms.answers
    shown = findings[:_MOST_FINDINGS]
    evidence = find_evidence(
        {finding.position for finding in shown if None not in finding.position},
        tables.frame_files,
        format=format,
        decode_as=decode_as,
        keylog=keylog,
    )
    environment = Environment(
        loader=PackageLoader("wireyard.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"cell": _cell, "value": _value, "clipped": text.clipped}
    page = environment.get_template("page.html.jinja")
    return page.render(
        answers=answers,
        charts=_charts(answers),
        command=f"wireyard sql {shown_as}",
        findings=shown,
        all_findings=len(findings) + symptoms.cut,
        symptoms=symptoms,
        all_symptoms=len(all_symptoms()),
        why=f"wireyard why {shown_as}",
        dumps={position: _dump(found) for position, found in evidence.items()},
        inputs=[text.clipped(name, 60) for name in inputs],
        meanings={facts.protocol: facts.verdicts for facts in registered()},
        severity=_severity,
        most_source=text.bytes_text(MOST_SOURCE_BYTES),
        unseen=how_far(tables),
        notes=[text.shown(note) for note in tables.notes],
        made=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        version=version("wireyard"),
        moment=text.moment_text,
        span=text.span_text,
    )


# --- findings -------------------------------------------------------------------------------


class _Symptoms:
    """Runs the queries of symptoms within a time limit, and keeps their sorted rows as answers.

    It takes the place of `Tables` for `find_symptoms`. When the time is over, the queries of the
    remaining symptoms return no rows; their codes are in `left`.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.formats = tables.formats
        self._waiting = iter(all_symptoms(self.formats))
        self._until = monotonic() + _SYMPTOMS_S
        self.answers: dict[str, Answer] = {}
        self.left: list[str] = []

    def rows(self, query: str) -> list[Row]:
        """Return the rows for the next symptom."""
        symptom = next(self._waiting)
        text = (
            f"SELECT *, count(*) OVER () AS of FROM (\n{query.strip()}\n)\n"
            f"ORDER BY count DESC, destination, client, source, stream LIMIT {_MOST_ROWS}"
        )
        rest = self._until - monotonic()
        timer = Timer(max(rest, 0), self._tables.connection.interrupt)
        timer.start()
        try:
            found = self._tables.rows(text) if rest > 0 else None
        except UsageError:
            if monotonic() < self._until:
                raise
            found = None  # it was interrupted
        finally:
            timer.cancel()
        if found is None:
            self.left.append(symptom.code)
            return []
        if found:
            self.answers[symptom.code] = Answer(symptom.code, text, found)
        return found

    @property
    def cut(self) -> int:
        """Number of findings beyond those in the answers."""
        return sum(answer.of - len(answer.rows) for answer in self.answers.values())

    def row_of(self, finding: Finding) -> int:
        """Return the number of a finding's row in its answer."""
        names = ("destination", "client", "source", "stream", "frame", "offset", "count")
        wanted = [getattr(finding, name) for name in names]
        rows = self.answers[finding.symptom].rows
        return next(
            number for number, row in enumerate(rows) if [row[name] for name in names] == wanted
        )


def _find(tables: Tables, quarantined: Answer, shown_as: str) -> tuple[list[Shown], _Symptoms]:
    """Return all findings as the page shows them, the worst first."""
    symptoms = _Symptoms(tables)
    findings = [
        Shown(
            kind=finding.symptom.replace("_", " "),
            severity=finding.severity,
            title=text.clipped(finding.subject, _MOST_CELL),
            text=text.shown(finding.text),
            query=finding.symptom,
            row=symptoms.row_of(finding),
            column="count",
            where=_where(finding, tables.frame_files),
            position=(finding.source, finding.stream, finding.offset),
            command=text.shown(finding.next),
        )
        for finding in find_symptoms(symptoms, None, shown_as=shown_as)  # type: ignore[arg-type]
    ]
    if "malformed" not in symptoms.answers:  # symptoms leave out bare streams
        findings[:0] = _from_quarantine(quarantined, shown_as)
    return findings, symptoms


def _from_quarantine(quarantined: Answer, inputs: str) -> Iterator[Shown]:
    """Yield the rows of the quarantine as findings."""
    for number, row in enumerate(quarantined.rows):
        message = row["message"] or "bytes that belong to no packet"
        sql = f"FROM quarantine WHERE status = '{row['status']}'"
        yield Shown(
            kind=f"{row['status']} bytes",
            severity="lost",
            title=text.clipped(f"{row['format']} {row['field'] or ''}".strip(), _MOST_CELL),
            text=text.shown(message),
            query="quarantined",
            row=number,
            column="rows",
            where=f"{text.clipped(row['source'], 60)}, {text.clipped(row['stream'], 60)}"
            f" at {row['at']}",
            position=(row["source"], row["stream"], row["at"]),
            command=f'wireyard sql {inputs} "{sql}"',
        )


def _where(finding: Finding, files: FrameFiles) -> str:
    if finding.frame is not None:
        file, number = files.find(finding.source, finding.frame)
        return f"{text.clipped(file, 60)}, frame {number}"
    stream = text.clipped(finding.stream or "", 60)
    return f"{text.clipped(finding.source or '', 60)}, {stream} at {finding.offset}"


def _severity(protocol: str | None, verdict: str | None) -> str:
    """Return the severity of a verdict: good, warn, bad or unknown."""
    facts = facts_of(protocol or "")
    known = facts.verdicts.get(verdict or "") if facts else None
    return known.condition if known else "unknown"


# --- values ---------------------------------------------------------------------------------


def _value(value: Any) -> str:
    """Return a value as JSON, as ``wireyard sql`` writes it."""
    return json.dumps(value.hex() if isinstance(value, bytes) else value, ensure_ascii=False)


def _cell(column: str, value: Any) -> str:
    """Return a value of a column as text for people."""
    if value is None:
        return "-"
    if column in _MOMENTS:
        return text.moment_text(value)
    if column in _SPANS:
        return text.span_text(value)
    if column in _COUNTS_OF_BYTES:
        return text.bytes_text(value)
    if isinstance(value, bytes):
        return text.payload_text(value)
    if isinstance(value, int):
        return text.count_text(value)
    shown = text.clipped(str(value), _MOST_CELL)
    cut = len(str(value)) > _MOST_CELL
    return f"{shown} ({_MOST_CELL} of {len(value)} characters)" if cut else shown


# --- parts of the page ----------------------------------------------------------------------


def _charts(answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return the charts that have data, as SVG."""
    from wireyard.report import charts

    overview = answers["overview"].rows[0]
    first, last = overview["first_ns"], overview["last_ns"]
    width = bucket_ns(first, last)
    drawn: Mapping[str, Callable[[], str]] = {
        "packets": lambda: charts.rates(answers["rates"], width, "packets"),
        "bytes": lambda: charts.rates(answers["rates"], width, "bytes"),
        "flow": lambda: charts.throughput(answers["flow"], width),
        "sizes": lambda: charts.sizes(answers["sizes"]),
        "delays": lambda: charts.delays(answers["delays"]),
        "ages": lambda: charts.ages(answers["ages"], width),
        "slowest": lambda: charts.quantiles(answers["slowest"]),
        "sessions": lambda: charts.sessions(answers["sessions"], first, last),
        "graph": lambda: charts.graph(answers["producers"], answers["consumers"]),
    }
    source = {"packets": "rates", "bytes": "rates", "graph": "producers"}
    has_data = {name: bool(answers[source.get(name, name)]) for name in drawn}
    has_data["graph"] |= bool(answers["consumers"])
    has_data["sessions"] &= first is not None
    return {name: draw() for name, draw in drawn.items() if has_data[name]}


@dataclass(frozen=True)
class _Line:
    start: int
    hex: str
    field: str
    value: str
    spec: str


@dataclass(frozen=True)
class _Dump:
    title: str
    lines: list[_Line]
    cut: str
    """How much is shown; empty if everything is."""


def _dump(evidence: Evidence) -> _Dump:
    """Return a hex dump, with the meaning of the bytes beside it."""
    title = f"{evidence.format.name}, {evidence.size:,} bytes"
    if not evidence.marks:
        width = 2 * _HEX_BYTES
        most = evidence.data[: width * _HEX_LINES]
        lines = [
            _Line(at, most[at : at + width].hex(" "), "", _ascii(most[at : at + width]), "")
            for at in range(0, len(most), width)
        ]
        cut = f"{len(most):,} of {evidence.size:,} bytes" if len(most) < evidence.size else ""
        return _Dump(title, lines, cut)
    lines = []
    for mark in evidence.marks[:_MOST_MARKS]:
        data = evidence.data[mark.start : mark.stop]
        if mark.hidden:
            dump = f"-- ({len(data)} bytes)"
        else:
            shown = data[: _HEX_BYTES * _HEX_LINES]
            parts = [shown[at : at + _HEX_BYTES] for at in range(0, len(shown), _HEX_BYTES)]
            dump = "\n".join(part.hex(" ") for part in parts)
            if len(shown) < len(data):
                dump += f"\n{len(shown)} of {len(data):,} bytes"
        lines.append(
            _Line(
                mark.start, dump, text.shown(mark.field), text.clipped(mark.value, 200), mark.spec
            )
        )
    count = len(evidence.marks)
    return _Dump(title, lines, f"{len(lines)} of {count} fields" if len(lines) < count else "")


def _ascii(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
