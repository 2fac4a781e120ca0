"""The page: answers as tiles, tables and charts, in one file that needs no other."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from wireyard.answers.evidence import Evidence, Place, find_evidence
from wireyard.errors import UsageError
from wireyard.layers.jmq.delivery import VERDICTS as JMS_VERDICTS
from wireyard.layers.mqtt.deliveries import VERDICTS as MQTT_VERDICTS
from wireyard.report import text
from wireyard.report.questions import BAD_VERDICTS, Answer, ask_all, bucket_ns

if TYPE_CHECKING:
    from wireyard.answers import Tables

__all__ = ["ReportError", "build_report"]

_MOST_CELL: Final = 80
_MOST_FINDINGS: Final = 24
_HEX_BYTES: Final = 8
_HEX_LINES: Final = 6
_MOST_MARKS: Final = 24
_NEEDED: Final = ("jinja2", "altair", "vl_convert")
_SHELL: Final = frozenset('"$`\\!')
_SEVERITIES: Final = ("bad", "warn")
_MEANINGS: Final = {"mqtt": MQTT_VERDICTS, "jms": JMS_VERDICTS}
_MOMENTS: Final = frozenset({"first_ns", "last_ns", "from_ns", "opened_ns", "closed_ns"})
_SPANS: Final = frozenset({"p50_ns", "p90_ns", "p99_ns", "max_ns"})
_COUNTS_OF_BYTES: Final = frozenset(
    {
        "bytes", "bytes_read", "bytes_ok", "bytes_malformed", "bytes_garbage", "bytes_tail",
        "bytes_gap", "bytes_sent",
    }
)  # fmt: skip


class ReportError(UsageError):
    """A report cannot be made."""


@dataclass(frozen=True)
class Finding:
    """Something that needs attention, with its proof."""

    severity: str
    title: str
    query: str
    """The answer that says so."""
    row: int
    column: str
    """Where in it the number of things is."""
    meaning: str
    where: str
    """Where the first of them is."""
    place: Place | None
    command: str
    """What shows all of them."""


def build_report(
    tables: Tables,
    inputs: Sequence[str],
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
        What they were opened from, for the commands that the page shows.
    format, decode_as, keylog
        How they were opened.

    Raises
    ------
    ReportError
        A library is not installed.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ReportError(
            f"report: {' and '.join(missing)} not installed; pip install 'wireyard[report]'"
        )
    from jinja2 import Environment, PackageLoader, StrictUndefined

    answers = ask_all(tables)
    opened = _options(format, decode_as, keylog)
    command = " ".join(["wireyard sql", *map(shlex.quote, inputs), *opened])
    findings = sorted(_findings(answers, command), key=lambda one: _SEVERITIES.index(one.severity))
    shown = findings[:_MOST_FINDINGS]
    evidence = find_evidence(
        {one.place for one in shown if one.place},
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
        command=command,
        findings=shown,
        all_findings=len(findings),
        dumps={place: _dump(found) for place, found in evidence.items()},
        inputs=[text.clipped(one, 60) for one in inputs],
        meanings=_MEANINGS,
        severity=_severity,
        notes=[text.shown(note) for note in tables.notes],
        made=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        version=version("wireyard"),
        moment=text.moment_text,
        span=text.span_text,
    )


def _options(format: str | None, decode_as: Sequence[str], keylog: Sequence[str]) -> Iterator[str]:
    if format:
        yield f"--format {shlex.quote(format)}"
    yield from (f"-d {shlex.quote(one)}" for one in decode_as)
    yield from (f"-o {shlex.quote(one)}" for one in keylog)


# --- what needs attention -------------------------------------------------------------------


def _findings(answers: Mapping[str, Answer], command: str) -> Iterator[Finding]:
    """Yield what needs attention, of each kind the most frequent first."""

    def asking(sql: str) -> str:
        # In double quotes where the shell takes nothing else in it for its own.
        plain = not _SHELL.intersection(sql) and text.shown(sql) == sql
        return f'{command} "{sql}"' if plain else f"{command} {shlex.quote(sql)}"

    for number, row in enumerate(answers["quarantined"].rows):
        what = text.shown(row["message"] or f"{row['status']} bytes")
        yield Finding(
            "bad", f"{row['format']}: {row['status']} bytes in the quarantine", "quarantined",
            number, "rows", what, _where(row), _place(row),
            asking("SELECT * FROM quarantine WHERE " + _equal(row, "status", "error.code=code")),
        )  # fmt: skip
    for number, row in enumerate(answers["failed"].rows):
        severity = _severity(row["protocol"], row["verdict"])
        if severity not in _SEVERITIES:
            continue
        meaning = _MEANINGS.get(row["protocol"], {}).get(row["verdict"], "")
        yield Finding(
            severity, f"{row['protocol']} deliveries: {_words(row['verdict'])}", "failed",
            number, "deliveries", meaning, _where(row), _place(row),
            asking("SELECT * FROM deliveries WHERE " + _equal(row, "protocol", "verdict")),
        )  # fmt: skip
    for number, row in enumerate(answers["ended"].rows):
        if row["ended_by"] not in ("dropped", "refused"):
            continue
        meaning = {
            "dropped": "the connection ended without a goodbye",
            "refused": "the broker refused the login",
        }[row["ended_by"]]
        who = f"; the first was {text.clipped(row['client'] or 'unknown', 40)}"
        yield Finding(
            "warn", f"{row['protocol']} sessions: {row['ended_by']}", "ended", number, "sessions",
            meaning + who, _where(row), _place(row),
            asking("SELECT * FROM sessions WHERE " + _equal(row, "protocol", "ended_by")),
        )  # fmt: skip
    for number, row in enumerate(answers["violations"].rows):
        yield Finding(
            "warn", f"{row['protocol']}: {text.shown(row['rule'] or 'rule')} violated",
            "violations", number, "violations", text.shown(row["text"] or ""), _where(row),
            _place(row),
            asking("SELECT * FROM violations WHERE " + _equal(row, "protocol", "rule")),
        )  # fmt: skip
    for number, row in enumerate(answers["unanswered"].rows):
        meaning = f"no reply was seen; the first was {text.clipped(row['request'] or '', 40)}"
        yield Finding(
            "warn", f"{row['kind']} requests without a reply", "unanswered", number, "requests",
            meaning, _where(row), _place(row),
            asking(
                "SELECT * FROM conversations WHERE reply_key IS NULL AND replied_ns IS NULL AND "
                + _equal(row, "kind")
            ),
        )  # fmt: skip


def _severity(protocol: str | None, verdict: str | None) -> str:
    """Return how bad a verdict is: good, warn, bad or unknown."""
    if verdict is None:
        return "unknown"
    return BAD_VERDICTS.get(protocol or "", {}).get(verdict, "good")


def _words(verdict: str | None) -> str:
    return (verdict or "unknown").replace("_", " ")


def _equal(row: Mapping[str, Any], *columns: str) -> str:
    """Return the condition that columns have the values of a row."""
    parts = []
    for column in columns:
        name, _, key = column.partition("=")
        value = row[key or name]
        quoted = "'" + str(value).replace("'", "''") + "'"
        parts.append(f"{name} IS NULL" if value is None else f"{name} = {quoted}")
    return " AND ".join(parts)


def _where(row: Mapping[str, Any]) -> str:
    frame = row.get("frame")
    at = f"frame {frame}" if frame is not None else f"{row['stream']} at {row['at']}"
    return f"{text.clipped(row['source'], 60)}, {at}"


def _place(row: Mapping[str, Any]) -> Place | None:
    if row["source"] is None or row["stream"] is None or row["at"] is None:
        return None
    return row["source"], row["stream"], row["at"]


# --- values ---------------------------------------------------------------------------------


def _value(value: Any) -> str:
    """Return a value as JSON, as ``wireyard sql`` writes it."""
    return json.dumps(value.hex() if isinstance(value, bytes) else value, ensure_ascii=False)


def _cell(column: str, value: Any) -> str:
    """Return a value for people."""
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
    """Return the charts there is something for, as SVG."""
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
        "slowest": lambda: charts.quantiles(answers["slowest"]),
        "sessions": lambda: charts.sessions(answers["sessions"], first, last),
        "graph": lambda: charts.graph(answers["producers"], answers["consumers"]),
    }
    source = {"packets": "rates", "bytes": "rates", "graph": "producers"}
    there = {name: bool(answers[source.get(name, name)]) for name in drawn}
    there["graph"] |= bool(answers["consumers"])
    there["sessions"] &= first is not None
    return {name: draw() for name, draw in drawn.items() if there[name]}


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
    """What is not shown; empty if all is."""


def _dump(found: Evidence) -> _Dump:
    """Return bytes in lines, beside what they mean."""
    title = f"{found.format.name}, {found.size:,} bytes"
    if not found.marks:
        width = 2 * _HEX_BYTES
        most = found.data[: width * _HEX_LINES]
        lines = [
            _Line(at, most[at : at + width].hex(" "), "", _ascii(most[at : at + width]), "")
            for at in range(0, len(most), width)
        ]
        cut = f"{len(most):,} of {found.size:,} bytes" if len(most) < found.size else ""
        return _Dump(title, lines, cut)
    lines = []
    for mark in found.marks[:_MOST_MARKS]:
        data = found.data[mark.start : mark.stop]
        if mark.field in found.hidden:
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
    count = len(found.marks)
    return _Dump(title, lines, f"{len(lines)} of {count} fields" if len(lines) < count else "")


def _ascii(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
